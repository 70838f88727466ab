# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What tasks refuse: calls, files and records, each in one line."""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from gpt_jax.core.spec import UsageError
from gpt_jax.evaluation import suite
from gpt_jax.evaluation.results import read_calls
from gpt_jax.evaluation.suite import TASKS
from tests.support.tasks import Believer, build, measure, write


class Case(NamedTuple):
  """A call that is refused.

  Attributes:
    files: by path: a text, bytes, or records for JSON lines.
    error: a regular expression.
    context: of the scorer.
  """

  call: str
  error: str
  files: Mapping[str, Any] = MappingProxyType({})
  shots: int = 0
  context: int = 1000


def choices(count):
  return [{'context': f'c{i}', 'choices': [f'r{i}', f'w{i}'], 'label': 0} for i in range(count)]


def piqa(labels, **more):
  pairs = [{'goal': 'Go', 'sol1': 'a', 'sol2': 'b'}] * 3
  return {
    'piqa/valid.jsonl': pairs,
    'piqa/valid-labels.lst': labels,
    **{f'piqa/{name}.jsonl': pairs for name in more},
  }


STORY = (
  'InputStoryid,InputSentence1,InputSentence2,InputSentence3,InputSentence4,'
  'RandomFifthSentenceQuiz1,RandomFifthSentenceQuiz2,AnswerRightEnding\n'
  '138d,Bob went out.,It rained.,He ran.,He felt good.,He sang.,He slept.,0\n'
)
BOOLQ = {'question': 'is snow cold', 'passage': 'It is ice.'}
QUESTIONS = [{'question': x, 'answers': 'b'} for x in 'ac']
LABEL = {'label.jsonl': [{'context': '', 'choices': ['a', 'b'], 'label': 2}]}
LINES = {'a': 'x\ny\n', 'b': 'x\n', 'empty': '', 'latin': b'x\n\xe9\n'}

CASES = [
  # Names of results.
  Case(
    "text('a/x.txt'), text('b/x.txt', stride=0)",
    r"^--tasks: .*text\(path='a/x.txt'\) and text\(path='b/x.txt'\) would both "
    r'report as eval/text/x; .* name=$',
  ),
  Case("lambada, text('x', name='lambada')", '^--tasks: .*both report as eval/lam'),
  Case("text('x', name='a/b')", "^--tasks: .*name='a/b': is not a name for resul"),
  Case("text('x', name='')", "^--tasks: .*name='': is not a name"),
  Case("text('x', name='validation')", 'is not a name .* and not validation'),
  Case("text('x', name=3)", '^--tasks: .*name=3: is not a name'),
  Case("validation(name='x')", '^--tasks: .*leave its name out'),
  # Those of lm-eval.
  Case(
    'mmlu, piqa, MMLU_anatomy',
    '^--tasks: mmlu, MMLU_anatomy: not among our tasks, but lm-eval has .* '
    r'--tasks mmlu,mmlu_anatomy \(docs/evaluation.md\)',
  ),
  Case('arc_easy', 'lm-eval has it: python -m gpt_jax.evaluation.lm_eval run'),
  Case('mmlus', "^--tasks='mmlus': unknown 'mmlus'; one of blimp"),
  # Arguments.
  Case("lambada(form='gap')", "form='gap' is unknown; one of last_word, blank"),
  Case("race(level='low')", "level='low' is unknown; one of middle, high"),
  Case("story_cloze(year='2018')", r'2018 are? ?not published; measure'),
  Case("story_cloze(year='2017')", "'2017' is unknown; one of 2016, 2018"),
  Case("rte(split='test')", "no split 'test' with labels; one of train, dev"),
  Case("text('label.jsonl', stride=-1)", 'stride=-1 must be at le', LABEL),
  Case("wikitext2('label.jsonl', stride=-1)", 'stride=-1 must be', LABEL),
  Case("qa('label.jsonl', max_tokens=0)", 'max_tokens=0 must be at', LABEL),
  Case("text('empty.txt', stride=2000)", 'stride=2000 exceeds the context', {'empty.txt': ''}),
  Case("seq2seq('a', 'a', metrics='blue')", "'blue': no such metric", LINES),
  # Files that are not there.
  Case('lambada', r'lambada_test\.jsonl: no such file; fetch .* --tasks_dir'),
  Case(
    'boolq',
    r'boolq/dev\.jsonl: no such file; fetch .*boolean-questions, or name the '
    r'folder by --tasks_dir; also read: .*BoolQ/val\.jsonl; from TensorFlow '
    'Datasets: --tasks_dir=tfds:$',
  ),
  Case('story_cloze', r'spring2016\.csv: no such file; ask for .*rocstories'),
  Case('hellaswag', 'hellaswag_val.jsonl: no such file; fetch .*rowanz'),
  Case('race', 'also read: .*RACE/test/middle'),
  Case('blimp', 'no such file; fetch the 67 files'),
  Case('sst2', 'no such file.*gluebenchmark'),
  Case("seq2seq('a', 'gone')", 'gone: no such file; name another', LINES),
  Case(
    'piqa',
    r'piqa/train-labels\.lst: no such file; fetch .*yonatanbisk',
    piqa('0\n1\n0\n', train=True),
    shots=1,
  ),
  # Files that are damaged, or do not fit each other.
  Case(
    "piqa('p/d*.jsonl')",
    'matches 2 files; name one',
    {f'p/d{i}.jsonl': [{'goal': 'Go', 'sol1': 'a'}] for i in '12'},
  ),
  Case('piqa', r'labels\.lst:2: has no label 0 or 1', piqa('0\n2\n0\n')),
  Case('piqa', r'labels\.lst:3: has no label', piqa('0\n1\n')),
  Case('piqa', 'has 4 labels, .* 3 lines', piqa('0\n1\n0\n1\n')),
  Case("text('empty.txt')", r'empty\.txt: holds no text', {'empty.txt': ''}),
  Case("multiple_choice('empty.txt')", 'its files are empty', {'empty.txt': ''}),
  Case("seq2seq('empty', 'empty')", 'empty: holds no line', LINES),
  Case("seq2seq('a', 'b')", 'a has 2 lines and b 1: line i', LINES),
  Case("seq2seq('latin', 'a')", 'latin:2: is not UTF-8', LINES),
  Case(
    'lambada',
    r'plain_text\.txt:2: is not UTF-8',
    {'lambada/lambada_test_plain_text.txt': b'a b\n\xff c\n'},
  ),
  Case("race(level='high')", r'high/2\.txt: is not JSON', {'RACE/test/high/2.txt': '{'}),
  Case("qa('broken.jsonl')", r'broken\.jsonl:1: is not JSON', {'broken.jsonl': '{"question": \n'}),
  # Records.
  Case(
    "multiple_choice('wrong.jsonl')",
    r"wrong\.jsonl:1: has no column 'cont",
    {'wrong.jsonl': [{'text': ''}]},
  ),
  Case("multiple_choice('label.jsonl')", r'label\.jsonl:1: label 2 is none', LABEL),
  Case(
    'story_cloze',
    r"label '0' is none .* 1, 2;",
    {'story_cloze/cloze_test_test__spring2016.csv': STORY},
  ),
  Case(
    'boolq',
    r"'maybe' is none .* False, True;",
    {'boolq/dev.jsonl': [{**BOOLQ, 'title': 'Snow', 'answer': 'maybe'}]},
  ),
  Case(
    'boolq',
    r"'maybe' is none .* False, True;",
    {'BoolQ/val.jsonl': [{**BOOLQ, 'idx': 0, 'label': 'maybe'}]},
  ),
  Case('cola_zero_shot', r"dev\.tsv:1: the label '2' is none", {'CoLA/dev.tsv': 'x\t2\t\tab\n'}),
  Case(
    "gsm8k('bad.jsonl')",
    r'bad\.jsonl:1: answer holds no number',
    {'bad.jsonl': [{'question': 'a', 'answer': 'b'}]},
  ),
  # Too few examples, or none that fits.
  *(
    Case(
      f"multiple_choice('mine.jsonl', shown={shown!r}, name='mine')",
      'only 6 examples to show',
      {'mine.jsonl': choices(7)},
      shots=7,
    )
    for shown in ('rest', 'mine.jsonl')
  ),
  *(
    Case(
      f"qa('q.jsonl', shown={shown!r}, name='qa')",
      r'only 1 .* before .*q\.jsonl:1;',
      {'q.jsonl': QUESTIONS},
      shots=2,
    )
    for shown in ('rest', 'q.jsonl')
  ),
  Case(
    "multiple_choice('mine.jsonl')",
    'no example fits the context of 1',
    {'mine.jsonl': choices(2)},
    context=1,
  ),
]


@pytest.mark.parametrize('case', CASES, ids=[f'{case.call}: {case.error}' for case in CASES])
def test_refusals(case, tmp_path):
  for name, contents in case.files.items():
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(contents, list):
      contents = ''.join(json.dumps(x) + '\n' for x in contents)
    if isinstance(contents, str):
      contents = contents.encode()
    path.write_bytes(contents)
  tasks = {**TASKS, 'validation': lambda: None}
  with pytest.raises(UsageError, match=case.error):
    suite.measure(
      suite.build(read_calls('--tasks', case.call, tasks), str(tmp_path)),
      Believer(case.context),
      shots=(case.shots,),
    )


CHOICES = {'context': 'a', 'choices': ['b', 'c'], 'label': 0}
ARTICLE = {'article': 'a', 'questions': ['b'], 'options': [['c', 'd', 'e']], 'answers': ['A']}
SCENE = {'activity_label': 'a', 'ctx': 'b', 'endings': ['c', 'd'], 'label': 1}


@pytest.mark.parametrize(
  ('task', 'record', 'error'),
  [
    ('multiple_choice', {**CHOICES, 'choices': 'yes'}, "choices='yes' is not a l"),
    ('multiple_choice', {**CHOICES, 'choices': 3}, 'choices=3 is not a list'),
    ('multiple_choice', {**CHOICES, 'choices': []}, 'is not a list of texts'),
    ('multiple_choice', {**CHOICES, 'choices': ['b', 3]}, 'is not a list of t'),
    ('multiple_choice', {**CHOICES, 'label': 0.9}, 'label 0.9 is none of'),
    ('multiple_choice', {**CHOICES, 'label': True}, 'label True is none of'),
    ('multiple_choice', {**CHOICES, 'label': 'A'}, "label 'A' is none of its 2"),
    ('multiple_choice', {**CHOICES, 'label': -1}, 'label -1 is none of'),
    ('multiple_choice', {**CHOICES, 'context': None}, 'context=None is no'),
    ('multiple_choice', {**CHOICES, 'choices': ['b']}, 'has one choice; at le'),
    (
      'cbt',
      {'story': 'a XXXXX . notXXXXX .', 'choices': ['b', 'c'], 'answer': 'b'},
      'the story has 2 blanks XXXXX; give it one',
    ),
    ('hellaswag', {**SCENE, 'label': ''}, "label '' is none of its 2 choices"),
    ('hellaswag', {**SCENE, 'endings': 'cd'}, "endings='cd' is not a list"),
    ('race', {**ARTICLE, 'answers': ['D']}, "'D' is none of .* A, B, C;"),
    ('race', {**ARTICLE, 'answers': ['AB']}, "label 'AB' is none of"),
    ('race', {**ARTICLE, 'options': 'c'}, "options='c' is not a list"),
    ('race', {**ARTICLE, 'options': 3}, 'options=3 is not a list'),
    ('qa', {'question': 'a', 'answers': {'b': 1}}, 'is not a list of texts'),
    ('qa', {'question': 'a', 'answers': []}, 'is not a list of texts'),
    ('qa', {'question': ['a'], 'answers': 'b'}, 'question=.* is not a text'),
  ],
)
def test_records_are_checked_by_type(tmp_path, task, record, error):
  write(tmp_path / 'a.jsonl', record)
  call = f"{task}('a.jsonl')"
  (named,) = build(tmp_path, call)
  for read in (named.task.texts, lambda: measure(tmp_path, call)):
    with pytest.raises(UsageError, match=rf'a\.jsonl:1: .*{error}'):
      read()
