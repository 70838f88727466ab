# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Writes docs/lineage.md and its picture: the papers as differences of their ejected files.

python -m tests.support.lineage_page
"""

import difflib
import functools
import pathlib
from typing import NamedTuple

from gpt_jax.core import config as config_lib
from gpt_jax.core.config import loading
from gpt_jax.core.costs import totals
from gpt_jax.ejecting import file, parts, program

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
  out = ['# The lineage, paper by paper', MARK, INTRODUCTION.strip(), _table()]
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
