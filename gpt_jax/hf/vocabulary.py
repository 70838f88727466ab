# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which of our tokenizers reads a checkpoint's vocabulary."""

import logging
import os

from gpt_jax.data.tokenizers import tokenizer as tokenizer_lib
from gpt_jax.spec import UsageError


def tokenizer_name(folder: str, model_type: str) -> str | None:
  """The `tokenizer.name` for a checkpoint's vocabulary, None without one."""

  def path(name: str) -> str:
    return os.path.abspath(os.path.join(folder, name))

  bpe = [path('vocab.json'), path('merges.txt')]
  if all(os.path.exists(p) for p in bpe):
    kind = 'gpt1_bpe' if model_type == 'openai-gpt' else 'gpt2_bpe'
    return f'{kind}({bpe[0]!r}, {bpe[1]!r})'
  if os.path.exists(path('tokenizer.model')):
    return f'sentencepiece_file({path("tokenizer.model")!r})'
  if os.path.exists(path('tokenizer.json')):
    name = f'hf_tokenizer({path("tokenizer.json")!r})'
    try:
      tokenizer_lib.build(name, [])
    except UsageError as e:  # BERT's, for instance, has no end of document
      logging.getLogger('gpt_jax').warning('%s', e)
      return None
    return name
  return None
