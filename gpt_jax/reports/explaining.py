# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the fields of a config mean: `gpt-jax inspect --field`, docs/fields.md.

All of it is read from the `Field` entries of `config.defaults`, and from the
signatures and docstrings of the calls that a field may name.
"""

import functools
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gpt_jax.core import ranges
from gpt_jax.core.config import fields
from gpt_jax.core.config.defaults import FIELDS, FREE_ON_RESUME, OPTIONAL, SECTIONS, Field, Section
from gpt_jax.core.spec import KINDS, UsageError

# Tables of calls by the name of their field.
Tables = Mapping[str, Mapping[str, Any]]

# All fields, and the sections whose fields the user names.
_ENTRIES: dict[str, Any] = {
  **FIELDS,
  **{name: section for name, section in SECTIONS.items() if not section},
}
# The width of the text for a terminal.
_WIDTH = 80
_PAGE = """\
# Fields of a config

<!-- page: gpt-jax inspect --fields -->

Any field is overridden on the command line: `--config.model.num_layers=4`.
`gpt-jax inspect --field model.position` explains a field, or a section, with
the arguments of its calls. Where the last column says "free", a run may go on
with another value, which does not change its result. How to write a config is
in [configs](configs.md).
"""


def explain(name: str, tables: Tables) -> list[dict[str, Any]]:
  """A field, or all fields of a section, as `--json` prints them.

  Args:
    name: 'model.position', or a section such as 'optim'.
    tables: the calls of fields whose tables `config.defaults` cannot import.
  """
  found = [x for x in _ENTRIES if x == name or x.startswith(f'{name}.')]
  if not found:
    optional = [x for x in OPTIONAL if x == name.partition('.')[0]]
    likely = fields.meant(name, fields.tree(*optional))
    remedy = f'did you mean {likely}?' if likely else 'see --fields'
    raise UsageError(f'--field={name}: there is no such field; {remedy}')
  return [_explained(field, tables) for field in found]


def _explained(name: str, tables: Tables) -> dict[str, Any]:
  field = _ENTRIES[name]
  of_user = isinstance(field, Section)
  beginning = f'{name}.' if of_user else name
  return {
    'field': name,
    'default': {} if of_user else field.default,
    'takes': 'fields with names of your own' if of_user else _takes(field),
    'free_on_resume': beginning.startswith(FREE_ON_RESUME),
    'doc': field.doc,
    'calls': {
      _call(call, made): {'doc': _doc(made), 'takes': _arguments(made)}
      for call, made in _table(name, tables).items()
    },
  }


def text(explained: list[dict[str, Any]]) -> str:
  """What `explain` returns, for a terminal."""
  lines = []
  for field in explained:
    free = '; free on resume' if field['free_on_resume'] else ''
    lines += [
      f'{field["field"]}={_default(field["default"])}',
      f'  takes {field["takes"]}{free}',
      *_wrapped(field['doc'], 2),
    ]
    for call, about in field['calls'].items():
      ranges_of = '; '.join(f'{x}: {of}' for x, of in about['takes'].items())
      doc = textwrap.indent(about['doc'], ' ' * 6).splitlines()
      lines += ['', f'  {call}', *doc, *_wrapped(ranges_of, 6)]
    lines.append('')
  return '\n'.join(lines).rstrip()


def page(tables: Tables) -> str:
  """The text of docs/fields.md."""
  return '\n'.join([_PAGE, *_sections(tables)]).rstrip()


def _sections(tables: Tables) -> Iterator[str]:
  listed: dict[int, str] = {}  # the field below which a table of calls stands
  for section in ('', *SECTIONS):
    inside = [x for x in _ENTRIES if x.rpartition('.')[0] == section]
    if not inside:
      continue
    if section:
      yield f'## {section}\n\n{SECTIONS[section].doc}\n'
    yield '| field | default | takes | meaning | resume |'
    yield '|---|---|---|---|---|'
    calls = []
    for name in inside:
      field = _explained(name, tables)
      takes, default = field['takes'], _default(field['default'])
      if default != 'empty':
        default = f'`{default}`'
      if table := _table(name, tables):
        first = listed.setdefault(id(table), name)
        calls += [name] * (first == name)
        takes += f': [calls](#{first.replace(".", "")})'
      free = 'free' if field['free_on_resume'] else ''
      yield f'| `{name}` | {default} | {takes} | {field["doc"]} | {free} |'
    yield ''
    for name in calls:
      yield f'### {name}\n'
      yield from _list(_table(name, tables))
      yield ''


def _list(table: Mapping[str, Any]) -> Iterator[str]:
  """The calls of a table, those without a docstring in one line."""
  plain = [_call(name, made) for name, made in table.items() if not _doc(made)]
  if plain:
    yield '- ' + ', '.join(f'`{call}`' for call in plain)
  for name, made in table.items():
    if doc := _doc(made).partition('\n\n')[0]:
      yield f'- `{_call(name, made)}`: {" ".join(doc.split())}'


def _table(name: str, tables: Tables) -> Mapping[str, Any]:
  return tables.get(name) or getattr(_ENTRIES[name], 'table', {})


def _takes(field: Field) -> str:
  if isinstance(field.takes, Mapping):
    return 'a call'
  said = field.range.text() if field.range else KINDS[field.takes]
  said += ', or a text' if field.or_text else ''
  return f'{said} of calls' if field.calls else said


def _default(value: Any) -> str:
  return 'empty' if value is None else repr(value)


def _call(name: str, made: Callable) -> str:
  """`rope(theta=10000.0, ...)`, and a name alone where nothing is taken."""
  given = inspect.signature(made).parameters.values()
  taken = ', '.join(str(x.replace(annotation=x.empty)) for x in given)
  return f'{name}({taken})' if taken else name


def _doc(made: Callable) -> str:
  # A partial has the docstring of its class.
  found = '' if isinstance(made, functools.partial) else inspect.getdoc(made)
  return found or ''


def _arguments(made: Callable) -> dict[str, str]:
  """Which values arguments take, where a type does not say it."""
  taken = inspect.signature(made).parameters.values()
  declared = {x.name: ranges.of(x.annotation) for x in taken}
  return {name: of.text() for name, of in declared.items() if of}


def _wrapped(said: str, indent: int) -> list[str]:
  return textwrap.wrap(said, _WIDTH, initial_indent=' ' * indent, subsequent_indent=' ' * indent)
