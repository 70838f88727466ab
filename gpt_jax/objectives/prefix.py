# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A decoder whose first tokens see each other (prefix LM, T5: section 3.2).

  L = mean over the tokens after a prefix x_<=p of log P(x_t | x_<t)

Each token of the prefix sees all others of it; after it a token sees what came
before. Where the prefix ends is drawn for each row, each place as likely as
another, and nothing within it is predicted: of table 3's sentence,
`me to your party last week .` after `Thank you for inviting`.
"""

import numpy as np

from gpt_jax.data.rows import MASKING, Keys, Rows
from gpt_jax.data.tokenizers.tokenizer import Tokenizer
from gpt_jax.nn.transformer import Transformer
from gpt_jax.objectives import causal as causal_lib
from gpt_jax.objectives.base import Declared, Needs, Objective
from gpt_jax.ranges import NotNegative


def prefix(z_loss: NotNegative = 0.0) -> Declared:
  """Next-token prediction after a prefix that is read both ways.

  Args:
    z_loss: see `causal`.
  """

  def build(model: Transformer, tokenizer: Tokenizer | None) -> Objective:
    del tokenizer
    plain = causal_lib.causal(z_loss)(model)
    return Objective(make_batch, plain.init, plain.loss)

  return Declared(Needs(rows=('stream',)), build)


def make_batch(rows: Rows, keys: Keys) -> dict[str, np.ndarray]:
  """As `causal.make_batch`, with `prefix` int32 [B]: how many inputs it has.

  The last of these predicts the first token that counts.
  """
  batch = causal_lib.make_batch(rows)
  draw_B = np.array([g.random() for g in keys.generators(MASKING)])
  # Of n tokens 1 to n are after the prefix: the one before the row is its
  # first, at least.
  prefix_B = 1 + (draw_B * rows.real.sum(axis=1)).astype(np.int32)
  counts_BL = np.arange(rows.tokens.shape[1])[None] >= prefix_B[:, None] - 1
  return {**batch, 'weights': batch['weights'] * counts_BL, 'prefix': prefix_B}
