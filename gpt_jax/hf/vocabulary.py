# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which of our tokenizers reads a checkpoint's vocabulary."""

import logging
import os

from gpt_jax.data.tokenizers import tokenizer as tokenizer_lib
from gpt_jax.spec import UsageError


def read(
  folder: str, model_type: str
) -> tuple[str, tokenizer_lib.Tokenizer] | None:
  """The `tokenizer.name` for a checkpoint's vocabulary, and the tokenizer.

  It knows what Hugging Face's own puts before a text, what ends an answer, and
  keeps the files that say so and the chat template. A tokenizer.json comes
  first, as it does there.

  Returns:
    None if there is no vocabulary that we read.

  Raises:
    UsageError: a file is damaged.
  """

  def path(name: str) -> str:
    return os.path.abspath(os.path.join(folder, name))

  def made(name: str) -> tuple[str, tokenizer_lib.Tokenizer]:
    return name, tokenizer_lib.imported(name, folder)

  if os.path.exists(path('tokenizer.json')):
    try:
      return made(f'hf_tokenizer({path("tokenizer.json")!r})')
    except UsageError as e:  # it does not say what ends a document
      logging.getLogger('gpt_jax').warning('%s', e)
  bpe = [path('vocab.json'), path('merges.txt')]
  if all(os.path.exists(p) for p in bpe):
    kind = 'gpt1_bpe' if model_type == 'openai-gpt' else 'gpt2_bpe'
    return made(f'{kind}({bpe[0]!r}, {bpe[1]!r})')
  if os.path.exists(path('tokenizer.model')):
    return made(f'sentencepiece_file({path("tokenizer.model")!r})')
  return None
