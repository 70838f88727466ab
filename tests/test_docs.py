# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""README.md, docs/, launch/ and the notes of papers name what is there: pages,
files, fields, commands and their flags.
"""

import functools
import importlib
import importlib.util
import pathlib
import re
import shlex
import sys

import pytest

from gpt_jax import __main__, cli
from gpt_jax.commands import inspect
from gpt_jax.core.config import loading
from gpt_jax.flags import Flags
from gpt_jax.hf.families import FAMILIES
from gpt_jax.planning import report
from gpt_jax.reports import explaining
from gpt_jax.studies import comparison
from tests.support import files_page, flags_page
from tests.test_imports import FLOORS

ROOT = pathlib.Path(__file__).parents[1]
PAGES = [
  *sorted(ROOT.glob('*.md')),
  *sorted((ROOT / 'docs').rglob('*.md')),
  *sorted((ROOT / 'launch').glob('*.md')),
]
# READMEs of the papers' folders, which no page links.
NOTES = sorted((ROOT / 'gpt_jax/papers').glob('*/README.md'))
FENCED = re.compile(r'^```[a-z]*\n(.*?)^```', re.MULTILINE | re.DOTALL)
INLINE = re.compile(r'`([^`]+)`')
LINK = re.compile(r'\]\(([^)\s]+)\)')
# Paths in this checkout; what looks like one in a URL is none.
PATH = re.compile(r'(?<![\w/.-])((?:gpt_jax|configs|tests|launch|docs)/[\w./*-]*[\w/*])')
MODULE = re.compile(r'(?<![\w./])((?:gpt_jax|tests)(?:\.\w+)+)')
# Flags of other programs than ours.
OTHERS = {'help', 'requirements_file'}

of_page = pytest.mark.parametrize(
  'page', [*PAGES, *NOTES], ids=lambda path: str(path.relative_to(ROOT))
)


@functools.cache
def text(page):
  return page.read_text(encoding='utf-8')


def fenced(page):
  return FENCED.findall(text(page))


def inline(page):
  """Code within sentences; one that a line ends in goes on in the next."""
  prose = FENCED.sub('', text(page))
  return [' '.join(code.split()) for code in INLINE.findall(prose)]


@functools.cache
def anchors(page):
  """The headings' names in links, as GitHub makes them."""
  headings = re.findall(r'^#+ (.*)$', FENCED.sub('', text(page)), re.MULTILINE)
  kept = (re.sub(r'[^\w\- ]', '', heading.lower()) for heading in headings)
  return {heading.replace(' ', '-') for heading in kept}


def links(page):
  """Relative links: (path, anchor)."""
  for link in LINK.findall(text(page)):
    if not re.match('[a-z]+:', link):
      path, _, anchor = link.partition('#')
      yield (page.parent / path if path else page).resolve(), anchor


def test_the_front_page_is_short():
  assert len(text(ROOT / 'README.md').splitlines()) <= 150


@of_page
def test_links(page):
  for target, anchor in links(page):
    assert target.exists(), target
    assert not anchor or anchor in anchors(target), f'{target}#{anchor}'


def test_every_page_is_found_from_the_front_page():
  found, left = {ROOT / 'README.md'}, [ROOT / 'README.md']
  while left:
    new = {target for target, _ in links(left.pop())} - found
    found |= new
    left += [target for target in new if target.suffix == '.md']
  assert {*PAGES} <= found
  files = (path for path in (ROOT / 'docs').rglob('*') if path.is_file())
  code = '.py', '.pyc', '.css'
  assert {path for path in files if path.suffix not in code} <= found


@pytest.mark.parametrize(
  'page',
  [*PAGES, *NOTES, ROOT / 'Makefile', ROOT / '.ci/run'],
  ids=lambda path: str(path.relative_to(ROOT)),
)
def test_paths(page):
  prose = re.sub(r'https?://\S+', '', text(page))
  for path in PATH.findall(prose):
    assert [*ROOT.glob(path)], path


def test_each_paper_has_notes():
  folders = (ROOT / 'gpt_jax/papers').glob('*/__init__.py')
  assert sorted(path.with_name('README.md') for path in folders) == NOTES


@pytest.mark.parametrize('page', NOTES, ids=lambda path: path.parent.name)
def test_files_of_notes(page):
  """By their path from the root, or, of the same folder, by their name."""
  files = [code for code in inline(page) if re.fullmatch(r'\S+\.(?:py|md|json)', code)]
  assert files
  for file in files:
    where = ROOT if '/' in file else page.parent
    assert '..' not in file and (where / file).is_file(), file


@of_page
def test_modules(page):
  for name in MODULE.findall(text(page)):
    module, _, attribute = name.rpartition('.')
    if importlib.util.find_spec(name) is None:
      assert hasattr(importlib.import_module(module), attribute), name


@pytest.fixture
def configs(monkeypatch):
  """In this checkout, and `sys.path` as before at the end."""
  monkeypatch.chdir(ROOT)
  monkeypatch.setattr(sys, 'path', [*sys.path])


def tree():
  """The sections of all configs: what a run, a tuning and a sweep have."""
  files = ('configs/base.py', 'configs/finetune/base.py', 'configs/scaling.py')
  found = {}
  for file in files:
    found |= loading.load_config(file, []).to_dict()
  return found


def has(found, field):
  for part in field.split('.'):
    if not isinstance(found, dict) or part not in found:
      return False
    found = found[part]
  return True


@of_page
def test_fields(page, configs):
  """`--config.batch.size`, `config.eval.sets` and `optim.on_spike`."""
  found = tree()
  sections = '|'.join(name for name in found if isinstance(found[name], dict))
  # Not SECTION.FIELD, which stand for any.
  named = re.findall(r'--config\.([a-z][\w.]+)', text(page))
  for block in fenced(page):
    named += re.findall(r'^config\.([\w.]+) =', block, re.MULTILINE)
  for code in inline(page):
    named += re.findall(rf'^((?:{sections})\.(?!json)\w+)(?:=.*)?$', code)
  for field in named:
    # Models of an objective have names of their own, and the fields of `model`.
    of_model = re.sub(r'^models\.\w+\.', 'model.', field)
    assert has(found, of_model), field


def commands(page):
  """Of each command of ours on a page: its words, without `gpt-jax`."""
  for block in [*fenced(page), *inline(page)]:
    lines = block.replace('\\\n', ' ').splitlines()
    while lines:
      _, command, rest = lines.pop(0).partition('gpt-jax ')
      while command:
        try:
          words = shlex.split(rest, comments=True)
        except ValueError:  # a quoted text goes on
          rest += ' ' + lines.pop(0)
        else:
          yield words
          break


def values_of(name):
  """The flags of a command."""
  values = Flags()
  importlib.import_module(f'gpt_jax.commands.{name}').define(values)
  return values


def known(word):
  """A config that is here, for F, NAME and one that a reader writes."""
  word = re.sub(r'^(configs/(?:distil|continue)\.py:)workdirs/.*', r'\1NAME', word)
  ours = word == 'F' or word.startswith('mine/')
  return 'configs/base.py' if ours else word.removesuffix(':NAME')


@of_page
def test_commands(page, configs):
  """Each can be read, with its config, size and overrides."""
  for name, *argv in commands(page):
    assert name in __main__.COMMANDS, name
    argv = [known(word) for word in argv if word not in ('&', '--help')]
    values = values_of(name)
    loading.parse(values, [f'gpt-jax {name}', *argv])
    if name == 'compare':
      for run in values['run'].value:
        variant = comparison.parse(run, values['flags'].value)
        flags = [*map(known, variant.flags)]
        loading.parse(values_of(variant.command), ['gpt-jax', *flags])


def test_a_page_has_every_command():
  found = {words[0] for words in commands(ROOT / 'docs/commands.md')}
  assert found == {*__main__.COMMANDS}


@of_page
def test_flags(page):
  """Those in sentences, without their command."""
  known = OTHERS | {f for name in __main__.COMMANDS for f in values_of(name)}
  for code in inline(page):
    for flag in re.findall(r'^--(\w+)(?![\w.])', code):
      assert flag == 'config' or flag in known, flag


@of_page
def test_targets(page):
  """`make plan` and the like."""
  makefile = text(ROOT / 'Makefile')
  targets = re.findall(r'^(\w+):', makefile, re.MULTILINE)
  named = [line for block in fenced(page) for line in block.splitlines()]
  named += inline(page)
  for line in named:
    if line.startswith('make '):
      assert line.split()[1] in targets, line


COUNTS = re.compile(
  r'\b(\d+)\s+(?:(?:Hugging\s+Face|model|shipped)\s+)?'
  r'(papers|families|configs)\b'
)


@pytest.fixture(scope='module')
def shipped():
  """What pages count, from the tables of the code."""
  configs = [*(ROOT / 'configs').rglob('*.py')]
  return {
    'papers': len(loading.papers()),
    'families': len(FAMILIES),
    'configs': sum('def get_config' in text(path) for path in configs),
  }


@of_page
def test_counts(page, shipped):
  """`28 papers`, `30 model families`: the same everywhere."""
  for count, noun in COUNTS.findall(FENCED.sub('', text(page))):
    assert int(count) == shipped[noun], f'{count} {noun}'


def test_the_front_page_counts_papers_and_families(shipped):
  page = text(ROOT / 'README.md')
  assert {noun for _, noun in COUNTS.findall(page)} >= {'papers', 'families'}
  years = re.findall(r'^\| 20[\d, ]+ \| (.*?) \|', page, re.MULTILINE)
  names = [name for row in years for name in row.split(', ')]
  assert len(names) == shipped['papers']


@pytest.mark.parametrize('name', ['flags', 'fields', 'metrics', 'python'])
def test_tokens_are_sampled_and_parameters_initialized(name):
  """In what commands and fields say of themselves; figures are drawn."""
  prose = ' '.join(text(ROOT / f'docs/{name}.md').split())
  things = 'token|sample|completion|continuation|answer|response|parameter'
  assert not re.findall(rf'(?:{things})s?(?: \w+)? (?:drawn|drew)\b', prose)
  assert not re.findall(rf'\bdraws? (?:\w+ )?(?:{things})s?\b', prose)


def test_a_search_for_sweep_finds_compare():
  for name in ('commands', 'training', 'flags'):
    lines = text(ROOT / f'docs/{name}.md').split('\n\n')
    found = [line for line in lines if 'sweep' in line]
    assert any('compare' in line for line in found), name


def test_every_room_is_described():
  page = text(ROOT / 'docs/architecture.md')
  package = ROOT / 'gpt_jax'
  for path in (*package.glob('*/__init__.py'), *package.glob('core/*/__init__.py')):
    room = path.parent.relative_to(ROOT).as_posix()
    assert f'| `{room}/` |' in page, room


def test_the_floors_are_those_that_are_enforced():
  (block,) = (b for b in fenced(ROOT / 'docs/architecture.md') if 'spec' in b)
  written = [tuple(line.split(', ')) for line in block.splitlines()]
  assert [{*rooms} for rooms in written] == [{*rooms} for rooms in reversed(FLOORS)]


def test_generated_tables_have_one_place():
  """The one that is written or compared, and no copy that grows old."""
  for mark, place in (
    (report.BEGIN, report.PAGE),
    ('<!-- table: gpt-jax inspect --table -->\n', 'docs/configs.md'),
    ('<!-- page: gpt-jax inspect --fields -->\n', 'docs/fields.md'),
    (flags_page.MARK, 'docs/flags.md'),
  ):
    found = [page for page in PAGES if mark in text(page)]
    assert found == [ROOT / place]


def test_the_fields_are_up_to_date():
  """With each field, and each call that one may name."""
  written = explaining.page(inspect.TABLES) + '\n'
  assert text(ROOT / 'docs/fields.md') == written, 'gpt-jax inspect --fields > docs/fields.md'


def test_files_are_written_where_the_page_says():
  """The code that it names has the name, up to a part that varies."""
  for rows in files_page.tables().values():
    for names, _, writer in rows:
      for name in names if writer else ():
        assert files_page.fixed(name) in text(ROOT / writer), (name, writer)


def test_files_that_are_not_listed_are_found(tmp_path):
  rows = files_page.tables()['A run']
  for name in ('config.json', 'stray.bin', 'spikes/8.json', 'spikes/8.txt'):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.touch()
  found = files_page.unlisted(rows, tmp_path)
  assert sorted(found) == ['spikes/8.txt', 'stray.bin']
  missing = files_page.missing(rows, tmp_path)
  assert 'metrics.jsonl' in missing and 'config.json' not in missing


def test_the_exit_codes_are_those_of_the_code():
  """docs/flags.md is written from the table of `cli`; no code is new."""
  found = set()
  for path in ('__main__.py', 'cli.py', '*/*.py'):
    for file in (ROOT / 'gpt_jax').glob(path):
      ends = re.findall(r'(?:sys\.exit|os\._exit)\((\d+)\)', text(file))
      if file.name in ('__main__.py', 'cli.py'):
        ends += re.findall(r'^ +return (\d+)(?: if .*)?$', text(file), re.M)
      found |= {*map(int, ends)}
  assert {0, 1, 2} <= found <= {*cli.EXIT_CODES}


def test_the_flags_are_up_to_date():
  assert text(ROOT / 'docs/flags.md') == flags_page.page(), (
    'python -m tests.support.flags_page > docs/flags.md'
  )


def test_the_smoke_run_takes_as_long_everywhere():
  for path in ('README.md', 'Makefile', 'configs/smoke.py'):
    said = re.findall(r'(\w+) minutes on two (?:CPU )?cores', text(ROOT / path))
    assert said[0] == 'three', path


def test_the_errors_are_those_of_the_code():
  """`docs/errors.md` quotes messages; a literal may go over several lines."""
  source = ''.join(path.read_text(encoding='utf-8') for path in (ROOT / 'gpt_jax').rglob('*.py'))
  source = re.sub(r"""['"]\s*\n\s*f?['"]""", '', source)
  rows = re.findall(r'^\| (`.*?) \| ', text(ROOT / 'docs/errors.md'), re.MULTILINE)
  quoted = [part for row in rows for part in INLINE.findall(row)]
  assert len(quoted) > 20
  for part in quoted:
    assert part.strip() in source, part
