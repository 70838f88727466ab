# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Fills the masks (encoders) or the blanks (encoder-decoders) of a text."""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from gpt_jax.core.nn.row import Row
from gpt_jax.core.nn.transformer import Transformer
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers.special import sentinel
from gpt_jax.core.tokenizers.tokenizer import Tokenizer
from gpt_jax.decoding import constraints, files, sampler
from gpt_jax.decoding.files import SourceEntry
from gpt_jax.decoding.texts import TextGenerator

# The name of a mask in texts, besides the tokenizer's own.
MASK = '[MASK]'


class Filler(NamedTuple):
  """A token that may replace a mask."""

  token: str
  id: int
  probability: float


class FillTokens(NamedTuple):
  """The special tokens of an encoder's row."""

  first: int
  end: int
  mask: int


def special_of(tokenizer: Tokenizer) -> FillTokens:
  """The special tokens of an encoder's tokenizer."""
  found = tokenizer.special
  ids = {'[CLS]': found.cls_id, '[SEP]': found.sep_id, MASK: found.mask_id}
  missing = [name for name, i in ids.items() if i is None]
  if missing:
    raise UsageError(
      f'--workdir: the tokenizer has no {missing[0]}, so the model was not '
      'trained to fill one; give another'
    )
  return FillTokens(*(i for i in ids.values() if i is not None))


def encode(tokenizer: Tokenizer, text: str, length: int) -> np.ndarray:
  """Encodes a text with masks as [CLS] text [SEP]; int32 [num_tokens].

  The space before a mask belongs to the filler, as in RoBERTa's words.

  Args:
    length: the most tokens of a row.
  """
  special = special_of(tokenizer)
  for name, i in tokenizer.special.names.items():
    if i == special.mask:
      text = text.replace(name, MASK)
  *before, last = text.split(MASK)
  shown = text if len(text) < 60 else text[:57] + '...'
  if not before:
    raise UsageError(f'--text={shown!r}: has no {MASK}; put it where to fill')
  ids = [special.first]
  for part in before:
    ids += [*tokenizer.encode(part.rstrip()).tolist(), special.mask]
  ids += [*tokenizer.encode(last).tolist(), special.end]
  if len(ids) > length:
    raise UsageError(
      f'--text={shown!r}: has {len(ids)} tokens with its ends, and the '
      f'context holds {length}: {len(ids) - length} too many; shorten it'
    )
  return np.array(ids, np.int32)


def fill(
  model: Transformer, params: Any, tokenizer: Tokenizer, rows: Sequence[np.ndarray], *, top: int
) -> list[list[list[Filler]]]:
  """The most probable fillers of each mask, independently of the other masks.

  Args:
    model: an encoder with the head of a masked language model.
    rows: from `encode`; all are run at once.
    top: how many fillers.

  Returns:
    For each row and mask its fillers, the best first.
  """
  # Multiples of 16: few lengths are compiled.
  length = min(16 * math.ceil(max(map(len, rows)) / 16), model.context_length)
  tokens = np.full((len(rows), length), tokenizer.special.pad_id, np.int32)
  for row, ids in zip(tokens, rows, strict=True):
    row[: len(ids)] = ids
  real = np.arange(length)[None] < np.array([[len(ids)] for ids in rows])
  row, place = np.nonzero((tokens == special_of(tokenizer).mask) & real)
  never_V = constraints.never_drawn(tokenizer, model.vocab_size)
  if never_V is not None:
    top = min(top, int(np.count_nonzero(~never_V)))
  found = _best(
    params, tokens, real, row, place, never_V, model=model, top=min(top, model.vocab_size)
  )
  out: list[list[list[Filler]]] = [[] for _ in rows]
  for number, ids, shares in zip(row, *map(np.asarray, found), strict=True):
    fillers = [
      Filler(tokenizer.decode([i]).strip(), i, share)
      for i, share in zip(ids.tolist(), shares.tolist(), strict=True)
    ]
    out[number].append(fillers)
  return out


@functools.partial(jax.jit, static_argnames=('model', 'top'))
def _best(params, tokens_BL, real_BL, row_N, place_N, never_V, *, model, top):
  """Ids and probabilities of the fillers of N masks, [N, top]."""
  variables = {'params': params}
  out = model.apply(variables, Row(tokens_BL, real_BL=real_BL))
  at_ND = out.hidden_BLD[row_N, place_N]
  logits_NV = model.apply(variables, at_ND, method='logits')
  # Normalised as in training: over the whole table.
  shares_NV = sampler.suppress(jax.nn.softmax(logits_NV), never_V)
  shares, ids = jax.lax.top_k(shares_NV, top)
  return ids, shares


class FilledText(NamedTuple):
  """A text whose blanks an encoder-decoder filled; see `Hypothesis.score`."""

  text: str
  score: float


def fill_blanks(model: TextGenerator, texts: Sequence[str]) -> list[list[FilledText]]:
  """The best fillings of each text by beam search, the best first.

  Args:
    texts: with blanks: see `files.encode_blanks`.
  """
  tokenizer = model.tokenizer.sources
  requests, sources = [], []
  for text in texts:
    request, cut = model.request(SourceEntry('--text', text))
    source = request.source
    assert source is not None
    shown = text if len(text) < 60 else text[:57] + '...'
    if cut:
      raise UsageError(
        f'--text={shown!r}: is longer than the context of '
        f'{model.context_length} tokens, by {cut}; shorten it'
      )
    if not files.has_blanks(tokenizer, source):
      raise UsageError(
        f'--text={shown!r}: has no blank; put {sentinel(0)}, {sentinel(1)}, '
        "... where a T5 is to fill, or the mask's name for a BART"
      )
    requests.append(request)
    sources.append(source)
  found = dict(model.search(requests))
  return [
    [FilledText(files.fill_blanks(model.tokenizer, source, h.ids), h.score) for h in found[number]]
    for number, source in enumerate(sources)
  ]
