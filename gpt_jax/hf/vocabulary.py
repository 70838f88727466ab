# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which of our tokenizers reads a checkpoint's vocabulary."""

import logging
import os

from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers import tokenizer as tokenizer_lib
from gpt_jax.core.tokenizers.sentencepiece import SentencePiece
from gpt_jax.hf import peft
from gpt_jax.hf_tokenizers import classes, special_files

_ANEW = (
  'save the tokenizer anew with transformers, which writes a tokenizer.json: '
  'AutoTokenizer.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER)'
)
# What reads a vocab.json with its merges.txt, by the class of transformers.
_BPES = {
  'GPT2Tokenizer': 'gpt2_bpe',
  'RobertaTokenizer': 'byte_bpe_file',
  'OpenAIGPTTokenizer': 'gpt1_bpe',
}
# Any of these makes a folder that of a tokenizer.
VOCABULARIES = (
  'tokenizer.json',
  'vocab.json',
  'vocab.txt',
  'tokenizer.model',
  'spiece.model',
  'spm.model',
)
_MODELS = VOCABULARIES[3:]
_UNIGRAM, _BPE = 1, 2


def of_checkpoint(folder: str, model_type: str) -> tuple[str, tokenizer_lib.Tokenizer] | None:
  """See `read`; an adapter's own vocabulary comes before that of its base.

  Trainers save the tokenizer beside an adapter, with the tokens and the chat
  template that it was trained with.
  """
  base = peft.base_of(folder)
  has_own = any(os.path.exists(os.path.join(folder, x)) for x in VOCABULARIES)
  return read(folder if has_own else base, model_type, base)


def read(
  folder: str, model_type: str, model_folder: str = ''
) -> tuple[str, tokenizer_lib.Tokenizer] | None:
  """The `tokenizer.name` for a checkpoint's vocabulary, and the tokenizer.

  The tokenizer knows which tokens Hugging Face's puts before a text and which
  end an answer, and keeps the files that say so, with the chat template. A
  tokenizer.json takes precedence, as in transformers.

  Args:
    model_folder: of the model, if that is another one.

  Returns:
    None if there is no vocabulary that we can read.
  """

  def path(name: str) -> str:
    return os.path.abspath(os.path.join(folder, name))

  if os.path.exists(path('tokenizer.json')):
    name = f'hf_tokenizer({path("tokenizer.json")!r})'
    try:
      return name, special_files.tokenizer(name, folder, model_folder)
    except special_files.NoEndError as e:
      logging.getLogger('gpt_jax').warning('%s', e)
  beside = classes.entries(folder)
  folders = folder, model_folder
  bpe = [path('vocab.json'), path('merges.txt')]
  if all(os.path.exists(p) for p in bpe):
    kind = _bpe(beside, folder, model_type)
    return _ended(f'{kind}({bpe[0]!r}, {bpe[1]!r}', beside, *folders)
  for name in _MODELS:
    if os.path.exists(path(name)):
      call = f'sentencepiece_file({path(name)!r}'
      found = _ended(call, beside, *folders)
      _check_sentencepiece(beside, name, found[1])
      return found
  if os.path.exists(path('vocab.txt')):
    options = _wordpiece(beside)
    return _ended(f'wordpiece_file({path("vocab.txt")!r}{options}', beside, *folders)
  return None


def _ended(
  call: str, beside: classes.Entries, folder: str, model_folder: str
) -> tuple[str, tokenizer_lib.Tokenizer]:
  """Reads a vocabulary whose end is the `eos_token`, if it has that token.

  Args:
    call: of `tokenizer.name`, without the end and the bracket.
  """
  name = f'{call})'
  made = tokenizer_lib.build(name, [])
  eos = beside.role('eos', '')
  i = special_files.single_of(made).id_of(eos) if eos else None
  if i is not None and i != made.eos_id:
    name = f'{call}, eos={eos!r})'
  return name, special_files.tokenizer(name, folder, model_folder)


def _bpe(beside: classes.Entries, folder: str, model_type: str) -> str:
  """Which of our tokenizers reads a vocab.json with its merges.txt."""
  what = 'a vocab.json with a merges.txt'
  if beside.name and beside.name not in _BPES:
    raise _refusal(beside, 'tokenizer_class', f"{what} is read as GPT-2's or RoBERTa's")
  if beside.flag('add_prefix_space', False) and beside.name != 'OpenAIGPTTokenizer':
    raise _refusal(beside, 'add_prefix_space', f'{what} is read without a space before texts')
  if beside.name:
    return _BPES[beside.name]
  if '<mask>' in special_files.beside(folder, 'vocab.json'):  # RoBERTa's and BART's
    return 'byte_bpe_file'
  return 'gpt1_bpe' if model_type == 'openai-gpt' else 'gpt2_bpe'


def _wordpiece(beside: classes.Entries) -> str:
  """The options of BERT's WordPiece, uncased unless the files say so."""
  what = "a vocab.txt is read as BERT's"
  if beside.name not in ('', 'BertTokenizer'):
    raise _refusal(beside, 'tokenizer_class', what)
  if not beside.flag('tokenize_chinese_chars', True):
    raise _refusal(beside, 'tokenize_chinese_chars', what)
  if beside.role('unk', '[UNK]') != '[UNK]':
    raise _refusal(beside, 'unk_token', what)
  options = f', lowercase={beside.flag("do_lower_case", True)}'
  accents = beside.flag('strip_accents', None)
  return options + f', strip_accents={accents}' * (accents is not None)


def _check_sentencepiece(beside: classes.Entries, name: str, made: tokenizer_lib.Tokenizer) -> None:
  """Refuses a model that its class reads otherwise than SentencePiece."""
  if not beside.name:
    return
  assert isinstance(made, SentencePiece)
  proto = made.proto
  spaced = proto.normalizer_spec.add_dummy_prefix
  merged = proto.normalizer_spec.remove_extra_whitespaces
  mapped = bool(proto.normalizer_spec.precompiled_charsmap)
  trained = proto.trainer_spec
  settings = trained.model_type, trained.byte_fallback, merged, mapped
  if beside.name in ('LlamaTokenizer', 'CodeLlamaTokenizer', 'GemmaTokenizer'):
    usual = settings == (_BPE, True, False, False)
    asked = beside.name != 'GemmaTokenizer'
    if asked:
      asked = beside.flag('add_prefix_space', True)
    if usual and asked != spaced:
      raise _refusal(beside, 'add_prefix_space', f'{name} has add_dummy_prefix={spaced}')
  else:
    usual = beside.name == 'T5Tokenizer' and spaced
    usual = usual and settings == (_UNIGRAM, False, True, True)
    usual = usual and made.processor.unk_id() == 2  # T5's, whatever the model's
  if not usual:
    raise _refusal(
      beside,
      'tokenizer_class',
      f'this class does not read texts as SentencePiece reads them by {name}',
    )


def _refusal(beside: classes.Entries, option: str, why: str) -> UsageError:
  return beside.refusal(option, f'{why}; {_ANEW}')
