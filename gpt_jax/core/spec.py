# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Call-strings: a choice in a config is a name with its own arguments.

`'rope(theta=1e4)'` names an entry of a table and calls it with the arguments
given. The table is a dict at the foot of the file that implements the choices,
or a `Table`, where that file imports JAX.
Arguments are Python literals, or pairs of a key and a literal as in
`'mixture(web:0.6, books:0.4)'`; a comma list such as
`'full, local(window=256)'` holds several calls.

Every mistake is a `UsageError` that names the field, the value and what would
be accepted.
"""

import ast
import functools
import importlib
import inspect
import os
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from gpt_jax.core import plugins, ranges

# One step through a text: a quoted text, a bare key, or any other character.
_PART = re.compile(
  r"""(?P<quoted>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|(?P<bare>[\w./+%-]+)|.""", re.DOTALL
)
_COLON = re.compile(r'\s*:')
# C0 but for tabs, DEL, C1; ends of lines, and marks that reorder text, in
# Unicode; halves of surrogate pairs, which stand for bytes that are not UTF-8.
_CONTROL = re.compile(
  r'[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069'
  r'\ud800-\udfff]'
)
# The most characters of a value that an error repeats, and of a text to parse.
_SHOWN = 300
_LONGEST = 100_000


class UsageError(ValueError):
  """What the user asked for cannot be done; the message says how to go on.

  The command line prints it as one line and ends with exit code 2.
  """


class NoFileError(UsageError):
  """A data file does not exist.

  Attributes:
    instead: a pattern of files that do, or ''.
  """

  def __init__(self, text: str, instead: str = ''):
    super().__init__(text)
    self.instead = instead


class NotPreparedError(UsageError):
  """A data set of TensorFlow Datasets is missing; says how to prepare it."""


class ToldError(UsageError):
  """An error that a child process has printed already."""


def install(*extras: str) -> str:
  """The command that installs some extras, for the end of an error."""
  chosen = f"'.[{','.join(extras)}]'" if extras else '.'
  return f'pip install -c constraints.txt -e {chosen} in the clone of gpt_jax'


def optional(module: str, what: str, *extras: str) -> Any:
  """Imports a module that only extras install; `what` says who needs it."""
  try:
    return importlib.import_module(module)
  except ImportError as e:
    raise UsageError(f'{what}; run {install(*extras)}') from e


class FailedError(RuntimeError):
  """A command failed, and its message says all: exit code 1, one line."""


class ToldFailedError(FailedError):
  """A failure that the command has reported already: exit code 1."""


class Pair(NamedTuple):
  """An argument `key:value`; an entry takes them as `*parts: Pair`."""

  key: str
  value: Any


class Table(Mapping[str, Any]):
  """Choices by name, each imported when it is first looked up.

  So a config's names are checked without importing JAX, which takes seconds.
  """

  def __init__(self, rows: Mapping[str, Any], *fields: str):
    """Initializes the table.

    Args:
      rows: 'module:attribute' for each name, or the choice itself.
      fields: of the config. Papers may add rows for them: see `plugins`.
    """
    self._rows, self._fields = rows, fields

  @functools.cached_property
  def rows(self) -> dict[str, Any]:
    """All rows, those of papers included."""
    added = {}
    for field in self._fields:
      added |= plugins.rows(field)
    return {**self._rows, **added}

  def __getitem__(self, name: str) -> Any:
    # Nothing of papers is read for a choice of the core.
    row = self._rows[name] if name in self._rows else self.rows[name]
    if not isinstance(row, str):
      return row
    module, _, attribute = row.partition(':')
    return getattr(importlib.import_module(module), attribute)

  def at_hand(self, name: str) -> bool:
    """Whether looking up this choice of the core imports nothing."""
    return not isinstance(self._rows.get(name, ''), str)

  def __contains__(self, name: object) -> bool:
    return name in self._rows or name in self.rows

  def __iter__(self) -> Iterator[str]:
    return iter(self.rows)

  def __len__(self) -> int:
    return len(self.rows)


class Call(NamedTuple):
  """One parsed call: `name(*args, **kwargs)`."""

  name: str
  args: tuple
  kwargs: dict[str, Any]


def shown(value: Any) -> str:
  """`repr` for an error message: one line, of a length that can be read."""
  try:
    text = repr(value)
  except ValueError:  # Python writes whole numbers of at most 4300 digits.
    if isinstance(value, int):
      return f'a number of {value.bit_length():,} bits'
    return f'a {type(value).__name__} with a number of more than 4300 digits'
  return text if len(text) <= _SHOWN else f'{text[:_SHOWN]}...'


def printable(text: str) -> str:
  """A text for a line of a terminal or a log: control characters as escapes.

  Names of files, and texts of those that others made, may hold sequences that
  move a terminal's cursor, set its title, or forge a line.
  """
  return _CONTROL.sub(lambda m: m[0].encode('unicode_escape').decode(), text)


def counted(count: int, noun: str) -> str:
  """`1 host`, `2,048 hosts`."""
  return f'{count:,} {noun}{"s" * (count != 1)}'


def written(call: Call) -> str:
  """The text that `parse` reads as this call."""
  given = [*map(repr, call.args)]
  given += [f'{name}={value!r}' for name, value in call.kwargs.items()]
  return f'{call.name}({", ".join(given)})'


def check_text(field: str, text: str) -> None:
  """Checks that a text can be written to a file, or name one."""
  if '\0' in text:
    raise UsageError(f'{field}={shown(text)}: has a NUL character; remove it')
  try:
    text.encode()
  except UnicodeEncodeError as e:
    raise UsageError(
      f'{field}={shown(text)}: is not valid UTF-8 at character {e.start}; remove it'
    ) from e


def parse(field: str, text: str) -> list[Call]:
  """Parses a comma list of calls, e.g. `'full, local(window=256)'`.

  Args:
    field: where the text stands in the config, for the error message.
    text: names, or names called with literals.
  """
  try:
    if not isinstance(text, str):
      raise _UnreadableError('is not a text')
    if len(text) > _LONGEST:
      raise _UnreadableError(f'has more than {_LONGEST:,} characters')
    check_text(field, text)
    return [*_parsed(text)]
  except _UnreadableError as e:
    remedy = "write a name, or a name with its arguments as in 'name(size=3)'"
    if isinstance(text, str) and _is_path(text):
      remedy = f'a path is the argument of a name, as in "text({text!r})"'
    raise UsageError(f'{field}={shown(text)}: {e}; {remedy}') from e.__cause__


def _is_path(text: str) -> bool:
  try:
    return os.path.exists(text)
  except ValueError:  # has a NUL character
    return False


class _UnreadableError(Exception):
  """Why a text is no call-string."""


# The same field is asked for again at every layer of a model.
@functools.lru_cache(1024)
def _parsed(text: str) -> tuple[Call, ...]:
  """The calls of a text, whatever field it is of; not to be changed."""
  if not text.strip():
    raise _UnreadableError('is empty')
  try:
    root = ast.parse(_mark_pairs(text.strip()), mode='eval').body
    nodes = root.elts if isinstance(root, ast.Tuple) else [root]
    if not nodes:
      raise _UnreadableError('is empty')
    return tuple(map(_read, nodes))
  except SyntaxError as e:
    raise _UnreadableError('cannot be read') from e
  except (RecursionError, MemoryError) as e:
    raise _UnreadableError('is nested too deeply') from e
  except (ValueError, TypeError) as e:
    why = 'an argument is not a plain value (quote texts)'
    raise _UnreadableError(why) from e


def _read(node: ast.expr) -> Call:
  """One call. Raises what `ast.literal_eval` does, or `_UnreadableError`."""
  args, kwargs = (), {}
  if isinstance(node, ast.Call):
    args = tuple(_literal(a) for a in node.args)
    for keyword in node.keywords:
      name = keyword.arg
      if name is None:
        raise _UnreadableError('** is not supported')
      if name in kwargs:
        raise _UnreadableError(f'{name} is given twice')
      kwargs[name] = ast.literal_eval(keyword.value)
    node = node.func
  if not isinstance(node, ast.Name):
    raise _UnreadableError('a name was expected')
  for value in (*args, *kwargs.values()):
    text = value.value if isinstance(value, Pair) else value
    if isinstance(text, str) and '\0' in text:
      raise _UnreadableError('an argument has a NUL character')
  return Call(node.id, args, kwargs)


def parse_known(field: str, text: str, choices: Mapping[str, Callable]) -> list[Call]:
  """Like `parse`; all names must be in `choices`, none of which is imported."""
  calls = parse(field, text)
  for call in calls:
    _check_known(field, text, call, choices)
  return calls


def _check_known(field, text, call: Call, choices: Mapping[str, Callable]):
  if call.name not in choices:
    raise UsageError(
      f'{field}={shown(text)}: unknown {shown(call.name)}; one of ' + ', '.join(sorted(choices))
    )


def build(field: str, text: str, choices: Mapping[str, Callable]) -> Any:
  """Calls the one entry of `choices` that `text` names."""
  calls = parse(field, text)
  if len(calls) > 1:
    raise UsageError(f'{field}={shown(text)}: names {len(calls)} choices; give one')
  return _call(field, text, calls[0], choices)


def build_all(field: str, text: str, choices: Mapping[str, Callable]) -> list[Any]:
  """Like `build`, for a comma list: one result for each call."""
  return [_call(field, text, c, choices) for c in parse(field, text)]


def bind_all(field: str, text: str, choices: Mapping[str, Callable]) -> list[Call]:
  """Like `build_all`, without calling: all arguments by name.

  Defaults are filled in, so that two texts that mean the same are equal.
  """
  return bind_calls(field, text, parse(field, text), choices)


def bind_calls(
  field: str, text: str, calls: list[Call], choices: Mapping[str, Callable]
) -> list[Call]:
  """Like `bind_all`, for calls that were parsed from `text`."""
  bound = []
  for call in calls:
    arguments = _bind(field, text, call, choices)
    arguments.apply_defaults()
    bound.append(Call(call.name, (), dict(arguments.arguments)))
  return bound


def _call(field, text, call: Call, choices: Mapping[str, Callable]) -> Any:
  bound = _bind(field, text, call, choices)
  return choices[call.name](*bound.args, **bound.kwargs)


def _bind(field, text, call: Call, choices: Mapping[str, Callable]) -> inspect.BoundArguments:
  _check_known(field, text, call, choices)
  function = choices[call.name]
  signature = inspect.signature(function)
  try:
    bound = signature.bind(*call.args, **call.kwargs)
  except TypeError as e:
    takes = ', '.join(
      str(p.replace(annotation=ranges.plain(p.annotation))) for p in signature.parameters.values()
    )
    raise UsageError(f'{field}={shown(text)}: {e}; {call.name} takes ({takes})') from e
  for name, value in bound.arguments.items():
    parameter = signature.parameters[name]
    several = parameter.kind is inspect.Parameter.VAR_POSITIONAL
    for one in value if several else [value]:
      if problem := _problem(one, parameter.annotation):
        said = f'{one.key}:{shown(one.value)}' if isinstance(one, Pair) else one
        said = shown(said)
        raise UsageError(f'{field}={shown(text)}: {name}={said} {problem}')
  return bound


def _mark_pairs(text: str) -> str:
  """Rewrites `f(web:0.6)` as `f(*{'web': 0.6})`, which Python can parse.

  Keys are quoted, since `50k_steps` and `c4/en` are no Python. What is inside
  of brackets within the arguments stays as it is.
  """
  out, depth, at_start, in_pair = [], 0, False, False
  for part in _PART.finditer(text):
    word = part.group()
    key = part['quoted'] or (part['bare'] and repr(word))
    if depth == 1 and at_start and key and _COLON.match(text, part.end()):
      word, in_pair = f'*{{{key}', True
    elif depth == 1 and in_pair and word in (',', ')'):
      word, in_pair = '}' + word, False
    at_start = word[-1] in '(,' or (at_start and word.isspace())
    depth += (part.group() in '([{') - (part.group() in ')]}')
    out.append(word)
  return ''.join(out)


def _literal(node: ast.expr) -> Any:
  """An argument: a `Pair` as `_mark_pairs` wrote it, or a literal."""
  match node:
    case ast.Starred(ast.Dict([ast.Constant(str() as key)], [value])):
      return Pair(key, ast.literal_eval(value))
  return ast.literal_eval(node)


def _problem(value: Any, expected: Any) -> str:
  """Says why a literal is not what an entry declares; '' if it is."""
  declared, kind = ranges.of(expected), ranges.plain(expected)
  if not _fits(value, kind):
    kinds = typing.get_args(kind) or (kind,)
    if Pair in kinds:
      return 'must be written key:value'
    return f'must be {" or ".join(KINDS[x] for x in kinds)}'
  if declared is None or value is None:
    return ''
  return declared.problem(value)


# What errors and docs call the values of a type.
KINDS = {
  int: 'a whole number',
  float: 'a number',
  str: 'a text',
  bool: 'True or False',
  list: 'a list of texts',
  tuple: 'a tuple',
  dict: 'a dict',
  types.NoneType: 'None',
}


def _fits(value: Any, expected: Any) -> bool:
  if isinstance(expected, types.UnionType):
    return any(_fits(value, part) for part in typing.get_args(expected))
  if expected is Pair or isinstance(value, Pair):
    return expected is Pair and isinstance(value, Pair)
  if expected is float:
    return isinstance(value, int | float) and not isinstance(value, bool)
  if expected is int:
    return isinstance(value, int) and not isinstance(value, bool)
  return expected not in KINDS or isinstance(value, expected)
