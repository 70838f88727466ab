# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Our tokenizers as files of Hugging Face: the same ids, there and back.

With the `tokenizers` library here; with transformers' AutoTokenizer, for each
type of model that we export, where that is installed (`make torch`).
"""

import json
import unicodedata

import hypothesis
import pytest
import tokenizers
from hypothesis import strategies as st

from gpt_jax.core.files.document import Document
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers import tokenizer
from gpt_jax.hf.families import FAMILIES
from gpt_jax.hf_tokenizers import export, in_library, special_files
from gpt_jax.hf_tokenizers.export import Template

TEXT = (
  'def f(x):\n  return x + 12  # </s> <b> [MASK] of\tit\r\n\n'
  'Été à la plage, naïve façade; the THE don\'t (the) the\n        x = "y"\n'
)
DOCUMENTS = [Document(str(i), TEXT * 7) for i in range(5)]
# As texts of users are: white space of all kinds, characters of several code
# points, both ways to write an accent, names of special tokens.
HARD = (
  '',
  ' ',
  '  x',
  'x  ',
  '\n',
  '\r',
  'a\rb\r\nc',
  '\t a \t',
  '\u00a0x\u2003',
  '😀👨‍👩‍👧 ❤️🇩🇪',
  'é',
  'e\u0301 E\u0301',
  'ﬁ \uff21 ½',
  'İstanbul',
  '你好, 世界',
  '▁',
  'a▁b ▁',
  '\x00',
  '\ufffd',
  '<0x41>',
  '</s>',
  'x <s> y</s>',
  '[CLS] a [SEP]',
  '<unk> <pad> <|endoftext|>',
  '<extra_id_0>',
  '-' * 23,
  ' ' * 23 + 'x',
  '\n' * 7,
  'the of it',
  'not Known: Zebra',
)
MARKS = "special=['<pad>', '[CLS]', '[SEP]', '[MASK]']"
NAMES = (
  'bytes',
  'frequent_bytes(vocab_size=23)',
  'characters',
  'words(vocab_size=17)',
  'sentencepiece(vocab_size=308)',
  "sentencepiece(vocab_size=308, model='bpe')",
  'sentencepiece(vocab_size=55, byte_fallback=False)',
  "sentencepiece(vocab_size=55, model='bpe', byte_fallback=False)",
  "sentencepiece(vocab_size=308, symbols=['<b>', 'the '])",
  "sentencepiece(vocab_size=308, model='bpe', symbols=['<b>', 'the '])",
  f'sentencepiece(vocab_size=308, split_digits=False, {MARKS})',
  "sentencepiece(vocab_size=310, special=['<pad>'], sentinels=2)",
  "sentencepiece(vocab_size=308, normalization='nfkc')",
  f"sentencepiece(vocab_size=308, normalization='nfkc_cf', {MARKS})",
  'wordpiece(vocab_size=89)',
  'wordpiece(vocab_size=97, lowercase=False)',
  'byte_bpe(vocab_size=277)',
)


def build(name):
  return tokenizer.build(name, DOCUMENTS)


def roles_of(made):
  found = made.special
  roles = {'eos': made.eos_id, 'bos': made.eos_id, 'pad': found.pad_id}
  more = {'cls': found.cls_id, 'sep': found.sep_id, 'mask': found.mask_id}
  roles |= {role: i for role, i in more.items() if i is not None}
  return {f'{role}_token': i for role, i in roles.items()}


def template_of(made, shape):
  """What models of a shape read around a text; None: not with this one."""
  cls, sep = made.special.cls_id, made.special.sep_id
  if shape == 'decoder':
    return Template()
  if shape == 'source':
    return Template((), None, (made.eos_id,))
  if cls is None or sep is None:
    return None
  if shape == 'last':
    return Template((), (sep,), (sep, cls), typed=True, last=True)
  between = (sep,) * (2 if shape == 'twice' else 1)
  return Template((cls,), between, (sep,), typed=shape == 'encoder')


def written(folder, made, template, model_type, names=False):
  folder.mkdir()
  files = export.files(made, template, roles_of(made), names=names)
  for name, data in files.items():
    (folder / name).write_bytes(data)
  (folder / 'config.json').write_text(json.dumps({'model_type': model_type}))
  return str(folder)


def ids_of(made, text):
  """None: the text is refused."""
  try:
    return made.encode(text).tolist()
  except UsageError:
    return None


def check(made, encode, template):
  """Compares what stands in a row of a text, and of two."""
  around = [*template.start], [*template.end]
  for text in HARD:
    ids = ids_of(made, text)
    if ids is None:
      with pytest.raises(Exception, match='Missing'):
        encode(text)
      continue
    assert encode(text) == [*around[0], *ids, *around[1]], repr(text)
  if template.between is not None:
    ids = [made.encode(text).tolist() for text in ('the', 'of it')]
    row = [*around[0], *ids[0], *template.between, *ids[1], *around[1]]
    assert encode('the', 'of it') == row


@pytest.mark.parametrize('name', NAMES)
def test_the_library_gives_our_ids(tmp_path, name):
  made = build(name)
  for shape in ('decoder', 'encoder', 'twice', 'last', 'source'):
    if template := template_of(made, shape):
      folder = written(tmp_path / shape, made, template, 'gpt2')
      library = tokenizers.Tokenizer.from_file(f'{folder}/tokenizer.json')
      # As AutoTokenizer does where tokenizer_config.json says so.
      library.encode_special_tokens = True
      check(made, lambda *text, t=library: t.encode(*text).ids, template)


@pytest.mark.parametrize('name', NAMES)
def test_an_import_of_it_gives_our_ids(tmp_path, name):
  made = build(name)
  folder = written(tmp_path / 'hf', made, Template(), 'gpt2')
  again = special_files.tokenizer(f'hf_tokenizer({folder + "/tokenizer.json"!r})', folder)
  for text in (*HARD, TEXT, *(d.text for d in DOCUMENTS[:1])):
    ids = ids_of(made, text)
    assert ids_of(again, text) == ids
    if ids is not None and '\u2047' not in made.decode(ids):
      assert again.decode(ids) == made.decode(ids)
  assert again.vocab_size == made.vocab_size
  assert again.eos_id == made.eos_id == again.special.first_id
  assert again.special.pad_id == made.special.pad_id
  assert again.special.prompt([7, 11]) == [7, 11]
  roles = 'cls_id', 'sep_id', 'mask_id'
  for role in roles:
    assert getattr(again.special, role) == getattr(made.special, role)


@pytest.mark.parametrize('model', ['unigram', 'bpe'])
def test_any_text_and_long_rows(model):
  made = build(f'sentencepiece(vocab_size=308, model={model!r})')
  library = in_library.of(made)

  @hypothesis.settings(deadline=None)
  @hypothesis.given(st.text(st.characters(exclude_categories=['Cs'])))
  def check_text(text):
    assert library.encode(text).ids == made.encode(text).tolist()

  check_text()
  # Sums of 32 bits round, and several partings of a row are as probable.
  for count in range(1, 41):
    for character in ' -=e':
      text = TEXT * 31 + character * count
      assert library.encode(text).ids == made.encode(text).tolist()


@pytest.mark.parametrize('normalization', ['nfkc', 'nfkc_cf'])
@pytest.mark.parametrize('form', ['NFC', 'NFD'])
def test_letters_with_accents(normalization, form):
  """As far as they are one character when composed."""
  made = build(f'sentencepiece(vocab_size=308, normalization={normalization!r})')
  library = in_library.of(made)
  letters = [c for c in map(chr, range(0xC0, 0x250)) if unicodedata.category(c)[0] == 'L']
  letters += [chr(i) for i in range(0x1E00, 0x1EFA)]
  for letter in letters:
    text = unicodedata.normalize(form, f'a{letter} {letter}b')
    assert library.encode(text).ids == made.encode(text).tolist(), letter
  # Shadda and fatha, shin dot and qamats, circumflex and dot below.
  for text in ('ب\u0651\u064e', 'ש\u05c1\u05b8', '\u00ea\u0323'):
    assert library.encode(text).ids != made.encode(text).tolist()
    text = unicodedata.normalize('NFKC', text)
    assert library.encode(text).ids == made.encode(text).tolist()
  assert 'vocalised Arabic' in export.approximate(made)
  assert not export.approximate(build('sentencepiece(vocab_size=308)'))


def test_what_would_be_read_otherwise_is_refused():
  """SentencePiece takes the first of equal sums, as they are rounded."""
  made = build("sentencepiece(vocab_size=308, symbols=['  '])")
  with pytest.raises(UsageError, match=r"transformers would read ' +' as \["):
    export.files(made, Template(), roles_of(made), names=False)
  both = build("sides('bytes', source='characters')")
  with pytest.raises(UsageError, match='a tokenizer of its own for sources'):
    export.files(both, Template(), roles_of(both), names=False)


def test_a_mask_is_a_token_where_names_are(tmp_path):
  made = build('byte_bpe(vocab_size=277)')
  template = template_of(made, 'twice')
  folder = written(tmp_path / 'hf', made, template, 'roberta', names=True)
  library = tokenizers.Tokenizer.from_file(f'{folder}/tokenizer.json')
  _, mask, _, end = (made.special.mask_id,) * 2 + (0, made.eos_id)
  ids = library.encode('the <mask>').ids
  assert ids == [made.special.cls_id, *made.encode('the'), mask, end]
  config = json.loads((tmp_path / 'hf/tokenizer_config.json').read_text())
  assert not config['split_special_tokens']


# How the models of each family read texts; the others as decoders.
SHAPES = {
  **dict.fromkeys(('bert', 'albert', 'electra', 'big_bird'), 'encoder'),
  **dict.fromkeys(('distilbert', 'deberta', 'deberta-v2'), 'encoder'),
  'roberta': 'twice',
  'xlnet': 'last',
  **dict.fromkeys(('t5', 'switch_transformers', 'bart'), 'source'),
  **dict.fromkeys(('mbart', 'marian'), 'source'),
}
TYPES = {
  name: SHAPES.get(name, 'decoder')
  for name in FAMILIES
  if name != 'transfo-xl'  # AutoTokenizer has a class of its own for it
}


@pytest.mark.parametrize('model_type', TYPES)
def test_autotokenizer_gives_our_ids(tmp_path, model_type):
  transformers = pytest.importorskip('transformers')
  for i, name in enumerate(NAMES):
    made = build(name)
    template = template_of(made, TYPES[model_type])
    if template is None:
      continue
    folder = written(tmp_path / f'{i}', made, template, model_type)
    read = transformers.AutoTokenizer.from_pretrained(folder)

    def encode(*text, read=read):
      return read(*text)['input_ids']

    check(made, encode, template)
    assert read.eos_token_id == made.eos_id
    assert read.pad_token_id == made.special.pad_id
    found = read('the')
    assert ('token_type_ids' in found) == template.typed
    if template.typed:
      kinds = read('the', 'of it')['token_type_ids']
      count = [len(made.encode(text)) for text in ('the', 'of it')]
      first = len(template.start) + count[0] + len(template.between)
      second = count[1] + len(template.end) - template.last
      expected = [0] * first + [1] * second + [2] * template.last
      assert kinds == expected
    if read('the').get('input_ids') and not template.end:
      ids = made.encode('the of it')
      assert read.decode(ids) == made.decode(ids)
