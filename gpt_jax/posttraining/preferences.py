# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Reward models and DPO: rows of preferences, and what is measured.

All completions of a prompt are one row of a reward model's batch, so that no
prompt is seen more often than others (Ouyang et al., 2022, section 3.5). DPO
learns from pairs; the log-probabilities of its reference are computed once, and
kept in the workdir.
"""

import abc
import hashlib
import itertools
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np

from gpt_jax import sharding
from gpt_jax.config import Config
from gpt_jax.files import arrays, buckets
from gpt_jax.objectives.preference import LossType
from gpt_jax.posttraining import records
from gpt_jax.posttraining.base import (
  COMMON,
  Method,
  Prepared,
  Split,
  digest,
  limited,
  set_length,
)
from gpt_jax.posttraining.dialogues import Encoded, Encoder, fitted
from gpt_jax.posttraining.records import Ranking
from gpt_jax.ranges import Fraction, Inside, Positive, Weight
from gpt_jax.rows.row_order import Batch
from gpt_jax.runtime import hosts
from gpt_jax.runtime.log import log
from gpt_jax.spec import UsageError
from gpt_jax.tokenizers.chat import ChatTemplate
from gpt_jax.tokenizers.tokenizer import Tokenizer
from gpt_jax.training import compiled as compiled_lib
from gpt_jax.training.parts import Parts

# The log-probabilities of DPO's reference, in the workdir.
REFERENCE = 'reference.npz'


class Ranked(NamedTuple):
  """A ranking as tokens: the prompt with each completion, the best first."""

  where: str
  completions: list[Encoded]


def encode(rankings: Sequence[Ranking], encoder: Encoder) -> list[Ranked]:
  """Encodes rankings; the tokens of the completions are marked as learned."""
  return [
    Ranked(one.where, [encoder.encode(x, 'completion') for x in one.examples()])
    for one in rankings
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
) -> tuple[list[Ranked], dict[str, int]]:
  """Cuts, leaves out or refuses what is too long: `finetune.too_long`.

  A ranking is left out whole: if a completion has no token left, or if two
  are equal after the cut.

  Args:
    path: of the rankings.
    most: tokens of a completion with its prompt.

  Returns:
    The rankings that are kept, and the numbers of `examples` and their `pairs`,
    of those `cut` and `left_out`, and of the `tokens` of the rest.
  """
  too_long, kept, cut = config.finetune.too_long, [], 0
  for one in ranked:
    longest = max(len(x.ids) for x in one.completions)
    if longest > most and too_long == 'refuse':
      raise UsageError(
        f'{one.where}: has {longest} tokens, but a row holds {most}; '
        "raise finetune.length, or let finetune.too_long='drop' leave it out"
      )
    short = [fitted(x, most) for x in one.completions]
    different = {x.ids.tobytes() for x in short}
    if (
      (longest > most and too_long == 'drop')
      or not all(x.learned.any() for x in short)
      or len(different) < len(short)
    ):
      continue
    kept.append(Ranked(one.where, short))
    cut += longest > most
  if not kept:
    raise UsageError(
      f'{path}: no ranking fits rows of finetune.length='
      f'{config.finetune.length} tokens; raise it'
    )
  counts = [len(one.completions) for one in kept]
  figures = {
    'examples': len(ranked),
    'pairs': sum(n * (n - 1) // 2 for n in counts),
    'cut': cut,
    'left_out': len(ranked) - len(kept),
    'tokens': sum(len(x.ids) for one in kept for x in one.completions),
  }
  return kept, figures


class RankedRows:
  """Rankings as rows of a reward model: see `objectives.preference`."""

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


class PairRows:
  """Pairs as rows of DPO: see `objectives.preference`.

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


def outputs(
  parts: Parts, params: Any, *splits: RankedRows | PairRows
) -> list[np.ndarray]:
  """The objective's outputs of all rows of each split, float32 [N, K]."""
  step, rows = compiled_lib.compile_outputs(parts).call, parts.eval_rows
  found = []
  for split in splits:
    each = []
    for begin in range(0, len(split), rows):
      # The last batch is filled up with the last row.
      numbers = np.minimum(np.arange(begin, begin + rows), len(split) - 1)
      batch = split.batch(numbers[parts.host_rows(rows)].tolist())
      each.append(step(params, parts.put(batch, rows)))
      sharding.wait_for_earlier(each)
    found.append(np.concatenate(jax.device_get(each))[: len(split)])
  return found


def add_reference(
  splits: dict[str, PairRows],
  parts: Parts,
  params: Callable[[], Any],
  workdir: str,
) -> None:
  """Sets the reference's log-probabilities of each split.

  They are read from the workdir, or computed once and written there.

  Args:
    params: the parameters that the run starts from.
    workdir: the run's folder.
  """
  config, path = parts.config, os.path.join(workdir, REFERENCE)
  about = [config.finetune.init, config.finetune.data, config.finetune.length]
  of_run = hashlib.sha256(json.dumps(about).encode()).hexdigest()
  found = _read_reference(path, of_run) if os.path.exists(path) else None
  if found is None:
    rows = splits.values()
    computed = outputs(parts, params(), *rows)
    found = dict(zip(splits, computed, strict=True))
    log.info(
      "the reference's log-probabilities of %s pairs are in %s",
      *(f'{sum(map(len, rows)):,}', path),
    )
    if hosts.index() == 0:
      os.makedirs(workdir, exist_ok=True)
      arrays.write(path, {'run': of_run, 'hash': _hash(found), **found})
  for name, rows in splits.items():
    rows.reference = found[name]


def _hash(each: dict[str, np.ndarray]) -> str:
  found = hashlib.sha256()
  for name in sorted(each):
    found.update(name.encode() + each[name].tobytes())
  return found.hexdigest()


def _read_reference(path: str, of_run: str) -> dict[str, np.ndarray]:
  try:
    found = arrays.read(path)
    run, known = (str(found.pop(name)) for name in ('run', 'hash'))
  except (OSError, ValueError, KeyError) as e:
    run = known = ''
    found = {}
    log.info('%s: %s', path, e)
  if run == of_run and known == _hash(found):
    return found
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
    own = [float(scores[i]) - float(scores[j]) for i, j in both]
    margins += own
    of_prompts.append(np.mean(np.greater(own, 0)))
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


def calibration(
  margins: np.ndarray, num_bins: int = 10
) -> tuple[float, list[dict[str, float]]]:
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
      {
        'where': one.where,
        'rewards': [float(f'{x:.6g}') for x in scores[: len(one.completions)]],
      }
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
  """

  train: str
  dev: str = ''
  dev_share: Inside = 0.1
  reads = COMMON
  num_more: ClassVar[int]

  @abc.abstractmethod
  def rows(
    self, ranked: Mapping[str, list[Ranked]], length: int
  ) -> tuple[str, Mapping[str, Split]]:
    """The call of `objective.name`, and the rows of each split."""

  def prepare(
    self,
    config: Config,
    tokenizer: Tokenizer,
    template: Callable[[], ChatTemplate],
  ) -> Prepared:
    """Encodes all completions, and makes rows of those that fit."""
    tuned, encoder = config.finetune, Encoder(tokenizer, template)
    paths = {'train': self.train, 'dev': self.dev or self.train}
    if self.dev:
      found = {name: [*records.rankings(path)] for name, path in paths.items()}
      records.check_apart(found['train'], found['dev'])
    else:
      found = records.split_by_prompt(
        *([*records.rankings(self.train)], self.dev_share),
        *(config.seed, self.train),
      )
    ranked = {
      name: encode(limited(config, name, each, paths[name]), encoder)
      for name, each in found.items()
    }
    every = {
      name: [x for one in each for x in one.completions]
      for name, each in ranked.items()
    }
    longest = max(len(x.ids) for each in every.values() for x in each)
    set_length(config, longest - self.num_more)
    most, kept, figures = tuned.length + self.num_more, {}, {}
    for name, each in ranked.items():
      kept[name], figures[name] = fit(config, paths[name], each, most)
      log.info(
        '%s: %s of %s prompts with completions, %d cut, %d left out',
        *(paths[name], name, f'{len(each):,}'),
        *(figures[name]['cut'], figures[name]['left_out']),
      )
    sizes = [len(x.completions) for each in ranked.values() for x in each]
    objective, splits = self.rows(kept, tuned.length)
    return Prepared(
      objective,
      train=splits['train'],
      dev=splits['dev'],
      data=digest(every, sizes),
      figures=figures,
      template=encoder.template if encoder.chats else None,
    )


@dataclass(frozen=True)
class Reward(Preferences):
  """A reward model of preferences or rankings (Ouyang et al., 2022).

  Attributes:
    center_rewards_coefficient: see `objectives.preference`.
    template: a name in `chat.TEMPLATES`, or a file; '': the model's own.
  """

  center_rewards_coefficient: Weight = 0.0
  template: str = ''
  shown = ('loss', 'accuracy', 'margin')
  num_more = 0

  def rows(
    self, ranked: Mapping[str, list[Ranked]], length: int
  ) -> tuple[str, Mapping[str, Split]]:
    """The completions of a prompt make a row."""
    width = max(len(x.completions) for each in ranked.values() for x in each)
    return (
      f'reward(completions={width}, length={length}, '
      f'center_rewards_coefficient={self.center_rewards_coefficient})'
    ), {n: RankedRows(each, width, length) for n, each in ranked.items()}

  def judged(
    self, prepared: Prepared, parts: Parts, params: Any, workdir: str
  ) -> dict[str, Any]:
    """Calibration, and whether length explains the rewards."""
    assert isinstance(prepared.dev, RankedRows)
    (scores,) = outputs(parts, params, prepared.dev)
    if hosts.index() == 0:
      path = os.path.join(workdir, 'predictions', 'dev.jsonl')
      write_rewards(path, scores, prepared.dev)
    return judged(scores, prepared.dev)


@dataclass(frozen=True)
class DirectPreference(Preferences):
  """Direct preference optimisation (Rafailov et al., 2023).

  Attributes:
    beta: see `objectives.preference.Dpo`.
    loss_type: see `objectives.preference.Dpo`.
    label_smoothing: see `objectives.preference.Dpo`.
    template: a name in `chat.TEMPLATES`, or a file; '': the model's own.
  """

  beta: Positive = 0.1
  loss_type: LossType = 'sigmoid'
  label_smoothing: Fraction = 0.0
  template: str = ''
  shown = ('loss', 'rewards/accuracies', 'rewards/margins')
  num_more = 1  # the first token is no target

  def rows(
    self, ranked: Mapping[str, list[Ranked]], length: int
  ) -> tuple[str, Mapping[str, Split]]:
    """Each pair makes a row; of a ranking all pairs are learned."""
    return (
      f'dpo(length={length}, beta={self.beta!r}, loss_type={self.loss_type!r}, '
      f'label_smoothing={self.label_smoothing!r})'
    ), {n: PairRows(pairs(each), length) for n, each in ranked.items()}

  def begin(
    self,
    prepared: Prepared,
    parts: Parts,
    params: Callable[[], Any],
    workdir: str,
  ) -> None:
    """Adds the reference's log-probabilities."""
    train, dev = prepared.train, prepared.dev
    assert isinstance(train, PairRows) and isinstance(dev, PairRows)
    splits = {'train': train, 'dev': dev}
    add_reference(splits, parts, params, workdir)
