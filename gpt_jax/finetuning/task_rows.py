# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""From examples to the rows of a split: arrays of tokens and labels."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gpt_jax.finetuning.sequences import Special, Tokens, joined, sequences
from gpt_jax.spec import UsageError
from gpt_jax.tasks.task import Example, Task
from gpt_jax.tokenizers.tokenizer import Tokenizer


class Rows(NamedTuple):
  """The examples of a split as arrays; N examples of C sequences each.

  Attributes:
    inputs: int32 [N, C, L], filled up with `Special.pad`.
    lengths: int32 [N, C], the tokens of each; the last may be an extract token.
      With pairs of texts: where the target begins, [N, 2], and ends.
    labels: float32 or int32 [N]; zeros where they are not known. Of spans
      [N, 2], the places of their first and last tokens. Of tags [N, L].
    cut: how many examples were too long.
    second: int32 [N, C], where the second text begins; None: nobody asks.
    origins: of each row, what `spans` and `tags` need to know of it.
  """

  inputs: np.ndarray
  lengths: np.ndarray
  labels: np.ndarray
  cut: int
  second: np.ndarray | None = None
  origins: Sequence[Any] = ()

  def __len__(self) -> int:
    """How many examples."""
    return len(self.inputs)


def encode(examples: list[Example], tokenizer: Tokenizer) -> list[list[Tokens]]:
  """The tokens of each text of each example."""
  texts = [text for example in examples for text in example.texts]
  try:
    found = iter(tokenizer.encode_batch(texts))
  except UsageError:
    for example in examples:
      for text in example.texts:
        try:
          tokenizer.encode(text)
        except UsageError as e:
          raise UsageError(f'{example.where}: {e}') from e
    raise
  return [[next(found) for _ in example.texts] for example in examples]


def rows(
  task: Task,
  examples: list[Example],
  tokens: list[list[Tokens]],
  *,
  special: Special,
  length: int,
  too_long: str = 'cut',
) -> Rows:
  """The rows of a split of a task that a head learns.

  Args:
    task: says the form.
    examples: for their labels, and their places in messages.
    tokens: of their texts, from `encode`.
    special: ids of the new tokens.
    length: of a row.
    too_long: cut, or refuse.
  """
  made, cut = [], 0
  for example, texts in zip(examples, tokens, strict=True):
    parts = [
      joined(groups, special, length)
      for groups in sequences(task, texts, special)
    ]
    excess = max(part.excess for part in parts)
    if excess:
      check_cut(example, excess, length, too_long)
    cut += excess > 0
    made.append(parts)
  inputs = filled([p.ids for parts in made for p in parts], special, length)
  shape = (len(made), len(made[0]))
  lengths = np.array([[len(p.ids) for p in parts] for parts in made], np.int32)
  second = None
  if special.forms != 'extract':
    second = np.array([[p.second for p in parts] for parts in made], np.int32)
  dtype = np.float32 if task.regression else np.int32
  labels = np.array([example.label or 0 for example in examples], dtype)
  return Rows(inputs.reshape(*shape, -1), lengths, labels, cut, second)


def check_cut(example: Example, excess: int, length: int, too_long: str):
  """Refuses an example that is too long, where `too_long` says so."""
  if too_long == 'refuse':
    raise UsageError(
      f'{example.where}: is {excess} tokens longer than finetune.length='
      f"{length}; raise it, shorten the text, or give finetune.too_long='cut'"
    )


def filled(found: list[Tokens], special: Special, length: int) -> np.ndarray:
  """Sequences as rows, int32 [N, length], filled up."""
  rows = np.full((len(found), length), special.pad, np.int32)
  for row, ids in zip(rows, found, strict=True):
    row[: len(ids)] = ids
  return rows


def target_rows(
  examples: list[Example],
  tokens: list[list[Tokens]],
  *,
  tokenizer: Tokenizer,
  length: int,
  too_long: str = 'cut',
) -> Rows:
  """The rows of prompts and targets: prompt, target, end of document.

  A prompt stands after what the model was trained to see first, such as
  LLaMA's `<s>`. One that is too long loses its first tokens; a target is never
  cut.

  Args:
    examples: for their places in messages.
    tokens: of prompt and target.
    tokenizer: whose end of document ends a target.
    length: targets in a row, which has one token more.
    too_long: cut, or refuse.
  """
  eos_id, special = tokenizer.eos_id, tokenizer.special
  made, bounds, cut = [], [], 0
  for example, (prompt, target) in zip(examples, tokens, strict=True):
    if not len(target):
      raise UsageError(f'{example.where}: the target is empty; mend the line')
    # Of length + 1, one is the end's.
    room = length - len(target) - len(special.prompt_start)
    excess = max(len(prompt) - room, 0)
    if room < 1 or (excess and too_long == 'refuse'):
      raise UsageError(
        f'{example.where}: prompt and target are {len(prompt)} and '
        f'{len(target)} tokens, which do not fit finetune.length={length}; '
        'raise it or shorten them (a target is never cut)'
      )
    cut += excess > 0
    kept = special.prompt(prompt[excess:])
    made.append(np.concatenate([kept, target, [eos_id]]))
    bounds.append((len(kept), len(made[-1])))
  inputs = np.full((len(made), 1, length + 1), special.pad_id, np.int32)
  for n, row in enumerate(made):
    inputs[n, 0, : len(row)] = row
  labels = np.zeros(len(made), np.int32)
  return Rows(inputs, np.array(bounds, np.int32), labels, cut)
