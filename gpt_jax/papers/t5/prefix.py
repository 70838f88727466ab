# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Prefix LM: a decoder with bidirectional attention in a prefix (T5, 3.2).

  L = mean over the tokens after a prefix x_<=p of log P(x_t | x_<t)

Tokens of the prefix see the whole prefix, and are not predicted; later tokens
see all tokens before them. In a row of a stream the prefix ends at a uniformly
drawn position: in table 3's sentence, `me to your party last week .` follows
`Thank you for inviting`. With the batches of an encoder-decoder the prefix is
the source, and the decoder's input follows it in the same row.
"""

import functools
from dataclasses import dataclass
from typing import Literal

import jax
import numpy as np

from gpt_jax.core import spec
from gpt_jax.core.nn.transformer import Transformer
from gpt_jax.core.objectives import forward
from gpt_jax.core.objectives.base import Needs, Objective, Scored, TextObjective
from gpt_jax.core.objectives.causal import Causal
from gpt_jax.core.objectives.loss import Batch, Loss, Params
from gpt_jax.core.ranges import Weight
from gpt_jax.core.rows.rows import MASKING, Keys, Rows
from gpt_jax.core.spec import Table, UsageError
from gpt_jax.papers.t5.choices import UNSUPERVISED

# Objectives whose source and target can be joined to one row.
TEXTS = Table({'seq2seq': 'gpt_jax.papers.transformer.seq2seq:Seq2Seq', **UNSUPERVISED})


@dataclass(frozen=True)
class Prefix(Objective):
  """Next-token prediction after a prefix.

  Attributes:
    text: an encoder-decoder objective, with its arguments, whose sources are
      the prefixes; '': the prefix is the first part of each row.
    sees: whether attention in the prefix is to 'both' sides, or only to the
      'left' (the language model of T5's table 2).
    z_loss: see `Causal`; for streams only.
  """

  text: str = ''
  sees: Literal['both', 'left'] = 'both'
  z_loss: Weight = 0.0

  def __post_init__(self):
    """Checks the objective in `text`."""
    if self.text and self.z_loss:
      raise UsageError(
        f'objective.name: z_loss={self.z_loss}: the loss is that of text='
        f'{self.text!r}; leave one of them out'
      )
    self._unbound()

  def _unbound(self) -> TextObjective:
    if not self.text:
      return Causal(self.z_loss)
    return spec.build('objective.name: text', self.text, TEXTS)

  @functools.cached_property
  def plain(self) -> TextObjective:
    """The objective that makes batches and computes the loss."""
    return self._unbound().bind(self.model, self.tokenizer)

  @property
  def needs(self) -> Needs:
    """A decoder, and a stream or the rows of the objective in `text`."""
    if not self.text:
      return Needs(rows=('stream',))
    in_row = 'prefix' if self.sees == 'both' else 'left'
    return needs_of_sides(self._unbound().needs)._replace(in_row=in_row)

  @property
  def row_mask(self) -> Literal['', 'prefix']:
    """See `Objective`."""
    return 'prefix' if self.sees == 'both' else ''

  def check(self) -> None:
    """Rejects what the underlying objective rejects."""
    self.plain.check()

  def make_batch(self, rows: Rows, keys: Keys) -> dict[str, np.ndarray]:
    """Rows divided at a drawn position, or sources joined to their targets.

    Returns:
      A batch with `prefix` int32 [B], the number of inputs in the prefix. The
      last of them predicts the first token that counts.
    """
    batch = self.plain.make_batch(rows, keys)
    if self.text:
      batch = joined(batch)
    else:
      draw_B = np.array([g.random() for g in keys.generators(MASKING)])
      # 1 to n of the row's n targets follow the prefix, which always contains
      # the first input: the token before the row.
      prefix_B = 1 + (draw_B * rows.real.sum(axis=1)).astype(np.int32)
      places_L = np.arange(rows.tokens.shape[1])
      counts_BL = places_L[None] >= prefix_B[:, None] - 1
      weights_BL = batch['weights'] * counts_BL
      batch = {**batch, 'weights': weights_BL, 'prefix': prefix_B}
    check_fits(self.model, batch)
    if self.sees == 'left':
      del batch['prefix']
    return batch

  def loss(self, params: Params, batch: Batch, key: jax.Array | None) -> Loss:
    """The loss of the tokens after the prefix."""
    hidden_BLD, stats = forward.states(self.model, params, batch, key)
    hidden_BLD = hidden_BLD[:, -batch['targets'].shape[1] :]
    found = self.plain.loss_of_states(params, hidden_BLD, batch, evaluating=key is None)
    return found._replace(stats=stats)


def needs_of_sides(of_sides: Needs) -> Needs:
  """Needs of a model that reads both sides in one row.

  Args:
    of_sides: needs of the encoder-decoder objective.
  """

  def source(context: int) -> int:
    """The longest source that fits in a context with its target."""
    low, high = 1, context + 1
    while high - low > 1:
      middle = (low + high) // 2
      fits = middle + of_sides.target_length(middle) <= context
      low, high = (middle, high) if fits else (low, middle)
    return low

  def text_length(context: int) -> int:
    return of_sides.text_length(source(context))

  def target_length(context: int) -> int:
    return source(context) + of_sides.target_length(source(context))

  # The source is not scored.
  scored = Scored(lambda length: of_sides.sides(length)[1], lambda length: 1)
  return of_sides._replace(
    encoder=False,
    text_length=text_length,
    target_length=target_length,
    sentinels=lambda context: of_sides.sentinels(source(context)),
    scored=scored,
  )


def check_fits(model: Transformer, batch: dict[str, np.ndarray]) -> None:
  """Checks that a model has room for the rows of a batch."""
  if batch['inputs'].shape[1] > model.context_length:
    raise UsageError(
      f'model.context_length={model.context_length}: source and target are '
      f'{batch["inputs"].shape[1]} tokens in one row; raise it'
    )


def joined(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
  """Joins source and target to one row, with continuing positions.

  `targets` and `weights` cover the second side only.
  """
  (B, M), P = batch['sources'].shape, batch['inputs'].shape[1]
  real_BM = batch['source_mask']
  places = np.broadcast_to(np.arange(M, dtype=np.int32), (B, M))
  out = {
    'inputs': np.concatenate([batch['sources'], batch['inputs']], axis=1),
    'mask': np.concatenate([real_BM, np.ones((B, P), bool)], axis=1),
    'targets': batch['targets'],
    'weights': batch['weights'],
    'prefix': np.full(B, M, np.int32),
  }
  if 'segments' in batch:
    of_source, of_target = batch['source_segments'], batch['segments']
    own_BPM = of_target[..., None] == of_source[:, None]
    before_BP = np.sum(own_BPM & real_BM[:, None], axis=2)
    after = before_BP + batch['positions']
    places = batch['source_positions']
    out['segments'] = np.concatenate([of_source, of_target], axis=1)
  else:
    after = real_BM.sum(axis=1)[:, None] + np.arange(P)
  places = np.concatenate([places, after], axis=1)
  return {**out, 'positions': places.astype(np.int32)}
