# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""`gpt-jax finetune`, as a user would run it."""

import csv
import functools
import json
import pathlib
import re
import shutil

import jax
import numpy as np
import pytest

from gpt_jax import hf
from gpt_jax.__main__ import main
from gpt_jax.core.files import buckets
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers.simple import Bytes
from gpt_jax.core.training import metrics
from gpt_jax.opening import models as pretrained_lib
from gpt_jax.opening import models as trained_lib
from gpt_jax.tuning import rewards
from tests.support import tiny, whole_runs

ROOT = pathlib.Path(__file__).parents[2]
STEPS = 30


# A task that the tiny model can learn: is there an x in the text?
def sentences(count, seed):
  rng = np.random.default_rng(seed)
  found = []
  for _ in range(count):
    text = ''.join(rng.choice([*'abcdefgh '], size=rng.integers(5, 12)))
    label = int(rng.integers(2))
    if label:
      at = rng.integers(len(text))
      text = text[:at] + 'x' + text[at + 1 :]
    found.append((text, ('no', 'yes')[label]))
  return found


def table(path, rows):
  path.write_text('text\tlabel\n' + ''.join(f'{t}\t{y}\n' for t, y in rows))
  return str(path)


@pytest.fixture(scope='module')
def task(tmp_path_factory):
  folder = tmp_path_factory.mktemp('task')
  train = table(folder / 'train.tsv', sentences(320, 1))
  dev = table(folder / 'dev.tsv', sentences(101, 2))
  return f"classification('{train}', '{dev}')"


def flags(task, workdir, *more, init='none'):
  return [
    'finetune',
    f'--config={ROOT}/configs/finetune/sst2.py',
    f'--init={init}',
    f'--workdir={workdir}',
    *tiny.flags(
      finetune=dict(task=task, peak='1e-2'),
      model=dict(
        num_layers=2,
        d_model=32,
        num_heads=4,
        context_length=16,
        dtype='float32',
        init_weights='normal(stddev=0.2)',
      ),
      tokenizer=dict(name='bytes'),
    ),
    # Thirty steps are enough, or not quite, as batches and dropout fall.
    '--config.seed=1',
    *tiny.flags(
      batch=dict(size=16),
      schedule=dict(num_steps=STEPS),
      eval=dict(every_steps=10, rows=32),
      checkpoint=dict(every_steps=10, keep=9),
      log=dict(every_steps=5),
    ),
    *more,
  ]


@pytest.fixture(scope='module')
def workdir(tmp_path_factory, task):
  """A fine-tuned run, from scratch."""
  folder = tmp_path_factory.mktemp('run') / 'w'
  assert main(flags(task, folder)) == 0
  return folder


def params(workdir):
  return jax.device_get(whole_runs.state_of(workdir))


@pytest.mark.slow
def test_the_classifier_rewards_completions(workdir, task):
  """By the probabilities of its second class that finetune predicted."""
  with open(workdir / 'predictions/dev.tsv', encoding='utf-8') as f:
    predicted = [float(row['p(yes)']) for row in csv.DictReader(f, delimiter='\t')]
  texts = [text for text, _ in sentences(101, 2)]
  score = rewards.open_reward(str(workdir))
  found = score([x[:3] for x in texts], [x[3:] for x in texts])
  np.testing.assert_allclose(found, predicted, rtol=1e-4)
  with pytest.raises(UsageError, match='has 30 tokens, of which the classifier'):
    score(['a' * 13], ['b' * 15])
  with pytest.raises(UsageError, match='reads texts, and the prompts are messages'):
    score([[{'role': 'user', 'content': 'a'}]], ['b'])


def test_the_task_is_learned_and_told(workdir):
  result = json.loads((workdir / 'result.json').read_text())
  assert result['dev']['accuracy'] > 0.9
  assert (result['dev']['examples'], result['step']) == (101, STEPS)
  lines = metrics.read(str(workdir))
  evaluated = [m for m in lines if 'eval/validation/accuracy' in m]
  assert [m['step'] for m in evaluated] == [10, 20, 30]
  last = evaluated[-1]
  assert last['eval/validation/accuracy'] == result['dev']['accuracy']
  logged = [m for m in lines if 'loss' in m]
  assert logged[-1]['epochs'] == STEPS * 16 / 320
  assert logged[-1]['objective/lm_loss'] < logged[0]['objective/lm_loss']
  assert logged[-1]['tokens'] == STEPS * 16 * 16
  with open(workdir / 'predictions/dev.tsv', newline='') as f:
    rows = list(csv.DictReader(f, delimiter='\t'))
  assert [*rows[0]] == ['index', 'prediction', 'label', 'p(no)', 'p(yes)']
  right = np.mean([row['prediction'] == row['label'] for row in rows])
  assert right == pytest.approx(result['dev']['accuracy'])
  assert [row['label'] for row in rows] == [y for _, y in sentences(101, 2)]


@pytest.mark.slow
def test_another_table_is_predicted(workdir, task, tmp_path, capsys):
  again = tmp_path / 'again'
  shutil.copytree(workdir, again)
  new = table(tmp_path / 'new.tsv', [('abx', ''), ('abc', '')])
  assert main(flags(task, again, f'--predict={new}', '--json')) == 0
  result = json.loads(capsys.readouterr().out)
  assert result['new'] == {'examples': 2, 'cut': 0}
  assert 'label' not in (again / 'predictions/new.tsv').read_text()
  before = json.loads((workdir / 'result.json').read_text())
  assert result['dev'] == before['dev']


def test_a_run_knows_its_data(workdir, task, tmp_path, capsys):
  again = tmp_path / 'again'
  shutil.copytree(workdir, again)
  # The same tables in another folder, as far as the run can tell.
  for path in map(pathlib.Path, re.findall("'(.*?)'", task)):
    shutil.copy(path, tmp_path)
    folder = str(path.parent)
  assert tiny.change_config(again, folder, str(tmp_path))
  argv = flags(task.replace(folder, str(tmp_path)), again)
  dev = tmp_path / 'dev.tsv'
  old = dev.read_text()
  dev.write_text(old.replace('\tyes', '.\tyes', 1))
  assert main(argv) == 2
  digest = "'320 train, 101 dev, sha256 [0-9a-f]{16}'"
  why = rf'another config \(finetune\.data: {digest} -> {digest}\);'
  assert re.search(why, capsys.readouterr().err)
  # The same numbers, but other names of classes.
  for name in ('train.tsv', 'dev.tsv'):
    text = old if name == 'dev.tsv' else (tmp_path / name).read_text()
    text = text.replace('\tno\n', '\taaa\n').replace('\tyes\n', '\tzzz\n')
    (tmp_path / name).write_text(text)
  assert main([*argv, f'--predict={tmp_path}/dev.tsv.gz']) == 2
  assert 'dev is the name of' in capsys.readouterr().err
  shutil.copy(dev, tmp_path / 'new.tsv')
  assert main([*argv, f'--predict={tmp_path}/new.tsv']) == 2
  why = "another config (finetune.labels: ['no', 'yes'] -> ['aaa', 'zzz']);"
  assert why in capsys.readouterr().err
  assert not (again / 'predictions/new.tsv').exists()


@pytest.mark.slow
def test_from_a_workdir_with_patience_and_the_best(workdir, task, tmp_path):
  # Fine-tuned once more, at a rate that ruins it: the best is the first.
  folder = tmp_path / 'w'
  more = (
    *tiny.flags(
      finetune=dict(patience=1, select='best', freeze=1, class_weights='balanced', auxiliary='0.0'),
      schedule=dict(name='constant(peak=3.0)'),
      optim=dict(clip_norm='0.0', on_spike='skip(at_most=0)'),
      eval=dict(every_steps=1),
      checkpoint=dict(every_steps=1),
    ),
  )
  assert main(flags(task, folder, *more, init=workdir)) == 0
  result = json.loads((folder / 'result.json').read_text())
  evaluated = [
    m['eval/validation/accuracy']
    for m in metrics.read(str(folder))
    if 'eval/validation/accuracy' in m
  ]
  # One more than the best, and no further.
  assert evaluated[-1] <= max(evaluated) == result['dev']['accuracy']
  assert len(evaluated) == evaluated.index(max(evaluated)) + 2 < STEPS
  assert result['step'] == evaluated.index(max(evaluated)) + 1
  assert result['init'] == f'{workdir}, step {STEPS}'
  # The frozen layer, and the embeddings of what texts hold, are as before.
  old, new = (params(w).params for w in (workdir, folder))
  rows = len(old['embed']['embedding'])
  table = new['embed']['embedding']
  assert len(table) == rows + 3
  np.testing.assert_array_equal(table[:rows], old['embed']['embedding'])
  for path, leaf in jax.tree_util.tree_leaves_with_path(old['decoder']):
    other = functools.reduce(lambda t, k: t[k.key], path, new['decoder'])
    np.testing.assert_array_equal(leaf[0], other[0])
    if 'key' not in str(path):  # a key's bias changes nothing
      assert np.any(leaf[1] != other[1]), path


def test_a_run_in_a_bucket_is_known_by_its_url(workdir, monkeypatch):
  """Not by the copy that this process has, or no other could go on."""
  before = pretrained_lib.open_model(str(workdir), 'tune', '--init').name
  monkeypatch.setattr(buckets, 'shown', lambda path: path.replace(str(workdir), 'gs://b/run'))
  after = pretrained_lib.open_model(str(workdir), 'tune', '--init').name
  assert before == after.replace('gs://b/run', str(workdir)) != after


def test_from_a_folder_of_hugging_face(workdir, tmp_path, monkeypatch):
  run, state = trained_lib.load_state(str(workdir))
  whole = jax.device_get(state.params)
  body = {name: part for name, part in whole.items() if name != 'heads'}
  hf.save(str(tmp_path), run.model, body)
  with pytest.raises(UsageError, match=r'has neither tokenizer\.json'):
    pretrained_lib.open_model(str(tmp_path), 'tune', '--init')
  monkeypatch.setattr(pretrained_lib.vocabulary, 'read', lambda *_: ('bytes', Bytes()))
  ours, theirs = (
    pretrained_lib.open_model(str(folder), 'tune', '--init') for folder in (workdir, tmp_path)
  )
  assert (theirs.tokenizer.vocab_size, theirs.tokenizer_name) == (257, 'bytes')
  # What another task's W_y has learned is left behind.
  for found in (ours, theirs):
    jax.tree.map(np.testing.assert_array_equal, found.params(), body)
  same = ('vocab_size', 'num_layers', 'd_model', 'block', 'context_length')
  assert all(ours.model[name] == theirs.model[name] for name in same)
