# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A decoder whose first tokens see each other (prefix LM, T5: section 3.2).

  L = mean over the tokens after a prefix x_<=p of log P(x_t | x_<t)

Each token of the prefix sees all others of it; after it a token sees what came
before, and nothing within it is predicted. Of a stream the prefix is the first
part of a row, which ends where a draw says, each place as likely as another: of
table 3's sentence, `me to your party last week .` after `Thank you for
inviting`. Of a text with two sides, which else an encoder-decoder would learn
from, it is the source: a row is the source and then what the decoder reads.
"""

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax import spec
from gpt_jax.nn.transformer import Transformer
from gpt_jax.objectives import forward, t5
from gpt_jax.objectives.base import (
  Batch,
  Declared,
  Loss,
  Needs,
  Objective,
  Params,
  Scored,
)
from gpt_jax.objectives.causal import causal
from gpt_jax.objectives.cross_entropy import CHUNK_LOGITS
from gpt_jax.objectives.seq2seq import seq2seq
from gpt_jax.ranges import Weight
from gpt_jax.rows.rows import MASKING, Keys, Rows
from gpt_jax.spec import UsageError
from gpt_jax.tokenizers.tokenizer import Tokenizer

# Whose batches have two sides that stand in one order.
TEXTS = {
  'seq2seq': seq2seq,
  **t5.OBJECTIVES,
}


def prefix(
  text: str = '', sees: Literal['both', 'left'] = 'both', z_loss: Weight = 0.0
) -> Declared:
  """Next-token prediction after a prefix.

  Args:
    text: an objective of encoder-decoders, with its arguments: its sources are
      the prefixes; '': the first part of each row.
    sees: 'both' sides of each of its tokens, or the 'left' alone (the language
      model of T5's table 2).
    z_loss: see `causal`; of a stream.
  """
  if text and z_loss:
    raise UsageError(
      f'objective.name: z_loss={z_loss}: the loss is that of text={text!r}; '
      'leave one of them out'
    )
  declared = causal(z_loss)
  needs, make = Needs(rows=('stream',)), _of_stream
  if text:
    declared = spec.build('objective.name: text', text, TEXTS)
    needs, make = needs_of_sides(declared.needs), _of_sides
    needs = needs._replace(in_row='prefix' if sees == 'both' else 'left')

  def build(model: Transformer, tokenizer: Tokenizer | None) -> Objective:
    plain = declared(model, tokenizer)
    return _objective(model, plain, make, both=sees == 'both')

  return Declared(needs, build)


def needs_of_sides(of_sides: Needs) -> Needs:
  """What a model needs of rows whose two sides are one row of its own."""

  def source(context: int) -> int:
    """The longest source with whose target a row fits."""
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


def _objective(
  model: Transformer,
  plain: Objective,
  make: Callable[[Objective, Rows, Keys], dict[str, np.ndarray]],
  *,
  both: bool,
) -> Objective:
  """See `prefix`; `plain` has the loss, and the batches of two sides."""
  text = plain.text
  assert text is not None

  def make_batch(rows: Rows, keys: Keys) -> dict[str, np.ndarray]:
    batch = make(plain, rows, keys)
    check_fits(model, batch)
    if not both:
      del batch['prefix']
    return batch

  def loss(params: Params, batch: Batch, key: jax.Array | None) -> Loss:
    hidden_BLD, routers = forward.states(model, params, batch, key)
    hidden_BLD = hidden_BLD[:, -batch['targets'].shape[1] :]
    found = text.loss(params, hidden_BLD, batch, key is None)
    return forward.add_routers(found, routers, training=key is not None)

  return Objective(make_batch, plain.init, loss)


def check_fits(model: Transformer, batch: dict[str, np.ndarray]) -> None:
  """Checks that a model has room for the rows of a batch."""
  if batch['inputs'].shape[1] > model.context_length:
    raise UsageError(
      f'model.context_length={model.context_length}: source and target are '
      f'{batch["inputs"].shape[1]} tokens in one row; raise it'
    )


def _of_stream(
  plain: Objective, rows: Rows, keys: Keys
) -> dict[str, np.ndarray]:
  """As `causal.make_batch`, with `prefix` int32 [B]: how many inputs it has.

  The last of these predicts the first token that counts.
  """
  assert plain.make_batch is not None
  batch = plain.make_batch(rows, keys)
  draw_B = np.array([g.random() for g in keys.generators(MASKING)])
  # Of n tokens 1 to n are after the prefix: the one before the row is its
  # first, at least.
  prefix_B = 1 + (draw_B * rows.real.sum(axis=1)).astype(np.int32)
  counts_BL = np.arange(rows.tokens.shape[1])[None] >= prefix_B[:, None] - 1
  return {**batch, 'weights': batch['weights'] * counts_BL, 'prefix': prefix_B}


def _of_sides(
  plain: Objective, rows: Rows, keys: Keys
) -> dict[str, np.ndarray]:
  """See `joined`."""
  assert plain.make_batch is not None
  return joined(plain.make_batch(rows, keys))


def joined(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
  """The two sides one after the other, with positions that go on.

  `targets` and `weights` are of the second side alone.

  Args:
    batch: of an encoder-decoder.
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


# Next-token prediction of a part of each row: fine-tuning on pairs.


def target(length: int, z_loss: Weight = 0.0) -> Declared:
  """Next-token prediction where the weights of a batch say so.

  Args:
    length: targets of a row.
    z_loss: as of `causal`.
  """

  def build(model: Transformer, tokenizer: Tokenizer | None) -> Objective:
    whole = causal(z_loss)(model, tokenizer)

    def outputs(params: Params, batch: Batch) -> jax.Array:
      variables = {'params': params}
      out: Any = model.apply(variables, batch['inputs'])

      def at(place):
        hidden_BD, targets_B = place
        logits: Any = model.apply(variables, hidden_BD, method='logits')
        right_B = jnp.argmax(logits, axis=-1) == targets_B
        return _nll(logits, targets_B), right_B

      # A few positions at a time: the logits of all would not fit.
      places = jnp.swapaxes(out.hidden_BLD, 0, 1), batch['targets'].T
      chunk = CHUNK_LOGITS // (len(batch['targets']) * model.vocab_size)
      nll, right = jax.lax.map(at, places, batch_size=max(chunk, 1))
      counts = batch['weights'].T > 0
      nll_B = jnp.sum(jnp.where(counts, nll, 0), axis=0)
      columns = nll_B, jnp.sum(counts, axis=0), jnp.all(right | ~counts, axis=0)
      return jnp.stack([x.astype(jnp.float32) for x in columns], axis=1)

    zeros = np.zeros((1, length), np.int32)
    example = {
      'inputs': zeros,
      'targets': zeros,
      'weights': zeros.astype(np.float32),
    }
    return whole._replace(make_batch=None, example=example, outputs=outputs)

  return Declared(Needs(rows=()), build)


def _nll(logits: jax.Array, labels: jax.Array) -> jax.Array:
  log_probs = jax.nn.log_softmax(logits, axis=-1)
  return -jnp.take_along_axis(log_probs, labels[:, None], axis=-1)[:, 0]
