# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Reward models and DPO: rows of preferences, and what is measured.

All completions of a prompt are one row of a reward model's batch, so that no
prompt is seen more often than others (Ouyang et al., 2022, section 3.5). DPO
learns from pairs; the log-probabilities of its reference are computed once, and
kept in the workdir.
"""

import abc
import collections
import functools
import hashlib
import itertools
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from gpt_jax.core.config import Config
from gpt_jax.core.files import arrays, buckets, files
from gpt_jax.core.objectives.base import Objective
from gpt_jax.core.ranges import Fraction, Inside, Positive, Weight
from gpt_jax.core.rows.row_order import Batch
from gpt_jax.core.runtime import hosts
from gpt_jax.core.runtime.log import log
from gpt_jax.core.spec import UsageError
from gpt_jax.core.training import compiled as compiled_lib
from gpt_jax.core.training.parts import Parts
from gpt_jax.tuning import data as data_lib
from gpt_jax.tuning import records
from gpt_jax.tuning.data import BatchMaker
from gpt_jax.tuning.dialogues import Encoder, LearnedTokens, ends, fitted
from gpt_jax.tuning.method import COMMON, Method, Prepared, digest, keeps, left_out, some
from gpt_jax.tuning.objectives.preference import Dpo, LossType, RewardModel
from gpt_jax.tuning.recipe import length_of
from gpt_jax.tuning.records import RankedTexts

# The log-probabilities of DPO's reference, in the workdir.
REFERENCE = 'reference.npz'


class Ranked(NamedTuple):
  """A ranking as tokens: the prompt with each completion, the best first."""

  where: str
  completions: list[LearnedTokens]


def encode(rankings: Sequence[RankedTexts], encoder: Encoder) -> list[Ranked]:
  """Encodes rankings; the tokens of the completions are marked as learned."""
  return [
    Ranked(one.where, [encoder.encode(x, 'completion') for x in one.examples()]) for one in rankings
  ]


def pairs(ranked: Sequence[Ranked]) -> list[Ranked]:
  """Each ranking's pairs, as rankings of two."""
  return [
    Ranked(one.where, [*pair])
    for one in ranked
    for pair in itertools.combinations(one.completions, 2)
  ]


def fit(
  config: Config, path: str, ranked: Sequence[Ranked], most: int
) -> tuple[list[Ranked], dict[str, int], collections.Counter[str]]:
  """Cuts, leaves out or refuses completions that, with their prompt, have more
  than `most` tokens: `finetune.too_long`.

  A ranking is left out whole: if a completion has no token left, or if two
  are equal after the cut.

  Returns:
    The rankings that are kept; the numbers of `examples` and their `pairs`, of
    those `cut` and `left_out`, and of the `tokens` of the rest; and how many
    are left out for which reason.
  """
  kept, cut, reasons = [], 0, collections.Counter()
  for one in ranked:
    longest = max(len(x.ids) for x in one.completions)
    if not keeps(config, one.where, longest, most):
      reasons['too long'] += 1
      continue
    short = [fitted(x, most) for x in one.completions]
    if not all(x.learned.any() for x in short):
      reasons['without a token of a completion'] += 1
      continue
    if len({x.ids.tobytes() for x in short}) < len(short):
      reasons['with equal completions'] += 1
      continue
    kept.append(Ranked(one.where, short))
    cut += longest > most
  if not kept:
    raise UsageError(f'{path}: no ranking fits into {most} tokens; raise finetune.length')
  counts = [len(one.completions) for one in kept]
  figures = {
    'examples': len(ranked),
    'pairs': sum(n * (n - 1) // 2 for n in counts),
    'cut': cut,
    'left_out': len(ranked) - len(kept),
    'tokens': sum(len(x.ids) for one in kept for x in one.completions),
  }
  return kept, figures, reasons


class RankedRows:
  """Rankings as rows of a reward model: see `tuning.objectives.preference`."""

  def __init__(self, ranked: Sequence[Ranked], width: int, length: int):
    """`width` is the most completions of a row, `length` their tokens."""
    self.ranked, self._shape = ranked, (width, length)

  def __len__(self) -> int:
    """Number of prompts."""
    return len(self.ranked)

  def batch(self, numbers: Sequence[int]) -> Batch:
    """The arrays of rows, which are filled up with tokens 0."""
    shape = len(numbers), *self._shape
    batch = {
      'inputs': np.zeros(shape, np.int32),
      'lengths': np.ones(shape[:2], np.int32),
      'labels': np.zeros(len(numbers), np.int32),
      'weights': np.ones(len(numbers), np.float32),
    }
    for row, number in enumerate(numbers):
      completions = self.ranked[number].completions
      batch['labels'][row] = len(completions)
      for i, (ids, _) in enumerate(completions):
        batch['inputs'][row, i, : len(ids)] = ids
        batch['lengths'][row, i] = len(ids)
    return batch


class PreferenceRows:
  """Pairs as rows of DPO: see `tuning.objectives.preference`.

  Attributes:
    reference: the reference's log-probabilities, float32 [pairs, 2]; zeros
      until they are known.
  """

  def __init__(self, ranked: Sequence[Ranked], length: int):
    """Each of `ranked` is a pair; `length` counts targets."""
    self.ranked, self._length = ranked, length
    self.reference = np.zeros((len(ranked), 2), np.float32)

  def __len__(self) -> int:
    """Number of pairs."""
    return len(self.ranked)

  def batch(self, numbers: Sequence[int]) -> Batch:
    """The arrays of rows, which are filled up with tokens 0."""
    shape = len(numbers), 2, self._length
    batch = {
      'inputs': np.zeros(shape, np.int32),
      'targets': np.zeros(shape, np.int32),
      'counts': np.zeros(shape, np.float32),
      'reference': self.reference[numbers],
      'weights': np.ones(len(numbers), np.float32),
    }
    for row, number in enumerate(numbers):
      for i, (ids, learned) in enumerate(self.ranked[number].completions):
        place = row, i, slice(len(ids) - 1)
        batch['inputs'][place] = ids[:-1]
        batch['targets'][place] = ids[1:]
        batch['counts'][place] = learned[1:]
    return batch


def outputs(parts: Parts, params: Any, *splits: BatchMaker) -> list[np.ndarray]:
  """The objective's outputs of all rows of each split, float32 [N, K]."""
  step = compiled_lib.compile_outputs(parts).call
  each = [data_lib.outputs(parts, step, params, split) for split in splits]
  return [rows for rows in each if rows is not None]


def add_reference(
  splits: dict[str, PreferenceRows], parts: Parts, params: Callable[[], Any], workdir: str
) -> None:
  """Sets the reference's log-probabilities of each split.

  They are read from the workdir, or computed once and written there, by the
  parameters that the run starts from.
  """
  config, path = parts.config, os.path.join(workdir, REFERENCE)
  about = [config.finetune.init, config.finetune.data, config.finetune.length]
  of_run = files.digest(about)
  log_probs = _read_reference(path, of_run) if os.path.exists(path) else None
  if log_probs is None:
    rows = splits.values()
    computed = outputs(parts, params(), *rows)
    log_probs = dict(zip(splits, computed, strict=True))
    log.info(
      "the reference's log-probabilities of %s pairs are in %s", f'{sum(map(len, rows)):,}', path
    )
    if hosts.index() == 0:
      os.makedirs(workdir, exist_ok=True)
      arrays.write(path, {'run': of_run, 'hash': _hash(log_probs), **log_probs})
  for name, rows in splits.items():
    rows.reference = log_probs[name]


def _hash(each: dict[str, np.ndarray]) -> str:
  hashed = hashlib.sha256()
  for name in sorted(each):
    hashed.update(name.encode() + each[name].tobytes())
  return hashed.hexdigest()


def _read_reference(path: str, of_run: str) -> dict[str, np.ndarray]:
  try:
    log_probs = arrays.read(path)
    run, expected_hash = (str(log_probs.pop(name)) for name in ('run', 'hash'))
  except (OSError, ValueError, KeyError) as e:
    run = expected_hash = ''
    log_probs = {}
    log.info('%s: %s', path, e)
  if run == of_run and expected_hash == _hash(log_probs):
    return log_probs
  other = run not in ('', of_run)
  what = 'is of another model or data' if other else 'is damaged'
  raise UsageError(
    f"{path}: {what}, and the run learns against the reference's "
    'log-probabilities in it; remove it, and they are computed again'
  )


# What a reward model is judged by, besides the loss.


def judged(scores_NK: np.ndarray, rows: RankedRows) -> dict[str, Any]:
  """Metrics of the rewards of a split.

  Returns:
    `accuracy_low` and `accuracy_high`, the 95% interval of the accuracy over
    prompts; `ece`, the expected calibration error of the probability sigma(|r_i
    - r_j|) that the preferred completion is the one with the higher reward, in
    ten bins (Guo et al., 2017, equation 5), and the bins as `calibration`;
    `length_correlation`, Pearson's, of a completion's reward and its number of
    tokens; `longer_accuracy`, the accuracy of preferring the longer one; and
    the means of the rewards, of the best completions `mean_best_reward`.
  """
  margins, longer, of_prompts, rewards, lengths = [], [], [], [], []
  for scores, (_, completions) in zip(scores_NK, rows.ranked, strict=True):
    sizes = [int(x.learned.sum()) for x in completions]
    rewards += scores[: len(sizes)].tolist()
    lengths += sizes
    both = [*itertools.combinations(range(len(sizes)), 2)]
    prompt_margins = [float(scores[i]) - float(scores[j]) for i, j in both]
    margins += prompt_margins
    of_prompts.append(np.mean(np.greater(prompt_margins, 0)))
    longer += [(1 + np.sign(sizes[i] - sizes[j])) / 2 for i, j in both]
  accuracy = float(np.mean(of_prompts))
  error = 1.96 * float(np.std(of_prompts)) / len(of_prompts) ** 0.5
  ece, bins = calibration(np.array(margins))
  correlation = 0.0
  if np.std(rewards) > 0 and np.std(lengths) > 0:
    correlation = float(np.corrcoef(rewards, lengths)[0, 1])
  return {
    'accuracy_low': max(accuracy - error, 0.0),
    'accuracy_high': min(accuracy + error, 1.0),
    'ece': ece,
    'calibration': bins,
    'length_correlation': correlation,
    'longer_accuracy': float(np.mean(longer)),
    'mean_best_reward': float(np.mean(scores_NK[:, 0], dtype=np.float64)),
  }


def calibration(margins: np.ndarray, num_bins: int = 10) -> tuple[float, list[dict[str, float]]]:
  """The expected calibration error, and its bins of equal width over [0.5, 1].

  Args:
    margins: r_w - r_l of each pair.
    num_bins: those without a pair are left out.
  """
  confidence = 1 / (1 + np.exp(-np.abs(margins.astype(np.float64))))
  right = (1 + np.sign(margins)) / 2
  place = np.minimum((confidence - 0.5) * 2 * num_bins, num_bins - 1)
  error, bins = 0.0, []
  for i in range(num_bins):
    inside = place.astype(int) == i
    if not inside.any():
      continue
    one = {
      'pairs': int(inside.sum()),
      'confidence': float(confidence[inside].mean()),
      'accuracy': float(right[inside].mean()),
    }
    error += inside.mean() * abs(one['accuracy'] - one['confidence'])
    bins.append(one)
  return float(error), bins


def write_rewards(path: str, scores_NK: np.ndarray, rows: RankedRows) -> None:
  """Writes a line for each ranking: where it is, and its rewards."""
  lines = [
    json.dumps(
      {'where': one.where, 'rewards': [float(f'{x:.6g}') for x in scores[: len(one.completions)]]}
    )
    for scores, one in zip(scores_NK, rows.ranked, strict=True)
  ]
  os.makedirs(os.path.dirname(path), exist_ok=True)
  buckets.write_atomically(path, ''.join(line + '\n' for line in lines))


# The methods.


@dataclass(frozen=True)
class Preferences(Method):
  """A method that learns from preferences or rankings.

  Attributes:
    train: a file of preferences or rankings: see `records`.
    dev: one to evaluate on, with other prompts; '': some of the prompts of
      `train`.
    dev_share: which part of the prompts that is.
    num_more: tokens that a completion with its prompt may have beyond the
      length of a row.
    writes: whether the model learns to write completions.
  """

  train: str
  dev: str = ''
  dev_share: Inside = 0.1
  reads = COMMON
  num_more: ClassVar[int]
  writes: ClassVar[bool] = False

  @abc.abstractmethod
  def rows(
    self, ranked: Mapping[str, list[Ranked]], length: int
  ) -> tuple[Objective, Mapping[str, BatchMaker]]:
    """What is trained, and the rows of each split."""

  def prepare(self, config: Config, encoder: Encoder) -> Prepared:
    """Encodes all completions, and makes rows of those that fit."""
    paths = {'train': self.train, 'dev': self.dev or self.train}
    if self.dev:
      read = {name: [*records.rankings(path)] for name, path in paths.items()}
      records.check_apart(read['train'], read['dev'])
    else:
      rankings = [*records.rankings(self.train)]
      read = records.split_by_prompt(rankings, self.dev_share, config.seed, self.train)
    read = {n: some(config, n, each, paths[n]) for n, each in read.items()}
    ranked = {name: encode(each, encoder) for name, each in read.items()}
    every = {name: [x for one in each for x in one.completions] for name, each in ranked.items()}
    if self.writes:
      examples = [x for one in read['train'] for x in one.examples()]
      ends(self.train, examples, every['train'], encoder.tokenizer)
    length = length_of(
      config.finetune.length,
      max(len(x.ids) for each in every.values() for x in each) - self.num_more,
      config.model.context_length,
    )
    most, kept, figures = length + self.num_more, {}, {}
    for name, each in ranked.items():
      kept[name], figures[name], reasons = fit(config, paths[name], each, most)
      log.info(
        '%s: %s of %s prompts with completions, %d cut, %s',
        paths[name],
        name,
        f'{len(each):,}',
        figures[name]['cut'],
        left_out(reasons),
      )
    sizes = [len(x.completions) for each in ranked.values() for x in each]
    objective, splits = self.rows(kept, length)
    return Prepared(
      objective,
      length,
      train=splits['train'],
      dev=splits['dev'],
      data=digest(every, sizes),
      figures=figures,
    )


@dataclass(frozen=True)
class Reward(Preferences):
  """A reward model of preferences or rankings (Ouyang et al., 2022).

  Attributes:
    center_rewards_coefficient: see `tuning.objectives.preference`.
    template: a name in `chat.TEMPLATES`, or a file; '': the model's own.
  """

  center_rewards_coefficient: Weight = 0.0
  template: str = ''
  shown = ('loss', 'accuracy', 'margin')
  num_more = 0

  def rows(
    self, ranked: Mapping[str, list[Ranked]], length: int
  ) -> tuple[Objective, Mapping[str, BatchMaker]]:
    """The completions of a prompt make a row."""
    width = max(len(x.completions) for each in ranked.values() for x in each)
    return RewardModel(width, length, self.center_rewards_coefficient), {
      n: RankedRows(each, width, length) for n, each in ranked.items()
    }

  def prepare(self, config: Config, encoder: Encoder) -> Prepared:
    """The dev split's rewards are judged in the end."""
    prepared = super().prepare(config, encoder)
    return prepared._replace(judged=functools.partial(_scored, prepared.dev))


def _scored(rows: RankedRows, parts: Parts, params: Any, workdir: str) -> dict[str, Any]:
  """Calibration, and whether length explains the rewards, which it writes."""
  (scores,) = outputs(parts, params, rows)
  if hosts.index() == 0:
    path = os.path.join(workdir, 'predictions', 'dev.jsonl')
    write_rewards(path, scores, rows)
  return judged(scores, rows)


@dataclass(frozen=True)
class DirectPreference(Preferences):
  """Direct preference optimisation (Rafailov et al., 2023).

  Fields not listed are those of `tuning.objectives.preference.Dpo`.

  Attributes:
    template: a name in `chat.TEMPLATES`, or a file; '': the model's own.
  """

  beta: Positive = 0.1
  loss_type: LossType = 'sigmoid'
  label_smoothing: Fraction = 0.0
  template: str = ''
  shown = ('loss', 'rewards/accuracies', 'rewards/margins')
  num_more = 1  # the first token is no target
  writes = True

  def rows(
    self, ranked: Mapping[str, list[Ranked]], length: int
  ) -> tuple[Objective, Mapping[str, BatchMaker]]:
    """Each pair makes a row; of a ranking all pairs are learned."""
    return Dpo(length, self.beta, self.loss_type, self.label_smoothing), {
      n: PreferenceRows(pairs(each), length) for n, each in ranked.items()
    }

  def prepare(self, config: Config, encoder: Encoder) -> Prepared:
    """The reference's log-probabilities are added by the first parameters."""
    prepared = super().prepare(config, encoder)
    splits = {'train': prepared.train, 'dev': prepared.dev}
    return prepared._replace(begin=functools.partial(add_reference, splits))
