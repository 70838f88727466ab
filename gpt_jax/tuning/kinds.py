# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What follows from the kind of a task's labels: `KINDS`, by `Task.kind`.

A kind says which head reads the model, how examples become rows and batches,
which objective trains them, and how the model's outputs are judged and written.
"""

import abc
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from gpt_jax.core import spec
from gpt_jax.core.objectives import causal
from gpt_jax.core.objectives.base import Objective
from gpt_jax.core.objectives.choices import VIEWS
from gpt_jax.core.rows.row_order import Batch
from gpt_jax.core.training.held_out import exponential
from gpt_jax.tasks import metrics as metrics_lib
from gpt_jax.tasks.task import UNLABELLED, Example, Task
from gpt_jax.tuning.objectives import task as objectives
from gpt_jax.tuning.objectives.cross_view import CrossView
from gpt_jax.tuning.rows import (
  IGNORED,
  NUM_SPECIAL,
  EncodedExamples,
  Frame,
  TaskRows,
  Tokens,
  found_spans,
  found_tags,
  head_rows,
  longest,
  span_rows,
  tag_names,
  tag_rows,
  target_rows,
)


class ScoreScale(NamedTuple):
  """Normalises scores by mean and standard deviation of the train split.

  W_y has no bias, so h would otherwise have to produce the scores' mean.
  """

  mean: float = 0.0
  deviation: float = 1.0

  @classmethod
  def of(cls, labels: np.ndarray) -> 'ScoreScale':
    """The scale of these scores."""
    deviation = float(np.std(labels, dtype=np.float64))
    return cls(float(np.mean(labels, dtype=np.float64)), deviation or 1.0)


UNSCALED = ScoreScale()
# Fields of the section `finetune`, or arguments, by name.
Fields = Mapping[str, Any]


@dataclass(frozen=True)
class TaskSplit:
  """The encoded examples of a split.

  Attributes:
    known: whether labels are known.
    scale: of the scores, in regression.
    class_weights: float32 [num_labels]; None: all 1.
    examples: the examples themselves, for spans and tags, whose rows do not
      contain everything.
    characters: int16 [V, C], those of each id, if the model reads them.
  """

  task: Task
  rows: TaskRows
  known: bool = True
  scale: ScoreScale = UNSCALED
  class_weights: np.ndarray | None = None
  examples: Sequence[Example] = ()
  characters: np.ndarray | None = None

  @classmethod
  def of(cls, encoded: EncodedExamples) -> 'TaskSplit':
    """The examples as rows; without class weights and scale."""
    task, kind, examples = encoded.task, KINDS[encoded.task.kind], ()
    # The target of a prompt is a text of its own.
    labelled = kind.head is None or all(example.label is not None for example in encoded.examples)
    if kind.keeps_examples:
      examples = encoded.examples
    return cls(task, kind.rows(encoded), labelled, examples=examples)

  @property
  def kind(self) -> 'TaskKind':
    """The kind of its labels."""
    return KINDS[self.task.kind]

  @property
  def num_examples(self) -> int:
    """Number of examples; with spans an example can have several rows."""
    return len(self.examples) or len(self.rows)

  def __len__(self) -> int:
    """Number of rows."""
    return len(self.rows)

  def inputs(self, numbers: Sequence[int]) -> np.ndarray:
    """Model inputs of these rows."""
    ids = self.rows.inputs[numbers]
    return ids if self.characters is None else self.characters[ids]

  def batch(self, numbers: Sequence[int]) -> Batch:
    """The arrays of a batch of rows."""
    return self.kind.batch(self, numbers)


class Judgement(NamedTuple):
  """What metrics compare.

  Attributes:
    labels: of all examples; meaningless if they are unknown, like the losses.
    predictions: classes, scores, texts or lists of tags.
    losses: 'loss' and, for targets, 'perplexity'.
  """

  labels: Any
  predictions: Any
  losses: dict[str, float]


class Outputs(NamedTuple):
  """A model's outputs on a split.

  Attributes:
    raw: float32 [N, K]: logits, or a score; for targets the loss, the number of
      tokens and whether all of them are the most likely ones.
    predictions: [N], classes or scores.
    metrics: `loss` and the task's metrics; empty if labels are unknown.
  """

  raw: np.ndarray
  predictions: Any
  metrics: dict[str, float]


class TaskKind(abc.ABC):
  """A kind of labels.

  Attributes:
    head: the only head in `finetune.head`; '': the one that suits the model;
      None: the model's own next-token prediction.
    auxiliary: whether decoders can train language modelling beside the labels.
    least_length: the shortest row in tokens.
    keeps_examples: see `TaskSplit.examples`.
  """

  head: ClassVar[str | None] = ''
  auxiliary: ClassVar[bool] = True
  least_length: ClassVar[int] = 8
  keeps_examples: ClassVar[bool] = False

  def num_new_tokens(self, reads: str) -> int:
    """Rows that the token table needs; `reads`: a key of `FORMS`."""
    return NUM_SPECIAL if reads == 'extract' else 0

  def longest(self, task: Task, tokens: list[list[Tokens]], special: Frame) -> int:
    """Tokens of the longest uncut row."""
    return longest(task, tokens, special)

  def rows(self, encoded: EncodedExamples) -> TaskRows:
    """The rows of a split."""
    return head_rows(encoded)

  def batch(self, split: TaskSplit, numbers: Sequence[int]) -> Batch:
    """The arrays of a batch of rows."""
    rows = split.rows
    labels = rows.labels[numbers]
    weights = np.ones(len(numbers), np.float32)
    if split.class_weights is not None:
      weights = split.class_weights[labels]
    batch = {
      'inputs': split.inputs(numbers),
      'lengths': rows.lengths[numbers],
      'labels': labels,
      'weights': weights,
    }
    if rows.second is not None:
      batch['second'] = rows.second[numbers]
    return batch

  @abc.abstractmethod
  def objective(self, task: Task, tuned: Fields, head: Fields) -> Objective:
    """What trains such labels.

    `tuned` is the section `finetune` with its derived fields, `head` what an
    objective takes whose head reads whole sequences.
    """

  @abc.abstractmethod
  def judge(self, split: TaskSplit, raw: np.ndarray) -> Judgement:
    """Reads the model's outputs on a split."""

  @abc.abstractmethod
  def columns(self, split: TaskSplit, found: Outputs) -> dict[str, list]:
    """The columns of the table of predictions."""


class ClassificationKind(TaskKind):
  """A class for each example."""

  def objective(self, task: Task, tuned: Fields, head: Fields) -> Objective:
    return objectives.Classification(
      num_labels=len(task.labels), length=tuned['length'], sequences=tuned['sequences'], **head
    )

  def judge(self, split: TaskSplit, raw: np.ndarray) -> Judgement:
    labels = split.rows.labels
    loss = {'loss': _nll(raw, labels)}
    return Judgement(labels, np.argmax(raw, axis=1), loss)

  def columns(self, split: TaskSplit, found: Outputs) -> dict[str, list]:
    """Classes by name, with the probability of each."""
    count = found.raw.shape[1]
    names = [*split.task.labels] or [str(i) for i in range(count)]
    columns = {'prediction': [names[i] for i in found.predictions]}
    if split.known:
      columns['label'] = [names[i] for i in split.rows.labels]
    for name, column in zip(names, probabilities(found.raw).T, strict=True):
      columns[f'p({name})'] = [f'{x:.6g}' for x in column]
    return columns


class ChoiceKind(ClassificationKind):
  """The right one of several answers."""

  head = 'choice'

  def objective(self, task: Task, tuned: Fields, head: Fields) -> Objective:
    return objectives.Choice(answers=tuned['sequences'], length=tuned['length'], **head)


class RegressionKind(TaskKind):
  """A score for each example, in units of the train split's deviation."""

  def batch(self, split: TaskSplit, numbers: Sequence[int]) -> Batch:
    batch, (mean, deviation) = super().batch(split, numbers), split.scale
    labels = (batch['labels'] - mean) / deviation
    return {**batch, 'labels': labels.astype(np.float32)}

  def objective(self, task: Task, tuned: Fields, head: Fields) -> Objective:
    return objectives.Regression(length=tuned['length'], sequences=tuned['sequences'], **head)

  def judge(self, split: TaskSplit, raw: np.ndarray) -> Judgement:
    (mean, deviation), labels = split.scale, split.rows.labels
    predictions = raw[:, 0].astype(np.float64) * deviation + mean
    # In units of the standard deviation, as in training.
    errors = (predictions - labels) / deviation
    loss = {'loss': float(np.mean(np.square(errors)))}
    return Judgement(labels, predictions, loss)

  def columns(self, split: TaskSplit, found: Outputs) -> dict[str, list]:
    columns = {'prediction': [f'{x:.6g}' for x in found.predictions]}
    if split.known:
      columns['label'] = [f'{x:.6g}' for x in split.rows.labels]
    return columns


class TargetKind(TaskKind):
  """A text that follows a prompt."""

  head = None
  least_length = 2

  def num_new_tokens(self, reads: str) -> int:
    return 0

  def longest(self, task: Task, tokens: list[list[Tokens]], special: Frame) -> int:
    # Of GPT-1's frame only the tokens before a text are read.
    return max(sum(map(len, t)) for t in tokens) + len(special.start) - 1

  def rows(self, encoded: EncodedExamples) -> TaskRows:
    return target_rows(encoded)

  def batch(self, split: TaskSplit, numbers: Sequence[int]) -> Batch:
    """Next-token prediction, with weight 1 for the tokens of targets."""
    tokens, bounds = split.rows.inputs[numbers, 0], split.rows.lengths[numbers]
    places = np.arange(1, tokens.shape[1])[None]
    counts = (bounds[:, :1] <= places) & (places < bounds[:, 1:])
    return {
      'inputs': np.ascontiguousarray(tokens[:, :-1]),
      'targets': np.ascontiguousarray(tokens[:, 1:]),
      'weights': counts.astype(np.float32),
    }

  def objective(self, task: Task, tuned: Fields, head: Fields) -> Objective:
    return causal.Target(length=tuned['length'])

  def judge(self, split: TaskSplit, raw: np.ndarray) -> Judgement:
    nll, tokens, right = np.asarray(raw, np.float64).T
    loss = float(nll.sum() / tokens.sum())
    losses = {'loss': loss, **exponential('perplexity', loss)}
    return Judgement(np.ones(len(raw), int), right.astype(int), losses)

  def columns(self, split: TaskSplit, found: Outputs) -> dict[str, list]:
    """Whether all tokens are the most likely ones, and the loss per token."""
    per_token = found.raw[:, 0] / found.raw[:, 1]
    return {'exact_match': found.predictions.tolist(), 'loss': [f'{x:.6g}' for x in per_token]}


class SpansKind(TaskKind):
  """The answer to a question: a part of a text."""

  head = 'spans'
  auxiliary = False
  keeps_examples = True

  def rows(self, encoded: EncodedExamples) -> TaskRows:
    return span_rows(encoded)

  def objective(self, task: Task, tuned: Fields, head: Fields) -> Objective:
    return objectives.Spans(tuned['length'], features=head['features'])

  def judge(self, split: TaskSplit, raw: np.ndarray) -> Judgement:
    rows, options = split.rows, split.task.options
    predictions = found_spans(options, split.examples, rows.origins, raw)
    labels = [e.label.texts for e in split.examples] if split.known else []
    both = zip(np.split(raw, 2, axis=1), rows.labels.T, strict=True)
    loss = float(np.mean([_nll(*x) for x in both]))
    return Judgement(labels, predictions, {'loss': loss})

  def columns(self, split: TaskSplit, found: Outputs) -> dict[str, list]:
    """Texts, and the first accepted answers."""
    columns = {'prediction': [*found.predictions]}
    if split.known:
      columns['label'] = [e.label.texts[0] for e in split.examples]
    return columns


class TagsKind(TaskKind):
  """A tag for each word."""

  head = 'tokens'
  auxiliary = False
  keeps_examples = True

  def rows(self, encoded: EncodedExamples) -> TaskRows:
    return tag_rows(encoded)

  def objective(self, task: Task, tuned: Fields, head: Fields) -> Objective:
    rows = {'num_labels': len(task.labels), 'length': tuned['length']}
    if views := spec.build('finetune.views', tuned['views'], VIEWS):
      unlabelled = UNLABELLED in task.paths
      return CrossView(**rows, **views._asdict(), unlabelled=unlabelled)
    return objectives.Tags(**rows, dropout=head['dropout'], features=head['features'])

  def judge(self, split: TaskSplit, raw: np.ndarray) -> Judgement:
    task, rows = split.task, split.rows
    best = found_tags(task, rows.origins, raw)
    predictions = [tag_names(task, numbers) for numbers in best]
    labels = [tag_names(task, e.label) for e in split.examples if split.known]
    scored, loss = rows.labels != IGNORED, math.nan
    if scored.any():
      each = raw.reshape(*rows.labels.shape, -1)
      loss = _nll(each[scored], rows.labels[scored])
    return Judgement(labels, predictions, {'loss': loss})

  def columns(self, split: TaskSplit, found: Outputs) -> dict[str, list]:
    """The tags of all words, separated by spaces."""
    columns = {'prediction': [' '.join(tags) for tags in found.predictions]}
    if split.known:
      names = [tag_names(split.task, e.label) for e in split.examples]
      columns['label'] = [' '.join(tags) for tags in names]
    return columns


KINDS: dict[str, TaskKind] = {
  'classification': ClassificationKind(),
  'regression': RegressionKind(),
  'choice': ChoiceKind(),
  'target': TargetKind(),
  'spans': SpansKind(),
  'tags': TagsKind(),
}


def judged(split: TaskSplit, raw: np.ndarray) -> Outputs:
  """The predictions and metrics of a model's outputs on a split."""
  task = split.task
  labels, predictions, losses = split.kind.judge(split, raw)
  if not split.known:
    return Outputs(raw, predictions, {})
  of_kind = metrics_lib.METRICS[task.kind]
  metrics = {name: of_kind[name](labels, predictions) for name in task.metrics}
  return Outputs(raw, predictions, losses | metrics)


def probabilities(raw: np.ndarray) -> np.ndarray:
  """The softmax of logits [N, K], in float64; none is zero."""
  shifted = np.asarray(raw, np.float64)
  shifted = shifted - shifted.max(axis=1, keepdims=True)
  exponents = np.exp(shifted)
  return np.maximum(exponents / exponents.sum(axis=1, keepdims=True), 1e-300)


def _nll(raw: np.ndarray, labels: np.ndarray) -> float:
  """The mean loss of logits [N, K]."""
  log_probs = np.log(probabilities(raw))
  return -float(np.mean(log_probs[np.arange(len(raw)), labels]))
