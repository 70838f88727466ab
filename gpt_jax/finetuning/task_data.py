# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A task's examples, as a run consumes them and is measured by them."""

import math
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from gpt_jax.finetuning import spans, tags
from gpt_jax.finetuning.task_rows import Rows
from gpt_jax.rows import pipeline
from gpt_jax.rows.taken import Taken, TakenAt
from gpt_jax.spec import UsageError
from gpt_jax.tasks import metrics as metrics_lib
from gpt_jax.tasks.task import Example, Task
from gpt_jax.tokens.mixture import Shuffle
from gpt_jax.training import compiled as compiled_lib
from gpt_jax.training.held_out import exponential
from gpt_jax.training.parts import Parts

# How `TaskData` orders the examples, for config.json: see tokens/mixture.py.
ORDER = 'shuffle(rounds=12)'


class Scale(NamedTuple):
  """Scores are learned with mean 0 and deviation 1, those of the train split.

  W_y has no bias: the mean of the scores would have to come out of h.
  """

  mean: float = 0.0
  deviation: float = 1.0

  @classmethod
  def of(cls, labels: np.ndarray) -> 'Scale':
    """That of some scores."""
    deviation = float(np.std(labels, dtype=np.float64))
    return cls(float(np.mean(labels, dtype=np.float64)), deviation or 1.0)


class Split(NamedTuple):
  """Examples as a model takes them.

  Attributes:
    task: what they are of.
    rows: the examples.
    known: whether the labels are.
    scale: of the scores, in a regression.
    class_weights: float32 [num_labels]; None: all 1.
    examples: of spans and tags, whose rows do not say all.
  """

  task: Task
  rows: Rows
  known: bool = True
  scale: Scale = Scale()
  class_weights: np.ndarray | None = None
  examples: Sequence[Example] = ()

  @property
  def num_examples(self) -> int:
    """How many examples; of spans one may be several rows."""
    return len(self.examples) or len(self.rows)

  def batch(self, numbers: np.ndarray) -> pipeline.Batch:
    """The arrays of some examples."""
    rows = self.rows
    if self.task.kind == 'target':
      return _target_batch(rows.inputs[numbers, 0], rows.lengths[numbers])
    labels = rows.labels[numbers]
    weights = np.ones(len(numbers), np.float32)
    if self.class_weights is not None:
      weights = self.class_weights[labels]
    if self.task.kind == 'regression':
      mean, deviation = self.scale
      labels = ((labels - mean) / deviation).astype(np.float32)
    batch = {
      'inputs': rows.inputs[numbers],
      'lengths': rows.lengths[numbers],
      'labels': labels,
      'weights': weights,
    }
    if rows.second is not None:
      batch['second'] = rows.second[numbers]
    return batch


def _target_batch(tokens: np.ndarray, bounds: np.ndarray) -> pipeline.Batch:
  """Each token predicts the next; those from `bounds` on count."""
  places = np.arange(1, tokens.shape[1])[None]
  counts = (bounds[:, :1] <= places) & (places < bounds[:, 1:])
  return {
    'inputs': np.ascontiguousarray(tokens[:, :-1]),
    'targets': np.ascontiguousarray(tokens[:, 1:]),
    'weights': counts.astype(np.float32),
  }


class TaskData:
  """A split in an order that the seed gives, another in each epoch."""

  def __init__(self, split: Split, *, seed: int):
    """`split` is what is trained on."""
    self._split = split
    self.rows_per_epoch = len(split.rows)
    self._order = Shuffle(self.rows_per_epoch, seed)

  def row_numbers(self, taken: Taken) -> list[int]:
    """Which examples are some rows of the run."""
    return [self._order[i] for i in taken.indices]

  def epochs(self, taken: Taken) -> dict[str, float]:
    """Passes over the examples before some rows of the run."""
    return {'epochs': taken.index / self.rows_per_epoch}

  def batches(
    self, parts: Parts, start: int, rows: TakenAt
  ) -> Generator[pipeline.Batch]:
    """See `training_run.Data`."""

    def batch(step: int) -> pipeline.Batch:
      taken = rows(step)
      numbers = self.row_numbers(taken)[parts.host_rows(taken.count)]
      return self._split.batch(np.array(numbers))

    stop = parts.config.schedule.num_steps
    return pipeline.prefetch(batch, start, stop)


class Outputs(NamedTuple):
  """What a model says of a split.

  Attributes:
    raw: float32 [N, K]: logits, or a score; of targets the loss, the number of
      tokens and whether the most likely are all right.
    predictions: [N], classes or scores.
    metrics: `loss` and the task's metrics; empty where no label is known.
  """

  raw: np.ndarray
  predictions: np.ndarray
  metrics: dict[str, float]


class TaskEvaluation:
  """The dev split, measured whenever it is called."""

  def __init__(self, parts: Parts, *, split: Split, task: str = ''):
    """Compiles what the outputs need; `task` is one of several."""
    self._parts, self._split = parts, split
    self._step = compiled_lib.compile_outputs(parts, task).call

  def __call__(
    self, params: Any, stop: Callable[[], bool] = lambda: False
  ) -> dict[str, float] | None:
    """Loss and metrics under keys `eval/validation/...`; see `training_run`."""
    found = self.measured(params, stop)
    if found is None:
      return None
    return {f'eval/validation/{name}': x for name, x in found.items()}

  def measured(
    self, params: Any, stop: Callable[[], bool] = lambda: False
  ) -> dict[str, float] | None:
    """Loss and metrics by name, and the number of `examples`."""
    found = self.outputs(params, self._split, stop)
    if found is None:
      return None
    return {**found.metrics, 'examples': self._split.num_examples}

  def summary(self, values: dict[str, float], name: str = 'validation') -> str:
    """A line for people, of the measures under `eval/NAME/...`."""
    shown = [
      f'{metric} {values[f"eval/{name}/{metric}"]:.4f}'
      for metric in self._split.task.metrics
    ]
    loss, count = (values[f'eval/{name}/{n}'] for n in ('loss', 'examples'))
    return f'{", ".join(shown)}, loss {loss:.4f}, over {count:,} examples'

  def outputs(
    self,
    params: Any,
    split: Split,
    stop: Callable[[], bool] = lambda: False,
  ) -> Outputs | None:
    """What the model says of any split of the same shape; None: stopped."""
    rows, count = self._parts.eval_rows, len(split.rows)
    found = []
    for start in range(0, count, rows):
      # The last batch is filled up with its last example.
      numbers = np.minimum(np.arange(start, start + rows), count - 1)
      batch = split.batch(numbers[self._parts.host_rows(rows)])
      found.append(self._step(params, self._parts.put(batch, rows)))
      if stop():
        return None
    raw = np.concatenate(jax.device_get(found))[:count]
    return _judged(split, raw)


def _judged(split: Split, raw: np.ndarray) -> Outputs:
  task = split.task
  labels, predictions, loss = _JUDGES[task.kind](split, raw)
  if not split.known and task.kind != 'target':
    return Outputs(raw, predictions, {})
  metrics = {'loss': loss}
  if task.kind == 'target':
    metrics |= exponential('perplexity', loss)
  of_kind = metrics_lib.METRICS[task.kind]
  metrics |= {name: of_kind[name](labels, predictions) for name in task.metrics}
  return Outputs(raw, predictions, metrics)


# Labels, predictions, and the loss where they are known.
_Judgement = tuple[Any, Any, float]


def _target(split: Split, raw: np.ndarray) -> _Judgement:
  del split
  nll, tokens, right = np.asarray(raw, np.float64).T
  loss = float(nll.sum() / tokens.sum())
  return np.ones(len(raw), int), right.astype(int), loss


def _regression(split: Split, raw: np.ndarray) -> _Judgement:
  (mean, deviation), labels = split.scale, split.rows.labels
  predictions = raw[:, 0].astype(np.float64) * deviation + mean
  # In units of the deviation, as in training.
  errors = (predictions - labels) / deviation
  return labels, predictions, float(np.mean(np.square(errors)))


def _classes(split: Split, raw: np.ndarray) -> _Judgement:
  labels = split.rows.labels
  return labels, np.argmax(raw, axis=1), _nll(raw, labels)


def _spans(split: Split, raw: np.ndarray) -> _Judgement:
  rows, options = split.rows, split.task.options
  predictions = spans.found(options, split.examples, rows.origins, raw)
  labels = [e.label.texts for e in split.examples] if split.known else []
  both = zip(np.split(raw, 2, axis=1), rows.labels.T, strict=True)
  return labels, predictions, float(np.mean([_nll(*x) for x in both]))


def _tags(split: Split, raw: np.ndarray) -> _Judgement:
  task, rows = split.task, split.rows
  found = tags.found(task, rows.origins, raw)
  predictions = [tags.named(task, numbers) for numbers in found]
  labels = [tags.named(task, e.label) for e in split.examples if split.known]
  asked = rows.labels != tags.IGNORED
  loss = math.nan
  if asked.any():
    each = raw.reshape(*rows.labels.shape, -1)
    loss = _nll(each[asked], rows.labels[asked])
  return labels, predictions, loss


_JUDGES: dict[str, Callable[[Split, np.ndarray], _Judgement]] = {
  'target': _target,
  'regression': _regression,
  'classification': _classes,
  'choice': _classes,
  'spans': _spans,
  'tags': _tags,
}


def _nll(raw: np.ndarray, labels: np.ndarray) -> float:
  """The mean loss of logits [N, K]."""
  log_probs = np.log(probabilities(raw))
  return -float(np.mean(log_probs[np.arange(len(raw)), labels]))


def probabilities(raw: np.ndarray) -> np.ndarray:
  """The softmax of logits [N, K], in float64; none is zero."""
  shifted = np.asarray(raw, np.float64)
  shifted = shifted - shifted.max(axis=1, keepdims=True)
  found = np.exp(shifted)
  return np.maximum(found / found.sum(axis=1, keepdims=True), 1e-300)


# How much the classes of a task count in the loss.


# Labels [N] and the number of classes to float32 weights [num_labels].
Build = Callable[[np.ndarray, int], np.ndarray]


def _balanced() -> Build:
  """Weights 1 / frequency, whose mean over the examples is 1."""

  def build(labels: np.ndarray, count: int) -> np.ndarray:
    seen = np.bincount(labels, minlength=count)
    return (len(labels) / (count * np.maximum(seen, 1))).astype(np.float32)

  return build


def _given(*weights: float) -> Build:
  """A weight for each class, in the order of the task's labels."""

  def build(labels: np.ndarray, count: int) -> np.ndarray:
    del labels
    if len(weights) != count or min(weights) < 0 or not sum(weights):
      raise UsageError(
        f'finetune.class_weights: weights{weights}: give {count} of them, none '
        'negative'
      )
    return np.array(weights, np.float32)

  return build


CLASS_WEIGHTS = {
  'none': lambda: None,
  'balanced': _balanced,
  'weights': _given,
}
