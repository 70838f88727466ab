# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which of our tokenizers reads a checkpoint's vocabulary."""

import logging
import os
from typing import Any

from gpt_jax.files import files
from gpt_jax.spec import UsageError
from gpt_jax.tokenizers import tokenizer as tokenizer_lib
from gpt_jax.tokenizers.special import NoEndError

# Classes of transformers that read a vocab.txt as BERT's.
_LIKE_BERTS = ('BertTokenizer', 'DistilBertTokenizer', 'ElectraTokenizer')
_FAST = ('', 'Fast')


def read(
  folder: str, model_type: str
) -> tuple[str, tokenizer_lib.Tokenizer] | None:
  """The `tokenizer.name` for a checkpoint's vocabulary, and the tokenizer.

  The tokenizer knows which tokens Hugging Face's puts before a text and which
  end an answer, and keeps the files that say so, with the chat template. A
  tokenizer.json takes precedence, as in transformers.

  Returns:
    None if there is no vocabulary that we can read.
  """

  def path(name: str) -> str:
    return os.path.abspath(os.path.join(folder, name))

  def imported(name: str) -> tuple[str, tokenizer_lib.Tokenizer]:
    return name, tokenizer_lib.imported(name, folder)

  if os.path.exists(path('tokenizer.json')):
    try:
      return imported(f'hf_tokenizer({path("tokenizer.json")!r})')
    except NoEndError as e:
      logging.getLogger('gpt_jax').warning('%s', e)
  bpe = [path('vocab.json'), path('merges.txt')]
  if all(os.path.exists(p) for p in bpe):
    kind = 'gpt1_bpe' if model_type == 'openai-gpt' else 'gpt2_bpe'
    if '<mask>' in _entries(bpe[0]):  # RoBERTa's and BART's
      kind = 'byte_bpe_file'
    return imported(f'{kind}({bpe[0]!r}, {bpe[1]!r})')
  for model in ('tokenizer.model', 'spiece.model', 'spm.model'):
    if os.path.exists(path(model)):
      return imported(f'sentencepiece_file({path(model)!r})')
  if os.path.exists(path('vocab.txt')):  # BERT's, uncased unless it says so
    lowercase = _lowercase(path('tokenizer_config.json'))
    call = f'wordpiece_file({path("vocab.txt")!r}, lowercase={lowercase})'
    return imported(call)
  return None


def _lowercase(path: str) -> bool:
  """Whether a vocab.txt is uncased; refuses what is not BERT's WordPiece."""
  entries = _entries(path).items()
  given = {name: value for name, value in entries if value is not None}
  lowercase = given.get('do_lower_case', True)
  plain: dict[str, tuple[Any, ...]] = {
    'do_lower_case': (True, False),
    'strip_accents': (None, lowercase),
    'tokenize_chinese_chars': (True,),
    'tokenizer_class': (
      None,
      *(f'{name}{x}' for name in _LIKE_BERTS for x in _FAST),
    ),
  }
  for option, accepted in plain.items():
    if given.get(option, accepted[0]) not in accepted:
      raise UsageError(
        f"{path}: {option}={given[option]!r}: a vocab.txt is read as BERT's; "
        'save the tokenizer anew with transformers, which writes a '
        'tokenizer.json: AutoTokenizer.from_pretrained(FOLDER)'
        '.save_pretrained(NEW_FOLDER)'
      )
  return lowercase


def _entries(path: str) -> dict[str, Any]:
  """The entries of a JSON file; none if it does not exist."""
  if not os.path.exists(path):
    return {}
  with open(path, 'rb') as file:
    return files.parse(file.read(), path, remedy='download it again')
