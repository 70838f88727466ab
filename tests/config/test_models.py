# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Sections of `config.models`: what they inherit, and what is refused."""

import pytest

from configs import bert, electra
from gpt_jax import config as config_lib
from gpt_jax.spec import UsageError


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
    *('d_model', 'num_heads', 'num_kv_heads', 'd_ff', 'output')
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
  given.models.generator.vocab_size = 97
  message = r'models\.generator\.vocab_size=97: smaller than the 101 tokens'
  with pytest.raises(UsageError, match=message):
    config_lib.set_vocab_size(config_lib.resolve(given), 101, 'any')


@pytest.mark.parametrize(
  'changes, message',
  [
    ({'d_modell': 3}, r'models\.generator\.d_modell=3: there is no such field'),
    ({'d_model': 0}, r'models\.generator\.d_model=0: must be'),
    ({'d_ff': 'a'}, r"models\.generator\.d_ff='a': must be a whole"),
    ({'norm': 'no'}, r"models\.generator\.norm='no': unknown"),
    ({'num_heads': 7}, r'models\.generator\.d_model=64: does not divide'),
    ({'num_kv_heads': 3}, r'models\.generator\.num_heads=1: does not divide'),
    ({'attention': 'full'}, r"models\.generator\.attention='full': objective"),
    ({'loop': 'no'}, r"models\.generator\.loop='no': is unknown"),
  ],
)
def test_fields_of_a_part_are_named(changes, message):
  given = config().unlock()
  given.models.generator.unlock().update(changes)
  with pytest.raises(UsageError, match=message):
    config_lib.resolve(given)


def test_parts_and_objective_go_together():
  given = config().unlock()
  given.models = {}
  with pytest.raises(UsageError, match=r'models\.generator is missing: objec'):
    config_lib.resolve(given)
  # Where a model is only looked at, too.
  with pytest.raises(UsageError, match=r'models\.generator is missing: objec'):
    config_lib.objective(config_lib.resolve_model(given))
  given = bert.get_config().unlock()
  given.models.teacher = dict(d_model=96)
  with pytest.raises(UsageError, match=r'models\.teacher: .* no teacher'):
    config_lib.resolve(given)
  given.models = dict(teacher=64)
  with pytest.raises(UsageError, match=r'models\.teacher=64: must be a sect'):
    config_lib.resolve(given)


def test_which_fields_may_change_on_a_resume():
  old = config_lib.resolve(config())
  for field, free in (('attention_backend', True), ('loop', False)):
    changes = {f'models.generator.{field}': 'reference'}
    if field == 'loop':
      changes = {'models.generator.loop': 'unroll'}
    new = config_lib.resolve(config(**changes))
    assert (config_lib.differences(old, new) == []) == free
