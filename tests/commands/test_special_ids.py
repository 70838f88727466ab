# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The ids of special tokens in an export are those of the import."""

import json
import shutil
from typing import Any

import pytest
import tokenizers

from gpt_jax.core.tokenizers import special
from gpt_jax.core.training import workdir as workdir_lib
from gpt_jax.decoding import chat
from gpt_jax.hf_tokenizers import special_files
from gpt_jax.opening import importing
from gpt_jax.tuning import exporting
from tests.support.golden_io import ROOT, config

NAMES = ('<a>', '<b>', '<c>', '<d>', '<e>', '<f>', '<mask>', '<cls>', '<sep>')
SEVERAL = {'bos_token_id': 3, 'eos_token_id': [1, 4], 'pad_token_id': 5}
PAIRS = {'bos_token_id': 3, 'eos_token_id': 1, 'pad_token_id': 4}
# Checkpoints, and ids that are no family's defaults.
MODELS = {
  'gpt2_lm': SEVERAL,
  'gpt_neox_lm': {'bos_token_id': None, 'eos_token_id': 4},
  'llama_gqa': SEVERAL | {'pad_token_id': -1},
  'mistral_lm': SEVERAL | {'pad_token_id': None},
  'bert_pretraining': {'pad_token_id': 4},
  'electra_gen': {'pad_token_id': 4, 'sep_token_id': 8},
  'roberta_mlm': PAIRS | {'pad_token_id': 1, 'eos_token_id': 2},
  'xlnet_lm': PAIRS,
  't5_v10': PAIRS | {'decoder_start_token_id': 4},
  'bart_lm': PAIRS | {'decoder_start_token_id': 1, 'forced_eos_token_id': 1},
  'transfo_xl_lm': {'bos_token_id': None, 'eos_token_id': 4},
}


def checkpoint(folder, name, ids, **generation):
  """A recorded checkpoint with these ids, and a tokenizer of few words."""
  shutil.copytree(ROOT / name, folder)
  values = config(folder)
  values = {n: x for n, x in values.items() if not n.endswith('_token_id')}
  (folder / 'config.json').write_text(json.dumps(values | ids))
  vocabulary = {token: i for i, token in enumerate([*NAMES, 'x', 'y'])}
  made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token='x'))
  made.add_special_tokens([*NAMES])
  made.save(str(folder / 'tokenizer.json'))
  ends = ids.get('eos_token_id', 8)
  end = ends[0] if isinstance(ends, list) else ends
  # The class of these families would read another vocabulary.
  roles = {'eos_token': NAMES[end], 'tokenizer_class': 'TokenizersBackend'}
  if (pad := ids.get('pad_token_id') or -1) >= 0:
    roles['pad_token'] = NAMES[pad]
  (folder / 'tokenizer_config.json').write_text(json.dumps(roles))
  if generation:
    path = folder / special.GENERATION
    path.write_text(json.dumps(generation))
  return values


def ids_of(folder):
  values = config(folder)
  return {n: x for n, x in values.items() if n.endswith('_token_id')}


def exported(folder, tmp_path, *, tuned, **options):
  """The export of an import, as of one that was trained on if `tuned`."""
  workdir, out = tmp_path / 'w', tmp_path / 'out'
  importing.from_hf(str(folder), str(workdir))
  if tuned:  # such a run knows its tokenizer, not the files of its model
    (workdir / workdir_lib.ORIGIN).unlink()
  exporting.to_hf(str(workdir), str(out), **options)
  return out


@pytest.mark.parametrize('name', MODELS)
def test_a_tuned_import_keeps_its_ids(tmp_path, name):
  ids, folder = MODELS[name], tmp_path / 'hf'
  before = checkpoint(folder, name, ids)
  out = exported(folder, tmp_path, tuned=True)
  assert config(out)['model_type'] == before['model_type']
  assert {n: x for n, x in ids_of(out).items() if n in ids} == ids
  # What the import leaves open is not made up.
  if 'bos_token_id' not in ids:
    assert ids_of(out).get('bos_token_id') is None
  path = 'tokenizer_config.json'
  assert (out / path).read_bytes() == (folder / path).read_bytes()


def test_ids_without_a_row_are_those_of_the_tokenizer(tmp_path):
  folder = tmp_path / 'hf'
  checkpoint(folder, 'gpt2_lm', {'pad_token_id': 2})
  ids = {'bos_token_id': 50256, 'eos_token_id': [50256], 'pad_token_id': 2}
  (folder / 'config.json').write_text(json.dumps(config(folder) | ids))
  path = folder / 'tokenizer_config.json'
  roles = json.loads(path.read_text())
  roles |= {'eos_token': NAMES[4], 'bos_token': NAMES[3]}
  path.write_text(json.dumps(roles))
  out = exported(folder, tmp_path, tuned=True)
  assert ids_of(out) == PAIRS | {'eos_token_id': 4, 'pad_token_id': 2}


@pytest.mark.parametrize('tuned', [True, False])
@pytest.mark.parametrize('tokenizer', [True, False])
def test_generation_config_comes_back(tmp_path, tuned, tokenizer):
  """With the model, with its tokenizer or without."""
  folder = tmp_path / 'hf'
  generation = {'eos_token_id': [1, 4], 'pad_token_id': 3, 'num_beams': 2}
  checkpoint(folder, 'gpt2_lm', SEVERAL, **generation)
  out = exported(folder, tmp_path, tuned=tuned, with_tokenizer=tokenizer)
  assert ids_of(out) == SEVERAL
  assert json.loads((out / special.GENERATION).read_text()) == generation
  assert (out / 'tokenizer.json').exists() == tokenizer


def test_generation_config_comes_back_without_a_vocabulary(tmp_path):
  folder = tmp_path / 'hf'
  generation = {'eos_token_id': [1, 4], 'bad_words_ids': [[2]]}
  checkpoint(folder, 'gpt2_lm', SEVERAL, **generation)
  (folder / 'tokenizer.json').unlink()
  out = exported(folder, tmp_path, tuned=False)
  assert json.loads((out / special.GENERATION).read_text()) == generation


def test_further_stops_replace_no_other_rule(tmp_path):
  """A generation_config.json hides what config.json says of generation."""
  folder = tmp_path / 'hf'
  checkpoint(folder, 'gpt2_lm', PAIRS | {'suppress_tokens': [5]})
  name = f'hf_tokenizer({str(folder / "tokenizer.json")!r})'
  made = special_files.tokenizer(name, str(folder))
  made = special_files.with_template(made, chat.ChatTemplate('x', {}, 'here'), {2})
  found = json.loads(made.contents[special.GENERATION])
  assert found == PAIRS | {'eos_token_id': [1, 2], 'bad_words_ids': [[5]]}


def test_a_reward_model_is_not_padded_with_its_end():
  """A text ends with that token, which would not be read."""
  options = {'bos_token_id': 3, 'eos_token_id': [1, 4], 'pad_token_id': 4}
  unused: Any = None
  tuned = exporting._Tuned(unused, unused, {'score': {'kernel': [[0.0]]}}, options, (), 4, 0.0)
  found = exporting._reward(tuned).options
  assert found['pad_token_id'] is None and found['eos_token_id'] == [1, 4]
  found = exporting._reward(tuned._replace(pad=5)).options
  assert found['pad_token_id'] == 5
