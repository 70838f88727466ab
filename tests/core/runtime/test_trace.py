# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Traces written by hand, as TPUs and CPUs make them."""

import pytest
from jax.profiler import ProfileData

from gpt_jax.reports import profiling


def line(name, *events, more=''):
  """Events are (number of a name, start, end), in nanoseconds."""
  text = ''.join(
    f'events {{ metadata_id: {i} offset_ps: {start * 1000} '
    f'duration_ps: {(end - start) * 1000} {more} }}\n'
    for i, start, end in events
  )
  return f'lines {{ name: "{name}" timestamp_ns: 7 {text} }}\n'


def plane(name, names, *lines):
  known = ''.join(
    f'event_metadata {{ key: {i} value {{ id: {i} name: "{n}" }} }}\n'
    for i, n in enumerate(names, start=1)
  )
  stats = ''.join(
    f'stat_metadata {{ key: {i} value {{ id: {i} name: "{n}" }} }}\n'
    for i, n in enumerate(('hlo_op', 'device_ordinal'), start=1)
  )
  return f'planes {{ name: "{name}" {known} {stats} {"".join(lines)} }}\n'


NAMES = ('%while.3 = (f32[2]) while(%tuple)', '%fusion.5 = f32[2] fusion(%p)')
NAMES += ('%all-gather-start.2 = f32[4] ...', '%all-gather-done.2 = f32[4] ...')
# A loop of two rounds, in which the gather is begun, and waited for.
OPS = ((1, 0, 110), (3, 3, 5), (2, 5, 34), (4, 34, 47), (2, 53, 90))


def test_of_tpus():
  chips = [
    plane(
      f'/device:TPU:{i}',
      NAMES,
      line('Steps', (2, 0, 1000)),
      line('XLA Ops', *OPS, (2, 131, 131 + 13 * i)),
    )
    for i in (0, 1)
  ]
  host = plane('/host:CPU', ['fusion.5'], line('t', (1, 0, 9)))
  found = profiling.read(ProfileData.from_text_proto(''.join([host, *chips])))
  assert found.devices == 2
  assert [(op.name, op.kind, op.calls) for op in found.ops] == [
    ('fusion.5', 'compute', 6),
    ('all-gather-done.2', 'wait', 2),
    ('all-gather-start.2', 'collective', 2),
  ]
  seconds = [op.seconds * 1e9 for op in found.ops]
  assert seconds == pytest.approx([2 * (29 + 37) + 13, 26, 4])
  # From the end of the loop to the last operation, on each.
  assert found.idle * 1e9 == pytest.approx(2 * 21)


@pytest.mark.parametrize('name', ['psum.43', 'ragged_all_to_all.166'])
def test_collectives_that_jax_names(name):
  assert profiling.kind(name) == 'collective'


def test_of_a_cpu():
  """Its devices share a plane, and their threads are lines.

  Where libtpu is installed it adds a plane of no device.
  """

  def of(device):
    return (
      'stats { metadata_id: 1 str_value: "dot.2" } '
      f'stats {{ metadata_id: 2 int64_value: {device} }}'
    )

  text = plane(
    '/host:CPU',
    ['dot.2', 'ThunkExecutor::Execute', 'all-reduce.7'],
    line('one', (1, 0, 11), (3, 11, 17), more=of(0)),
    line('two', (1, 5, 36), more=of(1)),
    line('two', (2, 0, 99)),
    line('three', (1, 19, 23), more=of(0)),
  )
  text += plane('/device:CUSTOM:Megascale Trace', [])
  found = profiling.read(ProfileData.from_text_proto(text))
  assert found.devices == 2 and found.idle * 1e9 == pytest.approx(2)
  assert [op[:3] for op in found.ops] == [
    ('dot.2', 'compute', 3),
    ('all-reduce.7', 'collective', 1),
  ]
  seconds = [op.seconds * 1e9 for op in found.ops]
  assert seconds == pytest.approx([46, 6])


def test_sources():
  text = (
    'ENTRY %main (p: f32[2]) -> f32[2] {\n'
    '  %p = f32[2] parameter(0)\n'
    '  %copy-done.1 = f32[2] copy-done(%c)\n'
    '  ROOT %dot.4 = f32[2] dot(%p, %p), lhs={0}, '
    'metadata={op_name="jit(f)/ffn/dot" source_file="x.py"}\n'
  )
  assert profiling.trace_sources(text) == {'dot.4': 'jit(f)/ffn/dot'}


def test_a_trace_is_taken_out_of_any_folder(tmp_path):
  """The temporary folder may be called like a pattern of names."""
  folder = tmp_path / 'tmp[1]'
  stored = folder / 'plugins/profile/2026_01_01'
  stored.mkdir(parents=True)
  (stored / 'host.xplane.pb').write_bytes(b'trace')
  path = profiling._keep(str(folder), str(tmp_path / 'run[1]/profile'))
  assert path == str(tmp_path / 'run[1]/profile/plugins/profile/2026_01_01/host.xplane.pb')
  with open(path, 'rb') as file:
    assert file.read() == b'trace'


def test_parts_add_up_over_layers_and_passes():
  sources = {
    'a': 'jit(train_step)/jvp(Transformer)/while/body/block_0/attention/query/'
    'BLD,DHK->BLHK/dot_general',
    'b': 'jit(train_step)/transpose(jvp(Transformer))/while/body/checkpoint/'
    'rematted_computation/block_1/attention/query/dot_general',
    'c': 'jit(train_step)/jvp(Transformer)/periods/block_0/block_0._add/ffn_norm/reduce_sum',
    'd': 'jit(train_step)/div',
  }
  seconds = {'a': 1.0, 'b': 2.0, 'c': 4.0, 'd': 8.0, 'unknown': 16.0}
  ops = [profiling.Op(name, 'compute', 1, spent) for name, spent in seconds.items()]
  ops.append(profiling.Op('all-gather-done', 'wait', 1, 32.0))
  found = profiling.by_part(profiling.Trace(ops, 1, 0.0), sources)
  assert [*found.items()] == [
    ('outside of modules', 24.0),
    ('ffn_norm', 4.0),
    ('attention/query', 3.0),
  ]
