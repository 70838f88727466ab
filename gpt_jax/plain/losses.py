# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Losses: sums over the tokens that count, so that parts of a batch add up."""

import jax
import jax.numpy as jnp
from jax import Array

from gpt_jax.plain.decoder import hidden_states, logits, switch_states
from gpt_jax.plain.encoder import encoder_states, masked_logits, pair_logits
from gpt_jax.plain.encoder_decoder import seq2seq_states, switch_seq2seq_states
from gpt_jax.plain.recipe import BALANCE, LABEL_SMOOTHING, PADDED, Z_LOSS
from gpt_jax.plain.types import Batch, Params


def causal_loss(params: Params, batch: Batch) -> Array:
  """-sum log P(token | tokens before it) (Radford et al., 2018, eq. 1)."""
  scores = logits(params, hidden_states(params, batch))
  log_z = jax.nn.logsumexp(scores, axis=-1)
  nll = log_z - jnp.take_along_axis(scores, batch['targets'][..., None], axis=-1)[..., 0]
  if PADDED:
    nll *= batch['weights']
  return jnp.sum(nll)


def causal_loss_with_z(params: Params, batch: Batch) -> tuple[Array, Array]:
  """-sum log P(token | tokens before it), with a penalty that pulls the normalizer Z towards 1.

  Returns:
    What is minimized, and what is reported.
  """
  scores = logits(params, hidden_states(params, batch))
  log_z = jax.nn.logsumexp(scores, axis=-1)
  nll = log_z - jnp.take_along_axis(scores, batch['targets'][..., None], axis=-1)[..., 0]
  penalised = nll + Z_LOSS * jnp.square(log_z)
  if PADDED:
    nll, penalised = nll * batch['weights'], penalised * batch['weights']
  return jnp.sum(penalised), jnp.sum(nll)


def switch_loss(params: Params, batch: Batch) -> tuple[Array, Array]:
  """-sum log P(token | tokens before it), with the load-balancing loss (Fedus et al., 2021, eq. 4).

  Returns:
    What is minimized, and what is reported.
  """
  hidden, balances = switch_states(params, batch)
  scores = logits(params, hidden)
  at_targets = jnp.take_along_axis(scores, batch['targets'][..., None], axis=-1)[..., 0]
  loss = jnp.sum(jax.nn.logsumexp(scores, axis=-1) - at_targets)
  # Divided by the number of tokens, it is alpha times the mean balance.
  return loss + BALANCE * balances * batch['targets'].size, loss


def written_loss(params: Params, batch: Batch) -> Array:
  """-sum log P(token | tokens before it, source) of the tokens that the decoder writes."""
  scores = logits(params, seq2seq_states(params, batch))
  at_targets = jnp.take_along_axis(scores, batch['targets'][..., None], axis=-1)[..., 0]
  nll = jax.nn.logsumexp(scores, axis=-1) - at_targets
  return jnp.sum(nll * batch['weights'] if PADDED else nll)


def smoothed_loss(params: Params, batch: Batch) -> tuple[Array, Array]:
  """The same with LABEL_SMOOTHING of each target spread over the vocabulary (section 5.4).

  Returns:
    What is minimized, and what is reported: the loss of the targets alone.
  """
  scores = logits(params, seq2seq_states(params, batch))
  at_targets = jnp.take_along_axis(scores, batch['targets'][..., None], axis=-1)[..., 0]
  loss = jnp.sum((jax.nn.logsumexp(scores, axis=-1) - at_targets) * batch['weights'])
  spread = jnp.sum((at_targets - jnp.mean(scores, axis=-1)) * batch['weights'])
  return loss + LABEL_SMOOTHING * spread, loss


def masked_loss(params: Params, batch: Batch) -> Array:
  """-sum log P(token) of the masked tokens, and of whether B follows A (BERT, section 3.1)."""
  hidden = encoder_states(params, batch)
  scores = masked_logits(params, hidden, batch['masked_positions'])
  at_targets = jnp.take_along_axis(scores, batch['targets'][..., None], axis=-1)[..., 0]
  masked = jnp.sum((jax.nn.logsumexp(scores, axis=-1) - at_targets) * batch['weights'])
  of_pairs = jax.nn.log_softmax(pair_logits(params, hidden), axis=-1)
  of_pairs = jnp.take_along_axis(of_pairs, batch['pair'][:, None], axis=1)[:, 0]
  return masked - jnp.sum(of_pairs * batch['pair_weights'])


def switch_written_loss(params: Params, batch: Batch) -> tuple[Array, Array]:
  """`written_loss` with the load-balancing loss of both stacks (Fedus et al., 2021, eq. 4).

  Returns:
    What is minimized, and what is reported.
  """
  hidden, balances = switch_seq2seq_states(params, batch)
  scores = logits(params, hidden)
  at_targets = jnp.take_along_axis(scores, batch['targets'][..., None], axis=-1)[..., 0]
  loss = jnp.sum(jax.nn.logsumexp(scores, axis=-1) - at_targets)
  return loss + BALANCE * balances * batch['targets'].size, loss
