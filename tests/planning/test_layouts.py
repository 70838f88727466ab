# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Estimated meshes: what they hold, and in which order they are tried."""

import pathlib

import jax
import pytest

from configs import deberta, electra, llama, palm, t5, transformer
from gpt_jax.core import config as config_lib
from gpt_jax.core import sharding
from gpt_jax.core.costs import flops, topologies, totals
from gpt_jax.core.costs.chips import GIB
from gpt_jax.core.spec import UsageError
from gpt_jax.core.training import device_check, fitting
from gpt_jax.core.training import parts as parts_lib
from gpt_jax.planning import layouts
from gpt_jax.planning.layouts import CostModel
from tests.support import tiny
from tests.support.cases import slow

ROOT = pathlib.Path(__file__).parents[2]


def test_palm_gets_the_mesh_of_its_paper():
  """Section 4: 12-way model and 256-way data parallel in each of two pods."""
  config = config_lib.resolve(palm.get_config('540b'))
  config = layouts.apply(config, {'model.remat': 'full'})
  slices = topologies.parse('v4:12x16x16', 2)
  best = layouts.candidates(config, slices, micro=True)[0]
  assert best.sizes == {'data': 2, 'fsdp': 256, 'expert': 1, 'stage': 1, 'context': 1, 'tensor': 12}
  assert best.changes['batch.micro_rows'] == 0
  # The parameters and their two moments have 4 bytes each. The vocabulary and
  # the one key/value head are not divisible by 12, and are whole over tensor.
  whole = 256_000 * 18_432 + 118 * 2 * 18_432 * 256
  split = 540_354_281_472 - whole
  assert best.state == pytest.approx(3 * 4 * (whole + split / 12) / 256, rel=1e-4)


@pytest.mark.slow
def test_rows_are_split_where_they_are_few():
  """LLaMA's 7B, 2.1 million tokens a step, on one slice of v5e."""
  changes = {'model.vocab_size': 32_000, 'model.remat': 'full'}
  config = config_lib.resolve(llama.get_config('7b'))
  config = layouts.apply(config, changes)
  slices = topologies.parse('v5e:16x16')

  def tried(length, rows):
    fields = {'model.context_length': length, 'batch.size': rows}
    long = layouts.apply(config, fields)
    return layouts.candidates(long, slices, micro=True)

  assert {x.sizes['context'] for x in tried(2048, 1024)} == {1}
  best = tried(131_072, 16)[0]
  assert best.sizes['context'] * best.sizes['tensor'] >= 16
  assert best.sizes['context'] > 1
  assert best.bytes <= layouts.FREE * slices.hbm
  # As many rows as devices, but none fits into one.
  assert {x.sizes['context'] for x in tried(131_072, 256)} > {1}
  # 2,050 tokens are not divisible by twice 16, nor by 256.
  assert {x.sizes['context'] for x in tried(2050, 16)} == {1}


@pytest.mark.parametrize('config', [slow(t5.get_config('base')), deberta.get_config('base')])
def test_rows_stay_whole_where_they_must(config):
  fields = {'batch.size': 8, 'model.vocab_size': 32_128}
  config = layouts.apply(config_lib.resolve(config), fields)
  slices = topologies.parse('v5e:4x4')
  found = layouts.candidates(config, slices, micro=True)
  assert {x.sizes['context'] for x in found} == {1}


def test_plan_splits_the_rows_that_train_splits():
  """Also of an encoder-decoder; the same refusal where they do not divide."""
  fields = {'batch.size': 8, 'model.vocab_size': 32_128}
  config = config_lib.resolve(transformer.get_config('base'))
  config = layouts.apply(config, fields)
  slices = topologies.parse('v5e:4x4')
  found = layouts.candidates(config, slices, micro=True)
  assert {x.sizes['context'] for x in found} > {1}
  for context in (2, 4):
    split = {'mesh.context': context, 'mesh.fsdp': 8 // context}
    device_check.check_devices(layouts.apply(config, split))
  config = layouts.apply(config, {'model.context_length': 34})
  split = layouts.apply(config, {'mesh.context': 4, 'mesh.fsdp': 2})
  for check in (
    lambda: layouts.given(split, topologies.parse('v5e:2x4')),
    lambda: device_check.check_devices(split),
  ):
    with pytest.raises(UsageError, match=r'context=4: rows of \d+ tokens are'):
      check()


@pytest.mark.parametrize(
  ('fields', 'mesh', 'refused'),
  [
    ({'model.num_heads': 4, 'model.head_size': 8}, {'tensor': 8}, ''),
    ({'model.d_model': 25}, {'tensor': 8}, ''),
    ({'model.d_model': 25}, {'fsdp': 8}, '25 of parameter'),
    ({}, {'expert': 8}, ''),
    ({}, {'stage': 8}, 'the 3 layers of model.num_layers do not divide over 8'),
    ({'model.num_layers': 8}, {'stage': 8}, ''),
    ({'model.ffn': 'switch(num_experts=4)'}, {'expert': 8}, '4 experts do'),
    ({'model.context_length': 24}, {'context': 8}, 'rows of 24 tokens are'),
    ({'model.position': 'rope'}, {'context': 8}, 'rows of 7 tokens are'),
    ({'model.d_ff': 44}, {'tensor': 8}, '44 of parameter'),
  ],
)
def test_plan_and_train_take_the_same_meshes(fields, mesh, refused):
  mesh = {f'mesh.{axis}': n for axis, n in {'fsdp': 1, **mesh}.items()}
  config = config_lib.resolve(tiny.config(**tiny.MESHABLE | fields | mesh))

  def trained():
    parts_lib.build(config, device_check.check_devices(config))

  def planned():
    layouts.given(config, topologies.parse('v5e:2x4'))

  for taken in (trained, planned):
    if not refused:
      taken()
      continue
    with pytest.raises(UsageError, match=refused):
      taken()


def test_why_no_mesh_serves():
  fields = {'mesh.rules.embed': 'data, fsdp', 'mesh.rules.mlp': ''}
  config = config_lib.resolve(tiny.config(**fields, **{'model.num_heads': 2}))
  slices = topologies.parse('v5e:2x4')
  with pytest.raises(UsageError, match=r'17 of parameter .* does not divide'):
    layouts.candidates(config, slices, micro=True)


@pytest.mark.parametrize(
  'changes',
  [{}, {'model.num_kv_heads': 1, 'model.vocab_size': 50}, {'optim.ema': 'ema(decay=0.9)'}],
)
def test_bytes_of_the_state_are_those_of_its_shards(changes):
  config = config_lib.resolve(tiny.config(**{**tiny.MESHABLE, **changes}))
  run = parts_lib.build(config)
  mesh = {'data': 1, 'stage': 1, 'fsdp': 2, 'expert': 1, 'context': 1, 'tensor': 4}
  abstract = sharding.abstract_mesh([*mesh.values()])
  shardings = parts_lib.state_shardings(
    run.objective, run.optimizer, abstract, run.rules, run.average
  )

  def size(part):
    shapes = jax.tree.leaves(getattr(parts_lib.abstract_state(run), part))
    placed = jax.tree.leaves(getattr(shardings, part))
    return sum(
      jax.ShapeDtypeStruct(s.shard_shape(x.shape), x.dtype).size * x.dtype.itemsize
      for x, s in zip(shapes, placed, strict=True)
    )

  found = layouts.state_of(config).bytes(mesh)
  assert found == sum(map(size, ('params', 'opt_state', 'ema')))


def test_experts_without_a_capacity_have_room_for_all_tokens():
  """Mixtral 8x7B with 8 rows of 4,096 a device: `plan` compiles 68 GiB."""
  ffn = "switch(num_experts=8, expert='swiglu', top_k=2%s)"
  fields = {
    'model.vocab_size': 32_000,
    'model.num_kv_heads': 8,
    'model.d_ff': 14_336,
    'model.context_length': 4096,
    'model.remat': 'full',
    'batch.size': 1024,
  }
  slices, mesh = (topologies.parse('v5p:4x4x4'), fitting.UNSET | {'fsdp': 8, 'expert': 8})
  config = config_lib.resolve(llama.get_config('7b'))
  found = []
  for factor in (", capacity_factor='none'", ''):
    changes = {**fields, 'model.ffn': ffn % factor}
    model = CostModel(layouts.apply(config, changes), slices)
    state = layouts.state_of(model.config)
    least = state.bytes(mesh) + state.gradients(mesh)
    found.append((least + model.temporaries(mesh, 8)) / GIB)
  assert found[0] == pytest.approx(68, rel=0.1)
  # Room for 8 times the tokens: two vectors of the stream, and twice the two
  # hidden ones of a gated layer, in bfloat16.
  room = 2 * (8 - 1) * 8 * 4096 * (2 * 4096 + 4 * 14_336)
  assert found[0] - found[1] == pytest.approx(room / GIB)


def test_micro_rows_divide_the_last_stage():
  rows = 'ramp(0:24, 5_steps:48)'
  config = config_lib.resolve(tiny.config(**{'batch.size': rows, 'schedule.num_steps': 20}))
  mesh = {'data': 1, 'stage': 1, 'fsdp': 4, 'expert': 1, 'context': 1, 'tensor': 2}
  # Of each of four devices' 12; 0 is all at once.
  costs = CostModel(config, topologies.parse('v5e:2x4'))
  assert costs.micro_choices(mesh) == [0, 6, 4, 3, 2, 1]


def test_a_part_that_has_what_the_model_has_changes_with_it():
  config = config_lib.resolve(electra.get_config('small'))
  changed = layouts.apply(config, {'model.remat': 'full'})
  assert changed.models.generator.remat == 'full'
  kept = layouts.apply(changed, {'models.generator.remat': 'dots'})
  again = layouts.apply(kept, {'model.remat': 'none'})
  assert (again.model.remat, again.models.generator.remat) == ('none', 'dots')


def test_an_encoder_decoder_counts_each_side():
  """Of 568 tokens of text its layers meet 512 and 114."""
  config = config_lib.resolve(t5.get_config('base'))
  found = CostModel(config, topologies.parse('v5e:2x4'))
  assert found.last.length == 568
  assert found.layers == pytest.approx(12 * (512 + 114) / 568)
  params, _ = totals.figures_of(config)
  attention, ffn = 4 * 768**2, 2 * 768 * 3072
  source = 12 * (attention + ffn) + 12 * 2 * 768**2
  target = 12 * (attention + 2 * 768**2 + ffn) + 32_128 * 768
  assert flops.met_parameters(config, params) == pytest.approx((source * 512 + target * 114) / 568)


def test_products_in_int8():
  """Twice as fast on v5e but for the output's; kernels gathered in a byte."""
  fields = {'batch.micro_rows': 0, 'model.vocab_size': 48}
  plain, both, inputs = (
    CostModel(
      config_lib.resolve(tiny.config(**tiny.MESHABLE | fields | {'model.matmul': text})),
      topologies.parse('v5e:2x4'),
    )
    for text in ('plain', 'int8', "int8(gradients='inputs')")
  )
  parameters = layouts.state_of(plain.config)
  share = 1 - 48 * plain.config.model.d_model / parameters.matmul
  whole = dict.fromkeys(sharding.AXES, 1)
  links = {axis: layouts.Links(2, True) for axis in sharding.AXES}

  def seconds(costs, **axes):
    return costs.seconds(whole | axes, links, 0)

  assert seconds(both) / seconds(plain) == pytest.approx(1 - share / 2)
  assert seconds(inputs) / seconds(plain) == pytest.approx(1 - share / 3)
  # So few tokens wait for kernels: two gathers and a sum of 2 bytes each, here
  # of 1 and of 4 or 2.
  for costs, expected in ((both, 1), (inputs, 1 - share / 3)):
    found = seconds(costs, fsdp=2) / seconds(plain, fsdp=2)
    assert found == pytest.approx(expected, rel=0.02)


def test_sums_of_more_tokens_than_int32_holds_are_sent_as_those_of_plain_products():
  links = {axis: layouts.Links(2, True) for axis in sharding.AXES}
  mesh = dict.fromkeys(sharding.AXES, 1)

  def waits(text, rows):
    fields = {'model.matmul': text, 'model.context_length': 8, 'batch.size': rows}
    config = config_lib.resolve(tiny.config(**tiny.MESHABLE | fields | {'model.vocab_size': 48}))
    # Links so slow that nothing else counts.
    slices = topologies.parse('v5e:2x4')
    slices = slices._replace(chip=slices.chip._replace(link=1.0))
    return CostModel(config, slices).seconds(mesh | {'fsdp': 8}, links, 0)

  few, many = 16_000, 16_800  # just below and above 133,144 tokens
  assert waits('plain', few) == pytest.approx(waits('plain', many))
  # Kernels gathered twice in bfloat16, a sum of it; in a byte, with a sum of four.
  share = 1 - waits('int8', many) / waits('plain', many)
  assert 0.1 < share < 1 / 3
  assert waits('int8', few) > 1.2 * waits('int8', many)


def test_stages_and_their_bubble():
  """GPipe's (S - 1) / (M + S - 1), and an S-th of the layers on each device."""
  fields = {'model.num_layers': 8, 'batch.size': 64, 'batch.micro_rows': 0}
  config = config_lib.resolve(tiny.config(**tiny.MESHABLE | fields))
  slices = topologies.parse('v5e:2x4')
  costs, whole = CostModel(config, slices), dict.fromkeys(sharding.AXES, 1)
  mesh = whole | {'data': 2, 'stage': 4}
  # Eight rows on each device, one of which goes on at a time.
  assert costs.schedule(mesh, 0, 64) == (4, 1, 32)
  assert costs.schedule(mesh, 2, 64) == (4, 1, 8)
  assert costs.schedule(mesh, 0, 64).bubble == pytest.approx(3 / 35)
  one, four, eight = (layouts.state_of(config).bytes(whole | {'stage': n}) for n in (1, 4, 8))
  assert (one - four) / (one - eight) == pytest.approx((3 / 4) / (7 / 8))
  # A copy in bfloat16, the sum and one step's gradients: 8 bytes for a weight
  # of a stage on each device, where the state has 12.
  whole_stage = {'model.pipeline': "circular(weights='stage')"}
  held = CostModel(layouts.apply(config, whole_stage), slices)
  more = held.temporaries(mesh, 0) - costs.temporaries(mesh, 0)
  assert more == pytest.approx((one - four) / 3 * 8 / 12)
  # With fewer rows at a time the bubble grows.
  links = {axis: layouts.Links(2, True) for axis in sharding.AXES}
  few, many = (costs.seconds(mesh, links, rows) for rows in (1, 0))
  assert few > many


def test_stages_over_slices():
  """A mesh of the search; its devices in different slices are of stages."""
  fields = {'model.num_layers': 8, 'batch.size': 64}
  config = config_lib.resolve(tiny.config(**tiny.MESHABLE | fields))
  slices = topologies.parse('v5e:2x2', 2)
  found = layouts.candidates(config, slices, micro=True)
  stages = [x.sizes for x in found if x.sizes['stage'] > 1]
  assert {x['stage'] for x in stages} == {2}
  assert {x.sizes['data'] for x in found if x.sizes['stage'] == 1} >= {2}
  for layout in found:
    assert not layout.sizes['context'] > 1 < layout.sizes['stage']
