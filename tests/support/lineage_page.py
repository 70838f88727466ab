# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Writes docs/lineage.md and its pictures: the papers as differences of their ejected files.

python -m tests.support.lineage_page
"""

import difflib
import functools
import json
import pathlib
from typing import Any, NamedTuple

from gpt_jax.core import config as config_lib
from gpt_jax.core.config import loading
from gpt_jax.core.costs import totals
from gpt_jax.ejecting import file, parts, program
from tests.support import lineage_losses

DOCS = pathlib.Path(__file__).parents[2] / 'docs'
MARK = '<!-- page: python -m tests.support.lineage_page -->'
MOST = 20  # changed lines that are shown


class Paper(NamedTuple):
  """A paper of the lineage.

  Attributes:
    ancestor: the key of the paper that it changes; '': none.
    claim: what it said, in a sentence.
  """

  name: str
  year: int
  config: str
  ancestor: str
  claim: str


PAPERS = {
  'transformer': Paper(
    'Transformer',
    2017,
    'transformer.py:base',
    '',
    'Attention alone, without recurrence, translates better and trains in a fraction of the time.',
  ),
  'gpt1': Paper(
    'GPT-1',
    2018,
    'gpt1.py:117m',
    'transformer',
    'A decoder that was trained to predict the next token of books needs few labels for a task.',
  ),
  'bert': Paper(
    'BERT',
    2018,
    'bert.py:base',
    'gpt1',
    'Tokens that see both sides, trained by filling masks, understand more.',
  ),
  'gpt2': Paper(
    'GPT-2',
    2019,
    'gpt2.py:small',
    'gpt1',
    'A larger model of web pages does tasks that nobody trained it for.',
  ),
  't5': Paper(
    'T5',
    2019,
    't5.py:v1.1-base',
    'transformer',
    'Every task is text to text; of all objectives, spans left out of a text train best.',
  ),
  'gpt3': Paper(
    'GPT-3',
    2020,
    'gpt3.py:125m',
    'gpt2',
    'At 175B parameters a few examples in the prompt take the place of fine-tuning.',
  ),
  'switch': Paper(
    'Switch',
    2021,
    'switch.py:base-8',
    'gpt2',
    'One expert for each token gives many times the parameters at the same FLOPs.',
  ),
  'gopher': Paper(
    'Gopher',
    2021,
    'gopher.py:44m',
    'gpt3',
    'Scale helps reading and knowledge most, and reasoning least.',
  ),
  'chinchilla': Paper(
    'Chinchilla',
    2022,
    'chinchilla.py:70b',
    'gopher',
    'Twenty tokens for each parameter: a quarter of the size, four times the text.',
  ),
  'palm': Paper(
    'PaLM',
    2022,
    'palm.py:8b',
    'gpt3',
    'Abilities appear at 540B parameters that smaller models do not show.',
  ),
  'llama': Paper(
    'LLaMA',
    2023,
    'llama.py:7b',
    'gpt3',
    'Public text, and more of it than is optimal for training, make small models as good as large.',
  ),
  'llama3': Paper(
    'LLaMA 3',
    2024,
    'llama3.py:8b',
    'llama',
    'The same model, with 15T tokens, longer rows and fewer heads of keys.',
  ),
}
# The parts of a file that are compared, in the order of the page: not the constants, the initial
# weights, the data and the loop.
COMPARED = (
  'blocks',
  'decoder',
  'encoder',
  'encoder_decoder',
  'attention',
  'positions',
  'feed_forward',
  'switch',
  'norms',
  'layers',
  'losses',
  'optimizers',
)


@functools.cache
def config_of(name: str) -> config_lib.Config:
  """The resolved config of a file in configs/."""
  return config_lib.resolve(loading.read(f'configs/{name}'))


@functools.cache
def code(name: str) -> tuple[str, ...]:
  """The compared lines of a config's file, without blank lines."""
  # Without dropout, whose keys would be in many lines.
  config = config_lib.unlocked(config_of(name))
  config.model.dropout = 'none'
  recipe = parts.of(config.lock())
  found = program.of(recipe.parts, recipe.constants)
  titles = [program.module(module).title for module in COMPARED]
  texts = [text for title in titles for text in found.sections.get(title, ())]
  return tuple(x for x in file.formatted('\n\n\n'.join(texts)).split('\n') if x.strip())


def changed(old: str, new: str) -> list[str]:
  """The changed lines, of one config's file to another's."""
  lines = difflib.unified_diff(code(old), code(new), n=0, lineterm='')
  return [line for line in lines if not line.startswith(('---', '+++', '@@'))]


def costs(name: str) -> tuple[int, int, int]:
  """Parameters, FLOPs of a trained token, and bytes of a token in the cache in bfloat16."""
  config = config_of(name)
  figures, model = totals.figures_of(config)[1], config.model
  cache = 2 * 2 * model.num_layers * model.num_kv_heads * model.head_size
  return figures['parameters'], figures['flops_per_token'], cache


INTRODUCTION = """
From the Transformer to LLaMA 3 each paper changed some lines of the one before. Here is what it
changed in the file that `gpt-jax eject` writes for its config, against the file of its ancestor: in
the blocks, the layers, the loss and the optimizer, at most twenty changed lines, without dropout.
Sizes and data differ too: [the configs](configs.md) have them. To have a whole file:

```
gpt-jax eject --config configs/gpt2.py:small --out gpt2.py
```

![The family tree of the papers](lineage.svg)

Parameters and FLOPs of a token in training are those of `gpt-jax inspect`. The cache is what a
decoder keeps of each token that it has read, keys and values in bfloat16.
"""


def page() -> str:
  """The text of the page."""
  out = ['# The lineage, paper by paper', MARK, INTRODUCTION.strip(), _table(), *losses()]
  out += [text for key in PAPERS for text in step(key)]
  return '\n\n'.join(out) + '\n'


def step(key: str) -> list[str]:
  """The section of a paper."""
  paper = PAPERS[key]
  out = [f'## {paper.name} ({paper.year})', paper.claim]
  if not paper.ancestor:
    return [*out, f'`configs/{paper.config}`: where it begins, {len(code(paper.config))} lines.']
  before = PAPERS[paper.ancestor].config
  found = changed(before, paper.config)
  first = f', of which the first {MOST}' if len(found) > MOST else ''
  out.append(f'`configs/{paper.config}` against `configs/{before}`: {len(found)} lines{first}:')
  return [*out, '\n'.join(['```diff', *found[:MOST], '```'])]


def measured() -> dict[str, Any]:
  """What `lineage_losses` wrote."""
  return json.loads(lineage_losses.RESULTS.read_text(encoding='utf-8'))


def losses() -> list[str]:
  """The section of the decoders' losses at equal tokens."""
  results = measured()
  rows = ['| paper | parameters outside the tables | loss of the last tenth |', '|---|---|---|']
  for key, found in results['models'].items():
    last = sum(found['losses'][-2:]) / 2
    rows.append(f'| {PAPERS[key].name} | {found["parameters"]:,} | {last:.2f} |')
  steps, tokens = lineage_losses.STEPS, results['tokens'] * len(found['losses'])
  caption = f"""
These are the decoders at one small size, {lineage_losses.WIDTH} wide and of four layers, on the
same {tokens:,} tokens of the Python standard library in the same order, none of them twice: the
files that `gpt-jax eject` writes, each with its paper's norms, positions, attention, feed-forward
layers, initial weights and ratios of sizes. What the papers chose by size is equal instead: AdamW,
a learning rate of 2e-3 that was not tuned for any of them, {steps} steps of {lineage_losses.ROWS}
rows of {lineage_losses.LENGTH} tokens, no dropout. So the picture compares how they begin, not what
they become at their own sizes; and one run of each does not tell differences of a few hundredths.
Parameters differ as in the papers: Switch has the most, of which a token takes a part. Chinchilla
is Gopher at another size; BERT, T5 and the Transformer learn from other rows. All are trained by
`python -m tests.support.lineage_losses`, which writes [every loss](lineage_losses.json).
"""
  title = '## Losses at equal tokens'
  picture = '![Loss of each decoder against tokens](lineage_losses.svg)'
  return [title, picture, caption.strip(), '\n'.join(rows)]


COLORS = ('#1b9e77', '#d95f02', '#7570b3', '#e7298a', '#66a61e', '#b8860b', '#1f78b4', '#444444')


def curves() -> str:
  """The losses as SVG: tokens to the right, nats per token upwards, a line to each paper."""
  results = measured()
  models = results['models']
  number = len(next(iter(models.values()))['losses'])
  flat = [x for found in models.values() for x in found['losses']]
  low, high = int(min(flat) * 2) / 2, -int(-max(flat) * 2 // 1) / 2
  left, right, top, bottom = 50, 760, 20, 360

  def x_of(point: float) -> float:
    return round(left + (right - left) * point / number, 1)

  def y_of(loss: float) -> float:
    return round(bottom - (bottom - top) * (loss - low) / (high - low), 1)

  out = [
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 880 410" font-family="sans-serif">',
    '<rect width="880" height="410" fill="#ffffff"/>',
  ]
  for i in range(int((high - low) * 2) + 1):
    y = y_of(low + i / 2)
    out += [
      f'<path d="M{left} {y}H{right}" stroke="#dddddd"/>',
      f'<text x="{left - 8}" y="{y + 4}" text-anchor="end" font-size="12">{low + i / 2:g}</text>',
    ]
  for i in range(0, number + 1, number // 4):
    label = f'{results["tokens"] * i / 1000:,.0f} K'
    out.append(
      f'<text x="{x_of(i)}" y="{bottom + 20}" text-anchor="middle" font-size="12">{label}</text>'
    )
  out.append(
    f'<text x="{(left + right) // 2}" y="{bottom + 42}" text-anchor="middle" font-size="13">'
    'tokens; the loss is in nats a token</text>'
  )
  # Names stand at the ends of their lines, and apart.
  ends = sorted(models, key=lambda key: models[key]['losses'][-1])
  place = dict(zip(ends, _apart([y_of(models[key]['losses'][-1]) for key in ends]), strict=True))
  for (key, found), color in zip(models.items(), COLORS, strict=False):
    # Each is the mean of the steps before it, and stands in their middle.
    points = ' '.join(f'{x_of(i + 0.5)},{y_of(x)}' for i, x in enumerate(found['losses']))
    out += [
      f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>',
      f'<text x="{right + 8}" y="{place[key] + 4}" font-size="13" fill="{color}">'
      f'{PAPERS[key].name}</text>',
    ]
  return '\n'.join([*out, '</svg>']) + '\n'


def _apart(heights: list[float]) -> list[float]:
  """Falling heights in pixels, moved up where they are less than a line of text apart."""
  out: list[float] = []
  for height in heights:
    out.append(min(height, out[-1] - 15) if out else height)
  return out


def _table() -> str:
  names = ('paper', 'config', 'parameters', 'FLOPs a token', 'bytes a token in the cache')
  rows = [f'| {" | ".join(names)} |', '|---' * len(names) + '|']
  for paper in PAPERS.values():
    number, flops, cache = costs(paper.config)
    kept = '' if paper.name == 'BERT' else f'{cache:,}'
    rows.append(f'| {paper.name} | `{paper.config}` | {number:,} | {flops:,} | {kept} |')
  return '\n'.join(rows)


def picture() -> str:
  """The family tree, as SVG: years from left to right, a line to each paper from its ancestor."""
  rows = dict.fromkeys(PAPERS, 2)
  rows |= {'bert': 0, 'switch': 3, 'gopher': 1, 'chinchilla': 1, 'palm': 3, 't5': 4}
  columns = {'transformer': 0, 'gpt1': 1, 'bert': 2, 'gpt2': 2, 't5': 2, 'gpt3': 3, 'switch': 3}
  columns |= {'gopher': 4, 'chinchilla': 5, 'palm': 5, 'llama': 6, 'llama3': 7}
  at = {key: (20 + 122 * columns[key], 20 + 62 * rows[key]) for key in PAPERS}
  out = [
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1000 330" font-family="sans-serif">',
    '<rect width="1000" height="330" fill="#ffffff"/>',
  ]
  for key, paper in PAPERS.items():
    if paper.ancestor:
      (x0, y0), (x1, y1) = at[paper.ancestor], at[key]
      start, stop, middle = x0 + 106, x1, (x0 + 106 + x1) // 2
      y0, y1 = y0 + 22, y1 + 22
      out.append(
        f'<path d="M{start} {y0}C{middle} {y0} {middle} {y1} {stop} {y1}" fill="none" '
        'stroke="#8a8fa3" stroke-width="2"/>'
      )
  for key, paper in PAPERS.items():
    x, y = at[key]
    out += [
      f'<rect x="{x}" y="{y}" width="106" height="44" rx="8" fill="#e8eaf6" stroke="#3f51b5"/>',
      f'<text x="{x + 53}" y="{y + 19}" text-anchor="middle" font-size="14">{paper.name}</text>',
      f'<text x="{x + 53}" y="{y + 36}" text-anchor="middle" font-size="11" fill="#555">'
      f'{paper.year}</text>',
    ]
  return '\n'.join([*out, '</svg>']) + '\n'


if __name__ == '__main__':
  (DOCS / 'lineage.md').write_text(page(), encoding='utf-8')
  (DOCS / 'lineage.svg').write_text(picture(), encoding='utf-8')
  (DOCS / 'lineage_losses.svg').write_text(curves(), encoding='utf-8')
