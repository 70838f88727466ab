# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Names of results, and the file that keeps them."""

import json

import pytest

from gpt_jax.core.spec import UsageError
from gpt_jax.evaluation import suite
from gpt_jax.evaluation.results import Results, read_calls, written
from gpt_jax.evaluation.suite import TASKS
from tests.support.tasks import Believer, build, measure, write


@pytest.mark.parametrize(
  ('call', 'name'),
  [
    ('lambada', 'lambada'),
    ("text('books/mine.txt')", 'text/mine'),
    ("text('mine.jsonl.gz', stride=128)", 'text/mine-stride_128'),
    ("text('mine.txt', name='own.text-2')", 'own.text-2'),
    ("text('my books/*.txt')", 'text/my_books'),
    ("text('wiki.test.raw')", 'text/wiki.test'),
    ("text('5_shots.txt')", 'text/5_shots-file'),
    ("lambada(shown='')", 'lambada/shown_none'),
    ("qa('tfds:web_questions:test')", 'qa/tfds_web_questions_test'),
  ],
)
def test_a_name_follows_from_the_call(call, name):
  (found,) = read_calls('--tasks', call, TASKS)
  assert found.name == name


def test_one_task_on_several_files(tmp_path):
  (tmp_path / 'a.txt').write_text('aaaa')
  (tmp_path / 'b.txt').write_text('bbbbbb')
  calls = "text('a.txt', name='a'), text('b.txt'), text('a.txt'), text('b.txt', 2)"
  found = measure(tmp_path, calls)
  sizes = {'a': 4, 'text/b': 6, 'text/a': 4, 'text/b-stride_2': 6}
  for name, size in sizes.items():
    assert found[f'eval/{name}/bytes'] == size
  for name, loss in {'a': ord('a') / 1000, 'text/b': ord('b') / 1000}.items():
    assert found[f'eval/{name}/loss'] == pytest.approx(loss)
  lines = suite.lines(found, build(tmp_path, calls))
  assert [line.partition(':')[0] for line in lines] == [*sizes]


def test_each_task_has_a_journal_of_its_own(tmp_path):
  (tmp_path / 'a.txt').write_text('aaaa')

  class Keeper(Believer):
    def rows(self, rows, journal, report):
      journal.start('rows')
      return super().rows(rows, journal, report)

  calls = "text('a.txt'), text('a.txt', name='a'), text('a.txt', name='text-a')"
  folder = tmp_path / 'journals'
  measure(tmp_path, calls, scorer=Keeper(), folder=str(folder), model='m')
  found = sorted(path.name.rpartition('-0-')[0] for path in folder.iterdir())
  assert found == ['a', 'text-a', 'text-a']


def test_figures_are_kept_after_each_task(tmp_path):
  write(tmp_path / 'a.jsonl', *[{'text': f'a {i}'} for i in range(3)])
  path = tmp_path / 'evaluations' / 'step-5.json'

  def put(calls, model='m', shots=(0,)):
    called = {t.name: written(t.call, TASKS) for t in build(tmp_path, calls)}
    results = Results(str(path), step=5, model=model, tasks=called)
    measure(tmp_path, calls, shots, keep=results.add)

  def kept():
    values = json.loads(path.read_text())
    assert values['step'] == 5
    return {k.rpartition('/')[0] for k in values if k.startswith('eval/')}

  call = "lambada('a.jsonl')"
  with pytest.raises(UsageError, match='exceeds the context'):
    put(f"{call}, text('a.jsonl', stride=2000)", shots=(0, 1))
  whole = {'eval/lambada/a', 'eval/lambada/a/1_shots'}
  assert kept() == whole
  put("text('a.jsonl'), lambada('a.jsonl', name='lambada')")
  whole |= {'eval/text/a', 'eval/lambada'}
  assert kept() == whole
  # Under the same name there may be other data now: nothing of before is left.
  put(call)
  whole.remove('eval/lambada/a/1_shots')
  assert kept() == whole
  put("lambada('a.jsonl', name='lambada')", shots=(0, 1))
  assert kept() == whole | {'eval/lambada/1_shots'}
  put("lambada('a.jsonl', name='lambada')")
  assert kept() == whole
  put(call, model='other')
  assert kept() == {'eval/lambada/a'}


def test_results_of_another_task_are_not_replaced(tmp_path):
  path = tmp_path / 'step-5.json'

  def results(call, model='m'):
    return Results(str(path), step=5, model=model, tasks={'text/x': call})

  results("text('a/x.txt')").add({'eval/text/x/loss': 1.0})
  with pytest.raises(
    UsageError,
    match=r"step-5\.json holds eval/text/x of text\('a/x\.txt'\), not of "
    r"text\('b/x\.txt'\); give .* name=",
  ):
    results("text('b/x.txt')")
  results("text('a/x.txt')").add({'eval/text/x/loss': 2.0})
  results("text('b/x.txt')", model='other').add({'eval/text/x/loss': 3.0})
  assert json.loads(path.read_text()) == {
    'step': 5,
    'model': 'other',
    'tasks': {'text/x': "text('b/x.txt')"},
    'eval/text/x/loss': 3.0,
  }
