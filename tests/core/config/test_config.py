# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Resolving, validating, comparing and saving a config."""

import json

import pytest

from configs import base, scaling, t5
from configs.finetune import base as tuning
from gpt_jax.core import config as config_lib
from gpt_jax.core.config import flatten, loading
from gpt_jax.core.config.defaults import OPTIONAL, optional
from gpt_jax.core.config.fields import _TUNED, _WORDS, check_known, tree
from gpt_jax.core.ranges import Range
from tests.support import tiny


def test_empty_fields_follow_from_others():
  config = base.get_config().unlock()
  config.model.update({'d_model': 35, 'num_heads': 5})
  model = config_lib.resolve(config).model
  assert (model.num_kv_heads, model.head_size, model.d_ff) == (5, 7, 140)


def test_given_fields_stay():
  model = config_lib.resolve(tiny.config()).model
  found = (model.num_kv_heads, model.head_size, model.d_ff, model.vocab_size)
  assert found == (tiny.G, tiny.K, tiny.F, tiny.V)


def test_resolve_returns_a_new_locked_config():
  config = base.get_config()
  resolved = config_lib.resolve(config)
  assert config.model.d_ff is None
  assert resolved.model.d_ff == 4 * 768
  with pytest.raises(AttributeError):
    resolved.model.new_field = 3
  # Resolving twice changes nothing.
  assert config_lib.resolve(resolved) == resolved


def test_every_number_of_the_base_has_a_range():
  """A new one must come with the values that make sense."""
  fields = config_lib.FIELDS.items()
  ranged = {name for name, x in fields if isinstance(x.range, Range)}
  configs = [config_lib.resolve(base.get_config())]
  configs += [module.get_config() for module in (tuning, scaling)]
  for config in configs:
    for name, value in flatten(config).items():
      assert name in ranged or not isinstance(value, int | float), name


@pytest.mark.parametrize(
  'name, steps, longer',
  [
    ('cosine(peak=0.5, warmup=20)', 20, False),
    ('cosine(peak=0.5, warmup=21)', 20, True),
    ('linear(peak=0.5)', 1, False),
    ("constant(peak=0.5, warmup='4160_tokens')", 20, False),
    ("constant(peak=0.5, warmup='4400_tokens')", 20, True),
    ('noam(d_model=4, warmup=7, factor=0.5)', 5, True),
    ('rsqrt(peak=0.5, hold=30, warmup=23)', 11, True),
    ('slanted(peak=0.5)', 20, False),
  ],
)
def test_a_run_within_its_warm_up(name, steps, longer):
  """It is said if no step has the peak rate, and the part that it reaches."""
  config = config_lib.resolve(tiny.config(**{'schedule.name': name, 'schedule.num_steps': steps}))
  rate = config_lib.schedule(config)
  rates = [float(rate(step)) for step in range(30)]
  assert longer == (max(rates[:steps]) < 0.999 * max(rates))
  note = config_lib.warm_up_note(config)
  assert bool(note) == longer
  if longer:
    assert f'at {rates[steps - 1] / max(rates):.1%} of the peak rate' in note


@pytest.mark.parametrize(
  'given, steps', [(20, 20), ('2k_steps', 2000), ('1_tokens', 1), ('8k_tokens', 53)]
)
def test_the_length_of_a_run(given, steps):
  # 40 steps of 8 rows of 13 tokens, and as many of 24 as hold the rest.
  changes = {'batch.size': 'ramp(0:8, 40_steps:24)', 'schedule.num_steps': given}
  config = config_lib.resolve(tiny.config(**changes))
  assert config.schedule.num_steps == steps
  assert config_lib.resolve(config) == config
  tokens = config_lib.ramp(config).tokens
  if given == '8k_tokens':
    assert tokens(52) < 8000 <= tokens(53)


def test_vocab_size_comes_from_the_tokenizer():
  config = config_lib.resolve(base.get_config())
  filled = config_lib.set_vocab_size(config, 101, 'bytes')
  assert filled.model.vocab_size == 101
  assert filled.is_locked
  # A larger table is padding.
  same = config_lib.set_vocab_size(filled, 97, 'bytes')
  assert same.model.vocab_size == 101


def test_set_vocab_size_leaves_its_argument_alone():
  config = config_lib.resolve(base.get_config())
  config_lib.set_vocab_size(config, 101, 'bytes')
  assert config.model.vocab_size is None


def test_flatten_keeps_order_and_depth():
  flat = flatten({'b': {'z': 1, 'a': {'c': 2}}, 'a': None})
  assert list(flat.items()) == [('b.z', 1), ('b.a.c', 2), ('a', None)]


@pytest.mark.parametrize('vocab_size', [None, 53])
def test_json_round_trip(vocab_size):
  config = config_lib.resolve(tiny.config(**{'model.vocab_size': vocab_size}))
  text = config_lib.to_json(config)
  assert json.loads(text)['model']['vocab_size'] == vocab_size
  read = config_lib.from_json(text)
  assert read.is_locked
  assert flatten(read) == flatten(config)
  assert config_lib.differences(config, read) == []
  assert config_lib.to_json(read) == text


def test_differences_name_field_and_both_values():
  old = config_lib.resolve(tiny.config())
  new = config_lib.resolve(tiny.config(**{'seed': 3, 'model.ffn': 'relu', 'batch.size': 24}))
  assert {*config_lib.differences(old, new)} == {
    'seed: 0 -> 3',
    "model.ffn: 'gelu_tanh' -> 'relu'",
    'batch.size: 16 -> 24',
  }


def test_differences_see_fields_of_one_side_only():
  old = config_lib.from_json('{"a": 1, "b": {"c": 2}}')
  new = config_lib.from_json('{"b": {"c": 2, "d": 3}}')
  assert config_lib.differences(old, new) == ['a: 1 -> None', 'b.d: None -> 3']


@pytest.mark.parametrize(
  'change',
  [
    {'checkpoint.every_steps': 7},
    {'checkpoint.keep': 7},
    {'data.store': 'elsewhere'},
    {'eval.every_steps': 7},
    {'eval.num_batches': 7},
    {'log.sample_prompt': 'x'},
    {'mesh.data': 8, 'mesh.fsdp': 1},
    {'mesh.rules.embed': ''},
  ],
)
def test_what_a_run_may_go_on_with(change):
  old = config_lib.resolve(tiny.config())
  new = config_lib.resolve(tiny.config(**change))
  assert old != new
  assert config_lib.differences(old, new) == []


def test_what_a_run_may_not_go_on_with():
  """Every field but the free ones: a list that grows with the tree."""
  config = config_lib.resolve(base.get_config())
  empty = config_lib.from_json('{}')
  sections = {d.partition(':')[0].partition('.')[0] for d in config_lib.differences(config, empty)}
  assert sections == {
    'seed',
    'model',
    'objective',
    'data',
    'tokenizer',
    'optim',
    'schedule',
    'batch',
  }


def test_configs_that_no_objective_trains():
  """An import's config may have another model than its objective trains."""
  layers = {'model.num_layers': 4, 'model.num_encoder_layers': 3}
  of_encoder = {'model.ffn': 'relu, geglu', 'model.encoder_ffn': 'relu'}
  for changes in (
    {**layers, **of_encoder, 'optim.name': 'none'},
    {'model.attention': 'bidirectional'},
  ):
    assert config_lib.resolve_model(tiny.config(**changes)).is_locked


def test_all_layers_have_as_many_experts():
  ffn = 'switch(num_experts=2), relu, switch(num_experts=2)'
  config_lib.resolve(tiny.config(**{'model.num_layers': 3, 'model.ffn': ffn}))


def test_sizes_of_an_encoder_that_are_the_decoders():
  fields = {'num_encoder_layers': 1, 'encoder_num_heads': tiny.H}
  fields = {f'model.{n}': x for n, x in fields.items()}
  config = tiny.config(**fields, **{'model.encoder_d_ff': tiny.F})
  model = config_lib.resolve_model(config).model
  assert (model.encoder_num_heads, model.encoder_d_ff) == (0, 0)


def test_lengths_of_rows_are_those_of_their_text():
  """`batch.length` is what the encoder reads, as model.context_length is."""
  config = t5.get_config('small').unlock()
  config.batch.length = 'stages(128, 90%:512)'
  config = config_lib.resolve(config)
  stages = config_lib.ramp(config).stages
  assert [stage.length for stage in stages] == [141, 568]
  assert config_lib.row_tokens(config) == 568
  assert [config_lib.sides(config, n) for n in (141, 568)] == [(128, 29), (512, 114)]


def test_words_name_fields_that_there_are():
  fields = {*config_lib.flatten(tree(*OPTIONAL))}
  meant = {*_WORDS, *_TUNED.values()}
  for text in meant:
    for field in text.split(' and '):
      assert field.partition('=')[0] in fields


def test_open_sections():
  """Names of the user's own, and a field that a part does not state."""
  base = 'configs/electra.py:small'
  config = loading.load_config(
    base, ['--config.models.generator.num_layers=2', '--config.seed=3']
  ).unlock()
  config.data.sources = {'web': 'stdlib'}
  config.eval.sets = {'wiki': 'stdlib'}
  config.eval.words = {'wiki': 'words'}
  check_known(config)
  resolved = config_lib.resolve(config)
  assert resolved.models.generator.num_layers == 2
  assert resolved.model.num_layers == 12


def test_the_finetune_configs_have_the_section_of_the_defaults():
  config = loading.load_config('configs/finetune/base.py', [])
  section = optional('finetune')
  assert config.finetune.to_dict() == section.to_dict()
