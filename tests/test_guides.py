# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The tutorial and the guides in docs/how-to do what they say.

Each block of commands is run as printed, in the order of the page, and one that
follows `<!-- printed -->` is what the block before it must print. Of one that
follows `<!-- printed about -->` the words must be the same: its figures are
those of a run at full size, and what goes from one to another there must here
go in the same direction, at least a third as far. Sizes are reduced by
`<!-- run with: FLAGS -->`, which adds flags to the first command of the next
block, and `<!-- not run: REASON -->` leaves the next block out.
"""

import io
import os
import pathlib
import re
import subprocess
import sys
from typing import NamedTuple

import pytest

from tests.support import fake_hub
from tests.support.checkpoints import with_vocabulary

ROOT = pathlib.Path(__file__).parents[1]
HUB = ROOT / 'docs/how-to/hub.md'
GUIDES = sorted({*(ROOT / 'docs/how-to').glob('*.md')} - {HUB})
_BLOCK = re.compile(
  r'(?:^<!-- (?P<mark>[^>]*) -->\n)?^```\w*\n(?P<text>.*?)^```', re.MULTILINE | re.DOTALL
)


_NUMBER = r'-?\d+(?:\.\d+)?(?:e[+-]\d+)?'
_CHANGE = re.compile(f'({_NUMBER}) to ({_NUMBER})')


class Step(NamedTuple):
  """A block to run, and the lines that it must print, if the page has them."""

  script: str
  printed: list[str]
  about: list[str]


def like(line, others):
  """The lines that differ from a line of the page in nothing but figures."""
  words = re.sub(_NUMBER, '0', line)
  return [other for other in others if re.sub(_NUMBER, '0', other) == words]


def as_far(line, other):
  """Whether figures change as on the page, and at least a third as much."""
  changes, others = (
    [float(last) - float(first) for first, last in _CHANGE.findall(text)] for text in (line, other)
  )
  return len(changes) == len(others) and all(
    here * change >= change**2 / 3 for change, here in zip(changes, others, strict=True)
  )


def steps(page):
  """The blocks of a page that are run."""
  found = []
  for block in _BLOCK.finditer(page.read_text(encoding='utf-8')):
    kind, _, rest = (block['mark'] or '').partition(': ')
    match kind:
      case '':
        found.append(Step(block['text'], [], []))
      case 'run with':
        # The first command ends where a line does not go on in the next.
        command, end, more = re.split(r'(?<!\\)(\n)', block['text'], maxsplit=1)
        found.append(Step(f'{command} {rest}{end}{more}', [], []))
      case 'printed':
        found[-1].printed.extend(block['text'].splitlines())
      case 'printed about':
        found[-1].about.extend(block['text'].splitlines())
      case _:
        assert kind == 'not run' and rest, f'{page.name}: {block["mark"]}'
  return found


def run(page, folder, variables=None):
  """Runs a page in a folder that looks like a checkout.

  Args:
    variables: further ones of the environment.
  """
  bin = pathlib.Path(sys.executable).parent
  env = os.environ | {
    'PATH': f'{bin}:{os.environ["PATH"]}',
    'PYTHONPATH': str(ROOT),
    'JAX_PLATFORMS': 'cpu',
    'COLUMNS': '120',
    **(variables or {}),
  }
  env.pop('XLA_FLAGS', None)  # one device, as on a laptop
  for script, printed, about in steps(page):
    done = subprocess.run(
      ['bash', '-euo', 'pipefail', '-c', script],
      cwd=folder,
      env=env,
      capture_output=True,
      text=True,
      timeout=600,
    )
    assert done.returncode == 0, f'{page.name}: {script}\n{done.stderr[-3000:]}'
    said = iter(done.stdout.splitlines())
    for line in printed:
      assert line in said, f'{page.name}: {line!r} is not in {done.stdout!r}'
    for line in about:
      found = like(line, done.stdout.splitlines())
      assert found, f'{page.name}: nothing is like {line!r} in {done.stdout!r}'
      assert as_far(line, found[0]), f'{page.name}: {line!r}, but {found[0]!r}'


@pytest.mark.parametrize(
  ('printed', 'fits'),
  [
    ('step 9: reward 0.1 to 0.6, loss 2 to 1e-01', True),
    ('step 9: reward 0.1 to 0.3, loss 2 to 1', False),
    ('step 9: reward 0.9 to 0.1, loss 2 to 1', False),
    ('step 9: reward 0.1 to 0.9, loss 1 to 1.1', False),
  ],
)
def test_figures_about_as_on_the_page(printed, fits):
  line = 'step 40: reward 0.1 to 0.9, loss 3 to 1'
  assert like(line, ['other', printed]) == [printed]
  assert as_far(line, printed) == fits


@pytest.fixture(scope='module')
def after_the_tutorial(tmp_path_factory):
  """A folder with what the tutorial makes."""
  folder = tmp_path_factory.mktemp('checkout')
  for name in ('docs', 'configs', 'launch'):
    (folder / name).symlink_to(ROOT / name)
  run(ROOT / 'docs/tutorial.md', folder)
  return folder


@pytest.mark.slow
def test_the_tutorial(after_the_tutorial):
  made = {path.name for path in (after_the_tutorial / 'workdirs').iterdir()}
  assert made == {'notes', 'chat', 'sorted'}


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize('page', GUIDES, ids=lambda page: page.stem)
def test_a_guide(page, after_the_tutorial):
  """Each starts from the tutorial's run."""
  run(page, after_the_tutorial)


@pytest.mark.slow
def test_the_guide_to_the_hub(tmp_path):
  """With a model and a data set by those names, but small, of a hub here."""
  pa = pytest.importorskip('pyarrow', reason='needs the extra hub')
  parquet = pytest.importorskip('pyarrow.parquet')
  (tmp_path / 'configs').symlink_to(ROOT / 'configs')
  (tmp_path / 'gpt2').mkdir()
  with_vocabulary(tmp_path / 'gpt2')
  texts = [page.read_text(encoding='utf-8') for page in GUIDES]
  out = io.BytesIO()
  parquet.write_table(pa.table({'text': texts}), out)
  hub = fake_hub.Hub()
  hub.add('openai-community/gpt2', tmp_path / 'gpt2')
  data = {'data/train-00000-of-00001.parquet': out.getvalue()}
  hub.add('roneneldan/TinyStories', data, kind='datasets')
  run(HUB, tmp_path, hub.variables(tmp_path / 'home') | {'HF_TOKEN': fake_hub.TOKEN})
  pushed = hub.repositories['models', 'someone/my-gpt2']
  files = pushed.commits[pushed.refs['main']]
  assert files['vocab.json'] == (tmp_path / 'gpt2/vocab.json').read_bytes()
  hub.close()
