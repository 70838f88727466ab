# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""GLUE in T5's formats, against the lines that the paper prints."""

import pytest

from gpt_jax.core.spec import UsageError
from gpt_jax.core.text import sources
from gpt_jax.tasks import glue
from tests.support.tables import put

FINCHER = (
  "it confirms fincher 's status as a film maker who artfully bends technical "
  'know-how to the service of psychological insight . '
)
PURETUNES = (
  'Representatives for Puretunes could not immediately be reached for comment Wednesday.',
  'Puretunes representatives could not be located Thursday to comment on the suit.',
)
ITALIANS = (
  "A smaller proportion of Yugoslavia's Italians were settled in Slovenia (at "
  'the 1991 national census, some 3000 inhabitants of Slovenia declared '
  'themselves as ethnic Italians).',
  'Slovenia has 3,000 inhabitants.',
)


@pytest.mark.parametrize(
  'name, texts, label, source, target',
  [
    (
      'cola',
      ('John made Bill master of himself.',),
      1,
      'cola sentence: John made Bill master of himself.',
      'acceptable',
    ),
    ('sst2', (FINCHER,), 1, f'sst2 sentence: {FINCHER[:-1]}', 'positive'),
    ('stsb', PURETUNES, 3.25, f'stsb sentence1: {PURETUNES[0]} sentence2: {PURETUNES[1]}', '3.2'),
    (
      'rte',
      ITALIANS,
      1,
      f'rte sentence1: {ITALIANS[0]} sentence2: {ITALIANS[1]}',
      'not_entailment',
    ),
    (
      'mnli',
      ('I hate pigeons.', 'I love them.'),
      2,
      'mnli hypothesis: I love them. premise: I hate pigeons.',
      'contradiction',
    ),
    ('qnli', ('Where?', 'Here.'), 0, 'qnli question: Where? sentence: Here.', 'entailment'),
    ('qqp', ('A?', 'B?'), 0, 'qqp question1: A? question2: B?', 'not_duplicate'),
    ('mrpc', ('A', 'B'), 1, 'mrpc sentence1: A sentence2: B', 'equivalent'),
  ],
)
def test_as_printed(name, texts, label, source, target):
  assert glue.source_text(name, texts) == source
  assert glue.target_text(name, label) == target


def test_similarities_are_rounded_half_to_even():
  exact = {2.57: '2.6', 3.25: '3.2', 0.5: '0.4', 1.5: '1.6', 0: '0.0', 5: '5.0'}
  for score, text in exact.items():
    assert glue.target_text('stsb', score) == text
  # A thousandth apart they are 26 texts; from 1 on, as the paper has it, 21.
  for first, number in ((0, 26), (1000, 21)):
    scores = [x / 1000 for x in range(first, 5001)]
    texts = {glue.target_text('stsb', score) for score in scores}
    assert len(texts) == number


@pytest.mark.parametrize(
  'name, text, label',
  [
    ('sst2', ' positive\n', 1),
    ('sst2', 'Positive', None),
    ('sst2', 'acceptable', None),
    ('sst2', '', None),
    ('rte', 'not_entailment', 1),
    ('stsb', '3.2', 3.2),
    ('stsb', '3.21', 3.21),
    ('stsb', '5.1', None),
    ('stsb', 'nan', None),
    ('stsb', '3.2.', None),
    ('stsb', '', None),
  ],
)
def test_answers_are_read_and_never_an_error(name, text, label):
  assert glue.label_of(name, text) == label


def documents(call):
  return [(d.name, d.text) for d in sources.documents('data.source', call)]


def test_a_folder_of_its_own_beside_tfds(tmp_path):
  assert glue.find('sst2', 'tfds:', 'SST-2').paths['dev'].startswith('tfds:')
  mine = glue.find('sst2', 'tfds:', str(tmp_path))
  assert mine.paths['dev'] == str(tmp_path / 'dev.tsv')


def test_a_source_of_pairs(tmp_path):
  put(tmp_path, 'train.tsv', 'sentence\tlabel\nbad . \t0\nso good\t1\n')
  put(tmp_path, 'dev.tsv', 'sentence\tlabel\nfine\t1\n')
  found = documents(f"text_to_text('sst2', '{tmp_path}')")
  assert found == [
    ('train:0#source', 'sst2 sentence: bad .'),
    ('train:0#target', 'negative'),
    ('train:1#source', 'sst2 sentence: so good'),
    ('train:1#target', 'positive'),
  ]
  dev = f"text_to_text('sst2', '{tmp_path}', split='dev')"
  assert [text for _, text in documents(dev)] == ['sst2 sentence: fine', 'positive']
  read = sources.load('data.source', dev)
  assert read.files == {'dev.tsv': str(tmp_path / 'dev.tsv')}
  mixed = f"mixture(a:\"text_to_text('sst2', '{tmp_path}')\")"
  assert documents(mixed)[0][0] == 'a/train:0#source'


@pytest.mark.parametrize(
  'call, words',
  [
    ("text_to_text('sst3', '{}')", "'sst3'.: no such task; one of sst2, cola"),
    ("text_to_text('sst2', '{}', split='test')", "no split 'test' with labels"),
    ("text_to_text('sst2', '{}')", 'no such file.*gluebenchmark'),
  ],
)
def test_what_is_wrong_is_named(tmp_path, call, words):
  with pytest.raises(UsageError, match=words):
    documents(call.format(tmp_path))


def test_the_real_sets_have_the_tables_examples(shared):
  for name, folder, size in (('cola', 'CoLA', 8551), ('rte', 'RTE', 2490), ('stsb', 'STS-B', 5749)):
    task = glue.load(name, str(shared / 'glue' / folder))
    found = [*glue.pairs(name, task, 'train')]
    assert len(found) == size
    # Each target says its label; a similarity to 0.1.
    for pair in found:
      said = glue.label_of(name, pair.target)
      assert said == pytest.approx(pair.label, abs=0.1 + 1e-9)
