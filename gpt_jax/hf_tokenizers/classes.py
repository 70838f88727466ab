# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the classes of transformers make of the files of a tokenizer.

AutoTokenizer takes only the vocabulary of a `tokenizer.json` where its class
knows better: the class builds the normalizer, the pre-tokenizer and the rest
itself, from the options of `tokenizer_config.json`. This is done here too, as
by transformers 5, or the class or option is refused by name.
"""

import base64
import json
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import tokenizers
from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers, processors

from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers import library as library_lib
from gpt_jax.core.tokenizers.special import ADDED, CONFIG, MAP, content
from gpt_jax.core.tokenizers.words import SPACE_MARK
from gpt_jax.hf_tokenizers import special_files

log = logging.getLogger('gpt_jax')

_BYTES = {f'<0x{byte:02X}>' for byte in range(256)}
_PARTS = ('normalizer', 'pre_tokenizer', 'decoder')
_ANEW = (
  'save the tokenizer as it reads texts, as a tokenizer.json that says all: '
  'made = AutoTokenizer.from_pretrained(FOLDER); PreTrainedTokenizerFast('
  'tokenizer_object=made._tokenizer, **made.special_tokens_map)'
  '.save_pretrained(NEW_FOLDER)'
)


class Entries(NamedTuple):
  """What the files beside a vocabulary say about its tokenizer.

  Attributes:
    path: of tokenizer_config.json.
    config: its entries.
    roles: with those of special_tokens_map.json, where transformers reads it.
    added: added_tokens.json, where transformers reads it.
    name: the class of transformers; '': none that adds anything.
  """

  path: str
  config: Mapping[str, Any]
  roles: Mapping[str, Any]
  added: Mapping[str, int]
  name: str

  def flag(self, option: str, default: Any) -> Any:
    """A yes or no; null is as no entry."""
    value = self.config.get(option)
    if value is None:
      return default
    if not isinstance(value, bool):
      raise self.refusal(option, 'give true or false')
    return value

  def role(self, role: str, default: str) -> str:
    return content(self.roles.get(f'{role}_token')) or default

  def refusal(self, option: str, why: str) -> UsageError:
    value = self.config.get(option)
    if option == 'tokenizer_class':  # maybe by the model's type
      value = value or self.name
    return UsageError(f'{self.path}: {option}={value!r}: {why}')


class _Parts(NamedTuple):
  """What a class builds.

  Attributes:
    model: entries of the model in tokenizer.json.
    around: makes the post-processor, with the tokens; None: the file's is kept.
  """

  model: Mapping[str, Any]
  normalizer: Any
  pre_tokenizer: Any
  decoder: Any
  around: Callable[[tokenizers.Tokenizer], Any] | None = None


def entries(folder: str, vocabulary: bytes = b'') -> Entries:
  """Reads the files beside a vocabulary.

  Args:
    vocabulary: the tokenizer.json, if there is one.
  """
  config, map_, added, model = (
    special_files.beside(folder, name) for name in (CONFIG, MAP, ADDED, special_files.MODEL)
  )
  found = Entries(
    os.path.join(folder, CONFIG),
    config,
    {**config, **map_},
    added,
    _class_of(config, model, vocabulary),
  )
  if config.get('added_tokens_decoder') is None:
    return found
  return found._replace(roles=config, added={})


def _class_of(config: Mapping[str, Any], model: Mapping[str, Any], vocabulary: bytes) -> str:
  """The class that AutoTokenizer takes; '': one that adds nothing."""
  declared = config.get('tokenizer_class') or model.get('tokenizer_class') or ''
  name = str(declared).removesuffix('Fast')
  kind = model.get('model_type')
  # Such a class would read a byte-level file as SentencePiece's.
  if name == 'LlamaTokenizer' and b'"ByteLevel"' in vocabulary:
    return ''
  if name in PLAIN_CLASSES or kind in PLAIN_MODELS:
    return ''
  usual = OF_MODELS.get(str(kind), '')
  name = usual if kind in FORCED_MODELS else name or usual
  return ALIASES.get(name, name)


def as_class(folder: str, vocabulary: bytes) -> bytes:
  """The tokenizer.json of a folder, as AutoTokenizer reads it.

  The same bytes, if it does nothing to them.
  """
  beside = entries(folder, vocabulary)
  _check(beside)
  values = json.loads(vocabulary)
  library, around = library_lib.load(vocabulary), None
  before = json.loads(library.to_str())
  tokens = _tokens(beside, values)
  if not beside.name:
    there = {repr(t) for t in library.get_added_tokens_decoder().values()}
    library.add_tokens([t for t in tokens if repr(t) not in there])
  else:
    library, around = _built(beside, values)
    library.add_tokens(tokens)
  if around is not None:
    with library_lib.errors(
      f'{beside.path}: tokenizer_class={beside.name!r}: the vocabulary lacks '
      'special tokens of this class: {}'
    ):
      library.post_processor = around(library)
  after = json.loads(library.to_str())
  changed = [name for name in after if before[name] != after[name]]
  if not changed:
    return vocabulary
  log.warning(
    '%s: tokenizer_class=%r and its options decide over %s of tokenizer.json, as in transformers',
    beside.path,
    beside.name or 'PreTrainedTokenizerFast',
    ', '.join(changed),
  )
  return library.to_str().encode()


def _check(beside: Entries) -> None:
  """Refuses what transformers would do and nobody does here."""
  if beside.name and beside.name not in CLASSES:
    raise UsageError(
      f'{beside.path}: tokenizer_class={beside.name!r}: transformers reads a '
      'text by rules of this class, which are not known here, and not by its '
      f'tokenizer.json alone; {_ANEW}'
    )
  for option in ('auto_map', 'fix_mistral_regex', 'fast_tokenizer_files'):
    if beside.config.get(option):
      raise beside.refusal(option, f'is not known here; {_ANEW}')


def _tokens(beside: Entries, values: Mapping[str, Any]) -> list[AddedToken]:
  """The added tokens, in the order of their ids."""
  decoder = beside.config.get('added_tokens_decoder')
  try:
    if decoder is not None:
      listed = {int(i): AddedToken(**token) for i, token in decoder.items()}
    else:
      listed = {
        i: AddedToken(name, normalized=name not in beside.roles.values())
        for name, i in beside.added.items()
      } | {
        token['id']: AddedToken(**{name: x for name, x in token.items() if name != 'id'})
        for token in values.get('added_tokens') or ()
      }
    return [listed[i] for i in sorted(listed)]
  except (TypeError, ValueError, AttributeError, KeyError) as e:
    raise UsageError(f'{beside.path}: added_tokens_decoder is damaged; copy it again') from e


def _built(
  beside: Entries, values: Mapping[str, Any]
) -> tuple[tokenizers.Tokenizer, Callable[..., Any] | None]:
  """The tokenizer of a class, and what makes its post-processor."""
  kind, build = CLASSES[beside.name]
  model = values.get('model') or {}
  if model.get('type', kind) != kind:
    raise UsageError(
      f'{beside.path}: tokenizer_class={beside.name!r}: this class reads a '
      f'{kind}, and tokenizer.json has a {model["type"]}; name the class that '
      "it was made for, or 'PreTrainedTokenizerFast'"
    )
  with library_lib.errors(
    f'{beside.path}: tokenizer_class={beside.name!r}: tokenizer.json does not suit this class: {{}}'
  ):
    parts = build(beside, values)
  # None and '' are the same. With a piece for each byte nothing is unknown.
  settings = {x: y for x, y in parts.model.items() if y or model.get(x)}
  if settings.get('byte_fallback') and model['vocab'].keys() >= _BYTES:
    settings.pop('unk_token', None)
  made = {
    **values,
    'model': {**model, 'type': kind, **settings},
    'added_tokens': [],
    'truncation': None,
    'padding': None,
  }
  for name in _PARTS:
    part = getattr(parts, name)
    made[name] = part if part is None else json.loads(part.__getstate__())
  return library_lib.load(json.dumps(made).encode()), parts.around


# The classes.


def _bpe(**options: Any) -> dict[str, Any]:
  return {
    'dropout': None,
    'unk_token': None,
    'continuing_subword_prefix': '',
    'end_of_word_suffix': '',
    'fuse_unk': False,
    'byte_fallback': False,
    'ignore_merges': False,
    **options,
  }


def _bytes(o: Entries, **parts: Any) -> _Parts:
  spaced = o.flag('add_prefix_space', False)
  usual = {'normalizer': None, 'pre_tokenizer': pre_tokenizers.ByteLevel(add_prefix_space=spaced)}
  return _Parts(_bpe(), decoder=decoders.ByteLevel(), **{**usual, **parts})


def _gpt2(o: Entries, values: Any) -> _Parts:
  del values
  return _bytes(o)


def _gpt_neox(o: Entries, values: Any) -> _Parts:
  del values
  level = pre_tokenizers.ByteLevel(
    add_prefix_space=o.flag('add_prefix_space', False), trim_offsets=o.flag('trim_offsets', True)
  )
  return _bytes(
    o,
    normalizer=normalizers.NFC(),
    pre_tokenizer=level,
    around=lambda library: processors.TemplateProcessing(
      single='$A:0', pair='$A:0 $B:1', special_tokens=[]
    ),
  )


def _qwen2(o: Entries, values: Any) -> _Parts:
  del values
  level = pre_tokenizers.ByteLevel(
    add_prefix_space=o.flag('add_prefix_space', False), use_regex=False
  )
  split = pre_tokenizers.Split(Regex(_QWEN2), behavior='isolated', invert=False)
  return _bytes(
    o, normalizer=normalizers.NFC(), pre_tokenizer=pre_tokenizers.Sequence([split, level])
  )


def _roberta(o: Entries, values: Any) -> _Parts:
  del values
  trim = o.flag('trim_offsets', True)
  return _bytes(o, around=_pair_of(o, '<s>', '</s>', trim, o.flag('add_prefix_space', False)))


def _deberta(o: Entries, values: Any) -> _Parts:
  del values
  around = _template(o, '[CLS]', '[SEP]', pair='{0} $A {1} {1} $B {1}')
  return _bytes(o, around=around)


def _gpt1(o: Entries, values: Any) -> _Parts:
  del values
  unknown = o.role('unk', '<unk>')
  return _Parts(
    _bpe(end_of_word_suffix='</w>', unk_token=unknown),
    normalizers.BertNormalizer(lowercase=True),
    pre_tokenizers.BertPreTokenizer(),
    decoders.BPEDecoder(suffix='</w>'),
  )


def _marked(scheme: str, strip: bool, **model: Any) -> _Parts:
  """As LLaMA's: spaces are marks, and unknown characters bytes."""
  steps = [
    decoders.Replace(SPACE_MARK, ' '),
    decoders.ByteFallback(),
    decoders.Fuse(),
    *[decoders.Strip(content=' ', left=1)] * strip,
  ]
  return _Parts(
    # The class leaves these two at None, which is as ''.
    _bpe(fuse_unk=True, byte_fallback=True, **model),
    None,
    pre_tokenizers.Metaspace(SPACE_MARK, prepend_scheme=scheme, split=False),
    decoders.Sequence(steps),
  )


def _llama(o: Entries, values: Any) -> _Parts:
  del values
  spaced = o.flag('add_prefix_space', True)
  scheme = 'always' if o.flag('legacy', False) else 'first'
  return _marked(scheme if spaced else 'never', spaced)


def _code_llama(o: Entries, values: Any) -> _Parts:
  del values
  scheme = 'first' if o.flag('add_prefix_space', True) else 'never'
  marked = _marked(scheme, True, unk_token=o.role('unk', '<unk>'))
  around = _template(o, '<s>', '', '{0} $A', '{0} $A {0}:1 $B:1', names=('bos', ''))
  return marked._replace(around=around)


def _gemma(o: Entries, values: Any) -> _Parts:
  del values
  split = pre_tokenizers.Split(' ', 'merged_with_previous', invert=False)
  marked = _marked('never', False, unk_token=o.role('unk', '<unk>'))
  return marked._replace(normalizer=normalizers.Replace(' ', SPACE_MARK), pre_tokenizer=split)


def _bert(o: Entries, values: Any) -> _Parts:
  del values
  normalizer = normalizers.BertNormalizer(
    clean_text=True,
    handle_chinese_chars=o.flag('tokenize_chinese_chars', True),
    strip_accents=o.flag('strip_accents', None),
    lowercase=o.flag('do_lower_case', True),
  )
  model = {
    'unk_token': o.role('unk', '[UNK]'),
    'continuing_subword_prefix': '##',
    'max_input_chars_per_word': 100,
  }
  around = _template(o, '[CLS]', '[SEP]')
  before = pre_tokenizers.BertPreTokenizer()
  return _Parts(model, normalizer, before, decoders.WordPiece('##'), around)


def _mpnet(o: Entries, values: Any) -> _Parts:
  around = _pair_of(o, '<s>', '</s>', True, False)
  return _bert(o, values)._replace(around=around)


def _unigram(unk_id: int, normalizer: Any, scheme: str, *before: Any, around: Any) -> _Parts:
  """As SentencePiece's: words begin with a mark."""
  mark: Any = {'replacement': SPACE_MARK, 'prepend_scheme': scheme}
  steps = [*before, pre_tokenizers.Metaspace(**mark)]
  return _Parts(
    {'unk_id': unk_id, 'byte_fallback': False},
    normalizer,
    pre_tokenizers.Sequence(steps) if before else steps[0],
    decoders.Metaspace(**mark),
    around,
  )


def _words(unk_id: int, normalizer: Any, spaced: bool, around: Any) -> _Parts:
  split = pre_tokenizers.WhitespaceSplit()
  scheme = 'always' if spaced else 'never'
  return _unigram(unk_id, normalizer, scheme, split, around=around)


def _charsmap(values: Any) -> list[Any]:
  """The normalization of SentencePiece in a tokenizer.json."""
  step = values.get('normalizer') or {}
  steps = step.get('normalizers') or [step]
  found = [s for s in steps if s.get('precompiled_charsmap')][:1]
  return [normalizers.Precompiled(base64.b64decode(s['precompiled_charsmap'])) for s in found]


def _quotes(o: Entries, values: Any, keep_accents: bool, lower: bool) -> Any:
  accents = [normalizers.NFKD(), normalizers.StripAccents()]
  quotes = [normalizers.Replace(x, '"') for x in ('``', "''")]
  return normalizers.Sequence(
    [
      *quotes,
      *accents * (not keep_accents),
      *[normalizers.Lowercase()] * o.flag('do_lower_case', lower),
      *_charsmap(values),
    ]
  )


def _albert(o: Entries, values: Any) -> _Parts:
  normalizer = _quotes(o, values, o.flag('keep_accents', False), lower=True)
  spaced = o.flag('add_prefix_space', True)
  # Its names stand in the class; no entry changes them. The file's come first.
  around = _template(o._replace(roles={}), '[CLS]', '[SEP]')
  around = None if values.get('post_processor') else around
  return _words(1, normalizer, spaced, around)


def _xlnet(o: Entries, values: Any) -> _Parts:
  # The class strips accents whatever `keep_accents` says.
  normalizer = _quotes(o, values, keep_accents=False, lower=False)
  around = _template(
    o, '<cls>', '<sep>', single='$A:0 {1}:0 {0}:2', pair='$A:0 {1}:0 $B:1 {1}:1 {0}:2'
  )
  return _words(_unk_id(o, 0), normalizer, True, around)


def _t5(o: Entries, values: Any) -> _Parts:
  around = _template(o._replace(roles={}), '', '</s>', '$A {1}', '$A {1} $B {1}')
  return _words(2, _only(_charsmap(values)), True, around)


def _xlm_roberta(o: Entries, values: Any) -> _Parts:
  around = _template(o, '<s>', '</s>', '{0} $A {1}', '{0} $A {1} {1} $B {1}', names=('bos', 'eos'))
  spaced = o.flag('add_prefix_space', True)
  return _words(3, _only(_charsmap(values)), spaced, around)


def _mbart(o: Entries, values: Any) -> _Parts:
  del values
  language = o.config.get('src_lang') or 'en_XX'
  around = _template(o, language, '</s>', '$A {1} {0}', '$A $B {1} {0}', names=('', 'eos'))
  return _words(3, None, True, around)


def _deberta_v2(o: Entries, values: Any) -> _Parts:
  normalizer = normalizers.Sequence(
    [
      *[normalizers.Lowercase()] * o.flag('do_lower_case', False),
      normalizers.Replace(Regex(r'\s{2,}|[\n\r\t]'), ' '),
      normalizers.NFC(),
      normalizers.Strip(left=False, right=True),
    ]
  )
  punctuation = pre_tokenizers.Punctuation('isolated')
  return _unigram(
    _unknown_of(o, values, '[UNK]', _unk_id(o, 1)),
    normalizer,
    'always' if o.flag('add_prefix_space', True) else 'first',
    # A sequence, even of one.
    *[punctuation] * o.flag('split_by_punct', False),
    around=_template(o, '[CLS]', '[SEP]'),
  )


def _big_bird(o: Entries, values: Any) -> _Parts:
  normalizer = normalizers.Sequence(
    [normalizers.Strip(left=False, right=False), normalizers.Replace(Regex(r' {2,}'), SPACE_MARK)]
  )
  return _unigram(
    _unknown_of(o, values, '<unk>', 100),
    normalizer,
    'always' if o.flag('add_prefix_space', True) else 'never',
    around=_template(o, '[CLS]', '[SEP]'),
  )


def _only(parts: list[Any]) -> Any:
  return parts[0] if parts else None


def _unk_id(o: Entries, default: int) -> int:
  value = o.config.get('unk_id')
  if value is None:
    return default
  if type(value) is not int:
    raise o.refusal('unk_id', 'give a token id')
  return value


def _unknown_of(o: Entries, values: Any, usual: str, default: int) -> int:
  """The id of the unknown token, which has the score 0."""
  unknown = [o.role('unk', usual), 0.0]
  vocabulary = values['model']['vocab']
  return vocabulary.index(unknown) if unknown in vocabulary else default


def _pair_of(
  o: Entries, cls: str, sep: str, trim: bool, spaced: bool
) -> Callable[[tokenizers.Tokenizer], Any]:
  names = o.role('sep', sep), o.role('cls', cls)

  def around(library: tokenizers.Tokenizer) -> Any:
    last, first = [(name, library.token_to_id(name)) for name in names]
    make: Any = processors.RobertaProcessing
    return make(last, first, trim, spaced)

  return around


def _template(
  o: Entries,
  first: str,
  last: str,
  single: str = '{0}:0 $A:0 {1}:0',
  pair: str = '{0}:0 $A:0 {1}:0 $B:1 {1}:1',
  names: tuple[str, str] = ('cls', 'sep'),
) -> Callable[[tokenizers.Tokenizer], Any]:
  """Puts tokens around a text.

  Args:
    first: {0} in `single` and `pair`, unless an entry names this role.
    last: {1}.
    names: of the two roles.
  """
  tokens = [o.role(name, token) for name, token in zip(names, (first, last), strict=True)]

  def around(library: tokenizers.Tokenizer) -> Any:
    ids: Any = [(t, library.token_to_id(t)) for t in dict.fromkeys(tokens) if t]
    return processors.TemplateProcessing(
      # A list, since names may have spaces.
      single=[x.format(*tokens) for x in single.split(' ')],
      pair=[x.format(*tokens) for x in pair.split(' ')],
      special_tokens=ids,
    )

  return around


_QWEN2 = (
  r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
  r'| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+'
)

# The type of the model, and what builds the rest.
CLASSES: dict[str, tuple[str, Callable[[Entries, Any], _Parts]]] = {
  'GPT2Tokenizer': ('BPE', _gpt2),
  'GPTNeoXTokenizer': ('BPE', _gpt_neox),
  'Qwen2Tokenizer': ('BPE', _qwen2),
  'RobertaTokenizer': ('BPE', _roberta),
  'DebertaTokenizer': ('BPE', _deberta),
  'OpenAIGPTTokenizer': ('BPE', _gpt1),
  'LlamaTokenizer': ('BPE', _llama),
  'CodeLlamaTokenizer': ('BPE', _code_llama),
  'GemmaTokenizer': ('BPE', _gemma),
  'BertTokenizer': ('WordPiece', _bert),
  'MPNetTokenizer': ('WordPiece', _mpnet),
  'AlbertTokenizer': ('Unigram', _albert),
  'XLNetTokenizer': ('Unigram', _xlnet),
  'T5Tokenizer': ('Unigram', _t5),
  'XLMRobertaTokenizer': ('Unigram', _xlm_roberta),
  'MBartTokenizer': ('Unigram', _mbart),
  'DebertaV2Tokenizer': ('Unigram', _deberta_v2),
  'BigBirdTokenizer': ('Unigram', _big_bird),
}
# Other names of these classes.
ALIASES = {
  **dict.fromkeys(
    ('BartTokenizer', 'LEDTokenizer', 'LongformerTokenizer', 'MvpTokenizer'), 'RobertaTokenizer'
  ),
  **dict.fromkeys(
    (
      'DistilBertTokenizer',
      'ElectraTokenizer',
      'LayoutLMTokenizer',
      'LxmertTokenizer',
      'MobileBertTokenizer',
      'SqueezeBertTokenizer',
    ),
    'BertTokenizer',
  ),
}
# Classes that take a tokenizer.json as it is.
PLAIN_CLASSES = (
  'TokenizersBackend',
  'PreTrainedTokenizer',
  'BloomTokenizer',
  'TransfoXLTokenizer',
  'FalconTokenizer',
  'MT5Tokenizer',
  'PhiTokenizer',
)
# Models whose tokenizer.json is taken as it is, whatever the class.
PLAIN_MODELS = (
  'bigbird_pegasus',
  'ernie4_5',
  'ernie4_5_moe',
  'flex_olmo',
  'glm',
  'glm4',
  'glm4_moe',
  'gpt_bigcode',
  'granite',
  'granitemoe',
  'granitemoehybrid',
  'granitemoeshared',
  'internlm2',
  'internlm3',
  'jamba',
  'kimi_linear',
  'minicpm3',
  'minimax_m2',
  'ministral',
  'ministral3',
  'mistral',
  'mistral3',
  'mixtral',
  'modernbert',
  'modernbert-decoder',
  'nemotron',
  'nystromformer',
  'olmo2',
  'olmo3',
  'olmo_hybrid',
  'pegasus_x',
  'persimmon',
  'phi3',
  'phimoe',
  'stablelm',
  'umt5',
  'xlm-roberta-xl',
)
# The class of a model where no file names one.
OF_MODELS = {
  'albert': 'AlbertTokenizer',
  'bart': 'RobertaTokenizer',
  'bert': 'BertTokenizer',
  'big_bird': 'BigBirdTokenizer',
  'camembert': 'CamembertTokenizer',
  'code_llama': 'CodeLlamaTokenizer',
  'codegen': 'GPT2Tokenizer',
  'deberta': 'DebertaTokenizer',
  'deberta-v2': 'DebertaV2Tokenizer',
  'distilbert': 'BertTokenizer',
  'electra': 'BertTokenizer',
  'gemma': 'GemmaTokenizer',
  'gemma2': 'GemmaTokenizer',
  'gemma3': 'GemmaTokenizer',
  'gemma3_text': 'GemmaTokenizer',
  'gpt2': 'GPT2Tokenizer',
  'gpt_neo': 'GPT2Tokenizer',
  'gpt_neox': 'GPTNeoXTokenizer',
  'gptj': 'GPT2Tokenizer',
  'marian': 'MarianTokenizer',
  'mbart': 'MBartTokenizer',
  'mobilebert': 'MobileBertTokenizer',
  'mpnet': 'MPNetTokenizer',
  'mpt': 'GPTNeoXTokenizer',
  'mt5': 'T5Tokenizer',
  'olmo': 'GPTNeoXTokenizer',
  'olmoe': 'GPTNeoXTokenizer',
  'openai-gpt': 'OpenAIGPTTokenizer',
  'opt': 'GPT2Tokenizer',
  'phi': 'GPT2Tokenizer',
  'pegasus': 'PegasusTokenizer',
  'qwen2': 'Qwen2Tokenizer',
  'qwen2_moe': 'Qwen2Tokenizer',
  'qwen3': 'Qwen2Tokenizer',
  'qwen3_moe': 'Qwen2Tokenizer',
  'roberta': 'RobertaTokenizer',
  'starcoder2': 'GPT2Tokenizer',
  'switch_transformers': 'T5Tokenizer',
  't5': 'T5Tokenizer',
  'xlm-roberta': 'XLMRobertaTokenizer',
  'xlnet': 'XLNetTokenizer',
}
# Models whose class is this one, whatever the files name.
FORCED_MODELS = ('qwen2',)
