# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Language, quality and evaluation sets: what stays and what is said."""

import gzip
import importlib
import json
import random

import numpy as np
import pytest

from gpt_jax.core.spec import UsageError
from gpt_jax.core.text.clean import choices, language, quality
from gpt_jax.core.text.clean.steps import Document

ENGLISH = (
  'The weather was fine, and the children of the village went down to the '
  'river, where their mothers had hung the washing between the trees. Nobody '
  'could remember a summer that had lasted for so long.'
)
GERMAN = (
  'Das Wetter war schön, und die Kinder des Dorfes gingen hinunter zum Fluss, '
  'wo ihre Mütter die Wäsche zwischen den Bäumen aufgehängt hatten. Niemand '
  'konnte sich an einen so langen Sommer erinnern.'
)


def document(text):
  return Document(256, '', 'x', text)


def only(call):
  (step,) = choices.ready(choices.load(call))
  step.check()
  return step


def rules(outcome):
  return [removal.rule for removal in outcome.removals]


def test_one_language_stays():
  step = only("language('en')")
  assert step.clean(document(ENGLISH)).documents == [document(ENGLISH)]
  gone = step.clean(document(GERMAN))
  assert (gone.documents, rules(gone)) == ([], ['other language'])
  assert gone.removals[0].example.startswith('de 1.00: Das Wetter')
  unsure = step.clean(document('The old house.'))
  assert (unsure.documents, rules(unsure)) == ([], ['language en, but not certain'])
  assert only("language('en', probability=0.3)").clean(document('The old house.')).documents


def test_all_of_a_long_document_is_looked_at():
  text = ENGLISH + GERMAN * 101
  assert rules(only("language('en')").clean(document(text))) == ['other language']
  found = language.sample(''.join(map(chr, range(0x1000, 0x1000 + 9001))))
  parts = found.split('\n')
  assert {len(part) for part in parts} == {300} and len(parts) == 10
  assert (parts[0][0], parts[-1][-1]) == (chr(0x1000), chr(0x1000 + 9000))


def test_a_draw_is_of_numpys_distribution():
  draws = [quality.pareto(f'{i}', 9.0) for i in range(4001)]
  expected = np.random.default_rng(0).pareto(9.0, 4001)
  for share in (0.1, 0.5, 0.9, 0.99):
    assert np.quantile(draws, share) == pytest.approx(np.quantile(expected, share), rel=0.15)


@pytest.fixture
def texts(tmp_path, monkeypatch):
  """Good and bad texts in two folders, and a module."""
  monkeypatch.chdir(tmp_path)
  rng = random.Random(0)
  for kind, words in (('good', 'abcde'), ('bad', 'defgh')):
    (tmp_path / kind).mkdir()
    for i in range(17):
      text = ' '.join(rng.choice(words) * 3 for _ in range(31))
      (tmp_path / kind / f'{i}.txt').write_text(text)
  (tmp_path / 'scores.py').write_text(
    'def long(text): return len(text) > 9\n'
    'def length(text): return len(text)\n'
    'def none(text): return float("nan")\n'
  )
  monkeypatch.syspath_prepend(tmp_path)
  return tmp_path


QUALITY = """quality(high="text('good/*.txt')", low="text('bad/*.txt')")"""


def test_a_trained_classifier(texts):
  step = only(QUALITY)
  scores = {
    kind: [step.score(p.read_text()) for p in (texts / kind).iterdir()] for kind in ('good', 'bad')
  }
  assert min(scores['good']) > max(scores['bad'])
  again = only(QUALITY)
  np.testing.assert_array_equal(step.weights, again.weights)
  # GPT-3's rule, with the draw that belongs to the text.
  kept = 0
  for i in range(211):
    text = f'ccc ddd eee {i}'
    stays = quality.pareto(text, 9.0) > 1 - step.score(text)
    assert bool(step.clean(document(text)).documents) == stays
    kept += stays
  assert 0 < kept < 211


def test_a_function_of_the_users(texts):
  step = only("quality(function='scores:long')")
  assert step.clean(document('long enough')).documents
  assert rules(step.clean(document('short'))) == ['low quality']


def test_a_threshold_draws_nothing(texts):
  # All of 103 lengths: the draw would keep each score of 1 and above.
  step = only("quality(function='scores:length', threshold=53)")
  kept = [n for n in range(1, 104) if step.clean(document('x' * n)).documents]
  assert kept == [*range(53, 104)]
  gone = step.clean(document('x' * 52))
  assert rules(gone) == ['low quality']
  assert gone.removals[0].example.startswith('score 52.000: xxx')
  call = "quality(function='scores:none', threshold=-1e30)"
  assert not only(call).clean(document('x')).documents


def test_a_threshold_for_the_classifier(texts):
  step = only(QUALITY[:-1] + ', threshold=0.5)')
  for kind, stays in (('good', True), ('bad', False)):
    for path in (texts / kind).iterdir():
      assert bool(step.clean(document(path.read_text())).documents) == stays


@pytest.mark.parametrize(
  ('call', 'package'),
  [("language('en')", 'py3langid'), ('minhash', 'datasketch'), (QUALITY, 'scikit-learn')],
)
def test_a_missing_library_is_named(texts, monkeypatch, call, package):
  load = importlib.import_module

  def refuse(name, *args):
    if name.startswith('gpt_jax.'):
      return load(name, *args)
    raise ImportError(name)

  language._identifier.cache_clear()
  quality._vectorizer.cache_clear()
  monkeypatch.setattr(importlib, 'import_module', refuse)
  with pytest.raises(UsageError, match=f'{package}; run pip install'):
    for step in choices.load(call):
      step.check()


def numbered(start, stop):
  return ' '.join(f'word{i}' for i in range(start, stop))


def findings(step, text):
  return step.rows(text).values


@pytest.fixture
def evaluation(tmp_path, monkeypatch):
  """An evaluation set in three files."""
  monkeypatch.chdir(tmp_path)
  with gzip.open('a.jsonl.gz', 'wt') as file:
    for start in (0, 100, 200):
      file.write(json.dumps({'question': numbered(start, start + 20)}) + '\n')
  lines = numbered(300, 307) + '\n' + numbered(307, 314)
  (tmp_path / 'b.txt').write_text(f'# Title\n\n{lines}\n\nthe end\n')
  return "decontaminate('a.jsonl.gz', 'b.txt', field='question'"


def test_documents_that_overlap_go(evaluation):
  step = only(evaluation + ')')
  for text, label in (
    ('So: ' + numbered(103, 116).upper() + '.', 'a.jsonl.gz:2: "word103 '),
    (numbered(301, 314), 'b.txt:3: "word301 '),  # over the end of a line
  ):
    values = findings(step, text)
    assert len(values) == 1
    documents, (removal,) = step.clean(document(text), values)
    assert not documents
    assert removal.rule == 'overlap with ' + label.partition(':')[0]
    assert removal.example.startswith(label)
  for text in (numbered(103, 115), numbered(90, 112)):
    assert not len(findings(step, text))  # 12 words in a row
    assert step.clean(document(text), findings(step, text)).documents


def test_frequent_overlaps_do_not_count(evaluation):
  places = np.arange(12, dtype='u8')
  keys = np.repeat(np.array([5, 6], 'u8'), [11, 1])
  values = keys + np.uint64(1)
  found = only(evaluation + ')').judge(keys, places, values, None)
  assert [*map(list, found)] == [[11], [7]]
  for least in ('frequent=11', 'frequent=0'):
    step = only(f'{evaluation}, {least})')
    found = step.judge(keys, places, values, None)
    assert [*map(list, found)] == [[*range(12)], [6] * 11 + [7]]


def pieces(step, text):
  documents, removals = step.clean(document(text), findings(step, text))
  assert [d.place for d in documents] == [*range(256, 256 + len(documents))]
  return [d.text for d in documents], removals


def test_overlaps_are_cut_out_as_for_gpt3(evaluation):
  step = only(evaluation + ", rule='pieces')")
  overlap = numbered(0, 13)
  before, after = 'x' * 199 + ' ' + 'b' * 201, 'a' * 250 + ' ' + 'y' * 199
  text = f'{before} {overlap} {after}'
  at = text.index(overlap)
  found, (removal,) = pieces(step, text)
  kept = [text[: at - 200], text[at + len(overlap) + 200 :]]
  assert found == [piece.strip() for piece in kept]
  assert removal.count == 1
  assert removal.num_bytes == len(text) - sum(map(len, found))
  # Of pieces shorter than 200 characters nothing stays.
  assert pieces(step, text[3:])[0] == found[1:]
  assert pieces(step, overlap)[0] == []


def test_a_document_of_many_pieces_goes(evaluation):
  step = only(evaluation + ", rule='pieces')")
  filler = ' ' + 'x' * 700 + ' '
  text = filler + (numbered(0, 13) + filler) * 9
  assert len(pieces(step, text)[0]) == 10
  found, (removal,) = pieces(step, text + numbered(0, 13) + filler)
  assert found == [] and 'in more than 10 places' in removal.rule
