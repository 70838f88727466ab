# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A tokenizer of its own for the sources of pairs, from files to rows."""

import pathlib
import shutil

import numpy as np
import pytest

from configs import transformer
from gpt_jax.core import config as config_lib
from gpt_jax.core.rows import row_makers
from gpt_jax.core.rows.rows import Keys
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers import tokenizer
from gpt_jax.core.tokens import prepare
from gpt_jax.core.tokens.mixture import Place
from gpt_jax.core.training import parts as parts_lib
from gpt_jax.evaluation.score import Scorer

SOURCES = ['ein hund', 'zwei katzen', 'drei rote hunde', 'ein kind']
TARGETS = ['A dog', 'Two cats', 'Three red dogs', 'A child']
NAME = "sides('bytes', source='characters')"
BYTES, END = 256, 256


def config(**fields):
  out = transformer.get_config('cpu').unlock()
  out.data.source = "parallel_text('a.de', 'a.en')"
  out.data.holdout = 'none'
  out.tokenizer.name = NAME
  model = dict(vocab_size=257, num_source_layers=1, context_length=32)
  model |= dict(num_layers=1, num_encoder_layers=1, d_model=16, num_heads=2)
  fields |= {f'model.{name}': value for name, value in model.items()}
  out.update_from_flattened_dict(fields)
  return config_lib.resolve(out)


@pytest.fixture
def store(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  for name, lines in (('a.de', SOURCES), ('a.en', TARGETS)):
    pathlib.Path(name).write_text('\n'.join(lines) + '\n')
  return prepare.ensure(config(), 'D')


def test_each_side_is_encoded_by_its_own(store):
  """And ends, and is padded, as it says: no id of a source is another's."""
  made = store.tokenizer()
  alphabet = sorted({*''.join(SOURCES)})
  own = made.sources
  assert own.vocab_size == len(alphabet) + 1 and made.vocab_size == BYTES + 1
  assert made.source_vocab_size == own.vocab_size
  maker = row_makers.load(store, 32)
  rows = maker.read(
    [Place('', 0, row) for row in range(maker.num_rows)],
    Keys(0, *np.zeros((3, maker.num_rows), int)),
  )
  written = []
  for side, eos in ((rows.source, len(alphabet)), (rows, END)):
    assert side.tokens.max() == eos and np.all(side.tokens[~side.real] == eos)
    ids = side.tokens[side.real]
    texts = np.split(ids, np.flatnonzero(ids == eos) + 1)
    written.append([one[:-1].tolist() for one in texts if len(one)])
  sources = [''.join(alphabet[i] for i in ids) for ids in written[0]]
  targets = [bytes(ids).decode() for ids in written[1]]
  found = {*zip(sources, targets, strict=True)}
  assert found == {*zip(SOURCES, TARGETS, strict=True)}
  # As `inspect --text` shows them.
  ends = store.document_ends
  said = [store.text(made, start, stop) for start, stop in zip([0, *ends[:-1]], ends, strict=True)]
  assert said[:2] == [SOURCES[0], TARGETS[0]]


def test_what_is_saved_is_read_back(store, tmp_path):
  made = store.tokenizer()
  made.save('T')
  again = tokenizer.build("saved('T')", [])
  assert again.fingerprint == made.fingerprint
  assert again.decode(again.encode('ä')) == 'ä'
  own = again.sources
  assert own.fingerprint == made.sources.fingerprint
  # Another source beside it.
  shutil.rmtree('T/source')
  tokenizer.build('bytes', []).save('T/source')
  with pytest.raises(UsageError, match='not those that were saved together'):
    tokenizer.load('T')


def test_a_model_has_a_table_for_sources_and_writes_from_them(store):
  """The new encoder's alone is of that size (BART, section 3.4)."""
  made = store.tokenizer()
  own = made.sources
  found = config_lib.set_vocab_size(config(), 257, NAME, own.vocab_size)
  parts = parts_lib.build(found, tokenizer=made)
  shapes = parts_lib.abstract_state(parts).params
  sizes = [p['embed']['embedding'].shape for p in (shapes, shapes['source'])]
  assert sizes == [(257, 16), (own.vocab_size, 16)]
  request, cut = Scorer(parts, None, made).source_request('ein hund', 5)
  assert request.ids == [END] and request.stop_ids == (END,) and not cut
  assert request.source == [*own.encode('ein hund'), own.eos_id]


def test_what_does_not_go_together(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  pathlib.Path('a.txt').write_text('a')
  single = config().unlock()
  single.data.source = "text('a.txt')"
  with pytest.raises(UsageError, match='is for pairs of texts'):
    prepare.prepare(single, 'D')
  resolved = config_lib.unlocked(config())
  layers = resolved.model.num_encoder_layers
  resolved.model.num_source_layers = resolved.model.num_encoder_layers = 0
  with pytest.raises(UsageError, match=r'set model\.num_encoder_layers'):
    config_lib.set_vocab_size(resolved, 257, NAME, 12)
  resolved.model.source_vocab_size = 12
  with pytest.raises(UsageError, match=r'needs model\.num_encoder_layers'):
    config_lib.resolve(resolved)
  resolved.model.num_encoder_layers = layers
  with pytest.raises(UsageError, match='smaller than the 13 source tokens'):
    config_lib.set_vocab_size(resolved, 257, NAME, 13)


@pytest.mark.parametrize(
  'name, characters_of',
  [
    (NAME, 'sources'),
    ("sides('characters', source='bytes')", 'targets'),
    ("sides('characters', source='words')", ''),
  ],
)
def test_characters_of_held_out_pairs_count(tmp_path, monkeypatch, name, characters_of):
  """As without another tokenizer for sources."""
  monkeypatch.chdir(tmp_path)
  files = {'a.de': SOURCES, 'a.en': TARGETS, 'b.de': ['ü'], 'b.en': ['Ω']}
  for file, lines in files.items():
    pathlib.Path(file).write_text('\n'.join(lines) + '\n')
  held_out = "parallel_text('b.de', 'b.en')"
  fields = {'data.holdout': held_out, 'tokenizer.name': name}
  if not characters_of:  # both read documents
    with pytest.raises(UsageError, match='learns both, and reads'):
      prepare.ensure(config(**fields), 'D')
    return
  made = prepare.ensure(config(**fields), 'D').tokenizer()
  own, held, other = made, 'Ω', 'ü'
  if characters_of == 'sources':
    own, held, other = made.sources, 'ü', 'Ω'
  assert own.decode(own.encode(held)) == held
  with pytest.raises(UsageError, match='which is none of the'):
    own.encode(other)
