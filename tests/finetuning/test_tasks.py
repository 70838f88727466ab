# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tables, tasks, and GPT-1's input transformations (figure 1)."""

import gzip
import json
import pathlib

import numpy as np
import pytest

from gpt_jax import spec
from gpt_jax.data import records
from gpt_jax.data.tokenizers.tokenizer import Bytes
from gpt_jax.finetuning import sequences, task_rows, tasks
from gpt_jax.finetuning.known_tasks import TASKS
from gpt_jax.finetuning.sequences import Special
from gpt_jax.finetuning.tasks import Example, Task
from gpt_jax.spec import UsageError

SHARED = pathlib.Path(__file__).parents[3] / 'shared/data'
S, D, E = Special.after(257)


def put(folder, name, text):
  path = folder / name
  path.parent.mkdir(parents=True, exist_ok=True)
  if name.endswith('.gz'):
    path.write_bytes(gzip.compress(text.encode()))
  else:
    path.write_text(text, encoding='utf-8')
  return str(path)


def task(text):
  return spec.build('finetune.task', text, TASKS)


# Tables ----------------------------------------------------------------------


def test_tables_of_all_kinds_hold_the_same(tmp_path):
  rows = [{'a': 'x "y"', 'b': '1'}, {'a': 'z', 'b': ''}]
  files = {
    't.tsv': 'a\tb\nx "y"\t1\n\nz\t\n',
    't.txt': '\ufeffa\tb\r\nx "y"\t1\r\nz\t\r\n',
    't.csv': 'a,b\n"x ""y""",1\nz,\n',
    't.tsv.gz': 'a\tb\nx "y"\t1\nz\t\n',
    't.jsonl': ''.join(json.dumps(row) + '\n' for row in rows),
  }
  for name, text in files.items():
    found = list(records.read(put(tmp_path, name, text)))
    assert [r.fields for r in found] == rows, name
  lines = [r.where for r in records.read(str(tmp_path / 't.tsv'))]
  assert [line.rpartition(':')[2] for line in lines] == ['2', '4']
  bare = put(tmp_path, 'bare.tsv', 'x\t1\nz\t2\n')
  found = [r.fields for r in records.read(bare, ('a', 'b'))]
  assert found == [{'a': 'x', 'b': '1'}, {'a': 'z', 'b': '2'}]


def test_a_quoted_entry_may_span_lines(tmp_path):
  path = put(tmp_path, 't.csv', 'a,b\n"x\ny",1\nz,2\n')
  found = list(records.read(path))
  assert found[0]['a'] == 'x\ny'
  assert found[1].where == f'{path}:4'


@pytest.mark.parametrize(
  'name, text, why',
  [
    ('t.tsv', 'a\tb\nx\n', r't\.tsv:2: has 1 columns, not 2 \(a, b\)'),
    ('t.jsonl', '{"a": 1}\n[]\n', r't\.jsonl:2: is no JSON object'),
    ('t.jsonl', '{"a": \n', r't\.jsonl:1: is not JSON'),
    ('t.csv', 'a\n"x\n', r't\.csv:2: is not CSV'),
    ('t.xls', '', 'is none of .tsv'),
    ('gone/', '', 'no such file|is none of'),
  ],
)
def test_a_bad_table_names_file_and_line(tmp_path, name, text, why):
  path = str(tmp_path / 'gone.tsv')
  if name != 'gone/':
    path = put(tmp_path, name, text)
  with pytest.raises(UsageError, match=why):
    list(records.read(path))


# Tasks -----------------------------------------------------------------------


def test_a_users_own_table_is_one_line(tmp_path):
  train = put(
    tmp_path, 'train.tsv', 'review\tstars\nbad\t1\nso so\t10\nok\t2\n'
  )
  dev = put(tmp_path, 'dev.tsv', 'review\tstars\nok\t2\n')
  found = task(
    f"classification('{train}', '{dev}', text='review', label='stars')"
  )
  found = tasks.with_labels(found)
  assert found.labels == ('1', '2', '10')
  examples = tasks.read(found, 'train')
  assert [e.texts for e in examples] == [('bad',), ('so so',), ('ok',)]
  assert [e.label for e in examples] == [0, 2, 1]
  put(tmp_path, 'dev.tsv', 'review\tstars\nok\t2\nok\t3\n')
  with pytest.raises(UsageError, match=r"dev\.tsv:3: the label '3' is none of"):
    tasks.read(found, 'dev')
  put(tmp_path, 'dev.tsv', 'text\tstars\nok\t2\n')
  with pytest.raises(UsageError, match=r"dev\.tsv:2: has no column 'review'"):
    tasks.read(found, 'dev')
  put(tmp_path, 'dev.tsv', 'review\tstars\n')
  with pytest.raises(UsageError, match=r'dev\.tsv: holds no examples'):
    tasks.read(found, 'dev')


def test_scores_and_templates(tmp_path):
  rows = [{'a': 'x', 'b': 'y', 'n': 2, 'label': 1.5}]
  path = put(tmp_path, 't.jsonl', json.dumps(rows[0]) + '\n')
  found = task(
    f"similarity('{path}', '{path}', first='{{a}} has {{n}}', second='b', "
    'regression=True)'
  )
  assert found.metrics == ('pearson', 'spearman')
  assert tasks.read(found, 'dev')[0][1:] == (('x has 2', 'y'), 1.5)
  put(tmp_path, 't.jsonl', '{"a": "x", "b": "y", "n": 2, "label": "much"}\n')
  for value in ('"much"', '"nan"', 'NaN', '-Infinity', '1e999', 'null'):
    put(tmp_path, 't.jsonl', f'{{"a": "", "b": "", "n": 2, "label": {value}}}')
    with pytest.raises(UsageError, match=r"t\.jsonl:1: 'label' holds .*finite"):
      tasks.read(found, 'dev')


@pytest.mark.parametrize(
  'template, expected',
  [
    ('{a}, then {b}', 'x, then y'),
    ('{{{a}}} {{b}}', '{x} {b}'),
    ('{a', 'expected .}. before end of string'),
    ('{a} }', 'Single .}. encountered'),
    ('{a:RESPONSE} {b}', 'more in its braces'),
    ('{a:}', 'more in its braces'),
    ('{a!r}', 'more in its braces'),
    ('{} {b}', 'more in its braces'),
  ],
)
def test_a_template_names_columns_alone(tmp_path, template, expected):
  path = put(tmp_path, 't.jsonl', '{"a": "x", "b": "y", "label": 1}\n')
  found = task(
    f"choice('{path}', '{path}', context='{template}', answers='a, b')"
  )
  if expected.endswith(('y', '}')):
    assert tasks.read(found, 'dev')[0].texts == (expected, 'x', 'y')
    return
  with pytest.raises(UsageError, match=f'the template .*: .*{expected}'):
    tasks.read(found, 'dev')


def test_a_context_may_be_several_columns(tmp_path):
  path = put(tmp_path, 't.tsv', 'a\tb\tlabel\nx\ty\t1\n')
  found = task(f"choice('{path}', '{path}', context='a, b', answers='b, a')")
  assert tasks.read(found, 'dev')[0].texts == ('x', 'y', 'y', 'x')


def test_a_label_beyond_the_answers_is_refused(tmp_path):
  rows = [{'context': '', 'answers': [*'xyz'], 'label': x} for x in 'CD']
  text = ''.join(json.dumps(row) + '\n' for row in rows)
  path = put(tmp_path, 't.jsonl', text)
  found = task(f"choice('{path}', '{path}', labels='A, B, C, D')")
  why = r"t\.jsonl:2: the label 'D' is none of A, B, C$"
  with pytest.raises(UsageError, match=why):
    tasks.read(found, 'dev')


@pytest.mark.parametrize('value', [-1, -1.0])
def test_minus_one_is_a_label_in_a_users_table(tmp_path, value):
  path = put(tmp_path, 't.jsonl', json.dumps({'text': 'x', 'label': value}))
  form = f"classification('{path}', '{path}', '{path}', "
  scores = task(form + 'regression=True)')
  assert tasks.read(scores, 'test')[0].label == -1
  classes = task(form + f"labels='{value}, 1')")
  assert tasks.read(classes, 'test')[0].label == 0
  why = r't\.jsonl:1: the label -1.* is none of a, b; .* leave it empty'
  with pytest.raises(UsageError, match=why):
    tasks.read(task(form + "labels='a, b')"), 'test')


def test_a_test_split_needs_no_labels(tmp_path):
  path = put(tmp_path, 't.tsv', 'text\nx\n')
  found = task(f"classification('{path}', '{path}', '{path}', labels='a, b')")
  assert tasks.read(found, 'test')[0].label is None
  with pytest.raises(UsageError, match="no column 'label'"):
    tasks.read(found, 'dev')


def test_absent_data_says_how_to_get_it(tmp_path, monkeypatch):
  with pytest.raises(
    UsageError, match=r'no such file.*gluebenchmark.*tfds build'
  ):
    tasks.read(task(f"sst2('{tmp_path}')"), 'train')
  monkeypatch.setenv('TFDS_DATA_DIR', str(tmp_path))
  with pytest.raises(
    UsageError, match=r'tfds build glue/sst2.*Or unpack SST-2'
  ):
    tasks.read(task('sst2()'), 'train')


def test_glue_as_microsoft_published_mrpc(tmp_path):
  head = '\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n'
  put(
    tmp_path,
    'msr_paraphrase_train.txt',
    head + '1\t7\t8\ta\tb\n0\t5\t6\tc\td\n',
  )
  put(tmp_path, 'dev_ids.tsv', '7\t8\n')
  put(tmp_path, 'dev.tsv', head + '1\t7\t8\ta\tb\n')
  found = task(f"mrpc('{tmp_path}')")
  assert [e.texts for e in tasks.read(found, 'train')] == [('c', 'd')]
  assert [e.texts for e in tasks.read(found, 'dev')] == [('a', 'b')]


def test_a_passage_is_many_questions(tmp_path):
  passage = {
    'article': 'A B.',
    'questions': ['q1 _', 'q2'],
    'options': [['a', 'b', 'c', 'd'], ['e', 'f', 'g', 'h']],
    'answers': ['C', 'A'],
  }
  for split in ('train', 'dev'):
    put(tmp_path, f'{split}_high.jsonl', json.dumps(passage) + '\n')
  found = tasks.read(task(f"race('{tmp_path}', level='high')"), 'dev')
  assert found[0].texts == ('A B.', 'q1 _', 'a', 'b', 'c', 'd')
  assert [e.label for e in found] == [2, 0]


def test_the_story_cloze_test(tmp_path):
  head = [f'InputSentence{i}' for i in range(1, 5)]
  head += ['RandomFifthSentenceQuiz1', 'RandomFifthSentenceQuiz2']
  text = ','.join([*head, 'AnswerRightEnding']) + '\n"A, b.",B.,C.,D.,e,f,2\n'
  for split in ('val', 'test'):
    put(tmp_path, f'cloze_test_{split}__spring2016.csv', text)
  (found,) = tasks.read(task(f"story_cloze('{tmp_path}')"), 'dev')
  # TFDS keeps the numbers 1 and 2.
  assert task('story_cloze()').labels == ('1', '2')
  assert found[1:] == (('A, b. B. C. D.', 'e', 'f'), 1)


def test_examples_without_a_gold_label_are_left_out(tmp_path):
  rows = [
    {'sentence1': 'a', 'sentence2': 'b', 'gold_label': label}
    for label in ('neutral', '-', 'contradiction')
  ]
  text = ''.join(json.dumps(row) + '\n' for row in rows)
  put(tmp_path, 'snli_1.0_dev.jsonl', text)
  found = tasks.read(task(f"snli('{tmp_path}')"), 'dev')
  assert [e.label for e in found] == [1, 2]


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
  assert {s: len(tasks.read(found, s)) for s in found.paths} == counts


# Rows ------------------------------------------------------------------------


def rows(form, texts, length=16, **more):
  of = Task(form, {}, ('',) * (1 if form == 'choice' else len(texts)))
  examples = [Example('t:1', tuple(texts), 1)]
  tokens = task_rows.encode(examples, Bytes())
  special = Special(S, D, E)
  return task_rows.rows(
    of, examples, tokens, special=special, length=length, **more
  )


def shown(found):
  names = {S: '<', D: '$', E: '>'}
  return [
    ''.join(names.get(t) or chr(t) for t in row[:n])
    for row, n in zip(found.inputs[0], found.lengths[0], strict=True)
  ]


@pytest.mark.parametrize(
  'form, texts, expected',
  [
    ('classification', ['abc'], ['<abc>']),
    ('entailment', ['abc', 'de'], ['<abc$de>']),
    ('similarity', ['abc', 'de'], ['<abc$de>', '<de$abc>']),
    ('choice', ['abc', 'd', 'ef'], ['<abc$d>', '<abc$ef>']),
  ],
)
def test_the_papers_figure_1(form, texts, expected):
  assert shown(rows(form, texts)) == expected


def test_what_is_too_long_keeps_its_ends():
  found = rows('classification', ['abcdefgh'], length=6)
  assert (shown(found), found.cut) == (['<abcd>'], 1)
  # Nine tokens of room are left for two texts.
  both = rows('entailment', ['abcdefghij', 'klmnopqrst'], length=12)
  assert shown(both) == ['<abcde$klmn>']
  # What the second leaves the first takes.
  found = rows('entailment', ['abcdefghij', 'kl'], length=12)
  assert shown(found) == ['<abcdefg$kl>']
  assert rows('entailment', ['abcdefg', 'kl'], length=12).cut == 0
  with pytest.raises(UsageError, match=r't:1: is 3 tokens longer than'):
    rows('entailment', ['abcdefghij', 'kl'], length=12, too_long='refuse')


@pytest.mark.parametrize('seed', range(20))
def test_no_text_keeps_less_than_the_released_code_gives_it(seed):
  rng = np.random.default_rng(seed)
  length = int(rng.integers(8, 40))
  texts = [np.arange(n) for n in rng.integers(0, 40, size=2)]
  kept = sequences.fit(texts, length - 3)
  for text, part in zip(texts, kept, strict=True):
    np.testing.assert_array_equal(part, text[: len(part)])
    assert len(part) >= min(len(text), length // 2 - 2)
  assert sum(map(len, kept)) == min(sum(map(len, texts)), length - 3)


def target_rows(prompt, target, length, **more):
  examples = [Example('t:1', (prompt, target), None)]
  tokens = task_rows.encode(examples, Bytes())
  return task_rows.target_rows(
    examples, tokens, eos_id=256, length=length, **more
  )


def test_a_target_is_never_cut():
  found = target_rows('abc =', ' x', 10)
  assert found.inputs[0, 0].tolist() == [*b'abc = x', 256, 256, 256, 256]
  assert found.lengths.tolist() == [[5, 8]]
  # The prompt loses its beginning.
  found = target_rows('abc =', ' x', 5)
  assert found.inputs[0, 0].tolist() == [*b'c = x', 256]
  assert (found.lengths.tolist(), found.cut) == ([[3, 6]], 1)
  with pytest.raises(UsageError, match='a target is never cut'):
    target_rows('abc =', ' xyz', 4)
  with pytest.raises(UsageError, match=r't:1: the target is empty'):
    target_rows('abc =', '', 4)


def test_answers_differ_in_number():
  of = Task('choice', {}, ('',))
  examples = [
    Example('t:1', ('c', 'a', 'b'), 0),
    Example('t:2', ('c', 'a', 'b', 'd'), 0),
  ]
  with pytest.raises(UsageError, match=r't:2: has 3 answers, others 2'):
    sequences.num_sequences(of, examples)
