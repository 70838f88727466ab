# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Evaluation files of every kind: each planted text is found in the corpus."""

import csv
import json
import logging

import numpy as np
import pytest

from gpt_jax.core.spec import UsageError
from gpt_jax.core.text.clean import decontaminate, report
from gpt_jax.core.tokens import prepare

COLUMNS = ('id', 'one', 'two', 'three', 'ending')
STORIES = 101
SHORT = 7  # of fewer than 13 words


def make_stories():
  """Stories as Story Cloze has them: a sentence a column, with commas."""
  rng = np.random.default_rng(17)
  stories = []
  for i in range(STORIES):
    words = [f'w{n}' for n in rng.integers(1000, size=2 if i < SHORT else 23)]
    third = len(words) // 3
    parts = [words[:third], words[third : 2 * third], words[2 * third :]]
    one, two, three = (f'{", ".join(part)}.' for part in parts)
    stories.append((f's{i}', one, two, f'{three} "Yes"', 'Right,\nhe said.'))
  return stories


def write_csv(path, rows, **how):
  with open(path, 'w', encoding='utf-8', newline='') as file:
    csv.writer(file, **how).writerows(rows)


def write_json(path, stories, *, indent=None, lines=True):
  records = [dict(zip(COLUMNS, story, strict=True)) for story in stories]
  text = json.dumps(records, indent=indent)
  if lines:
    text = ''.join(json.dumps(record) + '\n' for record in records)
  path.write_text(text)


@pytest.fixture
def stories(tmp_path, monkeypatch):
  """The same stories in files of each kind, and a corpus that holds them."""
  stories = make_stories()
  flat = [[part.replace('\n', ' ') for part in story] for story in stories]
  write_csv(tmp_path / 'named.csv', [COLUMNS, *stories])
  write_csv(tmp_path / 'bare.csv', stories[::-1])
  (tmp_path / 'bom.csv').write_bytes(b'\xef\xbb\xbf' + (tmp_path / 'named.csv').read_bytes())
  tabs = '\n'.join('\t'.join(row) for row in [COLUMNS, *flat])
  (tmp_path / 'named.tsv').write_text(tabs)
  write_json(tmp_path / 'lines.jsonl', stories)
  write_json(tmp_path / 'lines.json', stories)
  write_json(tmp_path / 'whole.json', stories, indent=1, lines=False)
  (tmp_path / 'plain.md').write_text('\n\n'.join('\n'.join(row) for row in flat))
  with open(tmp_path / 'corpus.jsonl', 'w') as file:
    for i, story in enumerate(stories):
      text = f'Before {i}. {" ".join(story[1:])} After {i}.'
      file.write(json.dumps({'text': text}) + '\n')
    file.write(json.dumps({'text': 'nothing of it'}) + '\n')
  monkeypatch.chdir(tmp_path)
  return stories


KINDS = (
  'named.csv',
  'bare.csv',
  'bom.csv',
  'named.tsv',
  'lines.jsonl',
  'lines.json',
  'whole.json',
  'plain.md',
)


@pytest.mark.parametrize('name', KINDS)
def test_every_planted_story_is_found(stories, make_config, name, caplog):
  config = make_config("jsonl('corpus.jsonl')", 'none', clean=f'decontaminate({name!r})')
  with caplog.at_level(logging.WARNING):
    prepare.prepare(config, 'D')
  (entry,) = report.read('D')
  found = entry['sources']['']['rules'][f'overlap with {name}']
  assert found['documents_removed'] == STORIES - SHORT
  told = {'evaluation_texts': STORIES, 'too_short': SHORT, 'words': 13}
  assert entry['notes'] == told
  assert '7 of 101 texts have fewer than 13 words' in caplog.text
  table = report.table(report.read('D'))
  assert '7 of 101 evaluation texts have fewer than 13 words' in table[-1]


@pytest.mark.parametrize('name', ['named.csv', 'lines.jsonl', 'whole.json'])
def test_named_fields_alone_are_read(stories, name):
  texts = [t for _, t in decontaminate.read([name], 'three, one', 13)]
  assert texts == [f'{story[3]} {story[1]}' for story in stories]
  with pytest.raises(UsageError, match=rf'{name}.*no column .four.*.ending.'):
    [*decontaminate.read([name], 'four', 13)]


def test_nested_texts_of_a_record_are_read(tmp_path):
  path = tmp_path / 'a.jsonl'
  record = {'q': 'why', 'n': 3, 'choices': {'text': ['b', 'c']}, 'x': None}
  path.write_text(json.dumps(record))
  assert [*decontaminate.read([str(path)], '', 13)] == [('a.jsonl:1', 'why b c')]
