# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tags: CoNLL's files, the first token of each word, and entities."""

import numpy as np
import pytest

from gpt_jax.core import spec
from gpt_jax.core.tokenizers.simple import Bytes
from gpt_jax.tasks.metrics import METRICS, entities
from gpt_jax.tasks.registry import TUNED
from gpt_jax.tasks.task import read
from gpt_jax.tuning import rows
from gpt_jax.tuning.rows import EncodedExamples, Frame

CLS, SEP, PAD = 301, 302, 303
BERT = Frame((CLS,), (SEP,), (SEP,), 'first', PAD)
CONLL = """-DOCSTART- -X- -X- O

U.N. NNP I-NP I-ORG
official NN I-NP O
Rolf NNP I-NP I-PER
Ek NNP I-NP I-PER

-DOCSTART- -X- -X- O

New NNP I-NP I-LOC
York NNP I-NP I-LOC
Oslo NNP B-NP B-LOC
"""


def conll(folder):
  for name in ('eng.train', 'eng.testa', 'eng.testb'):
    (folder / name).write_text(CONLL)
  task = spec.build('finetune.task', f"conll2003('{folder}')", TUNED)
  return task, read(task, 'train')


def test_conlls_files_are_read(tmp_path):
  task, found = conll(tmp_path)
  assert [*task.paths] == ['train', 'dev', 'test']
  assert [e.texts for e in found] == [('U.N. official Rolf Ek',), ('New York Oslo',)]
  assert [rows.tag_names(task, e.label) for e in found] == [
    ['B-ORG', 'O', 'B-PER', 'I-PER'],
    ['B-LOC', 'I-LOC', 'B-LOC'],
  ]
  assert [e.where.rpartition(':')[2] for e in found] == ['3', '10']


def test_the_first_token_of_a_word_is_asked(tmp_path):
  task, examples = conll(tmp_path)
  tokens = rows.encode(examples, Bytes())
  made = rows.tag_rows(EncodedExamples(task, examples, tokens, Bytes(), BERT, 19))
  # 'U.N. official Rolf Ek' is 21 bytes, of which 17 have room: 'Ek' is cut off.
  assert made.inputs[0, 0].tolist() == [CLS, *b'U.N. official Rol', SEP]
  assert made.cut == 1
  assert made.origins[0].tolist() == [1, 6, 15, -1]
  label = {1: 'B-ORG', 6: 'O', 15: 'B-PER'}
  for place, number in enumerate(made.labels[0]):
    expected = task.labels.index(label[place]) if place in label else -100
    assert number == expected, place
  assert made.inputs[1, 0].tolist() == [CLS, *b'New York Oslo', SEP, *[PAD] * 4]
  # The tag of its token is the word's; a word without a token is none's.
  logits = np.zeros((2, 19, len(task.labels)))
  for row in range(2):
    for place, number in enumerate(np.maximum(made.labels[row], 0)):
      logits[row, place, number] = 1
  found = rows.found_tags(task, made.origins, logits.reshape(2, -1))
  assert [rows.tag_names(task, x) for x in found] == [
    ['B-ORG', 'O', 'B-PER', 'O'],
    ['B-LOC', 'I-LOC', 'B-LOC'],
  ]


def test_entities_of_bioes():
  text = 'S-A B-A E-A B-B I-B E-B O E-C S-C I-C B-A E-B I-A O'
  assert [*entities(text.split())] == [
    ('A', 0, 1), ('A', 1, 3), ('B', 3, 6), ('C', 7, 8), ('C', 8, 9),
    ('C', 9, 10), ('A', 10, 11), ('B', 11, 12), ('A', 12, 13),
  ]  # fmt: skip
  # As IOB the same entities, in other words.
  iob = 'B-A B-A I-A B-B I-B I-B'
  assert [*entities(iob.split())] == [*entities(text.split()[:6])]


def test_entities_as_conlls_evaluation_has_them():
  text = 'I-A I-A B-A I-A I-B O I-B B-C'
  assert [*entities(text.split())] == [
    ('A', 0, 2), ('A', 2, 4), ('B', 4, 5), ('B', 6, 7), ('C', 7, 8),
  ]  # fmt: skip
  known = [['B-A', 'I-A', 'O', 'B-B'], ['B-A', 'O']]
  said = [['B-A', 'I-A', 'O', 'B-A'], ['B-A', 'I-A']]
  # One of three is right, of three that were said.
  of = METRICS['tags']
  assert of['f1'](known, said) == pytest.approx(1 / 3)
  assert of['accuracy'](known, said) == pytest.approx(4 / 6)
  assert of['f1']([['O']], [['O']]) == 0
