# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Cleaning within `prepare`: the same bytes however it is worked off."""

import collections
import json
import random
import shutil

import pytest

from gpt_jax.core.spec import UsageError
from gpt_jax.core.text.clean import report, run, stages
from gpt_jax.core.tokens import cleaning, manifest, prepare
from gpt_jax.core.tokens.store import TokenStore
from tests.support.cases import slow
from tests.support.corpora import TEST, contents, page, web_pages, write_lines
from tests.support.damage import Damage

CLEAN = (
  'c4(words=1, sentences=1), minhash(threshold=0.5, rows=2, ngram=2), '
  "decontaminate('test.txt', n=5, rule='pieces')"
)


@pytest.fixture
def web(tmp_path, monkeypatch):
  """101 pages; some nearly the same, some with parts of others or of a test."""
  write_lines(tmp_path / 'web.jsonl', web_pages(1))
  (tmp_path / 'test.txt').write_text(TEST)
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(stages, '_SHARD', 1500)
  return tmp_path


@pytest.fixture
def config(make_config):
  return make_config("jsonl('web.jsonl')", clean=CLEAN)


def texts(folder):
  store = TokenStore.open(folder)
  tokenizer = store.tokenizer()
  found = []
  for split in filter(None, (store, store.validation())):
    starts = [0, *split.document_ends[:-1]]
    for a, b in zip(starts, split.document_ends, strict=True):
      found.append(tokenizer.decode(split.tokens(int(a), int(b))))
  return found


def step(folder, name, source=''):
  (entry,) = [e for e in report.read(folder) if e['step'] == name]
  return entry['sources'][source]


def test_what_is_left_and_what_is_told(web, config):
  made = prepare.prepare(config, 'D')
  left = texts('D')
  assert 'page { of' not in ' '.join(left) and TEST not in ' '.join(left)
  assert not (web / 'D' / 'cleaning').exists()
  read = step('D', 'c4')
  assert read['documents_in'] == 101 and read['documents_out'] == 100
  assert read['rules']['page with a curly bracket']['documents_removed'] == 1
  spans = step('D', 'c4: three-sentence spans')['rules']
  assert spans['sentence of a repeated span']['documents'] >= 7
  near = step('D', 'minhash')['rules']['near-duplicate document']
  assert near['documents_removed'] == near['count'] == len(near['examples']) == 7
  lines = (web / 'web.jsonl').read_text().splitlines()
  for example in near['examples']:
    numbers = [int(example[k].split(':')[1]) for k in ('like', 'document')]
    assert numbers == sorted(numbers)
    first, second = (json.loads(lines[n - 1])['text'] for n in numbers)
    assert len({*first.split()} & {*second.split()}) > 20
  cut = step('D', 'decontaminate')
  rule = cut['rules']['overlap with test.txt']
  assert rule['documents'] == 7
  assert rule['examples'][0]['why'] == 'test.txt:1: "one two three four five"'
  assert cut['documents_out'] == len(left) > cut['documents_in']
  assert cut['bytes_out'] == sum(len(text.encode()) for text in left)
  assert made.clean == CLEAN
  assert made.cleaning['documents_in'] == 101
  assert made.cleaning['documents_out'] == len(left)
  name = 'minhash: near-duplicate document'
  assert made.cleaning['rules'][name]['documents_removed'] == 7
  entries = report.read('D')
  report.check('D', entries, made.cleaning)
  near['documents_removed'] += 1
  entries[2]['sources']['']['rules']['near-duplicate document'] = near
  with pytest.raises(UsageError, match=r'D/cleaning.json: is damaged; remove it'):
    report.check('D', entries, made.cleaning)
  table = '\n'.join(report.table(report.read('D')))
  assert 'near-duplicate document' in table and '-7' in table
  assert prepare.prepare(config, 'D') == made


@pytest.mark.parametrize('rows', [7, 1 << 22])
def test_shards_and_groups_do_not_matter(web, config, monkeypatch, rows):
  prepare.prepare(config, 'D')
  monkeypatch.setattr(stages, '_SHARD', 1 << 22)
  monkeypatch.setattr(run, '_ROWS', rows)
  prepare.prepare(config, 'E')
  assert contents('D') == contents('E')


@pytest.mark.slow
def test_workers_make_the_same(web, config):
  prepare.prepare(config, 'D')
  config.data.workers = 2
  prepare.prepare(config, 'E')
  assert contents('D') == contents('E')


def test_a_crash_repeats_no_shard(web, config, monkeypatch):
  prepare.prepare(config, 'whole')
  made = []
  clean, compare = run._clean, run._compare
  left = 0

  def dying(function):
    def call(*args):
      nonlocal left
      left -= 1
      if left < 0:
        raise KeyboardInterrupt
      found = function(*args)
      if function is clean:
        made.append((args[0].phase, args[0].shard))
      return found

    return call

  monkeypatch.setattr(run, '_clean', dying(clean))
  monkeypatch.setattr(run, '_compare', dying(compare))
  for _ in range(50):
    left = 5
    try:
      prepare.prepare(config, 'D')
      break
    except KeyboardInterrupt:
      assert not manifest.exists('D')
  assert len(made) == len({*made}) > 30
  assert contents('D') == contents('whole')


@pytest.mark.parametrize(
  ('phase', 'how', 'some'),
  [
    (1, 'flip', {('0', 'txt.zst'), ('1', 'json')}),
    *(slow(phase, how, None) for phase in (0, 1) for how in ('flip', 'cut', 'delete', 'swap')),
  ],
)
def test_a_damaged_file_of_a_killed_cleaning_changes_nothing(
  web, config, monkeypatch, phase, how, some
):
  """Killed at the fourth shard of a phase; one file of each kind, or of some, is damaged."""
  prepare.prepare(config, 'whole')
  clean, left = run._clean, [1] * 3

  def dying(task):
    if task.phase == phase and not (left and left.pop()):
      raise KeyboardInterrupt
    clean(task)

  with monkeypatch.context() as patched:
    patched.setattr(run, '_clean', dying)
    with pytest.raises(KeyboardInterrupt):
      prepare.prepare(config, 'killed')
  kinds = collections.defaultdict(list)
  for path in sorted((web / 'killed' / 'cleaning').rglob('*.*')):
    kinds[path.parent.name, path.name.partition('.')[2]].append(path.relative_to(web / 'killed'))
  assert len(kinds) == (6, 12)[phase]
  # The last: the next process needs it.
  for number, (kind, (*others, last)) in enumerate(kinds.items()):
    if (how == 'swap' and not others) or (some and kind not in some):
      continue
    shutil.copytree('killed', f'{number}')
    half = (web / 'killed' / last).stat().st_size * (8 if how == 'flip' else 1) // 2
    Damage(how, str(last), half, str(others[0]) if others else '').apply(web / f'{number}')
    prepare.prepare(config, f'{number}')
    assert contents(f'{number}') == contents('whole'), last


def test_what_waits_in_a_planted_folder_is_not_used(web, config, monkeypatch):
  """As of a remote store, in a temporary folder that is shared."""
  (web / 'planted').mkdir()
  (web / 'link').symlink_to(web / 'planted')
  monkeypatch.setattr(cleaning, '_local', lambda _: f'{web}/link')
  with pytest.raises(UsageError, match='should be a folder of yours, and is none'):
    prepare.prepare(config, 'D')
  assert not [*(web / 'planted').iterdir()]


@pytest.mark.parametrize('change', ['clean', 'source'])
def test_an_unresumable_cleaning_starts_over(web, config, monkeypatch, change):
  def stop(*args):
    raise KeyboardInterrupt

  with monkeypatch.context() as patched:
    patched.setattr(run, '_compare', stop)
    with pytest.raises(KeyboardInterrupt):
      prepare.prepare(config, 'D')
  assert (web / 'D' / 'cleaning' / '0' / '00000000003.json').exists()
  assert (web / 'D' / 'cleaning').stat().st_mode & 0o077 == 0
  if change == 'clean':
    config.data.clean = 'c4(words=2, sentences=1)'
  else:
    lines = (web / 'web.jsonl').read_text().splitlines(keepends=True)
    (web / 'web.jsonl').write_text(''.join(lines[1:]))
  prepare.prepare(config, 'D')
  prepare.prepare(config, 'E')
  assert contents('D') == contents('E')


def test_sources_of_a_mixture_are_told_apart(web, make_config):
  rng = random.Random(3)
  own = [page(rng) for _ in range(23)]
  lines = (web / 'web.jsonl').read_text().splitlines(keepends=True)
  shared = [json.loads(line)['text'] for line in lines if '{ of' not in line]
  write_lines(web / 'own.jsonl', [*own, *own[:3], *shared[:11], ''])
  made = prepare.prepare(
    make_config(
      'mixture(web:0.5, books:0.5)',
      clean='minhash',
      sources={'web': "jsonl('web.jsonl')", 'books': "jsonl('own.jsonl')"},
    ),
    'D',
  )
  # Sources come in the order of their names: the first keeps its documents.
  books, web_counts = (step('D', 'minhash', s) for s in ('books', 'web'))
  removed = 'near-duplicate document'
  assert (books['documents_in'], books['documents_out']) == (37, 34)
  assert web_counts['documents_in'] == 101
  gone = web_counts['rules'][removed]
  assert gone['documents_removed'] >= 11
  assert any(e['like'].startswith('books/') for e in gone['examples'])
  assert made.skipped == {'books: held no text': 1}
  assert made.num_documents < books['documents_out'] + 101 - 11


def test_a_held_out_source_stays_as_it_is(web, make_config):
  (web / 'valid.txt').write_text('no sentence { here')
  config = make_config("jsonl('web.jsonl')", "text('valid.txt')", clean='c4(sentences=1)')
  prepare.prepare(config, 'D')
  validation = TokenStore.open('D').validation()
  assert texts('D')[-1] == 'no sentence { here'
  assert len(validation.document_ends) == 1


def test_nothing_left_is_an_error(web, make_config):
  config = make_config("jsonl('web.jsonl')", clean='c4(sentences=99)')
  with pytest.raises(UsageError, match=r'leaves no document.*cleaning.json'):
    prepare.prepare(config, 'D')
  assert not manifest.exists('D')
  assert report.read('D')[0]['sources']['']['documents_out'] == 0


def test_changes_are_named(web, config, make_config):
  prepare.prepare(config, 'D')
  (web / 'test.txt').write_text(TEST + ' seven')
  with pytest.raises(UsageError, match=r'1 changed: clean: test.txt'):
    prepare.prepare(config, 'D')
  with pytest.raises(UsageError, match=r"data.clean=.c4.*where.* has 'none'"):
    prepare.prepare(make_config("jsonl('web.jsonl')"), 'D')


def test_skipped_lines_are_in_the_manifest(web, make_config):
  with open('web.jsonl', 'a', encoding='utf-8') as file:
    file.write('{"text": ""}\n{broken\n[]\n{also\n')
  expected = {'is not JSON': 2, "has no text under 'text'": 1, 'held no text': 1}
  for i, clean in enumerate(('none', 'c4(sentences=1)')):
    config = make_config("jsonl('web.jsonl', on_error='skip')", clean=clean)
    made = prepare.prepare(config, f'{i}')
    assert made.skipped == expected
    assert TokenStore.open(f'{i}').validation().manifest.skipped == expected
