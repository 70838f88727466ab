# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A target text from a source text, by an encoder (UniLM, section 2.4).

Source and target are one row, [CLS] S1 [SEP] S2 [SEP], under the mask of
sequence to sequence: the source sees itself, a token of the target the source
and what is before. Of the target, its [SEP] counted, some tokens are [MASK]s in
their places, and

  L = mean over the chosen tokens of -log P(y_t | S1, what stands at y_<=t)

The source's [CLS] is that of `data.rows="parallel(start='cls')"`; without it
rows are not those of the pre-training. How it writes: `decoding.in_row`.
"""

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax import spec
from gpt_jax.data.rows import Keys, Rows
from gpt_jax.data.tokenizers.tokenizer import Tokenizer
from gpt_jax.data.unified_order import SEQ2SEQ
from gpt_jax.nn import moe
from gpt_jax.nn.embed import OUTPUTS
from gpt_jax.nn.transformer import Transformer
from gpt_jax.objectives import prefix, scores
from gpt_jax.objectives.base import (
  Batch,
  Declared,
  Loss,
  Objective,
  Params,
  Scored,
  Text,
)
from gpt_jax.objectives.causal import add_routers
from gpt_jax.objectives.encoder_decoder import written_loss
from gpt_jax.objectives.masked import at_chosen, encode
from gpt_jax.objectives.masking import Masking, masked_batch
from gpt_jax.objectives.seq2seq import parallel_batch, seq2seq
from gpt_jax.objectives.unified import types_of, visible
from gpt_jax.ranges import Fraction, Probability
from gpt_jax.spec import UsageError


def unified_target(
  rate: Probability = 0.7,
  mask: Probability = 0.8,
  random: Probability = 0.1,
  label_smoothing: Fraction = 0.0,
) -> Declared:
  """UniLM's fine-tuning for generation, of the pairs of `data.rows='parallel'`.

  Args:
    rate: of the tokens of a row's targets that are chosen (released code: 0.7).
    mask: of the chosen tokens that become [MASK].
    random: of the chosen tokens that become a random one. The rest stays.
    label_smoothing: see `seq2seq` (released code: 0.1).

  Raises:
    UsageError: mask and random are more than all.
  """
  if mask + random > 1:
    raise UsageError(
      f'objective.name: mask={mask} and random={random} are parts of the '
      'chosen tokens; their sum must be at most 1'
    )
  masking = Masking(rate, mask, random)
  of_pairs = prefix.needs_of_sides(seq2seq().needs)
  of_target = of_pairs.scored
  assert of_target is not None

  def build(model: Transformer, tokenizer: Tokenizer | None) -> Objective:
    known = None
    if tokenizer is not None:
      mask_id = tokenizer.special.mask_id
      assert mask_id is not None, 'see choices.build'
      known = masking._replace(vocab_size=tokenizer.vocab_size, mask_id=mask_id)
    return _objective(model, masking, known, label_smoothing)

  return Declared(
    of_pairs._replace(
      attention='bidirectional',
      starts='',
      tokens=('mask', 'cls'),
      scored=Scored(
        lambda length: masking.places(of_target.output(length)),
        lambda length: 1,
      ),
      in_row='mask',
    ),
    build,
  )


def _objective(
  model: Transformer,
  masking: Masking,
  known: Masking | None,
  label_smoothing: float,
) -> Objective:
  """See `unified_target`; without `known` it makes empty batches only."""
  if spec.build('model.output', model.output, OUTPUTS).own is not None:
    raise UsageError(
      f'model.output={model.output!r}: objective.name=unified_target scores '
      'the whole vocabulary; take tied or untied'
    )
  types = types_of(model, SEQ2SEQ)

  def make_batch(rows: Rows, keys: Keys) -> dict[str, np.ndarray]:
    both = prefix.joined(parallel_batch(rows, 0))
    prefix.check_fits(model, both)
    target = masked_batch(rows, keys, masking.places, known)
    M = both['inputs'].shape[1] - target['inputs'].shape[1]
    second_L = np.arange(both['inputs'].shape[1]) >= M
    second_BL = np.broadcast_to(second_L, both['inputs'].shape)
    return {
      'inputs': np.concatenate(
        [both['inputs'][:, :M], target['inputs']], axis=1
      ),
      'mask': np.concatenate([both['mask'][:, :M], rows.real], axis=1),
      'segments': both['segments'],
      'positions': both['positions'],
      'token_types': types[second_BL.astype(np.int32)],
      'second': second_BL,
      'masked_positions': M + target['masked_positions'],
      'masked_targets': target['masked_targets'],
      'masked_weights': target['masked_weights'],
    }

  def init(key: jax.Array) -> Params:
    return model.init(key, jnp.zeros((1, 1), jnp.int32))['params']

  def states(
    params: Params, batch: Batch, key: jax.Array | None
  ) -> tuple[jax.Array, dict[str, moe.Stats]]:
    masks_B = jnp.full(len(batch['inputs']), SEQ2SEQ)
    batch = {**batch, 'visible': visible(masks_B, batch['second'])}
    return encode(model, params, batch['inputs'], batch, key)

  def of_states(
    params: Params, hidden_BLD: jax.Array, batch: Batch, evaluating: bool
  ) -> Loss:
    chosen = scores.of_states(model, params, at_chosen(hidden_BLD, batch))
    targets = batch['masked_targets'], batch['masked_weights']
    smoothing = 0.0 if evaluating else label_smoothing
    return written_loss(chosen, *targets, smoothing, evaluating=evaluating)

  def loss(params: Params, batch: Batch, key: jax.Array | None) -> Loss:
    hidden_BLD, routers = states(params, batch, key)
    found = of_states(params, hidden_BLD, batch, key is None)
    return add_routers(found, routers, training=key is not None)

  text = Text(
    states,
    of_states,
    chosen=at_chosen,
    counted=lambda batch: batch['masked_weights'],
    real=lambda batch: batch['mask'].astype(jnp.float32),
  )
  return Objective(make_batch, init, loss, text=text)
