# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Published runs, and what `plan` estimates for the same shapes.

  python -m tests.support.published 'MaxText 16B'   compiles it (minutes)
  python -m tests.support.published --table     prints the table of the docs

`tests/planning/published.json` has the schedule of each compiled program,
without what takes less than a ten-thousandth of the step. The programs are
ours, of the published sizes, batch and mesh; rematerialisation is the nearest
that we have. MFU counts attention whole, as PaLM does. Points without a
schedule there were not compiled yet.

They are in three groups: `fitted`, on which trials suggested the 90% of the
peak that a product reaches (`schedule.BUSY`); `seen`, which were known while
the replay was written; and `apart`, written down here before any of them was
compiled.
"""

import json
import math
import pathlib
import sys
from collections.abc import Iterable
from typing import Any, NamedTuple

from gpt_jax.core.costs import topologies
from gpt_jax.planning import collectives, hlo, report, schedule
from gpt_jax.planning import compile as compile_lib
from gpt_jax.planning.op_costs import Work
from gpt_jax.planning.schedule import Fetch, Loop, Send, Wait

ROOT = pathlib.Path(__file__).resolve().parents[2]
FILE = ROOT / 'tests/planning/published.json'
BEGIN = '<!-- table: python -m tests.support.published --table -->\n'
LEAST = 1e-4


class Point(NamedTuple):
  """A published run.

  Attributes:
    topology: of a slice.
    slices: number of them.
    config: of `configs/`.
    overrides: of its fields.
    mfu: published, or from the published time of a step.
    source: who published it, and what differs here.
    group: `fitted`, `seen` or `apart`.
  """

  topology: str
  slices: int
  config: str
  overrides: dict[str, Any]
  mfu: float
  source: str
  group: str = 'seen'


def llama(
  layers: int,
  width: int,
  inner: int,
  heads: int,
  kv_heads: int,
  *,
  rows: int,
  length: int = 2048,
  remat: str = 'full',
  vocabulary: int = 32_000,
  head_size: int = 128,
  **mesh: int,
) -> dict[str, Any]:
  """A decoder of LLaMA's kind, all rows at once."""
  return {
    'model.num_layers': layers,
    'model.d_model': width,
    'model.d_ff': inner,
    'model.num_heads': heads,
    'model.num_kv_heads': kv_heads,
    'model.head_size': head_size,
    'model.vocab_size': vocabulary,
    'model.context_length': length,
    'model.remat': remat,
    'batch.size': rows,
    'batch.micro_rows': 0,
    'schedule.num_steps': 10_000,
    **{f'mesh.{axis}': number for axis, number in mesh.items()},
  }


_LLAMA = 'configs/llama.py:7b'
POINTS = {
  'PaLM 540B': Point(
    'v4:12x16x16',
    2,
    'configs/palm.py:540b',
    {
      'model.attention_backend': 'reference',
      'model.remat': 'full',
      'mesh.data': 2,
      'mesh.fsdp': 256,
      'mesh.tensor': 12,
      'batch.micro_rows': 0,
    },
    0.462,
    'PaLM, table 3; attention in plain XLA, as they had no kernel for it',
    'fitted',
  ),
  'MaxText 16B': Point(
    'v5e:16x16',
    1,
    _LLAMA,
    llama(32, 4096, 28_672, 64, 64, rows=1536, fsdp=256),
    0.611,
    'MaxText, 2023',
    'fitted',
  ),
  'MaxText 32B, v5e': Point(
    'v5e:16x16',
    1,
    _LLAMA,
    llama(32, 8192, 28_672, 64, 64, rows=1024, fsdp=256),
    0.669,
    'MaxText, 2023',
    'fitted',
  ),
  'MaxText 22B': Point(
    'v4:4x4x4',
    1,
    _LLAMA,
    llama(48, 6144, 24_576, 24, 24, rows=832, head_size=256, fsdp=64),
    0.567,
    'MaxText, 2023',
  ),
  'MaxText 32B': Point(
    'v5p:4x4x4',
    1,
    _LLAMA,
    llama(32, 8192, 28_672, 64, 64, rows=384, remat='dots', fsdp=16, tensor=4),
    0.715,
    'MaxText, 2023; 7 rows a chip, here 6',
    'fitted',
  ),
  'Llama 2 70B': Point(
    'v5p:4x8x8',
    1,
    _LLAMA,
    llama(80, 8192, 28_672, 64, 8, rows=256, length=4096, remat='dots', fsdp=256),
    0.654,
    'MaxText, 2024; recomputes a little more, of 4 rows a chip; here 1',
  ),
  'Llama 3.1 8B': Point(
    'v6e:16x16',
    1,
    _LLAMA,
    llama(32, 4096, 14_336, 32, 8, rows=1024, length=8192, vocabulary=128_256, fsdp=256),
    0.45,
    'MaxText, 2025; keeps attention in host memory, here recomputed',
  ),
  'Llama 3.1 70B': Point(
    'v6e:16x16',
    1,
    _LLAMA,
    llama(80, 8192, 28_672, 64, 8, rows=1024, length=8192, vocabulary=128_256, fsdp=256),
    0.497,
    'tpu-recipes, 2025: 34.562 s a step; keeps inputs of layers, queries, keys '
    'and values in host memory, here recomputed',
    'apart',
  ),
  'Llama 3.1 405B': Point(
    'v6e:16x16',
    2,
    _LLAMA,
    llama(126, 16_384, 53_248, 128, 8, rows=512, length=8192, vocabulary=128_256, data=2, fsdp=256),
    0.428,
    'tpu-recipes, 2025: 54.803 s a step; fsdp over both slices, and inputs of '
    'layers in host memory',
    'apart',
  ),
  'Llama 2 70B, v6e': Point(
    'v6e:16x16',
    1,
    _LLAMA,
    llama(80, 8192, 28_672, 64, 8, rows=1024, length=4096, fsdp=256),
    0.457,
    'tpu-recipes, 2024: 17.373 s a step',
    'apart',
  ),
  'Mistral 7B': Point(
    'v6e:2x4',
    1,
    _LLAMA,
    llama(32, 4096, 14_336, 32, 8, rows=48, length=8192, fsdp=8) | {'batch.micro_rows': 3},
    0.471,
    'tpu-recipes, 2025: 6.320 s a step; keeps attention in host memory, here '
    'recomputed; 6 rows a chip, here 3 at a time, as 6 need 35.6 GiB',
    'apart',
  ),
  'Llama 3.1 8B, v6e-8': Point(
    'v6e:2x4',
    1,
    _LLAMA,
    llama(32, 4096, 14_336, 32, 8, rows=24, length=8192, vocabulary=128_256, fsdp=8),
    0.45,
    'tpu-recipes, 2025: 3.443 s a step; keeps attention in host memory, here recomputed',
    'apart',
  ),
  'MaxText 64B, v5e': Point(
    'v5e:16x16',
    1,
    _LLAMA,
    llama(64, 8192, 28_672, 64, 64, rows=512, fsdp=256),
    0.599,
    'MaxText, 2023',
    'apart',
  ),
  'MaxText 64B': Point(
    'v5p:4x4x4',
    1,
    _LLAMA,
    llama(64, 8192, 28_672, 64, 64, rows=192, remat='dots', fsdp=16, tensor=4),
    0.703,
    'MaxText, 2024',
    'apart',
  ),
  'MaxText 128B': Point(
    'v5p:4x4x8',
    1,
    _LLAMA,
    llama(64, 8192, 57_344, 128, 128, rows=128, remat='dots', fsdp=16, tensor=8),
    0.687,
    'MaxText, 2024',
    'apart',
  ),
}


def record(name: str) -> None:
  """Compiles a point, and writes its schedule down."""
  compile_lib.use_cpu()
  point = POINTS[name]
  slices = topologies.parse(point.topology, point.slices)
  config = report.load_config(ROOT, point.config, point.overrides)
  parts = compile_lib.build(config, slices)
  program = compile_lib.compile_stage(parts, slices, parts.shapes()[-1])
  write(name, program, slices)


def write(name: str, program: compile_lib.CompiledStage, slices: topologies.Slices) -> None:
  """Writes the schedule of a point's program down."""
  parts = program.parts
  text = hlo.parse(program.compiled.call.as_text())
  sent = collectives.read(text, parts.mesh)
  events = schedule.read(text, sent, parts.mesh, slices, causal=True)
  stage = compile_lib.measure(program, slices)
  found = json.loads(FILE.read_text()) if FILE.exists() else {}
  found[name] = {'model_flops': stage.flops.model, 'events': to_json(shorten(events, slices))}
  lines = (f'{json.dumps(key)}: {json.dumps(x)}' for key, x in found.items())
  FILE.write_text('{\n' + ',\n'.join(lines) + '\n}\n')


def to_json(events: Iterable[schedule.Event], digits: int = 3) -> list:
  """As lists of a name and its fields, to write down; numbers are rounded."""
  return [
    [
      type(x).__name__,
      *(
        to_json(y, digits)
        if isinstance(y, tuple)
        else float(f'{y:.{digits}g}')
        if isinstance(y, float)
        else y
        for y in x
      ),
    ]
    for x in events
  ]


def from_json(lists: list) -> tuple[schedule.Event, ...]:
  """What `to_json` wrote."""
  kinds: dict[str, Any] = {kind.__name__: kind for kind in (Work, Fetch, Send, Wait, Loop)}
  return tuple(
    kinds[name](*(from_json(y) if isinstance(y, list) else y for y in fields))
    for name, *fields in lists
  )


def shorten(
  events: tuple[schedule.Event, ...], slices: topologies.Slices
) -> tuple[schedule.Event, ...]:
  """Without what takes less than `LEAST` of the step."""
  rates = compile_lib.rates(slices)
  least = LEAST * schedule.step_time(events, rates).step

  def takes(x: schedule.Event) -> float:
    waits = [schedule.Wait(x.key)] if hasattr(x, 'key') else []
    return schedule.step_time([x, *waits], rates).step

  def of(events: Any, trips: float) -> tuple[schedule.Event, ...]:
    kept = []
    for x in events:
      if isinstance(x, schedule.Loop):
        kept.append(x._replace(events=of(x.events, trips * x.trips)))
      elif isinstance(x, schedule.Wait) or trips * takes(x) >= least:
        kept.append(x)
    started = {x.key for x in kept if isinstance(x, schedule.Fetch | schedule.Send)}
    short = {key: str(number) for number, key in enumerate(sorted(started))}
    return tuple(
      x._replace(key=short[x.key]) if hasattr(x, 'key') else x
      for x in kept
      if not isinstance(x, schedule.Wait) or x.key in started
    )

  return of(events, 1)


def share_of_products(name: str) -> float:
  """The share of a point's estimated step that matrix units take."""
  slices = topologies.parse(POINTS[name].topology, POINTS[name].slices)
  events = from_json(json.loads(FILE.read_text())[name]['events'])
  found = schedule.step_time(events, compile_lib.rates(slices))
  return found.products / found.step


def errors() -> dict[str, tuple[float, float]]:
  """Of each point the estimated MFU, and by how much it is off."""
  found = {}
  for name, x in json.loads(FILE.read_text()).items():
    slices = topologies.parse(POINTS[name].topology, POINTS[name].slices)
    events = from_json(x['events'])
    seconds = schedule.step_time(events, compile_lib.rates(slices)).step
    mfu = x['model_flops'] / (seconds * slices.devices * slices.peak)
    found[name] = (mfu, mfu / POINTS[name].mfu - 1)
  return found


def left_out(found: dict[str, tuple[float, float]]) -> dict[str, float]:
  """Errors after scaling by the factor that fits the other points best."""
  logs = {name: math.log1p(off) for name, (_, off) in found.items()}
  total = sum(logs.values())
  return {name: math.expm1(x - (total - x) / (len(logs) - 1)) for name, x in logs.items()}


def markdown() -> str:
  """The table, with the mean of the errors' sizes and the worst by group."""
  lines = [
    '| run | group | slices | published MFU | estimated | off by | source |',
    '|---|---|---|---|---|---|---|',
  ]
  found = errors()
  for name in [*found, *(name for name in POINTS if name not in found)]:
    point = POINTS[name]
    slices = topologies.parse(point.topology, point.slices)
    estimated = 'not compiled yet | '
    if name in found:
      estimated = '{:.1%} | {:+.0%}'.format(*found[name])
    lines.append(
      f'| {name} | {point.group} | {slices} | {point.mfu:.1%} | {estimated} | {point.source} |'
    )
  offs = {name: off for name, (_, off) in found.items()}
  groups = {
    f'{group} ({len(members)})': [offs[name] for name in members]
    for group in ('fitted', 'seen', 'apart')
    if (members := [name for name in offs if POINTS[name].group == group])
  }
  groups['all'] = [*offs.values()]
  groups['each scaled by what fits the others'] = [*left_out(found).values()]
  said = []
  for group, of in groups.items():
    sizes = [abs(off) for off in of]
    mean = sum(sizes) / len(sizes)
    said.append(f'{group}: {mean:.0%}, worst {max(sizes):.0%}')
  return '\n'.join([*lines, '', f'Mean errors: {"; ".join(said)}.'])


if __name__ == '__main__':
  if sys.argv[1:] == ['--table']:
    print(markdown())
  else:
    for name in sys.argv[1:] or POINTS:
      record(name)
