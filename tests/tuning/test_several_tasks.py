# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Several tasks with one model, as a user would train on them."""

import csv
import itertools
import json
import pathlib

import jax
import numpy as np
import pytest

from gpt_jax.__main__ import main
from gpt_jax.core.checkpoints.checkpointer import Checkpointer
from gpt_jax.core.training import compiled as compiled_lib
from gpt_jax.core.training import metrics
from gpt_jax.core.training import parts as parts_lib
from gpt_jax.opening import models as pretrained_lib
from gpt_jax.opening import models as trained_lib
from gpt_jax.tuning import transfer
from gpt_jax.tuning.task_order import TaskOrder
from gpt_jax.tuning.tasks import in_folder, named
from tests.support import tiny

CONFIGS = pathlib.Path(__file__).parents[2] / 'configs'
WORDS = [f'{a}{b}' for a in 'bdfgklm' for b in 'aeiou']
# Examples to train on, of which 8 are a batch: 3 and 2 batches an epoch.
SIZES = {'classification': 19, 'ranking': 13}
EPOCHS, STEPS, KEPT = 1, 5, 3


@pytest.fixture(autouse=True)
def quick(monkeypatch, compiled):
  """Without what takes seconds and changes nothing."""
  for name, function in compiled.items():
    monkeypatch.setattr(compiled_lib, name, function)


@pytest.fixture(scope='module')
def compiled():
  """What compiles a program, once for all runs on both tasks."""
  known = {}

  def once(name):
    make = getattr(compiled_lib, name)

    def one(parts, what=None):
      key = name, parts.config.objective.name, what
      if key not in known:
        known[key] = make(parts, what) if what else make(parts)
      return known[key]

    return one

  return {n: once(n) for n in ('compile_train_step', 'compile_outputs')}


def write(path, rows):
  path.write_text(''.join(json.dumps(row) + '\n' for row in rows))
  return str(path)


@pytest.fixture(scope='module')
def tasks(tmp_path_factory):
  """Classes of one text, and questions with two candidates each."""
  folder, rng = tmp_path_factory.mktemp('tasks'), np.random.default_rng(0)

  def sentence():
    return ' '.join(rng.choice(WORDS, size=4))

  calls = []
  for name, size in SIZES.items():
    paths = []
    for split, count in (('train', size), ('dev', 5)):
      rows = []
      for i in range(count):
        if name == 'classification':
          rows.append({'text': sentence(), 'label': 'ab'[i % 2]})
          continue
        asked = {'question': f'{sentence()} {WORDS[i]}'}
        rows.append({**asked, 'sentence': sentence(), 'label': i % 2})
        rows.append({**asked, 'sentence': sentence(), 'label': 1 - i % 2})
      paths.append(repr(write(folder / f'{name}_{split}.jsonl', rows)))
    calls.append(f'{name}({", ".join(paths)})')
  return calls


def flags(tasks, workdir, *more, init='none'):
  return [
    'finetune',
    f'--config={CONFIGS}/finetune/mt_dnn.py',
    f'--init={init}',
    f'--workdir={workdir}',
    f'--tasks={", ".join(tasks)}',
    *tiny.flags(
      model=dict(
        num_layers=1,
        d_model=16,
        num_heads=2,
        context_length=16,
        dtype='float32',
        attention='bidirectional',
        loop='unroll',
        input='tokens(token_types=2, norm=True)',
      ),
      tokenizer=dict(name='wordpiece(vocab_size=60)'),
      optim=dict(name='adamw(weight_decay=0.1)', ema='ema(decay=0.9)'),
      finetune=dict(peak='1e-2', epochs=f'{EPOCHS}.0'),
      batch=dict(size=8),
      eval=dict(rows=8),
      checkpoint=dict(every_steps=1, keep=99),
      log=dict(every_steps=1),
    ),
    *more,
  ]


@pytest.fixture(scope='module')
def workdir(tmp_path_factory, tasks, compiled):
  """A run on both tasks, from scratch, with a checkpoint of each step."""
  folder = tmp_path_factory.mktemp('run') / 'w'
  with pytest.MonkeyPatch.context() as patch:
    for name, function in compiled.items():
      patch.setattr(compiled_lib, name, function)
    assert main(flags(tasks, folder)) == 0
  return folder


@pytest.fixture(scope='module')
def states(workdir):
  """The state after each step from the first on."""
  return states_of(workdir, *range(1, STEPS + 1))


def states_of(workdir, *steps):
  abstract = parts_lib.abstract_state(trained_lib.built(str(workdir)))
  checkpointer = Checkpointer(str(workdir), read_only=True)
  found = [checkpointer.restore(abstract, at_most=step) for step in steps]
  checkpointer.close()
  assert [int(state.step) for state in found] == [*steps]
  return jax.device_get(found)


@pytest.mark.long
@pytest.mark.slow
def test_each_task_is_told_of_and_predicted(workdir):
  lines = metrics.read(str(workdir))
  order = TaskOrder(SIZES, batch_size=8, seed=0)
  logged = [m for m in lines if 'loss' in m]
  assert [m['task'] for m in logged] == [order.step(i).task for i in range(STEPS)]
  # [CLS] text [SEP] or [CLS] question [SEP] candidate [SEP], of each candidate.
  lengths = {'classification': 8, 'ranking': 2 * 16}
  counts = [8 * lengths[m['task']] for m in logged]
  assert [m['tokens'] for m in logged] == np.cumsum(counts).tolist()
  assert {m['task'] for m in lines if m.get('event') == 'compiled'} == {*SIZES}
  assert sum(m.get('event') == 'compiled' for m in lines) == 2
  evaluated = [m for m in lines if 'eval/validation/average' in m]
  assert [m['step'] for m in evaluated] == [STEPS]
  last, result = (evaluated[-1], json.loads((workdir / 'result.json').read_text()))
  scores = [last[f'eval/{name}/accuracy'] for name in SIZES]
  assert last['eval/validation/average'] == np.mean(scores) == result['average']
  for name in SIZES:
    of_task = result['tasks'][name]
    assert of_task['train']['examples'] == SIZES[name]
    with open(workdir / f'predictions/{name}/dev.tsv', newline='') as f:
      rows = list(csv.DictReader(f, delimiter='\t'))
    right = np.mean([row['prediction'] == row['label'] for row in rows])
    assert len(rows) == of_task['dev']['examples'] == 5
    assert right == of_task['dev']['accuracy'] == last[f'eval/{name}/accuracy']


@pytest.mark.slow
def test_the_head_of_the_other_task_does_not_move(states):
  """Neither its weights, which would decay, nor its moments and their count."""
  order = TaskOrder(SIZES, batch_size=8, seed=0)
  steps = [order.step(i).task for i in range(STEPS)]
  for task, before, after in zip(steps[1:], states, states[1:], strict=False):
    for name in SIZES:
      trees = (
        jax.tree.leaves((s.params['parts'][name], moments(s, name))) for s in (before, after)
      )
      same = [np.array_equal(*pair) for pair in zip(*trees, strict=True)]
      assert not any(same) if name == task else all(same), name
    # All else steps.
    old, new = (s.opt_state.rest[0] for s in (before, after))
    assert new.count == old.count + 1 == after.step
    pooler = (s.params['heads']['pooler']['kernel'] for s in (before, after))
    assert not np.array_equal(*pooler)
  for name in SIZES:
    assert moments(states[-1], name).count == steps.count(name) > 1


@pytest.mark.slow
def test_the_average_is_over_all_steps(states):
  """Also over those of the other task, in which a head is as it was."""
  for before, after in itertools.pairwise(states):
    jax.tree.map(
      lambda a, p, new: np.testing.assert_allclose(new, 0.9 * a + 0.1 * p, rtol=1e-5, atol=1e-7),
      before.ema,
      after.params,
      after.ema,
    )


def moments(state, name):
  """Of Adam: its moments, and how many gradients they have seen."""
  return state.opt_state.parts[name][0]


@pytest.mark.slow
def test_a_task_goes_on_from_its_own_head(workdir, states, tasks):
  source = pretrained_lib.open_model(str(workdir), 'tune', '--init')
  config = trained_lib.read_config(str(workdir)).finetune
  assert source.params is not None
  params, averages = source.params(), states[-1].ema
  found = transfer.with_heads(params, ['classification'], alone=True)
  expected = averages['parts']['classification']['classifier']
  jax.tree.map(np.testing.assert_array_equal, found['heads']['classifier'], expected)
  pooler = averages['heads']['pooler']
  jax.tree.map(np.testing.assert_array_equal, found['heads']['pooler'], pooler)
  both = transfer.with_heads(params, [*SIZES], alone=False)
  assert {*both['parts']} == {*SIZES}
  assert 'parts' not in transfer.with_heads(params, [], alone=True)
  # Which head that is: of the same tables, with the same classes.
  own = dict(labels=['a', 'b'], scores='raw')
  assert config.each.classification.labels == ['a', 'b']

  def head_of(**changes):
    given = {'task': tasks[0], **own, **changes}
    return transfer.head_of(**given, init=source)

  assert head_of() == 'classification'
  assert head_of(labels=['a', 'b', 'c']) == ''
  assert head_of(labels=['a, b']) == ''
  assert head_of(task="classification('other.tsv', 'dev.tsv')") == ''


@pytest.mark.long
@pytest.mark.slow
def test_one_task_is_fine_tuned_from_several(workdir, tasks, tmp_path):
  """It starts as the model of all, and so predicts alike until it moves."""
  alone = tmp_path / 'alone'
  argv = [
    'finetune',
    f'--config={CONFIGS}/finetune/mt_dnn.py',
    f'--init={workdir}',
    f'--workdir={alone}',
    f'--tasks={tasks[1]}',
    *tiny.flags(
      finetune=dict(peak='1e-30', epochs='1.0'),
      optim=dict(name='adamw'),
      batch=dict(size=8),
      eval=dict(rows=8),
      log=dict(every_steps=1),
    ),
  ]
  assert main(argv) == 0
  ours, theirs = (json.loads((w / 'result.json').read_text()) for w in (alone, workdir))
  assert ours['init'] == f'{workdir}, step {STEPS}, head of ranking'
  assert ours['dev'] == pytest.approx(theirs['tasks']['ranking']['dev'])
  assert ours['train']['examples'] == SIZES['ranking']
  said = []
  for path in (alone / 'predictions', workdir / 'predictions/ranking'):
    lines = (path / 'dev.tsv').read_text().splitlines()
    rows = csv.DictReader(lines, delimiter='\t')
    said.append([row['prediction'] for row in rows])
  assert said[0] == said[1]


def test_tasks_are_called_and_found():
  assert in_folder("rte, cola('here'), snli", '/glue') == ("rte('/glue/RTE'), cola('here'), snli()")
  text = "rte(), choice('a', 'b'), choice('c', 'd'), choice('e', 'f')"
  assert [*named(text)] == ['rte', 'choice', 'choice_2', 'choice_3']
