# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Functions specialised to the constants of a recipe, as text: comments stay.

Branches whose test the constants decide are replaced by what is taken. What is then unused is
left out: assignments, parameters with the arguments given for them, and the counter of a loop.
Functions are those of `gpt_jax.plain`: their assignments have no effect but their value.
"""

import ast
import itertools
import operator
import textwrap
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

_COMPARED: Mapping[type, Callable[[Any, Any], bool]] = {
  ast.Eq: operator.eq,
  ast.NotEq: operator.ne,
  ast.Lt: operator.lt,
  ast.Gt: operator.gt,
  ast.LtE: operator.le,
  ast.GtE: operator.ge,
}


class _UnknownError(Exception):
  """An expression depends on more than the constants."""


class Edit(NamedTuple):
  """A replacement of the characters [start, stop) of a text."""

  start: int
  stop: int
  text: str

  def of(self, text: str) -> str:
    """The text after it."""
    return text[: self.start] + self.text + text[self.stop :]


class Source:
  """The text of a function, and where its nodes are."""

  def __init__(self, text: str):
    """Parses the text, which is ASCII."""
    assert text.isascii()
    self.text, self.tree = text, ast.parse(text)
    lengths = [len(line) + 1 for line in text.split('\n')]
    self._starts = [sum(lengths[:i]) for i in range(len(lengths) + 1)]

  def start(self, node: Any) -> int:
    """The first character of a node."""
    return self._starts[node.lineno - 1] + node.col_offset

  def stop(self, node: Any) -> int:
    """After its last character."""
    return self._starts[node.end_lineno - 1] + node.end_col_offset

  def of(self, node: Any) -> str:
    """The text of a node."""
    return self.text[self.start(node) : self.stop(node)]

  def line(self, number: int) -> int:
    """The first character of a line, counted from 1."""
    return self._starts[number - 1]

  def without(self, node: ast.stmt) -> Edit:
    """Leaves out a statement, with the lines of comment right above it."""
    first, lines = node.lineno, self.text.split('\n')
    while lines[first - 2].strip().startswith('#'):
      first -= 1
    return Edit(self.line(first), self.line(node.end_lineno + 1), '')  # pyright: ignore


def folded(text: str, constants: Mapping[str, Any]) -> str:
  """A function without the branches that its constants do not take."""
  while edit := _fold(Source(text), constants):
    text = edit.of(text)
  return text


def _fold(source: Source, constants: Mapping[str, Any]) -> Edit | None:
  for node in ast.walk(source.tree):
    if isinstance(node, ast.If | ast.IfExp):
      try:
        taken = _value(node.test, constants)
      except _UnknownError:
        continue
      if isinstance(node, ast.IfExp):
        kept = node.body if taken else node.orelse
        return Edit(source.start(node), source.stop(node), source.of(kept))
      return _branch(source, node, bool(taken))
    if isinstance(node, ast.BoolOp) and (edit := _operand(source, node, constants)):
      return edit
    if isinstance(node, ast.Call) and source.of(node.func) == 'dropout':
      rate: Any = node.args[1]
      if constants.get(rate.id) == 0:
        return Edit(source.start(node), source.stop(node), source.of(node.args[0]))
  return None


def _value(node: ast.expr, constants: Mapping[str, Any]) -> Any:
  """The value of an expression of constants."""
  match node:
    case ast.Constant():
      return node.value
    case ast.Name() if node.id in constants:
      return constants[node.id]
    case ast.UnaryOp(op=ast.Not()):
      return not _value(node.operand, constants)
    case ast.Compare(ops=[op]) if type(op) in _COMPARED:
      left, right = _value(node.left, constants), _value(node.comparators[0], constants)
      return _COMPARED[type(op)](left, right)
    case ast.BoolOp():
      known, ends = [], isinstance(node.op, ast.Or)
      for value in node.values:
        try:
          known.append(bool(_value(value, constants)))
        except _UnknownError:
          known.append(None)
      if ends in known:
        return ends
      if None not in known:
        return not ends
  raise _UnknownError


def _operand(source: Source, node: ast.BoolOp, constants: Mapping[str, Any]) -> Edit | None:
  """Leaves out an operand that does not matter, or all the others."""
  for i, value in enumerate(node.values):
    try:
      known = bool(_value(value, constants))
    except _UnknownError:
      continue
    if known == isinstance(node.op, ast.Or):
      return Edit(source.start(node), source.stop(node), str(known))
    return _without_item(source, node.values, i)
  return None


def _branch(source: Source, node: ast.If, taken: bool) -> Edit:
  body = node.body if taken else node.orelse
  start, stop = source.line(node.lineno), source.line(node.end_lineno + 1)  # pyright: ignore
  if not body:
    return source.without(node)
  # From the line after `if` or `else`, with comments.
  last: Any = node.body[-1]
  first = node.test.end_lineno + 1 if taken else last.end_lineno + 2  # pyright: ignore
  end: Any = body[-1]
  lines = source.text[source.line(first) : source.line(end.end_lineno + 1)]
  outer = ' ' * node.col_offset
  return Edit(start, stop, textwrap.indent(textwrap.dedent(lines), outer))


def _without_item(source: Source, items: list[Any], i: int) -> Edit:
  """Leaves out one of several items between commas or operators."""
  if i:
    return Edit(source.stop(items[i - 1]), source.stop(items[i]), '')
  if len(items) > 1:
    return Edit(source.start(items[0]), source.start(items[1]), '')
  return Edit(source.start(items[0]), source.stop(items[0]), '')


def without_unused(program: dict[str, str]) -> dict[str, str]:
  """Functions that need each other, without what none of them uses."""
  program = dict(program)
  changed = True
  while changed:
    changed = False
    for name in program:
      while edit := _unused(Source(program[name])):
        program[name], changed = edit.of(program[name]), True
    for name in program:
      if _inline(program, name) or _drop_parameter(program, name):
        changed = True
  return program


def _loaded(tree: ast.AST) -> set[str]:
  return {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def _unused(source: Source) -> Edit | None:
  """Leaves out one unused assignment, counter or unreachable statement."""
  loaded = _loaded(source.tree)
  for node in ast.walk(source.tree):
    for body in (getattr(node, name, None) for name in ('body', 'orelse')):
      if isinstance(body, list):
        for before, after in itertools.pairwise(body):
          if isinstance(before, ast.Return):
            return source.without(after)
          if edit := _merged(source, before, after) or _returned(source, before, after):
            return edit
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
      target = node.targets[0]
      if isinstance(target, ast.Name) and target.id not in loaded:
        return source.without(node)
      if source.of(target) == source.of(node.value):
        return source.without(node)
      if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
        for i, item in enumerate(target.elts):
          if isinstance(item, ast.Name) and item.id not in loaded:
            left, right = (
              [source.of(x) for j, x in enumerate(part.elts) if j != i]
              for part in (target, node.value)
            )
            text = f'{", ".join(left)} = {", ".join(right)}'
            return Edit(source.start(node), source.stop(node), text)
    if isinstance(node, ast.For | ast.comprehension) and isinstance(node.target, ast.Tuple):
      first, iterated = node.target.elts[0], node.iter
      if not (isinstance(iterated, ast.Call) and source.of(iterated.func) == 'enumerate'):
        continue
      if isinstance(first, ast.Name) and first.id not in loaded:
        text = f'{source.of(node.target.elts[1])} in {source.of(iterated.args[0])}'
        return Edit(source.start(node.target), source.stop(iterated), text)
  return None


def _merged(source: Source, before: ast.stmt, after: ast.stmt) -> Edit | None:
  """Of `x = {...}` and `x[key] = value`, or `x |= {...}`, makes one dictionary."""
  if not isinstance(before, ast.Assign | ast.AnnAssign) or not isinstance(before.value, ast.Dict):
    return None
  target = before.targets[0] if isinstance(before, ast.Assign) else before.target
  name, items = source.of(target), before.value
  entries = ''
  match after:
    case ast.Assign(targets=[ast.Subscript(slice=ast.Constant()) as entry]):
      if source.of(entry.value) == name:
        entries = f'{source.of(entry.slice)}: {source.of(after.value)}'
    case ast.AugAssign(op=ast.BitOr(), value=ast.Dict()):
      if source.of(after.target) == name:
        entries = source.of(after.value)[1:-1]
  if not entries:
    return None
  return Edit(source.stop(items.values[-1]), source.stop(after), f', {entries}}}')


def _returned(source: Source, before: ast.stmt, after: ast.stmt) -> Edit | None:
  """Of `x = value` and `return x` makes `return value`."""
  if not (isinstance(before, ast.Assign | ast.AnnAssign) and isinstance(after, ast.Return)):
    return None
  target = before.targets[0] if isinstance(before, ast.Assign) else before.target
  value: Any = before.value
  if not isinstance(target, ast.Name | ast.Tuple) or after.value is None:
    return None
  if source.of(target) != source.of(after.value):
    return None
  return Edit(source.start(before), source.stop(after), f'return {source.of(value)}')


def _function(source: Source) -> ast.FunctionDef:
  node = source.tree.body[0]
  assert isinstance(node, ast.FunctionDef)
  return node


def _calls(source: Source, name: str) -> Iterator[ast.Call]:
  for node in ast.walk(source.tree):
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name:
      yield node


def _inline(program: dict[str, str], name: str) -> bool:
  """Replaces calls of a function that returns one of its arguments by that."""
  function = _function(Source(program[name]))
  last, names = function.body[-1], [arg.arg for arg in function.args.args]
  only = [x for x in function.body if not _is_text(x)] == [last]
  if not (only and isinstance(last, ast.Return) and isinstance(last.value, ast.Name)):
    return False
  if last.value.id not in names:
    return False
  changed = False
  for other in program:
    while call := next(_calls(source := Source(program[other]), name), None):
      kept = source.of(call.args[names.index(last.value.id)])
      program[other] = Edit(source.start(call), source.stop(call), kept).of(source.text)
      changed = True
  return changed


def _is_text(node: ast.stmt) -> bool:
  return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _drop_parameter(program: dict[str, str], name: str) -> bool:
  """Leaves out a parameter that its function does not use, where that is only called."""
  source = Source(program[name])
  function = _function(source)
  loaded = _loaded(ast.Module([*function.body], []))
  unused = [i for i, arg in enumerate(function.args.args) if arg.arg not in loaded]
  if not unused or name == 'main':
    return False
  for text in program.values():
    given = Source(text)
    uses = sum(isinstance(n, ast.Name) and n.id == name for n in ast.walk(given.tree))
    if uses != len([*_calls(given, name)]):
      return False
  text = _without_item(source, function.args.args, unused[0]).of(source.text)
  lines = text.split('\n')
  described = f'    {function.args.args[unused[0]].arg}: '
  program[name] = '\n'.join(line for line in lines if not line.startswith(described))
  count = len(function.args.args)
  for other in program:
    while True:
      given = Source(program[other])
      call = next((c for c in _calls(given, name) if len(c.args) == count), None)
      if call is None:
        break
      program[other] = _without_item(given, call.args, unused[0]).of(given.text)
  return True


def renamed(text: str, names: Mapping[str, str]) -> str:
  """A function in which names are replaced."""
  source = Source(text)
  found = [n for n in ast.walk(source.tree) if isinstance(n, ast.Name) and n.id in names]
  for node in sorted(found, key=source.start, reverse=True):
    text = Edit(source.start(node), source.stop(node), names[node.id]).of(text)
  return text
