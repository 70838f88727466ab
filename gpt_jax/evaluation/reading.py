# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tasks of questions about a text, with GPT-3's prompts (appendix G)."""

import string
from collections.abc import Iterator

from gpt_jax.data import json_file
from gpt_jax.data.records import Record
from gpt_jax.evaluation import fields, making, measures
from gpt_jax.evaluation.choices import Example
from gpt_jax.evaluation.files import Files, Split
from gpt_jax.evaluation.making import Make, Pool
from gpt_jax.spec import UsageError


def race(
  path: str = 'test', shown: str = 'train', level: str = 'middle'
) -> Make:
  """RACE (Lai et al., 2017): questions about an article.

  Its folders, a file an article with `article`, `questions`, `options` and
  `answers` (A to D); or the same as JSON lines.

  Args:
    path: test, dev, train, or a file.
    shown: see `Pool`; 'article' shows the other questions of the same article
      before each one, after the article, as GPT-3 does (figures G.1 and G.3);
      see `shots.of_text`.
    level: middle or high.
  """
  if level not in ('middle', 'high'):
    raise UsageError(f'race: level={level!r}: middle or high')
  files = Files(
    folder='',
    home='fetch RACE from https://www.cs.cmu.edu/~glai1/data/race/ and unpack '
    'it there',
    splits={
      split: Split(
        (
          f'race/{split}_{level}.jsonl.gz',
          f'race/{split}_{level}.jsonl',
          f'RACE/{split}/{level}/*.txt',
        ),
        f'race/{level}:{split}',
      )
      for split in ('test', 'dev', 'train')
    },
    readers={'.txt': _article},
  )

  alone = shown == 'article'

  def read(record: Record) -> Iterator[Example]:
    where = record.where
    article = f'Article: {fields.text(record, "article")}\n\n'
    for question, options, answer in _questions(record):
      texts = fields.texts(where, 'options', options)
      asked = f'Q: {question}\n\nA:'
      yield Example(
        where,
        asked if alone else article + asked,
        tuple(f' {option}' for option in texts),
        fields.label(where, answer, string.ascii_uppercase[: len(texts)]),
        general='A:',
        lead=article if alone else '',
        about=where,
      )

  pool = Pool(path, 'rest' if alone else shown)
  return making.choices(files, pool, read, measures.accuracies, same_text=alone)


def boolq(path: str = 'dev', shown: str = 'train') -> Make:
  """BoolQ (Clark et al., 2019): yes or no, by a passage.

  JSON lines with `question`, `passage` and `answer`, or `label` as SuperGLUE
  has it; its passages begin with the title, and so do they here.
  """
  files = Files(
    folder='',
    home='fetch train.jsonl and dev.jsonl from '
    'https://github.com/google-research-datasets/boolean-questions',
    splits={
      split: Split(
        (f'boolq/{split}.jsonl', f'BoolQ/{other}.jsonl'),
        f'bool_q:{"train" if split == "train" else "validation"}',
      )
      for split, other in {'dev': 'val', 'train': 'train'}.items()
    },
  )

  def read(record: Record) -> Iterator[Example]:
    passage = fields.text(record, 'passage')
    if 'title' in record.fields:
      passage = f'{fields.text(record, "title")} -- {passage}'
    question = fields.text(record, 'question').removesuffix('?')
    answer = record['answer' if 'answer' in record.fields else 'label']
    yield Example(
      record.where,
      f'{passage}\nquestion: {question}?\nanswer:',
      (' no', ' yes'),
      fields.label(record.where, answer, (False, True)),
    )

  return making.choices(files, Pool(path, shown), read, measures.accuracies)


def _questions(record: Record) -> Iterator[tuple[str, object, str]]:
  """Question, options and answer of each question of an article."""
  where, options = record.where, record['options']
  parts = [
    fields.texts(where, 'questions', record['questions']),
    options if isinstance(options, list) else [options],
    fields.texts(where, 'answers', record['answers']),
  ]
  if len({len(part) for part in parts}) != 1:
    raise UsageError(
      f'{where}: questions, options and answers differ in number'
    )
  yield from zip(*parts, strict=True)


def _article(path: str) -> Iterator[Record]:
  """The one record of a file."""
  remedy = 'fetch it again'
  yield Record(path, json_file.read(path, remedy=remedy))
