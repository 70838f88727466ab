# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Beam search as its rules are written down: lists, float64, no cache."""

import math

import numpy as np


def search(
  logits_of,
  prompt,
  *,
  size,
  max_tokens,
  stop_ids,
  length_penalty=1.0,
  penalty='length',
  early_stopping=False,
  no_repeat_ngram=0,
  min_tokens=0,
):
  """The ended hypotheses, best first: (new ids with their end, score).

  `logits_of` gives the logits after a list of ids, [V].
  """

  def score(total, tokens):
    length = (5 + tokens) / 6 if penalty == 'gnmt' else tokens
    return total / length**length_penalty

  running, ended = [(0.0, [])], []
  for tokens in range(1, max_tokens + 1):
    candidates = []
    for total, ids in running:
      logits = np.asarray(logits_of(prompt + ids), np.float64)
      largest = logits.max()
      normal = largest + math.log(np.exp(logits - largest).sum())
      for token, logit in enumerate(logits):
        if token in stop_ids and tokens <= min_tokens:
          continue
        if repeats(prompt + ids + [token], no_repeat_ngram):
          continue
        candidates.append((total + logit - normal, ids + [token]))
    candidates.sort(key=lambda x: -x[0])
    best, going = candidates[:size], []
    for total, ids in candidates[: size * (1 + len(stop_ids))]:
      if ids[-1] not in stop_ids:
        going.append((total, ids))
    for total, ids in best:
      if ids[-1] in stop_ids or tokens == max_tokens:
        ended.append((ids, score(total, tokens)))
    ended = sorted(ended, key=lambda x: -x[1])[:size]
    running = going[:size]
    if not running:
      break
    if len(ended) == size:
      beaten = score(running[0][0], tokens) <= ended[-1][1]
      if early_stopping or beaten:
        break
  return ended


def repeats(ids, size):
  """Whether the last `size` ids stand in the list before, too."""
  if not size or len(ids) < size:
    return False
  runs = [tuple(ids[i : i + size]) for i in range(len(ids) - size + 1)]
  return runs[-1] in runs[:-1]
