# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A tokenizer of T5's kind: a few words, sentinels, and BART's mask."""

import functools
import json

import tokenizers

from gpt_jax.core.tokenizers import hf

WORDS = ['▁Paris', '▁is', '▁the', '▁capital', '▁of', '▁France.', '▁x', '<unk>']
SPECIAL = ['<pad>', '</s>', '<mask>', '<extra_id_1>', '<extra_id_0>']
IDS = {name: i for i, name in enumerate([*WORDS, *SPECIAL])}


@functools.cache
def tokenizer():
  """Of T5's kind: a space before each text, and sentinels from the end."""
  made = tokenizers.Tokenizer(
    tokenizers.models.WordLevel({name: IDS[name] for name in WORDS}, unk_token='<unk>')
  )
  made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
  made.decoder = tokenizers.decoders.Metaspace()
  made.add_special_tokens(SPECIAL)
  contents = {hf.FILE: made.to_str().encode(), hf.EOS: json.dumps('</s>')}
  contents[hf.EOS] = contents[hf.EOS].encode()
  return hf.HfTokenizer(contents)


def ids(*names):
  return [IDS[name] for name in names]
