# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Sections of `config.models`: what they inherit from `config.model`."""

from configs import electra
from gpt_jax.core import config as config_lib


def config(**changes):
  """ELECTRA small, with fields changed by their dotted names."""
  out = electra.get_config('small').unlock()
  out.update_from_flattened_dict(changes)
  return out.lock()


def test_a_part_states_what_differs_and_is_resolved_whole():
  given = config(**{'model.norm': 'rmsnorm', 'models.generator.d_ff': 97})
  resolved = config_lib.resolve(given)
  whole, part = resolved.model, resolved.models.generator
  assert {*part} == {*whole}
  # Heads of 64 in both.
  assert {name for name in part if part[name] != whole[name]} == {
    'd_model',
    'num_heads',
    'num_kv_heads',
    'd_ff',
    'output',
  }
  assert (part.d_ff, part.norm, whole.d_ff) == (97, 'rmsnorm', 1024)
  # What follows from other fields follows from the part's.
  assert config_lib.resolve(config()).models.generator.d_ff == 4 * 64
  assert config_lib.resolve(resolved) == resolved
  assert config_lib.from_json(config_lib.to_json(resolved)) == resolved
  assert config_lib.of_part(resolved, 'generator').model == part
  assert config_lib.transformer(resolved, 'generator').d_ff == 97


def test_parts_take_the_vocabulary_of_the_tokenizer():
  given = config().unlock()
  given.model.vocab_size = None
  resolved = config_lib.resolve(given)
  assert resolved.models.generator.vocab_size is None
  found = config_lib.set_vocab_size(resolved, 101, 'any')
  assert found.models.generator.vocab_size == found.model.vocab_size == 101


def test_which_fields_may_change_on_a_resume():
  old = config_lib.resolve(config())
  for field, value, free in (
    ('attention_backend', 'reference', True),
    ('loop', 'unroll', True),
    ('remat', 'full', False),
  ):
    changes = {f'models.generator.{field}': value}
    new = config_lib.resolve(config(**changes))
    assert (config_lib.differences(old, new) == []) == free
