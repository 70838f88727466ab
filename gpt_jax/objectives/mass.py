# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""A hidden part of a text is written from the rest (MASS, Song et al., 2019).

  L = -sum_{t=u}^{v} log P(x_t | x_{u..t-1}, x without x_{u..v})   (equation 1)

The encoder reads the text with k tokens in a row hidden; the decoder reads the
token before each of these, at the place where it stands, and predicts them.
With k = 1 it is a masked language model of one token, and with k all tokens but
the first a causal one whose source says nothing.

Where the part begins is the released code's: at the front of the text, at its
end or anywhere. The first token, [CLS], is never hidden; in its place the
decoder reads the token that it starts with.
"""

import numpy as np

from gpt_jax.data import sides
from gpt_jax.data.rows import MASKING, Keys, Rows
from gpt_jax.data.tokenizers.tokenizer import Tokenizer
from gpt_jax.nn.transformer import Transformer
from gpt_jax.objectives import encoder_decoder
from gpt_jax.objectives.base import Declared, Needs, Objective
from gpt_jax.objectives.masking import Masking
from gpt_jax.objectives.seq2seq import check_start
from gpt_jax.ranges import Probability
from gpt_jax.spec import UsageError

# Shares of rows whose hidden part is at the front, and at the end.
FRONT, END = 0.2, 0.2
# A row of fewer tokens has no loss (the released code leaves such texts out).
LEAST = 5


def mass(
  rate: Probability = 0.5,
  mask: Probability = 0.8,
  random: Probability = 0.1,
  start: str = 'eos',
) -> Declared:
  """MASS's pre-training.

  Args:
    rate: of a row's n tokens, [CLS] and [SEP] counted, round(rate n) are
      hidden: at least 1, at most all but [CLS].
    mask: of the hidden tokens that the encoder reads as [MASK].
    random: of the hidden tokens that it reads as a random one. The rest stays.
    start: see `seq2seq`.

  Raises:
    UsageError: mask and random are more than all, or start is unknown.
  """
  check_start(start)
  if mask + random > 1:
    raise UsageError(
      f'objective.name: mask={mask} and random={random} are parts of the '
      'hidden tokens; their sum must be at most 1'
    )

  def num_hidden(length: int) -> int:
    return int(_num_hidden(np.array(length), rate))

  def build(model: Transformer, tokenizer: Tokenizer | None) -> Objective:
    # Without a tokenizer batches are made for their shapes alone.
    first_id, masking = 0, Masking(rate, mask, random)
    if tokenizer is not None:
      mask_id = tokenizer.special.mask_id
      assert mask_id is not None, 'see choices.build'
      masking = masking._replace(
        vocab_size=tokenizer.vocab_size, mask_id=mask_id
      )
      first_id = sides.start_id(start, tokenizer.special)

    def make_batch(rows: Rows, keys: Keys) -> dict[str, np.ndarray]:
      return mass_batch(rows, keys, masking, first_id)

    return encoder_decoder.objective(model, make_batch)

  needs = Needs(
    attention='causal',
    encoder=True,
    starts=start,
    target_length=num_hidden,
    rows=('full_sentences', 'doc_sentences'),
    tokens=('mask',),
  )
  return Declared(needs, build)


def _num_hidden(lengths: np.ndarray, rate: float) -> np.ndarray:
  """How many tokens are hidden of rows of so many."""
  wanted = np.round(rate * lengths).astype(np.int64)
  return np.minimum(np.maximum(wanted, 1), np.maximum(lengths - 1, 1))


def mass_batch(
  rows: Rows, keys: Keys, masking: Masking, first_id: int
) -> dict[str, np.ndarray]:
  """A batch of an encoder-decoder, see `objectives.encoder_decoder`.

  Args:
    rows: B rows of L tokens, of which the first is never hidden.
    keys: of the rows.
    masking: its rate, and what becomes of hidden tokens.
    first_id: what the decoder reads in the place of a row's first token.

  Returns:
    Beside the usual, `positions` int32 [B, P]: where in the row each input of
    the decoder stands.
  """
  L = rows.tokens.shape[1]
  P = int(_num_hidden(np.array(L), masking.rate))
  draws = np.stack([g.random(2 + 2 * P) for g in keys.generators(MASKING)])
  which_B, where_B = draws[:, 0], draws[:, 1]
  fate_BP, token_BP = draws[:, 2 : 2 + P], draws[:, 2 + P :]
  length_B = rows.real.sum(axis=1)
  count_B = _num_hidden(length_B, masking.rate)
  count_B = np.where(length_B < LEAST, 0, count_B)
  # The last place where the hidden part may begin.
  last_B = np.maximum(length_B - count_B, 1)
  begin_B = 1 + (where_B * last_B).astype(np.int64)
  begin_B = np.where(which_B < FRONT + END, last_B, begin_B)
  begin_B = np.where(which_B < FRONT, 1, begin_B)
  # What is past the end only fills up: its place does not matter.
  at_BP = np.minimum(begin_B[:, None] + np.arange(P), L - 1)
  hidden_BP = np.arange(P) < count_B[:, None]
  targets_BP = np.take_along_axis(rows.tokens, at_BP, axis=1)
  new_BP = masking.replaced(targets_BP, fate_BP, token_BP)
  sources_BL = rows.tokens.copy()
  index, nth = np.nonzero(hidden_BP)
  sources_BL[index, at_BP[index, nth]] = new_BP[index, nth]
  inputs_BP = np.take_along_axis(rows.tokens, at_BP - 1, axis=1)
  return {
    'sources': sources_BL,
    'source_mask': rows.real,
    'inputs': np.where(at_BP == 1, np.int32(first_id), inputs_BP),
    'targets': targets_BP,
    'weights': hidden_BP.astype(np.float32),
    'positions': (at_BP - 1).astype(np.int32),
  }
