# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The examples of own tables in docs/ do what they say."""

import itertools
import json
import re
import shlex

import pytest

from gpt_jax.__main__ import main
from gpt_jax.commands import evaluate
from gpt_jax.core import spec
from gpt_jax.evaluation import suite
from gpt_jax.evaluation.results import read_calls
from gpt_jax.evaluation.suite import TASKS
from gpt_jax.flags import Flags
from gpt_jax.tasks import registry
from gpt_jax.tasks import task as tuning
from tests.support import tiny
from tests.support.tasks import measure
from tests.test_docs import ROOT, fenced

HERE_DOCUMENT = re.compile(r"^cat > (\S+) <<'END'\n(.*?)^END\n", re.M | re.S)


def examples(page):
  """Tables and command of each example: (name -> text, argv)."""
  for block in fenced(ROOT / 'docs' / page):
    tables = dict(HERE_DOCUMENT.findall(block))
    command = HERE_DOCUMENT.sub('', block).partition('gpt-jax ')[2]
    if tables:
      yield tables, shlex.split(command.replace('\\\n', ' '))


TUNED = {
  spec.parse('task', text)[0].name: (tables, argv)
  for tables, argv in examples('fine-tuning.md')
  for text in [argv[-1].partition('=')[2]]
}


def put(folder, tables):
  for name, text in tables.items():
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding='utf-8')


@pytest.fixture
def evaluated(tmp_path):
  """The flags of the example, with its tables in place."""
  ((tables, argv),) = (
    found for found in examples('evaluation.md') if 'tasks/sky.jsonl' in found[0]
  )
  put(tmp_path, tables)
  assert argv[0] == 'evaluate'
  values = Flags()
  evaluate.define(values)
  values(argv)
  return argv, values


def test_every_form_of_evaluate_has_an_example(tmp_path, evaluated):
  _, values = evaluated
  calls = read_calls('--tasks', values.tasks, TASKS)
  own = {'multiple_choice', 'qa', 'text'}
  assert {call.call.name for call in calls} == own
  tasks_dir = tmp_path / values.tasks_dir
  built = suite.build(calls, str(tasks_dir))
  shots = values.shots
  suite.check('--tasks', built, shots=shots)
  found = measure(tasks_dir, values.tasks, shots)
  assert found['eval/multiple_choice/sky-shown_rest/examples'] == 2
  assert found['eval/multiple_choice/sky-shown_rest/1_shots/shots_shown'] == 1
  assert found['eval/multiple_choice/sky-shown_rest/chance'] == pytest.approx((1 / 2 + 1 / 3) / 2)
  assert found['eval/qa/capitals-shown_rest-max_tokens_5/examples'] == 2
  assert found['eval/text/notes-stride_8/words'] == 14 + 1


def test_every_form_of_finetuning_has_an_example():
  assert TUNED.keys() == registry.FORMS.keys()


EXPECTED = {
  'classification': [
    ('Great. I laughed, and would see it again.', 1),
    ('Dull. Two hours that nobody gives back.', 0),
  ],
  'entailment': [
    ('A dog runs over the grass.', 'An animal is outdoors.', 1),
    ('A dog runs over the grass.', 'The dog is asleep.', 0),
  ],
  'similarity': [
    ('A man plays a guitar.', 'Someone makes music.', 3.8),
    ('A man plays a guitar.', 'It is snowing.', 0.2),
  ],
  'choice': [
    ('It had rained all night.', 'What is the street?', 'dry', 'wet', 'new', 1),
    ('She had forgotten her key.', 'What does she do?', 'ring', 'sing', 'sleep', 0),
  ],
  'target': [('Good morning. =', ' Guten Morgen.', None), ('Thank you. =', ' Danke.', None)],
  'spans': [
    ('Who left?', 'The door was open. Mary had left.', (19, ('Mary',))),
    ('What was open?', 'The door was open. Mary had left.', (0, ('The door',))),
  ],
  'ranking': [
    ('Who left?', 'Mary had left.', 'The door was open.', 0),
    ('What was open?', 'It rained.', 'The door was open.', 1),
  ],
  # B-LOC, B-PER, I-LOC, O.
  'tags': [('Mary went to New York', (1, 3, 3, 0, 2)), ('It rained .', (3, 3, 3))],
}


@pytest.mark.parametrize('form', TUNED)
def test_the_examples_of_finetuning_are_read(tmp_path, monkeypatch, form):
  tables, argv = TUNED[form]
  put(tmp_path, tables)
  monkeypatch.chdir(tmp_path)
  field, _, text = argv[-1].partition('=')
  assert field == '--config.finetune.task'
  task = spec.build('finetune.task', text, registry.TUNED)
  task = tuning.with_labels(task)
  for split in ('train', 'dev'):
    found = [(*e.texts, e.label) for e in tuning.read(task, split)]
    assert found == EXPECTED[form]


# Overrides of a run.
TINY = [
  *tiny.flags(
    model=dict(num_layers=1, d_model=16, num_heads=2, context_length=128),
    tokenizer=dict(name='bytes'),
    batch=dict(size=8),
    schedule=dict(num_steps=2),
    eval=dict(rows=8),
  )
]


@pytest.mark.long
@pytest.mark.slow  # a run
def test_the_example_of_evaluate_runs(tmp_path, monkeypatch, evaluated, capsys):
  argv, _ = evaluated
  monkeypatch.chdir(tmp_path)
  texts = ''.join(path.read_text() for path in (tmp_path / 'tasks').iterdir())
  (tmp_path / 'corpus.txt').write_text(texts * 9)
  source = "--config.data.source=text('corpus.txt')"
  options = [f'--config={ROOT}/configs/smoke.py', source, '--workdir=W']
  holdout = '--config.data.holdout=tail(fraction=0.1)'
  assert main(['train', *options, holdout, *TINY]) == 0
  capsys.readouterr()
  assert main(argv) == 0
  found = json.loads(capsys.readouterr().out)
  name = 'eval/qa/capitals-shown_rest-max_tokens_5'
  assert 0 <= found[f'{name}/1_shots/exact_match'] <= 1
  assert found['eval/text/notes-stride_8/words'] == 15
  (task,) = [k for k in found if k.endswith('sky-shown_rest/accuracy')]
  assert found[task] in (0, 0.5, 1)


@pytest.mark.long
@pytest.mark.slow  # a run of each
@pytest.mark.parametrize('form', TUNED)
def test_the_examples_of_finetuning_run(tmp_path, monkeypatch, form):
  tables, argv = TUNED[form]
  put(tmp_path, tables)
  monkeypatch.chdir(tmp_path)
  found = dict(itertools.pairwise(argv))
  config = found['--config']
  argv = [str(ROOT / config) if part == config else part for part in argv]
  assert main([*argv, '--init=none', *TINY]) == 0
  assert (tmp_path / found['--workdir'] / 'result.json').is_file()
