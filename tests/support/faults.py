# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""The ledger of faults: what was killed or damaged, and how each one ended.

  python -m tests.support.faults     # prints the ledger as a table

`crash` and `damage` append a line for each fault, and choose the kind of run
that is furthest behind its share in the whole ledger: sittings add up. Each line
of `faults.jsonl` is

  what     'kill' or 'damage'
  kind     of run
  at       the phase and the signal, or what was done to which file
  outcome  'same bits', 'older checkpoint', 'named' (one line names the file),
           or 'failed'
  seed     of the sitting
  commit   of the code
  why      of what failed
  mended   for what failed: how it was mended, added by hand
"""

import collections
import json
import pathlib
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

PATH = pathlib.Path(__file__).with_name('faults.jsonl')
OUTCOMES = ('same bits', 'older checkpoint', 'named', 'failed')


class Ledger(NamedTuple):
  """The faults of one kit.

  Attributes:
    path: of the file; need not exist.
    what: 'kill' or 'damage'.
    seed: of this sitting.
    commit: of the code.
  """

  path: pathlib.Path
  what: str
  seed: int
  commit: str

  def add(self, kind: str, at: str, outcome: str, why: str = '') -> None:
    """Appends one fault."""
    assert outcome in OUTCOMES
    row: dict[str, Any] = dict(what=self.what, kind=kind, at=at, outcome=outcome)
    row |= dict(seed=self.seed, commit=self.commit)
    row |= {'why': why[:300]} if why else {}
    with self.path.open('a', encoding='utf-8') as file:
      file.write(json.dumps(row) + '\n')

  def furthest_behind(self, shares: Mapping[str, float]) -> str:
    """The kind of run with the fewest faults for its share of them."""
    had = collections.Counter(row['kind'] for row in read(self.path) if row['what'] == self.what)
    return min(shares, key=lambda kind: had[kind] / shares[kind])


def open_ledger(path: str, what: str, seed: int | None) -> Ledger:
  """A ledger for one sitting; without a seed it takes the next one."""
  had = (row['seed'] for row in read(pathlib.Path(path)) if row['what'] == what)
  commit = subprocess.run(
    ['git', 'rev-parse', '--short=8', 'HEAD'],
    cwd=PATH.parent,
    capture_output=True,
    text=True,
    check=True,
  ).stdout.strip()
  return Ledger(pathlib.Path(path), what, max(had, default=0) + 1 if seed is None else seed, commit)


def read(path: pathlib.Path) -> list[dict[str, Any]]:
  """The faults in a ledger."""
  if not path.exists():
    return []
  return [json.loads(line) for line in path.read_text(encoding='utf-8').splitlines()]


def tally(rows: list[dict[str, Any]]) -> str:
  """A Markdown table: a row for each kit and kind of run."""
  counts: dict[tuple[str, str], collections.Counter[str]] = {}
  for row in rows:
    for kind in row['kind'], 'all':
      of_kind = counts.setdefault((row['what'], kind), collections.Counter())
      mended = row['outcome'] == 'failed' and 'mended' in row
      of_kind['mended' if mended else row['outcome']] += 1
  columns = [*OUTCOMES, 'mended']
  lines = [['', 'run', *columns, 'all'], ['---'] * (len(columns) + 3)]
  order = sorted(counts, key=lambda key: (key[0] == 'damage', key[1] == 'all', key[1]))
  for key in order:
    cells = [counts[key][x] for x in columns]
    lines.append([*key, *map(str, cells), str(sum(cells))])
  return ''.join(f'| {" | ".join(line)} |\n' for line in lines)


if __name__ == '__main__':
  sys.stdout.write(tally(read(PATH)))
