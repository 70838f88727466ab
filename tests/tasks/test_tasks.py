# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tasks: of one's own tables, and the published ones."""

import json
import pathlib

import pytest

from gpt_jax.core import spec
from gpt_jax.core.spec import UsageError
from gpt_jax.tasks.registry import FORMS, PROMPTED, TASKS, TUNED
from gpt_jax.tasks.task import read, with_labels
from tests.support.tables import put

SHARED = pathlib.Path(__file__).parents[3] / 'shared/data'


def task(text):
  return spec.build('finetune.task', text, TUNED)


def test_a_users_own_table_is_one_line(tmp_path):
  train = put(tmp_path, 'train.tsv', 'review\tstars\nbad\t1\nso so\t10\nok\t2\n')
  dev = put(tmp_path, 'dev.tsv', 'review\tstars\nok\t2\n')
  found = task(f"classification('{train}', '{dev}', text='review', label='stars')")
  found = with_labels(found)
  assert found.labels == ('1', '2', '10')
  examples = read(found, 'train')
  assert [e.texts for e in examples] == [('bad',), ('so so',), ('ok',)]
  assert [e.label for e in examples] == [0, 2, 1]


def test_scores_and_templates(tmp_path):
  rows = [{'a': 'x', 'b': 'y', 'n': 2, 'label': 1.5}]
  path = put(tmp_path, 't.jsonl', json.dumps(rows[0]) + '\n')
  found = task(
    f"similarity('{path}', '{path}', first='{{a}} has {{n}}', second='b', regression=True)"
  )
  assert found.metrics == ('pearson', 'spearman')
  assert read(found, 'dev')[0][1:] == (('x has 2', 'y'), 1.5)


@pytest.mark.parametrize(
  'template, expected', [('{a}, then {b}', 'x, then y'), ('{{{a}}} {{b}}', '{x} {b}')]
)
def test_a_template_names_columns_alone(tmp_path, template, expected):
  path = put(tmp_path, 't.jsonl', '{"a": "x", "b": "y", "label": 1}\n')
  found = task(f"choice('{path}', '{path}', context='{template}', answers='a, b')")
  assert read(found, 'dev')[0].texts == (expected, 'x', 'y')


def test_a_context_may_be_several_columns(tmp_path):
  path = put(tmp_path, 't.tsv', 'a\tb\tlabel\nx\ty\t1\n')
  found = task(f"choice('{path}', '{path}', context='a, b', answers='b, a')")
  assert read(found, 'dev')[0].texts == ('x', 'y', 'y', 'x')


@pytest.mark.parametrize('value', [-1, -1.0])
def test_minus_one_is_a_label_in_a_users_table(tmp_path, value):
  path = put(tmp_path, 't.jsonl', json.dumps({'text': 'x', 'label': value}))
  form = f"classification('{path}', '{path}', '{path}', "
  scores = task(form + 'regression=True)')
  assert read(scores, 'test')[0].label == -1
  classes = task(form + f"labels='{value}, 1')")
  assert read(classes, 'test')[0].label == 0


def test_a_test_split_needs_no_labels(tmp_path):
  path = put(tmp_path, 't.tsv', 'text\nx\n')
  found = task(f"classification('{path}', '{path}', '{path}', labels='a, b')")
  assert read(found, 'test')[0].label is None


@pytest.mark.parametrize('name', [n for n in TUNED if n not in FORMS])
def test_absent_data_says_how_to_get_it(tmp_path, monkeypatch, name):
  for split in ('train', 'dev'):
    with pytest.raises(UsageError, match=r'no such file.*To get it: .*https.*tfds build'):
      read(task(f"{name}('{tmp_path}')"), split)
  monkeypatch.setenv('TFDS_DATA_DIR', str(tmp_path))
  with pytest.raises(UsageError, match=r'tfds build.*Or .*https'):
    read(task(f'{name}()'), 'train')


@pytest.mark.parametrize('name', [n for n in PROMPTED if 'multi' not in n])
def test_absent_prompts_say_how_to_get_them(tmp_path, name):
  with pytest.raises(UsageError, match=r'no such file(;|\. To get it:) .*https?://'):
    next(PROMPTED[name]().examples(str(tmp_path)))


def test_a_task_for_both_reads_the_same_answers(tmp_path):
  """RACE and the Story Cloze Test, tuned and prompted."""
  article = {
    'article': 'A B.',
    'questions': ['q1 _', 'q2'],
    'options': [['a', 'b', 'c', 'd'], ['e', 'f', 'g', 'h']],
    'answers': ['C', 'A'],
  }
  names = [f'InputSentence{i}' for i in range(1, 5)]
  names += ['RandomFifthSentenceQuiz1', 'RandomFifthSentenceQuiz2']
  story = ','.join([*names, 'AnswerRightEnding']) + '\nA.,B.,C.,D.,e,f,2\n'
  (tmp_path / 'race').mkdir()
  (tmp_path / 'story_cloze').mkdir()
  for split in ('train', 'dev'):
    text = json.dumps(article) + '\n'
    put(tmp_path / 'race', f'{split}_middle.jsonl', text)
  put(tmp_path / 'story_cloze', 'cloze_test_test__spring2016.csv', story)
  both = [n for n, of in TASKS.items() if of.tuned and of.prompted]
  for name in both:
    tuned = read(task(f"{name}('{tmp_path / name}')"), 'dev')
    splits = {'race': 'dev', 'story_cloze': 'test'}
    prompted = [*PROMPTED[name](splits[name]).examples(str(tmp_path))]
    assert [e.label for e in tuned] == [p.label for p in prompted]
    for example, prompt in zip(tuned, prompted, strict=True):
      answers = example.texts[-len(prompt.choices) :]
      assert [x.strip() for x in prompt.choices] == [*answers]
  assert {*both} == {'race', 'story_cloze'}


def test_glue_as_microsoft_published_mrpc(tmp_path):
  head = '\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n'
  put(tmp_path, 'msr_paraphrase_train.txt', head + '1\t7\t8\ta\tb\n0\t5\t6\tc\td\n')
  put(tmp_path, 'dev_ids.tsv', '7\t8\n')
  put(tmp_path, 'dev.tsv', head + '1\t7\t8\ta\tb\n')
  found = task(f"mrpc('{tmp_path}')")
  assert [e.texts for e in read(found, 'train')] == [('c', 'd')]
  assert [e.texts for e in read(found, 'dev')] == [('a', 'b')]


def test_a_passage_is_many_questions(tmp_path):
  passage = {
    'article': 'A B.',
    'questions': ['q1 _', 'q2'],
    'options': [['a', 'b', 'c', 'd'], ['e', 'f', 'g', 'h']],
    'answers': ['C', 'A'],
  }
  for split in ('train', 'dev'):
    put(tmp_path, f'{split}_high.jsonl', json.dumps(passage) + '\n')
  # TFDS calls this split otherwise than those of its other sets.
  assert task('race()').paths['dev'] == 'tfds:race/middle:dev'
  found = read(task(f"race('{tmp_path}', level='high')"), 'dev')
  assert found[0].texts == ('A B.', 'q1 _', 'a', 'b', 'c', 'd')
  assert [e.label for e in found] == [2, 0]


def test_the_story_cloze_test(tmp_path):
  head = [f'InputSentence{i}' for i in range(1, 5)]
  head += ['RandomFifthSentenceQuiz1', 'RandomFifthSentenceQuiz2']
  text = ','.join([*head, 'AnswerRightEnding']) + '\n"A, b.",B.,C.,D.,e,f,2\n'
  put(tmp_path, 'cloze_test_test__spring2016.csv', text)
  own = 'cloze_test_val__spring2016 - cloze_test_ALL_val.csv'
  put(tmp_path, own, text.replace('A, b', 'G'))
  (found,) = read(task(f"story_cloze('{tmp_path}')"), 'train')
  assert found.texts[0] == 'G. B. C. D.'
  (found,) = read(task(f"story_cloze('{tmp_path}')"), 'dev')
  # TFDS keeps the numbers 1 and 2.
  assert task('story_cloze()').labels == ('1', '2')
  assert found[1:] == (('A, b. B. C. D.', 'e', 'f'), 1)


def test_examples_without_a_gold_label_are_left_out(tmp_path, caplog):
  """And counted in the log."""
  caplog.set_level('INFO', 'gpt_jax')
  rows = [
    {'sentence1': 'a', 'sentence2': 'b', 'gold_label': label}
    for label in ('neutral', '-', 'contradiction')
  ]
  text = ''.join(json.dumps(row) + '\n' for row in rows)
  put(tmp_path, 'snli_1.0_dev.jsonl', text)
  found = read(task(f"snli('{tmp_path}')"), 'dev')
  assert [e.label for e in found] == [1, 2]
  assert "left out 1 of 3 examples, whose gold_label is '-'" in caplog.text


@pytest.mark.skipif(not SHARED.is_dir(), reason='the real sets are not here')
@pytest.mark.parametrize(
  'call, counts',
  [
    ("cola('{}/glue/CoLA')", {'train': 8551, 'dev': 1043}),
    ("mrpc('{}/glue/MRPC')", {'train': 3668, 'dev': 408, 'test': 1725}),
    ("rte('{}/glue/RTE')", {'train': 2490, 'dev': 277}),
    ("stsb('{}/glue/STS-B')", {'train': 5749, 'dev': 1500}),
  ],
)
def test_real_sets_have_their_published_sizes(call, counts):
  found = task(call.format(SHARED))
  assert {s: len(read(found, s)) for s in found.paths} == counts


TABLES = {  # the call, and a good line of its table
  'classes': ('classification({})', {'text': 'a'}, 'label', ['x', 'y']),
  'classes named': (
    "classification({}, labels='None, x, y, -1')",
    {'text': 'a'},
    'label',
    ['x', 'y'],
  ),
  'two texts': ('entailment({})', {'premise': 'a', 'hypothesis': 'b'}, 'label', ['x', 'y']),
  'scores': ('classification({}, regression=True)', {'text': 'a'}, 'label', [0.5, -1]),
  'choice': ('choice({})', {'context': 'a', 'answers': ['b', 'c']}, 'label', [0, 1]),
  'ranking': ("ranking({}, question='q', candidate='c')", {'q': 'a', 'c': 'b'}, 'label', [1, 0]),
  'tags': ('tags({})', {'words': ['a', 'b']}, 'tags', [['x', 'y'], ['y', 'x']]),
  'spans': (
    'spans({})',
    {'question': 'a', 'context': 'b c'},
    'answers',
    [[{'text': 'b', 'answer_start': 0}], [{'text': 'c', 'answer_start': 2}]],
  ),
  'target': ('target({})', {'prompt': 'a'}, 'target', ['x', 'y']),
}
NONE = [None, '', ' ', float('nan')]
MISSING = [(name, value) for name in TABLES for value in NONE] + [
  ('tags', [None, 'x']),
  ('tags', ['x', '']),
  ('tags', []),
  ('spans', []),
  ('spans', [{'text': '', 'answer_start': 0}]),
  ('spans', [{'text': None, 'answer_start': 0}]),
  ('spans', [{'text': 'b', 'answer_start': 0}, {'text': '', 'answer_start': 0}]),
  ('choice', -1),
  ('classes', []),
]


@pytest.mark.parametrize(('name', 'value'), MISSING)
@pytest.mark.parametrize('split', ['train', 'dev'])
def test_an_example_without_a_label_is_refused(tmp_path, name, value, split):
  call, fields, label, values = TABLES[name]
  good = [fields | {label: x} for x in values]
  files = {'train': good, 'dev': good}
  files = files | {split: [*good, fields | {label: value}]}
  paths = [
    put(tmp_path, f'{key}.jsonl', '\n'.join(map(json.dumps, lines))) for key, lines in files.items()
  ]
  found = task(call.format(', '.join(map(repr, map(str, paths)))))
  with pytest.raises(UsageError, match=rf'{split}\.jsonl:3: '):
    found = with_labels(found)
    for key in files:
      read(found, key)


@pytest.mark.parametrize('name', [n for n in TABLES if n not in ('ranking', 'target')])
@pytest.mark.parametrize('value', [None, ''])
def test_a_test_table_may_leave_labels_empty(tmp_path, name, value):
  call, fields, label, values = TABLES[name]
  good = '\n'.join(json.dumps(fields | {label: x}) for x in values)
  train = put(tmp_path, 'train.jsonl', good)
  test = put(tmp_path, 'test.jsonl', json.dumps(fields | {label: value}))
  found = with_labels(task(call.format(f"'{train}', '{train}', '{test}'")))
  assert [e.label for e in read(found, 'test')] == [None]
  assert None not in [e.label for e in read(found, 'train')]


@pytest.mark.parametrize(
  ('labels', 'named', 'why'),
  [
    ((0, 1, -1), '', r'train\.jsonl:3: the label -1 marks'),
    ((0, 1, -1), '-1, 0, 1', ''),
    ((-2, -1, 0), '', ''),
  ],
)
def test_minus_one_beside_numbers_of_classes(tmp_path, labels, named, why):
  rows = [json.dumps({'text': 'a', 'label': x}) for x in labels]
  path = put(tmp_path, 'train.jsonl', '\n'.join(rows))
  found = task(f"classification('{path}', '{path}', labels='{named}')")
  if why:
    with pytest.raises(UsageError, match=why):
      with_labels(found)
  else:
    assert len(with_labels(found).labels) == 3
    assert [*with_labels(found).labels] == sorted(map(str, labels))
