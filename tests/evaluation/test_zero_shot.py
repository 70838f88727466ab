# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""GPT-1's heuristics, and figures over the checkpoints of a run."""

import numpy as np
import pytest
import sklearn.metrics

from gpt_jax.evaluation import likelihood, suite
from gpt_jax.evaluation.figures import FigureCurve
from gpt_jax.evaluation.score import Score
from gpt_jax.reports.task_curves import task_curves
from gpt_jax.tasks.prompts import Prompt
from tests.support.tasks import Believer, build, measure, write


def matthews(labels, said):
  return sklearn.metrics.matthews_corrcoef(labels, said)


def test_the_best_threshold_is_the_best_of_all():
  rng = np.random.default_rng(0)
  for n in (13, 101):
    values = rng.integers(0, 29, n) / 7  # with ties
    labels = (rng.random(n) < 0.7).astype(int)
    cut, best = likelihood.best_threshold(values, labels)
    cuts = [-np.inf, *(np.unique(values) + 1 / 14)]
    found = [matthews(labels, values > x) for x in cuts]
    assert best == pytest.approx(max(found), abs=1e-12)
    assert matthews(labels, values > cut) == pytest.approx(best, abs=1e-12)


def test_no_text_is_judged_by_a_threshold_fitted_to_it():
  rng = np.random.default_rng(1)
  labels = (rng.random(97) < 0.6).astype(int)
  totals, lengths = rng.normal(labels - 50, 7), rng.integers(3, 11, 97)
  examples = [Prompt('', '', ('x',), int(label)) for label in labels]
  scores = [[Score(float(total), int(n), 0, 0)] for total, n in zip(totals, lengths, strict=True)]
  found = likelihood.threshold(examples, scores)
  means = totals / lengths
  halves = [np.arange(97) % 2 == i for i in (0, 1)]
  said = np.zeros(97, int)
  for half, rest in (halves, halves[::-1]):
    cut = likelihood.best_threshold(means[rest], labels[rest])[0]
    said[half] = means[half] > cut
  assert found['matthews'] == pytest.approx(matthews(labels, said))
  assert found['accuracy'] == np.mean(said == labels)
  assert found['matthews_fitted'] >= found['matthews']
  assert found['chance'] == 0
  without = [matthews(np.delete(labels, i), np.delete(said, i)) for i in range(97)]
  error = np.std(without) * np.sqrt(96)
  assert found['matthews_stderr'] == pytest.approx(error)


def test_cola_and_sst2(tmp_path):
  cola, sst2 = tmp_path / 'CoLA', tmp_path / 'glue' / 'SST-2'
  cola.mkdir()
  sst2.mkdir(parents=True)
  lines = ['x\t1\t\tab', 'x\t1\t*\tac', 'x\t0\t\tz', 'x\t0\t\tyz', 'x\t1\t\ta']
  (cola / 'dev.tsv').write_text('\n'.join(lines) + '\n')
  (sst2 / 'dev.tsv').write_text('sentence\tlabel\nit is fun \t1\nno\t0\n')
  scorer = Believer()
  found = measure(tmp_path, 'cola_zero_shot', scorer=scorer)
  asked = [(r.context, r.continuation) for r in scorer.seen]
  assert asked == [('', text) for text in ('ab', 'ac', 'z', 'yz', 'a')]
  name = 'eval/cola_zero_shot'
  # By bytes 'z' and 'yz' are the least probable.
  assert found[f'{name}/matthews'] == found[f'{name}/accuracy'] == 1
  assert found[f'{name}/relative'] == pytest.approx(1 / 0.35)
  assert found[f'{name}/majority'] == 3 / 5
  means = sum(b'yz') / 2, sum(b'ac') / 2
  cut = -sum(means) / 2 / 1000
  assert found[f'{name}/threshold'] == pytest.approx(cut)
  (named,) = build(tmp_path, 'cola_zero_shot')
  assert named.task.texts()[2] == (f'{cola}/dev.tsv:3', 'z')
  scorer = Believer()
  found = measure(tmp_path, 'sst2_zero_shot', scorer=scorer)
  asked = [(r.context, r.continuation) for r in scorer.seen]
  assert asked == [
    *[(f'{text} very', word) for text in ('it is fun', 'no') for word in (' negative', ' positive')]
  ]
  name = 'eval/sst2_zero_shot'
  assert found[f'{name}/accuracy'] == 0.5
  assert found[f'{name}/relative'] == 0
  error = found[f'{name}/accuracy_stderr'] / (0.932 - 0.5)
  assert found[f'{name}/relative_stderr'] == pytest.approx(error)


def test_race_by_the_mean_of_the_answers_tokens(tmp_path):
  write(
    tmp_path / 'race' / 'test_middle.jsonl',
    {
      'article': 'Text.',
      'questions': ['Why?', 'Who?'],
      # The first is the less probable, and the more probable on average.
      'options': [['aaaa', 'b', 'z', 'zz'], ['z', 'zz', 'b', 'aaaa']],
      'answers': ['A', 'C'],
    },
  )
  scorer = Believer()
  found = measure(tmp_path, 'race_zero_shot', scorer=scorer)
  asked = [(r.context, r.continuation) for r in scorer.seen]
  assert asked[:2] == [('Text.\nWhy?', ' aaaa'), ('Text.\nWhy?', ' b')]
  means = {x: sum(f' {x}'.encode()) / len(f' {x}') for x in ('aaaa', 'b')}
  best = min(means, key=means.__getitem__)
  name = 'eval/race_zero_shot'
  assert next(iter(found)) == f'{name}/accuracy_per_token'
  assert found[f'{name}/accuracy_per_token'] == 0.5
  assert found[f'{name}/relative'] == pytest.approx(0.25 / (0.602 - 0.25))
  assert best == 'b' and found[f'{name}/accuracy'] == 0.5


def test_curves_over_the_steps(tmp_path):
  cola = tmp_path / 'CoLA'
  cola.mkdir()
  (cola / 'dev.tsv').write_text('x\t1\t\tab\nx\t1\t\ta\nx\t0\t\tz\nx\t0\t\ty\n')
  (tmp_path / 'mine.txt').write_text('some text')
  calls = "cola_zero_shot, text('mine.txt')"
  found = {
    step: {'step': step, 'eval/validation/loss': 7 / step}
    | measure(tmp_path, calls, scorer=Believer(unit=1 / step))
    for step in (3, 11)
  }
  tasks = build(tmp_path, calls)
  held_out, cola, text = suite.curves(found, tasks, relative=True)
  assert held_out == FigureCurve('validation', 'loss', {3: (7 / 3, 0), 11: (7 / 11, 0)})
  assert cola[:2] == ('cola_zero_shot', 'relative')
  assert [*cola.values] == [3, 11]
  assert text[:2] == ('text/mine', 'loss')
  assert text.values[3][0] == found[3]['eval/text/mine/loss']
  path = str(tmp_path / 'steps.png')
  assert task_curves([held_out, cola, text], path) == path
  assert (tmp_path / 'steps.png').read_bytes().startswith(b'\x89PNG')
  table = suite.steps_table(suite.curves(found, tasks)).splitlines()
  heads = 'validation (loss)', 'cola_zero_shot (matthews)', 'text/mine (loss)'
  assert table[0] == f'| step | {" | ".join(heads)} |'
  assert table[2].startswith('| 3 | 2.3333 | 1.0000 | ')
  assert len(table) == 4
