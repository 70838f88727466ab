# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Spans: SQuAD's files, windows that overlap, and the best valid span."""

import json

import numpy as np
import pytest

from gpt_jax.core import spec
from gpt_jax.core.tokenizers.simple import Bytes
from gpt_jax.tasks import reading
from gpt_jax.tasks import task as tasks
from gpt_jax.tasks.registry import TUNED
from gpt_jax.tuning.rows import EncodedExamples, Frame, found_spans, span_rows

CONTEXT = 'Bob saw Eve; Eve ran off.'
CLS, SEP, PAD = 301, 302, 303
BERT = Frame((CLS,), (SEP,), (SEP,), 'first', PAD)


def tree(*questions):
  """SQuAD's, of one paragraph."""
  asked = [
    {'id': f'q{i}', 'question': q, 'answers': [
      {'text': t, 'answer_start': s} for t, s in answers
    ]}
    for i, (q, answers) in enumerate(questions)
  ]  # fmt: skip
  paragraph = {'context': CONTEXT, 'qas': asked}
  return {'version': '2', 'data': [{'title': '', 'paragraphs': [paragraph]}]}


def read(folder, *questions, version='2.0', **options):
  (folder / f'train-v{version}.json').write_text(json.dumps(tree(*questions)))
  (folder / f'dev-v{version}.json').write_text(json.dumps(tree(*questions)))
  more = ''.join(f', {n}={v}' for n, v in options.items())
  call = f"squad('{folder}', version='{version}'{more})"
  task = spec.build('finetune.task', call, TUNED)
  return task, tasks.read(task, 'train')


EVE = ('who?', [('Eve', 13), ('Eve ran', 13)])
NONE = ('why?', [])


def test_squads_files_are_read(tmp_path):
  task, found = read(tmp_path, EVE, NONE)
  assert [e.texts for e in found] == [('who?', CONTEXT), ('why?', CONTEXT)]
  assert found[0].label == reading.Answer(13, ('Eve', 'Eve ran'))
  assert found[1].label == reading.Answer(-1, ('',))
  assert found[0].where == f'{tmp_path}/train-v2.0.json:q0'
  assert task.metrics == ('f1', 'exact_match')


def rows(task, examples, length, **more):
  return span_rows(EncodedExamples(task, examples, [], Bytes(), BERT, length, **more))


def test_a_long_text_is_read_in_windows(tmp_path):
  task, examples = read(tmp_path, EVE, NONE, stride=5)
  # 3 tokens around, 4 of the question: 11 of the text's 25 at a time.
  found = rows(task, examples, 18)
  starts = [0, 5, 10, 15]
  assert [w.example for w in found.origins] == [0] * 4 + [1] * 4
  for i, start in enumerate(starts):
    text = CONTEXT.encode()[start : start + 11]
    expected = [CLS, *b'who?', SEP, *text, SEP]
    assert found.inputs[i, 0, : found.lengths[i, 0]].tolist() == expected
    assert (found.inputs[i, 0, len(expected) :] == PAD).all()
  assert found.second is not None
  assert (found.second == 6).all()
  # Characters 13 to 15 are the answer: windows 0 and 3 do not have them all.
  assert found.labels[:4].tolist() == [[0, 0], [14, 16], [9, 11], [0, 0]]
  assert (found.labels[4:] == 0).all()
  # Each token has most context in one window, written out.
  most = np.zeros((4, 25), bool)
  for i, (start, window) in enumerate(zip(starts, found.origins, strict=False)):
    most[i, start : start + len(window.most)] = window.most
  owner = [0] * 8 + [1] * 5 + [2] * 5 + [3] * 7
  np.testing.assert_array_equal(np.argmax(most, axis=0), owner)
  np.testing.assert_array_equal(most.sum(axis=0), 1)


def test_a_question_may_be_cut(tmp_path):
  task, examples = read(tmp_path, EVE, max_question=2)
  found = rows(task, examples, 40)
  assert found.cut == 1 and found.inputs[0, 0, :4].tolist() == [CLS, *b'wh', SEP]


def brute_force(options, origins, raw, contexts):
  """The definition, without NumPy."""
  out = []
  for number, context in enumerate(contexts):
    best, null = (-np.inf, ''), np.inf
    for window, scores in zip(origins, raw, strict=True):
      if window.example != number:
        continue
      start, end = scores[: len(scores) // 2], scores[len(scores) // 2 :]
      null = min(null, start[0] + end[0])
      for i in range(len(window.bounds)):
        for j in range(i, min(i + options.answer, len(window.bounds))):
          score = start[window.place + i] + end[window.place + j]
          if window.most[i] and score > best[0]:
            first, last = window.bounds[i, 0], window.bounds[j, 1]
            best = score, context[first:last].strip()
    none = options.empty and null - best[0] > options.null_threshold
    out.append('' if none else best[1])
  return out


@pytest.mark.parametrize('version', ['1.1', '2.0'])
def test_the_best_valid_span_of_all_windows(tmp_path, version):
  task, examples = read(tmp_path, *[EVE] * 17, version=version, stride=5, max_answer=7)
  options = task.options._replace(null_threshold=-6.0)
  windows = rows(task, examples, 18)
  raw = np.random.default_rng(3).normal(size=(len(windows), 36))
  found = found_spans(options, examples, windows.origins, raw)
  contexts = [e.texts[1] for e in examples]
  assert found == brute_force(options, windows.origins, raw, contexts)
  empty = found.count('')
  assert 0 < empty < 17 if version == '2.0' else empty == 0
  # What is not of the text is no answer, however it scores.
  raw[:, 1:6] = raw[:, 19:24] = 99
  raw[:, 17] = raw[:, 35] = 99
  assert found_spans(options, examples, windows.origins, raw) == found
