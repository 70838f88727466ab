# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tasks for fine-tuning that cannot be read: the call, the files, the error."""

import json

import pytest

from gpt_jax.core import spec
from gpt_jax.core.spec import UsageError
from gpt_jax.tasks import metrics
from gpt_jax.tasks.registry import TUNED
from gpt_jax.tasks.task import read, with_labels
from tests.support.tables import put


def lines(*rows):
  return ''.join(json.dumps(row) + '\n' for row in rows)


def of_classes(labels):
  """A table of texts, a label each."""
  rows = ''.join(f'x {label}\t{label}\n' for label in labels)
  return {'t.tsv': f'text\tlabel\n{rows}'}


def tagged(words, tags):
  good = {'words': ['c', 'd'], 'tags': ['O', 'B-X']}
  return {'t.jsonl': lines(good, {'words': words, 'tags': tags})}


def squad(version, answers):
  """SQuAD's files, of a paragraph with a question."""
  question = {'id': 'q0', 'question': 'who?', 'answers': answers}
  paragraph = {'context': 'Bob saw Eve.', 'qas': [question]}
  text = json.dumps({'data': [{'title': '', 'paragraphs': [paragraph]}]})
  return {f'{split}-v{version}.json': text for split in ('train', 'dev')}


TABLE = "classification('t.tsv', 't.tsv'{})"
STARS = "classification('t.tsv', 'dev.tsv', text='review', label='stars')"
GOOD = {'t.tsv': 'review\tstars\nbad\t1\nok\t2\n'}
LINES = "classification('t.jsonl', 't.jsonl', 't.jsonl', labels='a, b')"
SCORE = "similarity('t.jsonl', 't.jsonl', first='a', second='b', "
SCORE += 'regression=True)'
CHOICE = "choice('t.jsonl', 't.jsonl', {})"
TEMPLATE = CHOICE.format("context='{}', answers='a, b'")
FIELDS = {'t.jsonl': lines({'a': 'x', 'b': 'y', 'label': 1})}
TAGS = "tags('t.jsonl', 't.jsonl')"
CONLL = "tags('t.conll', 't.conll')"

REFUSED = [
  # A table.
  (
    STARS,
    {**GOOD, 'dev.tsv': 'review\tstars\nok\t2\nok\t3\n'},
    r"dev\.tsv:3: the label '3' is none of 1, 2",
  ),
  (STARS, {**GOOD, 'dev.tsv': 'text\tstars\nok\t2\n'}, r"dev\.tsv:2: has no column 'review'"),
  (STARS, {**GOOD, 'dev.tsv': 'review\tstars\n'}, r'dev\.tsv: holds no examples'),
  ("classification('t.tsv', 't.tsv', labels='a, b')", {'t.tsv': 'text\nx\n'}, "no column 'label'"),
  # Labels and scores.
  (
    LINES,
    {'t.jsonl': lines({'text': 'x', 'label': -1})},
    r't\.jsonl:1: the label -1 is none of a, b$',
  ),
  (
    LINES.replace("'t.jsonl', labels", "'test.jsonl', labels"),
    {
      't.jsonl': lines({'text': 'x', 'label': 'a'}),
      'test.jsonl': lines({'text': 'x', 'label': -1}),
    },
    r'test\.jsonl:1: the label -1 is none of a, b; .* leave it empty',
  ),
  (
    LINES.replace("labels='a, b'", "labels='-1, a, b'"),
    {'t.jsonl': lines({'text': 'x', 'label': None})},
    r"t\.jsonl:1: column 'label' holds None, which is not a label",
  ),
  *(
    (
      SCORE,
      {'t.jsonl': f'{{"a": "", "b": "", "label": {value}}}'},
      r"t\.jsonl:1: 'label' holds .*, which is not a finite number",
    )
    for value in ('"much"', '"nan"', 'NaN', '-Infinity', '1e999', 'null')
  ),
  (
    CHOICE.format("labels='A, B, C, D'"),
    {
      't.jsonl': lines(
        {'context': '', 'answers': [*'xyz'], 'label': 'C'},
        {'context': '', 'answers': [*'xyz'], 'label': 'D'},
      )
    },
    r"t\.jsonl:2: the label 'D' is none of A, B, C$",
  ),
  # Texts and answers.
  (
    CHOICE.format(''),
    {'t.jsonl': lines({'context': 'a', 'answers': ['b', None], 'label': 0})},
    r"t\.jsonl:1: column 'answers' holds None, which is not a text",
  ),
  (
    CHOICE.format(''),
    {'t.jsonl': lines({'context': 'a', 'answers': 'b', 'label': 0})},
    r"t\.jsonl:1: 'answers' is not a list of answers",
  ),
  *(
    (TEMPLATE.format(text), FIELDS, f'the template .*: .*{why}')
    for text, why in (
      ('{a', 'expected .}. before end of string'),
      ('{a} }', 'Single .}. encountered'),
      ('{a:RESPONSE} {b}', 'more in its braces'),
      ('{a:}', 'more in its braces'),
      ('{a!r}', 'more in its braces'),
      ('{} {b}', 'more in its braces'),
    )
  ),
  ("ranking('t.tsv', 't.tsv', candidates=1)", {}, 'candidates=1: a group needs'),
  # Metrics.
  (
    TABLE.format(", metrics='f1'"),
    of_classes('abc'),
    "'f1': does not measure 3 classes; one of acc",
  ),
  (
    TABLE.format(", metrics='pearson'"),
    of_classes('12'),
    "'pearson': does not measure classification",
  ),
  (
    TABLE.format(", regression=True, metrics='pearson, accuracy'"),
    of_classes('12'),
    "'accuracy': does not measure regression; one of pearson, spearman$",
  ),
  (
    TABLE.format(", labels='2, 1, 2'"),
    of_classes('12'),
    "labels names '2' more than once; name each",
  ),
  (TABLE.format(", metrics='bleu'"), of_classes('12'), "metric 'bleu': unknown; one of accuracy"),
  # Spans.
  (
    "squad('', version='2.0')",
    squad('2.0', [{'text': 'Eve', 'answer_start': 7}]),
    "q0: the answer 'Eve' is not at character 7",
  ),
  (
    "squad('', version='1.1')",
    squad('1.1', []),
    r'q0: has no answer; give empty=True, or squad\(version',
  ),
  (
    "squad('', version='1.1')",
    squad('1.1', [{'text': 'Eve', 'answer_start': float('inf')}]),
    'is not a list of objects with text and answer_start',
  ),
  # Tags.
  (CONLL, {'t.conll': 'a O\nb\n'}, r't\.conll:2: has a word and no tag'),
  (CONLL, {'t.conll': 'a X O\nb O\n'}, r't\.conll:2: has 2 columns, the line before 3'),
  (TAGS, tagged(['a'], []), 'has 1 words and 0 tags'),
  (
    "tags('t.jsonl', 'dev.jsonl')",
    {
      't.jsonl': lines({'words': ['c', 'd'], 'tags': ['O', 'B-X']}),
      'dev.jsonl': lines({'words': ['c'], 'tags': [0]}),
    },
    'the tag 0 is none of B-X, O',
  ),
  (TAGS, tagged(['a', None], ['O', 'O']), "'words' is not a list of words"),
  (TAGS, tagged(['a b'], ['O']), "the word 'a b' is empty or"),
  (TAGS, tagged('a', ['O']), "'words' is not a list of words"),
  (TAGS, tagged(['a', 'b'], ['O', 'NN']), "tags as 'NN', which"),
  (
    TAGS,
    tagged(['a', 'b'], ['O', 'B-old town']),
    r"t\.jsonl:2: the tag 'B-old town' holds white space, which separates",
  ),
  (TAGS, tagged(['a', 'b'], ['O', 'B-x\t']), r"the tag 'B-x\\t' holds white"),
  (
    "tags('t.jsonl', 't.jsonl', labels='O, B-a b')",
    tagged(['a'], ['O']),
    r"tags\(labels='O, B-a b'\): the tag 'B-a b' holds white space",
  ),
]


@pytest.mark.parametrize(('call', 'files', 'message'), REFUSED, ids=[m for _, _, m in REFUSED])
def test_refusals(tmp_path, call, files, message):
  for name, text in files.items():
    put(tmp_path, name, text)
  for name in {*files, 't.tsv'}:
    call = call.replace(f"'{name}'", repr(str(tmp_path / name)))
  call = call.replace("squad(''", f'squad({str(tmp_path)!r}')
  with pytest.raises(UsageError, match=message):
    task = with_labels(spec.build('finetune.task', call, TUNED))
    metrics.check(task, call)
    for split in task.paths:
      read(task, split)
