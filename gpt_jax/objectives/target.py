# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Next-token prediction of a part of each row: fine-tuning on pairs."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.data.tokenizers.tokenizer import Tokenizer
from gpt_jax.nn.transformer import Transformer
from gpt_jax.objectives.base import Batch, Declared, Needs, Objective, Params
from gpt_jax.objectives.causal import causal
from gpt_jax.objectives.cross_entropy import CHUNK_LOGITS
from gpt_jax.ranges import Weight


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
