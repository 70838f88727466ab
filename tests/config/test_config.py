# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Resolving, validating, comparing and saving a config."""

import json
import math
import re

import pytest

from configs import base, scaling, t5
from configs.finetune import base as tuning
from gpt_jax import config as config_lib
from gpt_jax import spec
from gpt_jax.config import flatten, validation
from gpt_jax.nn.build import PATTERNS
from gpt_jax.ranges import OneOf, Range
from gpt_jax.spec import UsageError
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


TAKES = {name: field.range for name, field in config_lib.FIELDS.items()}
RANGES = {f: kind for f, kind in TAKES.items() if isinstance(kind, Range)}
NAMES = {f: kind for f, kind in TAKES.items() if isinstance(kind, OneOf)}


LSTM = {
  'model.attention': 'lstm(17)',
  'model.block': 'plain',
  'model.position': 'none',
}


# What `resolve` refuses of the tiny config with some fields changed.
REFUSED = [
  (
    {'model.d_model': 17, 'model.num_heads': 3, 'model.head_size': None},
    'model.d_model=17: does not divide by model.num_heads=3; change one of '
    'them or set model.head_size',
  ),
  (
    {'model.num_heads': 0, 'model.head_size': None},
    'model.num_heads=0: must be at least 1',
  ),
  (
    {'model.num_heads': 7, 'model.num_kv_heads': 3},
    'model.num_heads=7: does not divide by model.num_kv_heads=3',
  ),
  (
    {'model.attention': 'full, local(window=3)', 'model.num_layers': 5},
    'model.num_layers=5: does not divide by the 2 layers after which '
    "model.attention='full, local(window=3)' and model.ffn='gelu_tanh' "
    'repeat',
  ),
  (
    {'model.ffn': 'relu, switch(num_experts=2)', 'model.num_layers': 5},
    'model.num_layers=5: does not divide by the 2 layers after which '
    "model.attention='full' and model.ffn='relu, switch(num_experts=2)' "
    'repeat',
  ),
  (
    {'model.attention': 'full, lokal'},
    "model.attention='full, lokal': unknown 'lokal'; one of "
    + ', '.join(sorted(PATTERNS)),
  ),
  (
    {'model.attention': 'lstm(17)'},
    "model.attention='lstm(17)': with model.block='pre'; lstm and "
    "model.block='plain' go together, in all layers",
  ),
  (
    {'model.block': 'plain'},
    "model.attention='full': with model.block='plain'; lstm and",
  ),
  (
    {'model.attention': 'lstm(17)', 'model.block': 'plain'},
    "model.position='learned': the recurrent layers of "
    "model.attention='lstm(17)' take none; set it to 'none'",
  ),
  (
    {**LSTM, 'model.attention': 'lstm(11)'},
    "model.attention='lstm(11)': its last layer is 11 wide; the output needs "
    'model.d_model=17',
  ),
  (
    {**LSTM, 'model.ffn': 'relu, gelu, silu, relu, relu'},
    "model.ffn='relu, gelu, silu, relu, relu': the recurrent layers of "
    "model.attention='lstm(17)' have no feed-forward layers",
  ),
  (
    {**LSTM, 'model.attention': 'lstm(17, projection_clip=3.0)'},
    'model.attention: lstm(projection_clip=3.0): nothing is projected',
  ),
  (
    {'model.attention': 'local(window=0)'},
    "model.attention='local(window=0)': window=0 must be at least 1",
  ),
  (
    {'model.dropout': 'rates(residual=1.0)'},
    "model.dropout='rates(residual=1.0)': residual=1.0 must be below 1",
  ),
  (
    {'model.dropout': 'rates(embedding=-0.1)'},
    "model.dropout='rates(embedding=-0.1)': embedding=-0.1 must be at least 0",
  ),
  (
    {'model.dtype': 'float16'},
    "model.dtype='float16': is unknown; one of float32, bfloat16",
  ),
  # Of another type, or empty.
  (
    {'model.num_layers': None},
    'model.num_layers is empty; its default is 12',
  ),
  ({'model.num_layers': '3'}, "model.num_layers='3': must be a whole number"),
  ({'model.norm': 3}, 'model.norm=3: must be a text'),
  ({'model.dtype': None}, "model.dtype is empty; its default is 'bfloat16'"),
  ({'model.num_heads': True}, 'model.num_heads=True: must be a whole number'),
  ({'optim.clip_norm': 'x'}, "optim.clip_norm='x': must be a number"),
  ({'data.source': "text('a\0b')"}, 'has a NUL character'),
  ({'log.sample_prompt': 'a\0b'}, "log.sample_prompt='a\\x00b': has a NUL"),
  ({'log.sample_prompt': '\udc80'}, 'is not UTF-8 at character 0'),
  ({'model.depth': 3}, 'model.depth=3: there is no such field'),
  ({'data.sources': {'a': 3}}, 'data.sources.a=3: give the call of a source'),
  ({'model': 3}, 'model=3: must be a section'),
  ({'mesh': None}, 'mesh=None: must be a section'),
  # Sizes that cannot be counted: the compiler would abort the process.
  ({'model.d_model': 10**9}, 'model.d_model=1000000000: must be at most 16,'),
  (
    {'model.d_model': 2**24, 'model.d_ff': 2**24, 'model.num_layers': 4096},
    'model.num_layers=4096, model.d_model=16777216, model.d_ff=16777216: '
    'make an array of 1.2e+18 numbers, and one has at most 5.8e+17',
  ),
  (
    {
      'model.context_length': 2**24,
      'batch.size': 2**13,
      'batch.micro_rows': 1,
    },
    'make an array of',
  ),
  (
    {'model.ffn': 'switch(num_experts=2147483647)', 'model.d_ff': 2**24},
    'make an array of',
  ),
  # Batches, the length of the run, and its schedule.
  ({'schedule.num_steps': 0}, 'schedule.num_steps=0: must be at least 1'),
  ({'schedule.num_steps': '0_tokens'}, 'num_steps=0: must be at least 1'),
  ({'schedule.num_steps': True}, 'num_steps=True: give a whole number of'),
  ({'schedule.num_steps': 2.5}, 'num_steps=2.5: give a whole number of'),
  ({'schedule.num_steps': '9T_tokens'}, 'are 43,269,230,770 steps, more'),
  ({'batch.size': 0}, 'batch.size=0: must be at least 1'),
  ({'batch.size': '16'}, "batch.size='16': a name was expected"),
  (
    {'schedule.name': 'wsd(1e-3, cooldown=21)'},
    'cooldown=21 after warmup=0 does not fit the 20 steps',
  ),
  (
    {'schedule.name': 'cosine(peak=0.0)'},
    "schedule.name='cosine(peak=0.0)': peak=0.0 must be above 0",
  ),
  (
    {'schedule.name': 'cosine(peak=1.0, warmup=-1)'},
    'schedule.name: warmup=-1: give a whole number of steps or tokens',
  ),
]


@pytest.mark.parametrize('changes, message', REFUSED)
def test_what_is_refused(changes, message):
  with pytest.raises(UsageError) as error:
    config_lib.resolve(tiny.holding(**changes))
  assert message in str(error.value)


# Without those of finetune, which resolves its section itself.
@pytest.mark.parametrize(
  'field', [f for f in config_lib.CALL_STRINGS if f in flatten(tiny.config())]
)
def test_an_unknown_choice_is_refused(field):
  choices = ', '.join(sorted(config_lib.CALL_STRINGS[field]))
  message = f"{field}='nope': unknown 'nope'; one of {choices}"
  with pytest.raises(UsageError, match=f'^{re.escape(message)}$'):
    config_lib.resolve(tiny.config(**{field: 'nope'}))


@pytest.mark.parametrize('field', [f for f in NAMES if f.startswith('model')])
def test_an_unknown_name_is_refused(field):
  message = (
    f"{field}='nope': is unknown; one of {', '.join(NAMES[field].names)}"
  )
  with pytest.raises(UsageError, match=f'^{re.escape(message)}$'):
    config_lib.resolve(tiny.config(**{field: 'nope'}))


def out_of(declared):
  """Values just outside of a range, far outside, and in none."""
  if declared.kind is int:
    yield from (declared.least - 1, declared.most + 1)
    yield from (-(10**400), 10**400)
  else:
    yield from (declared.least - 1.0, declared.most * 2.0)
    yield from (math.nan, math.inf, -math.inf)


@pytest.mark.parametrize(
  'field', [f for f in RANGES if f in flatten(base.get_config())]
)
def test_a_number_out_of_its_range_is_refused(field):
  for value in out_of(RANGES[field]):
    with pytest.raises(UsageError) as error:
      config_lib.resolve(tiny.holding(**{field: value}))
    message = str(error.value)
    assert message.startswith(f'{field}={spec.shown(value)}: must be ')
    assert len(message) < 400


@pytest.mark.parametrize(
  'field', [f for f in RANGES if f.startswith(('fine', 'sweep'))]
)
def test_numbers_of_other_sections_are_checked(field):
  section, name = field.split('.')
  config = base.get_config().unlock()
  for value in out_of(RANGES[field]):
    config[section] = {name: value}
    with pytest.raises(UsageError, match=rf'^{field}=.*: must be '):
      config_lib.check_ranges(config)


def test_every_number_of_the_base_has_a_range():
  """A new one must come with the values that make sense."""
  numbers = {
    name
    for name, value in flatten(config_lib.resolve(base.get_config())).items()
    if isinstance(value, int | float)
  }
  assert numbers <= {*RANGES}
  for module in (tuning, scaling):
    found = flatten(module.get_config())
    numbers = {
      n for n, value in found.items() if isinstance(value, int | float)
    }
    assert numbers <= {*RANGES}


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
  ],
)
def test_a_run_within_its_warm_up(name, steps, longer):
  """It is said if no step has the peak rate, and the part that it reaches."""
  config = config_lib.resolve(
    tiny.config(**{'schedule.name': name, 'schedule.num_steps': steps})
  )
  rate = config_lib.schedule(config)
  rates = [float(rate(step)) for step in range(30)]
  assert longer == (max(rates[:steps]) < 0.999 * max(rates))
  note = config_lib.warm_up_note(config)
  assert bool(note) == longer
  if longer:
    assert f'at {rates[steps - 1] / max(rates):.1%} of the peak rate' in note


@pytest.mark.parametrize(
  'labels, why',
  [
    ('no', r"finetune.labels='no': must be a list of texts"),
    (['no', 7], r"finetune.labels=\['no', 7\]: must be a list of texts"),
    (['no', '\ud800'], 'finetune.labels=.*: is not UTF-8 at character 0'),
  ],
)
def test_classes_are_a_list_of_texts(labels, why):
  config = config_lib.unlocked(config_lib.resolve(tiny.config()))
  config.finetune = tuning.get_config().finetune.to_dict()
  with config.ignore_type():
    config.finetune.labels = labels
  with pytest.raises(UsageError, match=why):
    validation.check_fields(config)


@pytest.mark.parametrize(
  'given, steps',
  [(20, 20), ('2k_steps', 2000), ('1_tokens', 1), ('8k_tokens', 53)],
)
def test_the_length_of_a_run(given, steps):
  # 40 steps of 8 rows of 13 tokens, and as many of 24 as hold the rest.
  changes = {
    'batch.size': 'ramp(0:8, 40_steps:24)',
    'schedule.num_steps': given,
  }
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
  with pytest.raises(UsageError) as error:
    config_lib.set_vocab_size(filled, 103, 'bytes')
  assert str(error.value).startswith(
    'model.vocab_size=101: smaller than the 103 tokens of '
    "tokenizer.name='bytes'"
  )


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
  new = config_lib.resolve(
    tiny.config(**{'seed': 3, 'model.ffn': 'relu', 'batch.size': 24})
  )
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
  sections = {
    d.partition(':')[0].partition('.')[0]
    for d in config_lib.differences(config, empty)
  }
  assert sections == {
    *('seed', 'model', 'objective', 'data', 'tokenizer', 'optim', 'schedule'),
    'batch',
  }


def test_the_encoder_has_whole_periods():
  """An import's config may have an encoder, as it does not train."""
  fields = {'model.num_layers': 4, 'model.num_encoder_layers': 3}
  fields |= {'model.ffn': 'relu, geglu', 'optim.name': 'none'}
  with pytest.raises(UsageError, match='num_encoder_layers=3: does not divide'):
    config_lib.resolve_model(tiny.config(**fields))
  fields['model.encoder_ffn'] = 'relu'
  config_lib.resolve_model(tiny.config(**fields))


@pytest.mark.parametrize(
  'field, value',
  [
    ('model.attention', 'bidirectional'),
    ('model.attention', 'full, bidirectional'),
    ('model.num_encoder_layers', 2),
  ],
)
def test_the_causal_objective_needs_a_decoder(field, value):
  """A token that sees its target would train to a loss of nothing."""
  config = tiny.config(**{'model.num_layers': 4, field: value})
  with pytest.raises(UsageError, match=field):
    config_lib.resolve(config)
  # It can be looked at.
  assert config_lib.resolve_model(config).is_locked


def test_all_layers_have_as_many_experts():
  ffn = 'switch(num_experts=2), relu, switch(num_experts={})'
  changes = {'model.num_layers': 3, 'model.ffn': ffn.format(2)}
  config_lib.resolve(tiny.config(**changes))
  changes['model.ffn'] = ffn.format(3)
  with pytest.raises(UsageError, match='with different num_experts'):
    config_lib.resolve(tiny.config(**changes))


def test_encoders_have_whole_periods():
  changes = {
    'model.num_layers': 4,
    'model.num_encoder_layers': 3,
    'model.ffn': 'relu, gelu',
  }
  with pytest.raises(UsageError, match='num_encoder_layers=3: does not divide'):
    config_lib.resolve_model(tiny.config(**changes))


@pytest.mark.parametrize(
  'fields, message',
  [
    ({'encoder_d_ff': 19}, 'encoder_d_ff=19: is of an encoder'),
    ({'encoder_num_heads': 3}, 'encoder_num_heads=3: is of an encoder'),
    (
      {'encoder_num_heads': 4, 'num_encoder_layers': 1},
      'encoder_num_heads=4: model.num_kv_heads=2 * 4 does not divide by 6',
    ),
    (
      {'encoder_num_heads': 12, 'num_encoder_layers': 1},
      'encoder_num_heads=12: model.head_size=7 * 6 does not divide by 12',
    ),
  ],
)
def test_sizes_that_no_encoder_has(fields, message):
  fields = {f'model.{name}': value for name, value in fields.items()}
  with pytest.raises(UsageError) as error:
    config_lib.resolve_model(tiny.config(**fields))
  assert message in str(error.value)


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
  assert [config_lib.sides(config, n) for n in (141, 568)] == [
    (128, 29),
    (512, 114),
  ]
  config = config_lib.unlocked(config)
  config.batch.length = 'stages(513)'
  with pytest.raises(UsageError, match='rows of 513 tokens do not fit'):
    config_lib.resolve(config)
