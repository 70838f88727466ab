# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tasks measured without a model."""

import json

from gpt_jax.core.tokenizers.simple import Bytes
from gpt_jax.evaluation import suite
from gpt_jax.evaluation.forward import ScoredRow
from gpt_jax.evaluation.results import read_calls
from gpt_jax.evaluation.score import Score
from gpt_jax.evaluation.suite import TASKS


class Believer:
  """A scorer to whom a byte is the less probable the greater it is."""

  tokenizer = Bytes()

  def __init__(self, context_length=1000, unit=1 / 1000):
    self.context_length = context_length
    self.unit = unit  # nats for each point of a byte's value
    self.seen = []

  def requests(self, requests, journal, report):
    self.seen += requests
    return [
      self._score(r.continuation.encode()) if len(r.continuation) <= self.context_length else None
      for r in requests
    ]

  def rows(self, rows: list[ScoredRow], journal, report):
    return [self._score(r.ids[-r.num_scored :].tolist()) for r in rows]

  def answers(self, prompts, max_tokens, journal, report, **how):
    self.seen += prompts
    return [prompt[-5:-3] for prompt in prompts]

  def _score(self, ids):
    return Score(-float(sum(ids)) * self.unit, len(ids), int(max(ids) < 120), 0)


def write(path, *records):
  path.parent.mkdir(exist_ok=True)
  path.write_text(''.join(json.dumps(r) + '\n' for r in records))


def measure(tasks_dir, calls, /, shots=(0,), scorer=None, **kwargs):
  tasks = build(tasks_dir, calls)
  return suite.measure(tasks, scorer or Believer(), shots=shots, **kwargs)


def build(tasks_dir, calls):
  return suite.build(read_calls('--tasks', calls, TASKS), str(tasks_dir))
