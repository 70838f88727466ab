# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Compiles programs for TPU slices that are not here, with libtpu.

  python tests/support/compile_for_tpu.py attention v5e:2x4

Prints one JSON object; the functions of `PROGRAMS` say of what. Compile-only
devices hold no arrays, so that nothing is run. A process of its own, since
libtpu reads its settings once: tests call `tpu.compiled`.
"""

import json
import os
import pathlib
import re
import sys

os.environ |= {
  'JAX_PLATFORMS': 'cpu',
  # Do not look for a TPU, and let several processes compile at once.
  'TPU_SKIP_MDS_QUERY': '1',
  'TPU_WORKER_HOSTNAMES': 'localhost',
  'TPU_ACCELERATOR_TYPE': 'v4-8',
  'ALLOW_MULTIPLE_LIBTPU_LOAD': '1',
}
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from gpt_jax.core import config as config_lib
from gpt_jax.core import sharding, spec
from gpt_jax.core.config import loading
from gpt_jax.core.costs import flops
from gpt_jax.core.costs import topologies as topologies_of
from gpt_jax.core.nn import build, layers
from gpt_jax.core.nn.attend import Request
from gpt_jax.core.nn.backends import attend_rows
from gpt_jax.core.nn.block import FeedForward
from gpt_jax.core.nn.choices import BACKENDS, INITS, MATMULS, PATTERNS
from gpt_jax.core.nn.row import Visibility
from gpt_jax.core.nn.transformer import parameter_shapes
from gpt_jax.core.objectives import cross_entropy
from gpt_jax.core.runtime.tpu_flags import FLAGS
from gpt_jax.core.training import compiled as compiled_lib
from gpt_jax.core.training import parts as parts_lib
from gpt_jax.planning import collectives, hlo, op_costs, schedule
from gpt_jax.planning import compile as compile_lib
from gpt_jax.resilience import replay as replay_lib
from tests.support import ejected as ejected_lib
from tests.support import tiny

CHIPS = {**{'v4': 'megacore', 'v5p': 'megacore'}, **{'v5e': 'default', 'v6e': 'default'}}


def make_mesh(topology, **sizes):
  """Of such a slice, e.g. `v5e:2x4`; axes that are not given have size 1.

  One may be -1: the rest.
  """
  dims = [int(n) for n in topology.partition(':')[2].split('x')]
  # Only cubes of four have links around their ends.
  closed = len(dims) == 3 and all(n % 4 == 0 for n in dims)
  slice_ = topologies.get_topology_desc(
    platform='tpu',
    topology_name=topology,
    chip_config_name=CHIPS[topology.partition(':')[0]],
    chips_per_host_bounds=(2, 2, 1),
    num_slices=1,
    wrap=(closed, closed, closed),
  )
  shape = [sizes.get(axis, 1) for axis in sharding.AXES]
  return Mesh(np.array(slice_.devices).reshape(shape), sharding.AXES)


def parts_of(mesh, fields):
  """The parts of a run on the mesh, with fields of the model."""
  fields = {x if '.' in x else f'model.{x}': y for x, y in fields.items()}
  run = parts_lib.build(config_lib.resolve(tiny.config(**fields)))
  return run._replace(
    mesh=mesh,
    shardings=parts_lib.state_shardings(
      run.objective, run.optimizer, mesh, run.rules, on_host=run.config.optim.state == 'host'
    ),
    batch_sharding=sharding.batch_sharding(mesh, run.rules),
  )


def compile_step(mesh, fields):
  """The train step as `gpt-jax train` compiles it, with fields of the model."""
  return compiled_lib.compile_train_step(parts_of(mesh, fields)).call


def num_kernels(text):
  """The number of Pallas kernels of a compiled program."""
  return text.count('custom_call_target="tpu_custom_call"')


def attention(topology):
  """Kernels of splash by pattern and backend, and of a train step."""
  rows, length, heads, head_size = 16, 256, 8, 64
  # Rows over half of the devices, heads over two.
  mesh = make_mesh(topology, fsdp=-1, tensor=2)
  rules = sharding.parse_rules(tiny.config().mesh.rules)

  def array(dtype, *shape):
    axes = (dict(rules)['batch'], None, 'tensor', None)[: len(shape)]
    placed = NamedSharding(mesh, PartitionSpec(*axes))
    return jax.ShapeDtypeStruct(shape, dtype, sharding=placed)

  query = array(jnp.bfloat16, rows, length, heads, head_size)
  key = array(jnp.bfloat16, rows, length, 2, head_size)
  args = query, key, key, array(jnp.int32, rows, length)
  found = {}
  # Blocks of 128 make several of a row; rows longer than `fused_until` have two
  # backward kernels.
  for pattern, backend in (
    ('full', 'splash'),
    ('full', 'splash(block=128, fused_until=128)'),
    ('local(window=96)', 'splash(block=128)'),
    ('bidirectional', 'splash(block=128)'),
  ):

    def total(q, k, v, segments, pattern=pattern, backend=backend):
      request = Request(
        q,
        k,
        v,
        spec.build('model.attention', pattern, PATTERNS),
        Visibility(segments_BL=segments),
        scale=head_size**-0.5,
      )
      chosen = spec.build('model.attention_backend', backend, BACKENDS)
      return jnp.sum(attend_rows(request, backend=chosen).astype(jnp.float32))

    with sharding.use(mesh, rules):
      step = jax.jit(jax.grad(total, argnums=(0, 1, 2)))
      text = step.lower(*args).compile().as_text()
    found[f'{pattern}, {backend}'] = num_kernels(text)
  fields = {
    'vocab_size': 512,
    'context_length': length,
    'num_layers': 4,
    'd_model': 256,
    'num_heads': heads,
    'num_kv_heads': 2,
    'head_size': head_size,
    'd_ff': 512,
    'position': 'rope',
    'attention': 'full, local(window=96)',
    'attention_backend': 'auto',  # it has to find the kernels itself
    'dtype': 'bfloat16',
    'remat': 'full',
    'batch.size': rows,
    'batch.micro_rows': rows // 2,
  }
  step = compile_step(mesh, fields)
  return {**found, 'train step': num_kernels(step.as_text())}


def flash(topology):
  """Kernels of a step with scores by distance and dropout.

  By head size with a bias, and by position with vectors of distances. Rows of
  no multiple of 128, in micro-batches on replicas; heads over two.
  """
  fields = {
    'vocab_size': 512,
    'context_length': 600,
    'num_layers': 2,
    'd_model': 256,
    'num_heads': 4,
    'num_kv_heads': 2,
    'd_ff': 512,
    'position': 't5_bias',
    'dropout': 'rates(attention=0.1)',
    'attention_backend': 'auto',
    'dtype': 'bfloat16',
    'remat': 'full',
    'batch.size': 16,
    'batch.micro_rows': 2,
  }
  mesh = make_mesh(topology, data=-1, tensor=2)
  found = {}
  changes = {
    '40': {'head_size': 40},
    '128': {'head_size': 128},
    'gopher': {'head_size': 128, 'position': 'transformer_xl'},
    'transformer_xl': {'head_size': 40, 'position': 'transformer_xl(memory=300, segment=300)'},
    'xlnet': {
      'head_size': 64,
      'num_kv_heads': 4,
      'position': 'xlnet',
      'input': 'tokens(queries=True)',
      'attention': 'bidirectional',
      'objective.name': 'permuted(context=5)',
      'data.rows': 'halves',
      'data.sentences': 'terminal',
    },
    'deberta': {'head_size': 64, 'position': 'deberta', 'num_kv_heads': 4},
  }
  for name, given in changes.items():
    step = compile_step(mesh, fields | given)
    found[name] = num_kernels(step.as_text())
  return found


def context(topology, backend, chips, rate='0'):
  """What the step of a small LLaMA sends over `context` in attention, by kind.

  And how many of those transfers are synchronous, and its kernels. `chips`
  have 512 tokens each of a row; `rate` of its probabilities are dropped.
  """
  mesh = make_mesh(topology, data=-1, context=int(chips))
  fields = {
    'vocab_size': 512,
    'context_length': 512 * int(chips),
    'num_layers': 2,
    'd_model': 256,
    'num_heads': 4,
    'num_kv_heads': 2,
    'head_size': 128,
    'd_ff': 512,
    'position': 'rope',
    'bias': 'none',
    'dtype': 'bfloat16',
    'attention_backend': backend,
    'dropout': f'rates(attention={rate})',
    'batch.size': mesh.shape['data'],
    'batch.micro_rows': mesh.shape['data'],
  }
  text = compile_step(mesh, fields).as_text()
  found: dict[str, float] = {'kernels': num_kernels(text), 'synchronous': 0}
  for x in collectives.read(hlo.parse(text), mesh):
    if x.axes == ('context',) and 'shard_map' in x.path:
      found['synchronous'] += x.blocking
      way = 'back' if x.backward else 'forward'
      name = f'{way} {x.kind} {x.dtype}'
      found[name] = found.get(name, 0) + x.bytes
  return found


def layout():
  """What the step of a small PaLM sends on a cube of 64 TPU v4, how often."""
  layers, rows, length, width = 3, 64, 128, 1024
  fields = {
    'vocab_size': 4098,  # does not divide over 4 devices
    'context_length': length,
    'num_layers': layers,
    'd_model': width,
    'num_heads': 8,
    'num_kv_heads': 1,
    'head_size': 128,
    'd_ff': 4 * width,
    'ffn': 'swiglu',
    'block': 'parallel',
    'position': 'rope',
    'output': "tied(scale='rsqrt')",
    'bias': 'none',
    'norm': 'layernorm(scale=False, bias=False)',
    'attention_backend': 'reference',
    'dtype': 'bfloat16',
    'remat': 'full',
  }
  # So small that the logits take more chunks than there are layers.
  cross_entropy.CHUNK_LOGITS, cross_entropy.TOKENS_ON_TPU = 1 << 16, 1
  mesh = make_mesh('v4:4x4x4', fsdp=16, tensor=4)
  batch = {'batch.size': rows, 'batch.micro_rows': rows}
  text = compile_step(mesh, fields | batch).as_text()
  program = hlo.parse(text)
  sent = collectives.read(program, mesh)
  counted = op_costs.count(program)
  names = list(flops.parameter_table(parameter_shapes(tiny.model(**fields))))
  gathers = {}
  for x in sent:
    if x.kind == 'all-gather' and x.axes == ('fsdp',):
      name = collectives.parameter_of(x.path, names) or x.path
      gathers[name] = gathers.get(name, 0) + x.trips
  saved = f'bf16[{layers},{rows // 16},{length},'
  return {
    'calls': counted.calls,
    'unknown': [*counted.unknown],
    'gradients': {name: x.kind for name, x in collectives.gradients(sent, names)},
    'gathers': gathers,
    'float32': [x.path for x in collectives.float32_gathers(sent, least=1 << 20)],
    'most_trips': max(x.trips for x in sent if x.axes == ('fsdp',)),
    # What rematerialisation keeps of the layers: whole, or split.
    'whole': f'{saved}{width}]' in text,
    'split': f'{saved}{width // 4}]' in text,
  }


# Of a model whose gradients are large beside all else that is sent.
SENT = {
  'vocab_size': 512,
  'context_length': 128,
  'num_layers': 2,
  'd_model': 256,
  'num_heads': 4,
  'num_kv_heads': 4,
  'head_size': 64,
  'd_ff': 640,
  'dropout': 'rates(residual=0.1)',
  'dtype': 'bfloat16',
  'batch.size': 64,
}


def micro_batches():
  """Bytes that a device sends over the axis `data` in a step.

  For each mesh, and rows of a micro-batch on a device.
  """
  found = {}
  for name, sizes in (('data8', {'data': 8}), ('data2_fsdp4', {'data': 2, 'fsdp': 4})):
    mesh = make_mesh('v5e:2x4', **sizes)
    for micro_rows in (4, 1):
      step = compile_step(mesh, {**SENT, 'batch.micro_rows': micro_rows})
      sent = collectives.read(hlo.parse(step.as_text()), mesh)
      over_data = [x for x in sent if 'data' in x.axes]
      found[f'{name}/{micro_rows}'] = {
        'bytes': sum(x.bytes for x in over_data),
        'most_trips': max(x.trips for x in over_data),
        'kernels': num_kernels(step.as_text()),
      }
  return found


def exact():
  """Bytes that a device sends in a step, by kind, axis and dtype; of 16 virtual shards."""
  mesh = make_mesh('v5e:2x4', data=2, fsdp=4)
  step = compile_step(mesh, {**SENT, 'batch.micro_rows': None, 'batch.exact_over': 16})
  found = {'kernels': num_kernels(step.as_text())}
  for x in collectives.read(hlo.parse(step.as_text()), mesh):
    name = f'{x.kind} {" ".join(x.axes)} {x.dtype}'
    found[name] = found.get(name, 0) + x.bytes
  return found


def replay():
  """Of the gradients of replicas, with XLA's checker in the program.

  Bytes that a device sends over the axis `data`, and over `fsdp`; bytes of
  temporary arrays, of it and of the step; and the number of kernels.
  """
  fields = {
    'vocab_size': 512,
    'context_length': 128,
    'num_layers': 2,
    'd_model': 256,
    'num_heads': 4,
    'num_kv_heads': 4,
    'head_size': 64,
    'd_ff': 640,
    'dtype': 'bfloat16',
    'batch.size': 64,
    'batch.micro_rows': 4,
  }
  run = parts_of(make_mesh('v5e:2x4', data=2, fsdp=4), fields)
  shape = run.ramp.stages[-1].shape
  call = replay_lib.compile_shard_prints(run, shape).call
  sent = collectives.read(hlo.parse(call.as_text()), run.mesh)
  step = compiled_lib.compile_train_step(run).call
  return {
    'data': sum(x.bytes for x in sent if 'data' in x.axes),
    'fsdp': sum(x.bytes for x in sent if x.axes == ('fsdp',)),
    'temporary': call.memory_analysis().temp_size_in_bytes,
    'of_step': step.memory_analysis().temp_size_in_bytes,
    'kernels': num_kernels(call.as_text()),
  }


def offload():
  """Bytes in a device's own memory and in the host's, by what is kept where."""
  # Too much for the memory beside the matrix units, where small arrays stay.
  fields = {
    'vocab_size': 512,
    'context_length': 512,
    'num_layers': 7,
    'd_model': 512,
    'num_heads': 8,
    'num_kv_heads': 8,
    'head_size': 64,
    'd_ff': 2048,
    'dtype': 'bfloat16',
    'batch.size': 32,
    'batch.micro_rows': 0,
  }
  found = {}
  mesh = make_mesh('v5e:2x2', fsdp=4)
  for name, field in (
    ('dots', {'remat': 'dots'}),
    ('offload', {'remat': 'offload'}),
    ('state', {'remat': 'dots', 'optim.state': 'host'}),
  ):
    memory = compile_step(mesh, {**fields, **field}).memory_analysis()
    found[name] = {
      'device': memory.temp_size_in_bytes,
      'host': memory.host_temp_size_in_bytes,
      'given': memory.argument_size_in_bytes,
      'given_host': memory.host_argument_size_in_bytes,
    }
  return found


def matmul(topology):
  """Milliseconds of a wide feed-forward layer on one chip, by `model.matmul`.

  Forward and all gradients of 16,384 tokens of width 4,096: by the compiler's
  cycles, those of them in fusions with products, and by the replay of `plan`;
  and the number of products whose sums are int32.
  """
  mesh = make_mesh(topology, data=-1)
  alone = jax.sharding.SingleDeviceSharding(mesh.devices.flat[0])
  slices = topologies_of.parse(topology)
  x = jax.ShapeDtypeStruct((1, 16384, 4096), jnp.bfloat16, sharding=alone)
  found = {}
  for text in ('plain', 'int8', "int8(gradients='inputs')"):
    layer = FeedForward(
      layers.FORMS['gelu_tanh'],
      16384,
      False,
      INITS['normal']()(1),
      jnp.bfloat16,
      spec.build('model.matmul', text, MATMULS),
    )

    def step(variables, x, dy, layer=layer):
      def forward(variables, x):
        return layer.apply(variables, x, rngs={'dropout': jax.random.key(0)})

      y, back = jax.vjp(forward, variables, x)
      return y, back(dy)

    variables = jax.tree.map(
      lambda p: jax.ShapeDtypeStruct(p.shape, p.dtype, sharding=alone),
      nn.meta.unbox(jax.eval_shape(layer.init, jax.random.key(0), x)),
    )
    compiled = jax.jit(step).lower(variables, x, x).compile()
    program = hlo.parse(compiled.as_text())
    one = Mesh(np.array([mesh.devices.flat[0]]), ('data',))
    events = schedule.read(program, (), one, slices, causal=True)
    replayed = schedule.step_time(events, compile_lib.rates(slices))
    found[text] = {
      'compiler': _milliseconds(program, slices.chip.clock, products=False),
      'products': _milliseconds(program, slices.chip.clock, products=True),
      'replay': 1e3 * replayed.step,
      'sums in int32': sum(
        op_costs.dimensions(s) is not None and s.instruction.shapes[0].dtype == 's32'
        for s in program.steps
      ),
    }
  return found


def _milliseconds(program, clock, *, products):
  """By the cycles that the compiler estimates: of all, or of products."""

  def multiplies(x):
    if x.opcode != 'fusion':
      return x.opcode in ('dot', 'convolution')
    inside = program.called(x, 'calls').instructions.values()
    return any(map(multiplies, inside))

  cycles = 0
  for x in program.entry.instructions.values():
    found = re.search(r'"estimated_cycles":"(\d+)"', x.attributes)
    if found and (multiplies(x) or not products):
      cycles += int(found[1])
  return 1e3 * cycles / clock


def switch(topology):
  """Kernels and collectives of a step whose second layer has experts."""
  fields = {
    'vocab_size': 512,
    'context_length': 128,
    'num_layers': 2,
    'd_model': 384,
    'num_heads': 4,
    'num_kv_heads': 4,
    'head_size': 64,
    'd_ff': 640,
    'attention_backend': 'reference',
    'dtype': 'bfloat16',
    'batch.size': 16,
    'batch.micro_rows': 16,
  }
  # Experts over half of the devices, their width over two.
  mesh = make_mesh(topology, expert=-1, tensor=2)
  opcodes = 'all-to-all', 'ragged-all-to-all'
  found = {}
  for name, ffn in (
    ('capacity', "gelu, switch(num_experts=8, expert='swiglu')"),
    ('dropless', "gelu, switch(num_experts=8, capacity_factor='none', top_k=2)"),
  ):
    text = compile_step(mesh, {**fields, 'ffn': ffn}).as_text()
    found[name] = [num_kernels(text), *(text.count(f' {opcode}(') for opcode in opcodes)]
  return found


# A flag that the compiler does not have, to see that it refuses such.
NO_FLAG = 'xla_tpu_enable_what_there_is_not'


def flags():
  """Of each generation: which of its flags, and `NO_FLAG`, are refused."""
  refused = {}
  for chip in ('v4', 'v5e', 'v5p', 'v6e'):
    topology = f'{chip}:2x2x2' if chip in ('v4', 'v5p') else f'{chip}:2x2'
    slice_ = topologies.get_topology_desc(platform='tpu', topology_name=topology)
    mesh = Mesh(np.array(slice_.devices).reshape(-1), ('fsdp',))
    rows = NamedSharding(mesh, PartitionSpec('fsdp'))
    # The product gathers a weight.
    x = jax.ShapeDtypeStruct((8 * mesh.size, 512), jnp.bfloat16, sharding=rows)
    w = jax.ShapeDtypeStruct((512, 512), jnp.bfloat16, sharding=rows)
    lowered = jax.jit(jnp.matmul, out_shardings=rows).lower(x, w)
    refused[chip] = []
    for name, value in (FLAGS[chip] | {NO_FLAG: 'true'}).items():
      try:
        lowered.compile(compiler_options={name: value})
      except jax.errors.JaxRuntimeError:
        refused[chip].append(name)
    lowered.compile(compiler_options=dict(FLAGS[chip]))
  return refused


def meshes(overrides):
  """What `plan` says of `tiny` on eight chips with each of the overrides."""
  said = []
  for changes in json.loads(overrides):
    try:
      config = config_lib.resolve(tiny.config(**changes))
      compile_lib.build(config, topologies_of.parse('v5e:2x4'))
      said.append('')
    except spec.UsageError as e:
      said.append(str(e))
  return said


def ejected(topology, name):
  """Bytes of arguments and of temporaries of an ejected file's step, whole, on one chip."""
  config = config_lib.resolve(loading.read(name))
  config = config.copy_and_resolve_references().unlock()
  config.model.num_layers = 2 * len(build.ModelChoices.of(config.model).decoder)
  if config.model.num_encoder_layers:
    config.model.num_encoder_layers = config.model.num_layers
  step, args = ejected_lib.step_of(config_lib.resolve(config.lock()))
  here = jax.sharding.SingleDeviceSharding(make_mesh(topology, data=-1).devices.flat[0])
  args = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here), args)
  memory = step.lower(*args).compile().memory_analysis()
  return {'arguments': memory.argument_size_in_bytes, 'temporaries': memory.temp_size_in_bytes}


PROGRAMS = {
  'attention': attention,
  'context': context,
  'exact': exact,
  'ejected': ejected,
  'flags': flags,
  'flash': flash,
  'layout': layout,
  'matmul': matmul,
  'meshes': meshes,
  'micro_batches': micro_batches,
  'offload': offload,
  'replay': replay,
  'switch': switch,
}


if __name__ == '__main__':
  name, *args = sys.argv[1:]
  json.dump(PROGRAMS[name](*args), sys.stdout)
