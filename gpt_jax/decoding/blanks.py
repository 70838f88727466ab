# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Sources with blanks that an encoder-decoder is to fill.

A blank is the token that stands for one in training: T5's <extra_id_0>,
<extra_id_1>, ..., or BART's <mask>. T5 answers with what belongs in its blanks,
BART with the whole text.

  source  Paris <extra_id_0> France.
  answer  <extra_id_0> is in <extra_id_1>
"""

import itertools
import re
from collections.abc import Mapping, Sequence

import numpy as np

from gpt_jax.data.tokenizers import special
from gpt_jax.data.tokenizers.tokenizer import Tokenizer
from gpt_jax.data.tokenizers.training import sentinel


def encode(tokenizer: Tokenizer, text: str) -> np.ndarray:
  """Encodes a source in which the names of blanks are tokens: int32 [N].

  Other names of special tokens stay text. White space before a blank belongs to
  it, since the piece that it stands for begins with that.
  """
  known = tokenizer.special
  names = _sentinels(known.names)
  names |= {n: i for n, i in known.names.items() if i == known.mask_id}
  blank = '|'.join(map(re.escape, sorted(names, key=len, reverse=True)))
  if not names or not re.search(blank, text):
    return tokenizer.encode(text)
  others = {n: i for n, i in known.names.items() if n not in names}
  text = re.sub(rf'\s+({blank})', r'\1', special.guarded(text, others))
  if tokenizer.parts_at_spaces:  # it puts a space before each part itself
    text = re.sub(rf'({blank}) ', r'\1', text)
  return tokenizer.encode_special(text)


def has_any(tokenizer: Tokenizer, ids: Sequence[int]) -> bool:
  """Whether a source has a blank."""
  known = tokenizer.special
  return not {known.mask_id, *_sentinels(known.names).values()}.isdisjoint(ids)


def fill(
  tokenizer: Tokenizer, source: Sequence[int], answer: Sequence[int]
) -> str:
  """The filled text: a source of T5's with what the answer says of its blanks.

  A blank of which the answer says nothing is left out. Where a source has no
  sentinel, the answer is the whole text.

  Args:
    tokenizer: of the model.
    source: ids that the encoder read.
    answer: ids that the decoder wrote.
  """
  sentinels = {*_sentinels(tokenizer.special.names).values()}
  if sentinels.isdisjoint(source):
    return tokenizer.decode(answer).strip()
  spans: dict[int, list[int]] = {}
  span: list[int] = []
  for i in answer:
    if i in sentinels:
      span = []
      spans.setdefault(i, span)  # the first time counts
    else:
      span.append(i)
  parts = [spans.get(i, []) if i in sentinels else [i] for i in source]
  return tokenizer.decode(itertools.chain(*parts)).strip()


def _sentinels(names: Mapping[str, int]) -> dict[str, int]:
  """Those among special tokens, in their order."""
  numbered = map(sentinel, itertools.count())
  found = itertools.takewhile(lambda name: name in names, numbered)
  return {name: names[name] for name in found}
