# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Masked language modelling, alone or with a task on pairs of texts.

  L = mean over the chosen tokens of -log P(x_t | masked row)
    + mean over the rows of -log P(label | C)       (BERT, section 3.1; ALBERT,
                                                     section 3.1)

The chosen tokens are predicted independently of each other. Their states are
gathered before the product with the vocabulary, a fixed number per row, so that
the other 85% of the tokens skip it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.core.nn.build import ModelChoices
from gpt_jax.core.nn.transformer import DTYPES
from gpt_jax.core.objectives import forward
from gpt_jax.core.objectives.base import Needs, Scored, TextObjective
from gpt_jax.core.objectives.cross_entropy import Scores, accuracy, token_loss
from gpt_jax.core.objectives.loss import Batch, Loss, Mean, Params, Term
from gpt_jax.core.ranges import Count, Probability, Whole
from gpt_jax.core.rows.rows import MASKING, Keys, Rows
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers.tokenizer import Tokenizer
from gpt_jax.papers.bert.task_heads import PairHead, Pooler

# Masking: choosing and replacing tokens; NumPy, on the host.
#
# All random choices of a row come from its own generator, so that they do not
# depend on the other rows of the batch.


class Masking(NamedTuple):
  """How tokens are chosen and replaced.

  Attributes:
    rate: fraction of a row's tokens, [CLS] and [SEP] included, that are chosen.
    mask: fraction of the chosen tokens that become [MASK].
    random: fraction of the chosen tokens that become a random token of the
      vocabulary, possibly the original. The rest is unchanged.
    words: whether whole words are chosen; else single tokens.
    runs: the probabilities that 1, 2, ... consecutive words, or tokens, are
      chosen together: see `ngrams`.
    vocab_size: of the tokenizer; 0: not known yet, and nothing is replaced.
    mask_id: id of [MASK].
    most: row length to the most tokens that are chosen; None: `rate` of them,
      rounded up.
  """

  rate: float
  mask: float
  random: float
  words: bool = False
  runs: tuple[float, ...] = (1.0,)
  vocab_size: int = 0
  mask_id: int = 0
  most: Callable[[int], int] | None = None

  def known_to(self, tokenizer: Tokenizer | None) -> 'Masking':
    """A copy with the vocabulary and the [MASK] of a tokenizer, if any."""
    if tokenizer is None:
      return self
    mask_id = tokenizer.special.mask_id
    assert mask_id is not None, 'see choices.build'
    return self._replace(vocab_size=tokenizer.vocab_size, mask_id=mask_id)

  def places(self, length: int) -> int:
    """The most tokens that are chosen in a row of `length` tokens."""
    if self.most is not None:
      return max(self.most(length), 1)
    # Without the epsilon, rounding errors would make 0.15 x 20 more than 3.
    return max(math.ceil(self.rate * length - 1e-9), 1)

  def __call__(self, rows: Rows, keys: Keys, starts: np.ndarray | None) -> dict[str, np.ndarray]:
    """Chooses and replaces tokens.

    Args:
      starts: bool [B, L], which tokens begin a word; None unless needed.

    Returns:
      `inputs` int32 [B, L], and with P = `places(L)`: `masked_positions` and
      `masked_targets` int32 [B, P], ascending, and `masked_weights` float32
      [B, P], 1 where a place holds a chosen token.
    """
    L = rows.tokens.shape[1]
    P = self.places(L)
    # Each row's draws: one rounds the number of chosen tokens, L order the
    # tokens, and 2 P decide how the chosen ones are replaced.
    generators = keys.generators(MASKING)
    draws = np.stack([g.random(1 + L + 2 * P) for g in generators])
    order_BL = draws[:, 1 : 1 + L]
    fate_BP, token_BP = draws[:, 1 + L : -P], draws[:, -P:]
    open_BL = rows.real if rows.special is None else rows.real & ~rows.special
    count_B = self._count(rows.real, draws[:, 0])
    count_B = np.minimum(np.minimum(count_B, open_BL.sum(axis=1)), P)
    if self.words or len(self.runs) > 1:
      begins_BL = open_BL if starts is None else starts
      each = zip(open_BL, begins_BL, count_B, generators, strict=True)
      chosen_BL = np.stack([self._spans(*row) for row in each])
    else:
      rank_BL = np.argsort(np.argsort(np.where(open_BL, order_BL, 2.0)))
      chosen_BL = rank_BL < count_B[:, None]
    # The chosen positions in ascending order, then others as padding.
    positions_BP = np.argsort(~chosen_BL, axis=1, kind='stable')[:, :P]
    weights_BP = np.take_along_axis(chosen_BL, positions_BP, axis=1)
    targets_BP = np.take_along_axis(rows.tokens, positions_BP, axis=1)
    new_BP = self.replaced(targets_BP, fate_BP, token_BP)
    new_BP = np.where(weights_BP, new_BP, targets_BP)
    inputs_BL = np.array(rows.tokens)
    np.put_along_axis(inputs_BL, positions_BP, new_BP, axis=1)
    return {
      'inputs': inputs_BL,
      'masked_positions': positions_BP.astype(np.int32),
      'masked_targets': targets_BP,
      'masked_weights': weights_BP.astype(np.float32),
    }

  def replaced(self, ids: np.ndarray, fate: np.ndarray, token: np.ndarray) -> np.ndarray:
    """Replacements of chosen tokens, by two uniform draws below 1 for each.

    Args:
      ids: int32, the chosen tokens.
      fate: decides between [MASK], a random token and the original.
      token: decides which random token.
    """
    drawn = (token * self.vocab_size).astype(np.int32)
    new = np.where(fate < self.mask + self.random, drawn, ids)
    return np.where(fate < self.mask, np.int32(self.mask_id), new)

  def _count(self, real_BL: np.ndarray, draw_B: np.ndarray) -> np.ndarray:
    """Number of tokens to choose in each row: `rate` of them on average."""
    wanted_B = self.rate * real_BL.sum(axis=1)
    # Randomly rounded, so that the mean is right; 3.0000000000000004 is 3.
    count_B = np.floor(wanted_B - 1e-9 + draw_B).astype(np.int64)
    return np.maximum(count_B, real_BL.any(axis=1))

  def _spans(
    self, open_L: np.ndarray, starts_L: np.ndarray, count: int, generator: np.random.Generator
  ) -> np.ndarray:
    """Chooses whole words, or runs of tokens or words; bool [L].

    Visits first words in random order. A run that would exceed `count` is
    shortened, and a word that would is skipped (as in the released code of BERT
    and ALBERT), so that rarely fewer than `count` tokens are chosen.
    """
    bounds = _units(open_L, starts_L)
    chosen_L = np.zeros(len(open_L), bool)
    sizes = np.arange(1, len(self.runs) + 1)
    lengths = generator.choice(sizes, size=len(bounds), p=self.runs)
    left = count
    for first in generator.permutation(len(bounds)).tolist():
      if not left:
        break
      for n in range(int(lengths[first]), 0, -1):
        run = bounds[first : first + n]
        # The words of a run are adjacent: no special token or padding between.
        if len(run) < n or np.any(run[1:, 0] != run[:-1, 1]):
          continue
        begin, end = run[0, 0], run[-1, 1]
        if end - begin <= left and not chosen_L[begin:end].any():
          chosen_L[begin:end] = True
          left -= int(end - begin)
          break
    return chosen_L


def ngrams(longest: int) -> tuple[float, ...]:
  """Runs of n up to `longest`, p(n) = (1/n) / sum(1/k) (ALBERT, eq. 1)."""
  weights = 1 / np.arange(1, longest + 1)
  return tuple((weights / np.sum(weights)).tolist())


def masked_batch(
  rows: Rows, keys: Keys, masking: Masking, starts: np.ndarray | None = None
) -> dict[str, np.ndarray]:
  """A batch of rows with masked tokens.

  Args:
    masking: without a vocabulary, rows must be blank, and are not masked.

  Returns:
    The arrays of `Masking`, `mask` bool [B, L], False for padding, and the
    `token_types`, `segments` and `positions` of the rows, where they have any.
  """
  batch: dict[str, np.ndarray] = {'mask': rows.real}
  if not masking.vocab_size:
    assert not rows.real.any(), 'rows of text need their tokenizer'
    blank = np.zeros((len(rows.tokens), masking.places(rows.tokens.shape[1])), int)
    batch |= {
      'inputs': rows.tokens,
      'masked_positions': blank.astype(np.int32),
      'masked_targets': blank.astype(np.int32),
      'masked_weights': blank.astype(np.float32),
    }
  else:
    batch |= masking(rows, keys, starts)
  for name in ('token_types', 'segments', 'positions'):
    if (value := getattr(rows, name)) is not None:
      batch[name] = value
  return batch


def _units(open_L: np.ndarray, starts_L: np.ndarray) -> np.ndarray:
  """Begin and end of each unit that can be chosen; int [N, 2]."""
  begins = open_L.copy()
  # The rest of a word after the row's start or a special token is a unit too.
  begins[1:] &= starts_L[1:] | ~open_L[:-1]
  ends = open_L & np.append(begins[1:] | ~open_L[1:], True)
  return np.stack([np.flatnonzero(begins), np.flatnonzero(ends) + 1], axis=1)


def check_shares(mask: float, random: float) -> None:
  """Checks that the fractions of [MASK] and random tokens sum to at most 1."""
  if mask + random > 1:
    raise UsageError(
      f'objective.name: mask={mask} and random={random} are parts of the '
      'chosen tokens; their sum must be at most 1'
    )


@dataclass(frozen=True)
class Masked(TextObjective):
  """Prediction of masked tokens.

  Attributes:
    rate: fraction of a row's tokens that are chosen (BERT: 0.15); their number
      is randomly rounded so that the mean is right.
    mask: fraction of the chosen tokens that become [MASK].
    random: fraction of them that become a random token. The rest is unchanged.
    unit: 'token', or 'word' for whole words.
    ngram: choose up to this many consecutive units, n with probability
      proportional to 1 / n (ALBERT: 3, with unit='word').
    pair: 'none' (RoBERTa), 'next' (BERT: does B follow A, or is it from another
      document?) or 'order' (ALBERT: are A and B in their original order?).
    static: number of different masks of a row, which are used in turn
      (RoBERTa's comparison: 1, or 10); 0: a new mask each time.
    pooler: keep the pooler of an imported model, which is not trained here;
      with pairs there is always a pooler.
  """

  rate: Probability = 0.15
  mask: Probability = 0.8
  random: Probability = 0.1
  unit: Literal['token', 'word'] = 'token'
  ngram: Count = 1
  pair: Literal['none', 'next', 'order'] = 'none'
  static: Whole = 0
  pooler: bool = False

  def __post_init__(self):
    """Checks that `mask` and `random` are at most 1 in sum."""
    check_shares(self.mask, self.random)

  @property
  def runs(self) -> tuple[float, ...]:
    """The probabilities of run lengths, see `Masking`."""
    return ngrams(self.ngram)

  @property
  def masking(self) -> Masking:
    """How tokens are chosen and replaced, before the tokenizer is known."""
    words = self.unit == 'word'
    return Masking(self.rate, self.mask, self.random, words, self.runs)

  @property
  def needs(self) -> Needs:
    """An encoder and a [MASK]; with `pair`, rows of two texts."""
    pairs = self.pair != 'none'
    return Needs(
      attention='bidirectional',
      rows=('pairs',) if pairs else ('stream', 'documents', 'sentences', 'pairs'),
      pair=self.pair if pairs else '',
      tokens=('mask',),
      scored=Scored(self.masking.places, lambda length: 1),
    )

  def check(self) -> None:
    """Rejects an adaptive softmax."""
    forward.check_scores(self.model, 'masked')

  def make_batch(self, rows: Rows, keys: Keys) -> dict[str, np.ndarray]:
    """Rows with masked tokens, and the labels of pairs if there are any."""
    if self.static:
      keys = keys.recurring(self.static)
    masking, starts = self.masking.known_to(self.tokenizer), None
    if masking.words and self.tokenizer is not None:
      starts = self.tokenizer.word_starts(rows.tokens)
    batch = masked_batch(rows, keys, masking, starts)
    if self.pair != 'none':
      assert rows.pair is not None
      batch['pair_labels'] = rows.pair
      # Rows that only pad a batch do not count.
      batch['pair_weights'] = np.any(rows.real, axis=1).astype(np.float32)
    return batch

  def init(self, key: jax.Array) -> Params:
    """Parameters of the model, and of the heads in Hugging Face's layout."""
    params, heads = super().init(key), {}
    pooler, pair = self._heads()
    keys = jax.random.split(jax.random.fold_in(key, 1))
    hidden_BD = jnp.zeros((1, self.model.d_model))
    if self.pooler or self.pair != 'none':
      heads['pooler'] = pooler.init(keys[0], hidden_BD)['params']
    if self.pair != 'none':
      heads['pair'] = pair.init(keys[1], hidden_BD)['params']
    return {**params, 'heads': heads} if heads else params

  def _heads(self) -> tuple[Pooler, PairHead]:
    """The pooler of a row's [CLS], and the classifier of its two texts."""
    model = self.model
    kernel = ModelChoices.of(model).init_weights.kernel
    return Pooler(kernel, DTYPES[model.dtype]), PairHead(kernel)

  def chosen(self, hidden_BLD: jax.Array, batch: Batch) -> jax.Array:
    """The states of the chosen tokens, [B, P, D]."""
    return forward.at_chosen(hidden_BLD, batch)

  def counted(self, batch: Batch) -> jax.Array:
    """The weights of the chosen tokens, float32 [B, P]."""
    return batch['masked_weights']

  def real(self, batch: Batch) -> jax.Array:
    """1 for tokens, 0 for padding; float32 [B, L]."""
    return batch['mask'].astype(jnp.float32)

  def loss_of_states(
    self, params: Params, hidden_BLD: jax.Array, batch: Batch, *, evaluating: bool
  ) -> Loss:
    """The loss of the chosen tokens, and of the pairs if there are any."""
    states_BPD = self.chosen(hidden_BLD, batch)
    scores = forward.scores(self.model, params, states_BPD)
    found = masked_loss(scores, batch, evaluating=evaluating)
    if self.pair == 'none':
      return found
    pooler, pair = self._heads()
    heads = params['heads']
    pooled: Any = pooler.apply({'params': heads['pooler']}, hidden_BLD[:, 0])
    logits: Any = pair.apply({'params': heads['pair']}, pooled)
    log_probs_B2 = jax.nn.log_softmax(logits, axis=-1)
    labels_B, weights_B = batch['pair_labels'], batch['pair_weights']
    nll_B = -jnp.take_along_axis(log_probs_B2, labels_B[:, None], axis=1)[:, 0]
    right_B = jnp.argmax(logits, axis=-1) == labels_B
    metrics = {
      **found.metrics,
      'objective/pair_loss': Mean.of(nll_B, weights_B),
      'objective/pair_accuracy': Mean.of(right_B, weights_B),
    }
    return found._replace(metrics=metrics, terms={'pair': Term(nll_B, weights_B)})

  def weights(self, batch: Batch) -> dict[str, jax.Array]:
    """Numbers of chosen tokens and, with pairs, of rows."""
    if self.pair == 'none':
      return {}
    tokens, rows = batch['masked_weights'], batch['pair_weights']
    return {'': jnp.sum(tokens), 'pair': jnp.sum(rows)}


def masked_loss(scores: Scores, batch: Batch, *, evaluating: bool) -> Loss:
  """The loss of the chosen tokens; in evaluation, their accuracy too."""
  targets = batch['masked_targets'], batch['masked_weights']
  found = token_loss(scores, *targets)
  metrics = {'objective/masked_loss': Mean(found.sum, found.weight)}
  if evaluating:
    metrics['objective/masked_accuracy'] = accuracy(scores, *targets)
  return found._replace(metrics=metrics)
