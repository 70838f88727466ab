# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Results of tasks of choices, computed from the scores of each example."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpt_jax.evaluation import results
from gpt_jax.evaluation.choices import Example
from gpt_jax.evaluation.results import Figures
from gpt_jax.evaluation.score import Score
from gpt_jax.files.records import Record
from gpt_jax.spec import UsageError


def accuracies(
  examples: Sequence[Example], scores: list[list[Score]]
) -> Figures:
  """Accuracy by each scoring rule, with chance and majority baselines.

  Returns:
    `accuracy` (by log-probability), `accuracy_per_token`, `accuracy_per_byte`
    and `accuracy_per_character` (lm-eval's acc, acc_bytes and acc_norm), with a
    general context `accuracy_over_general`; `chance` and `majority`. Of equal
    choices the first counts, as in lm-eval.
  """
  ways: dict[str, list[bool]] = {}
  for example, found in zip(examples, scores, strict=True):
    general = found[1::2] if example.general is not None else None
    found = found[::2] if example.general is not None else found
    # The white space before a choice only separates it.
    texts = [choice.strip() or choice for choice in example.choices]
    by = {
      'accuracy': [s.log_prob for s in found],
      'accuracy_per_token': [s.log_prob / s.num_tokens for s in found],
      'accuracy_per_byte': _normalised(
        found, [len(text.encode()) for text in texts]
      ),
      'accuracy_per_character': _normalised(found, [*map(len, texts)]),
    }
    if general is not None:
      by['accuracy_over_general'] = [
        s.log_prob - g.log_prob for s, g in zip(found, general, strict=True)
      ]
    for name, values in by.items():
      right = int(np.argmax(values)) == example.label
      ways.setdefault(name, []).append(right)
  counts = np.bincount([e.label for e in examples])
  out: Figures = {}
  for name, right in ways.items():
    out |= results.mean(name, right)
  return {
    **out,
    'chance': float(np.mean([1 / len(e.choices) for e in examples])),
    'majority': float(counts.max() / len(examples)),
  }


def paradigms(
  examples: Sequence[Example], scores: list[list[Score]]
) -> Figures:
  """Accuracy on minimal pairs, per group and averaged over groups."""
  groups: dict[str, list[bool]] = {}
  for example, found in zip(examples, scores, strict=True):
    best = _best([s.log_prob for s in found])
    groups.setdefault(example.group, []).append(best == example.label)
  out = results.mean_of_groups('accuracy', [*groups.values()])
  out['chance'] = 0.5
  for name, right in groups.items():
    out |= results.mean(f'accuracy/{name}', right)
  return out


def last_words(
  examples: Sequence[Example], scores: list[list[Score]]
) -> Figures:
  """Accuracy of greedy decoding on the right continuation; its perplexity.

  `majority` is the accuracy of always guessing the most common last word.
  """
  found = [score for (score,) in scores]
  words, counts = np.unique(
    [e.choices[e.label].strip() for e in examples], return_counts=True
  )
  del words
  return {
    **results.mean('accuracy', [bool(s.greedy) for s in found]),
    **results.perplexity('perplexity', [-s.log_prob for s in found]),
    'majority': float(counts.max() / len(examples)),
  }


def _normalised(scores: Sequence[Score], lengths: list[int]) -> list[float]:
  """Log-probabilities by length."""
  return [s.log_prob / n for s, n in zip(scores, lengths, strict=True)]


def _best(values: Sequence[float]) -> int:
  """Index of the largest value; -1 on a tie.

  Of pairs the first is always right, and must not be so by its position.
  """
  array = np.asarray(values)
  (best,) = np.nonzero(array == array.max())
  return int(best[0]) if len(best) == 1 else -1


# Typed access to the fields of task records.
#
# Values of the wrong type are refused: a string in place of a list would become
# one choice per letter, and null the text 'None'.


def text(record: Record, *columns: str) -> str:
  """Returns the text in a column: in the first of these that there is."""
  there = [name for name in columns if name in record.fields]
  column = (*there, columns[0])[0]
  value = record[column]
  if not isinstance(value, str):
    raise UsageError(
      f'{record.where}: {column}={value!r} is no text; mend or remove the line'
    )
  return value


def texts(where: str, column: str, value: Any) -> tuple[str, ...]:
  """Returns a non-empty list of texts.

  Args:
    where: 'file:line', for errors.
    column: of the value, for errors.
    value: of the column, or part of it.
  """
  if (
    not isinstance(value, list)
    or not value
    or not all(isinstance(x, str) for x in value)
  ):
    raise UsageError(
      f'{where}: {column}={value!r} is no list of texts; write it as '
      '["one", "another"]'
    )
  return tuple(value)


def label(where: str, value: Any, names: Sequence[object]) -> int:
  """Returns the index of the right choice.

  Args:
    where: 'file:line', for errors.
    value: one of the names, or its text.
    names: of the choices, in order: numbers or letters.
  """
  known = [str(name) for name in names]
  if str(value) not in known:
    raise UsageError(
      f'{where}: label {value!r} is none of its {len(known)} choices, which '
      f'are {", ".join(known)}; mend or remove the line'
    )
  return known.index(str(value))
