# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""lm-eval's side of `speed`: a process that works when it is its turn.

  python -m gpt_jax.evaluation.speed_worker FOLDER BATCH_SIZE

It loads the Hugging Face checkpoint in FOLDER and scores the passages there. It
answers by a line of JSON when it is ready, after each turn, and, with times and
scores, at the end; a line on standard input begins the next turn.
"""

import importlib
import json
import os
import sys
import time
from typing import Any

import numpy as np

TURN_SECONDS = 5.0
ROWS = 'rows.npz'


class Clock:
  """Seconds of this process, wall and CPU, while it is its turn."""

  def __init__(self):
    self.seconds = self.cpu_seconds = 0.0
    self.go_on()

  def go_on(self) -> None:
    """Starts a turn."""
    self._wall, self._cpu = time.perf_counter(), time.process_time()
    self._before = self.seconds

  def take(self) -> float:
    """Counts what has passed; returns the seconds of this turn."""
    wall, cpu = time.perf_counter(), time.process_time()
    self.seconds += wall - self._wall
    self.cpu_seconds += cpu - self._cpu
    self._wall, self._cpu = wall, cpu
    return self.seconds - self._before

  def result(self) -> dict[str, float]:
    """Of all turns."""
    return {'seconds': self.seconds, 'cpu_seconds': self.cpu_seconds}


def score(folder: str, size: int) -> None:
  """Scores the passages in a folder, in turns that stdin begins."""
  # What libraries print must not come between the answers.
  answers = os.fdopen(os.dup(1), 'w', encoding='utf-8')
  os.dup2(2, 1)
  # None of them is needed but here.
  tokenizers, torch, transformers, models = (
    importlib.import_module(name)
    for name in (
      *('tokenizers', 'torch', 'transformers'),
      'lm_eval.models.huggingface',
    )
  )
  torch.set_num_threads(len(os.sched_getaffinity(0)))
  with np.load(os.path.join(folder, ROWS)) as data:
    scored = data['scored'].tolist()
    ids = [data[f'arr_{i}'].tolist() for i in range(len(scored))]
  # Of the passages only ids are known; the class asks for a tokenizer.
  words = tokenizers.models.WordLevel({'<end>': 0}, unk_token='<end>')
  tokenizer = transformers.PreTrainedTokenizerFast(
    tokenizer_object=tokenizers.Tokenizer(words), eos_token='<end>'
  )
  model = transformers.AutoModelForCausalLM.from_pretrained(folder)
  clock = Clock()

  def say(answer: dict) -> None:
    answers.write(json.dumps(answer) + '\n')
    answers.flush()

  class InTurns(models.HFLM):
    """Waits for its turn before a batch."""

    def _model_call(self, *args: Any, **kwargs: Any) -> Any:
      if clock.take() >= TURN_SECONDS:
        say(clock.result())
        sys.stdin.readline()
        clock.go_on()
      return super()._model_call(*args, **kwargs)

  lm = InTurns(
    pretrained=model, tokenizer=tokenizer, batch_size=size, device='cpu'
  )
  requests: Any = [
    (('', ''), row[:-count], row[-count:])
    for row, count in zip(ids, scored, strict=True)
  ]
  say(Clock().result())
  sys.stdin.readline()
  clock.go_on()
  found = lm._loglikelihood_tokens(requests, disable_tqdm=True)
  clock.take()
  say({**clock.result(), 'log_probs': [log_prob for log_prob, _ in found]})


if __name__ == '__main__':
  score(sys.argv[1], int(sys.argv[2]))
