# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The names under which tasks report, and their results on disk.

A task reports as `eval/NAME/accuracy`. Its name is given in the call, as in
text('mine.txt', name='mine'), or follows from the task and the arguments that
differ from their defaults: `lambada`, `text/mine` of text('books/mine.txt',
...), `race/level_high`, `seq2seq/test` of seq2seq('test.en', 'test.de').
"""

import inspect
import os
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from gpt_jax.core import spec
from gpt_jax.core.files import buckets, files, lines
from gpt_jax.core.spec import Call, UsageError
from gpt_jax.core.training import metrics
from gpt_jax.evaluation.figures import Figures

# A name is a part of a key and of a file's name.
_NAME = re.compile(r'[A-Za-z0-9][\w.-]*')
_SHOTS = re.compile(r'\d+_shots')
_ENDING = re.compile(r'\.[A-Za-z]\w{0,7}$')
_ODD = re.compile(r'[^\w.-]+')
_HELD_OUT = 'validation'
# Tasks of lm-eval that are asked for most, some of them groups whose members
# are named mmlu_anatomy and so on.
_OF_LM_EVAL = re.compile(
  '(agieval|anli|arc|arithmetic|asdiv|bbh|belebele|bigbench|ceval|cmmlu|'
  'commonsense_qa|copa|coqa|crows_pairs|drop|gpqa|headqa|hendrycks_ethics|'
  'hendrycks_math|humaneval|ifeval|kmmlu|lambada_(openai|standard)|leaderboard|logiqa2?|'
  'longbench|mathqa|mbpp|mc_taco|medmcqa|medqa|mgsm|minerva_math|mmlu|mutual|'
  'nq_open|openbookqa|paws|paloma|pile|prost|pubmedqa|qasper|sciq|scrolls|'
  'social_iqa|squadv2|storycloze|super_glue|swag|toxigen|triviaqa|truthfulqa|'
  'unscramble|webqs|wikitext|winogrande|wmdp|wsc273|xcopa|xnli|xstorycloze|'
  'xwinograd)(_.*)?',
  re.IGNORECASE,
)


class NamedCall(NamedTuple):
  """A call of a task with all arguments by name, and the name it reports by."""

  name: str
  call: Call


def read_calls(field: str, text: str, choices: Mapping[str, Callable]) -> list[NamedCall]:
  """Parses a comma list of tasks; each takes `name` besides its arguments."""
  given, calls = [], []
  for call in spec.parse(field, text):
    kwargs = dict(call.kwargs)
    given.append(kwargs.pop('name', None))
    calls.append(call._replace(kwargs=kwargs))
  _check_ours(field, calls, choices)
  out = []
  bound = spec.bind_calls(field, text, calls, choices)
  for name, call in zip(given, bound, strict=True):
    if name is not None:
      _check(field, name)
      if call.name == _HELD_OUT:
        raise UsageError(
          f'{field}: {_HELD_OUT} reports by the names of the held-out sets; leave its name out'
        )
    out.append(NamedCall(name or _derived(call, choices), call))
  _check_distinct(field, out, choices)
  return out


def _check_ours(field: str, calls: Collection[Call], choices: Mapping[str, Callable]) -> None:
  """Says of tasks that only lm-eval has how to run them there."""
  unknown = (call.name for call in calls if call.name not in choices)
  theirs = [name for name in unknown if _OF_LM_EVAL.fullmatch(name)]
  if theirs:
    raise UsageError(
      f'{field}: {", ".join(theirs)}: not among our tasks, but lm-eval has it: '
      'python -m gpt_jax.evaluation.lm_eval run --model gpt_jax --model_args '
      f'workdir=W --tasks {",".join(theirs).lower()} (docs/evaluation.md); '
      'ours are ' + ', '.join(sorted(choices))
    )


def written(call: Call, choices: Mapping[str, Callable]) -> str:
  """The call as a user writes it, without arguments that are defaults."""
  parts = [f'{key}={value!r}' for key, value in _changed(call, choices).items()]
  return f'{call.name}({", ".join(parts)})' if parts else call.name


def owner(key: str, names: Collection[str]) -> str:
  """The name in a key of results, `eval/NAME/...`: the longest of `names`.

  If none fits, the first part of the key after `eval/`.
  """
  rest = key.removeprefix('eval/')
  fitting = [name for name in names if rest.startswith(f'{name}/')]
  return max(fitting, key=len, default=rest.partition('/')[0])


def _check(field: str, name: object) -> None:
  if not isinstance(name, str) or not _NAME.fullmatch(name) or name == _HELD_OUT:
    raise UsageError(
      f'{field}: name={spec.shown(name)}: is not a name for results; take '
      f"letters, digits, '.', '-' and '_', and not {_HELD_OUT}"
    )


def _check_distinct(field: str, calls: list[NamedCall], choices: Mapping[str, Callable]) -> None:
  seen: dict[str, Call] = {}
  for name, call in calls:
    if name in seen:
      texts = [written(c, choices) for c in (seen[name], call)]
      raise UsageError(
        f'{field}: {texts[0]} and {texts[1]} would both report as '
        f'eval/{name}; leave one out, or give it a name of its own by name='
      )
    seen[name] = call


def _derived(call: Call, choices: Mapping[str, Callable]) -> str:
  parts = []
  for key, value in _changed(call, choices).items():
    text = _short(str(value))
    if key == 'reference' and text in parts:  # test.en and test.de: 'test'
      continue
    parts.append(text if key == 'path' else f'{key}_{text}')
  joined = '-'.join(parts)
  if _SHOTS.fullmatch(joined):  # as in eval/lambada/5_shots/accuracy
    joined = f'{joined}-file'
  return f'{call.name}/{joined}' if joined else call.name


def _changed(call: Call, choices: Mapping[str, Callable]) -> dict[str, object]:
  """The arguments that differ from their defaults."""
  parameters = inspect.signature(choices[call.name]).parameters
  return {key: value for key, value in call.kwargs.items() if value != parameters[key].default}


def _short(value: str) -> str:
  """A value as part of a name: a path's file name without its ending."""
  if value.startswith('tfds:'):
    return _ODD.sub('_', value)
  for part in reversed(value.split(os.sep)):
    for ending in lines.COMPRESSED:
      part = part.removesuffix(ending)
    part = _ODD.sub('_', _ENDING.sub('', part)).strip('_.-')
    if part:  # '*.jsonl' leaves nothing: take the folder's name
      return part
  return 'none'


class Results:
  """A JSON file with `step`, `model` and results by `eval/NAME/...`.

  It also holds the call of each task by its name, so that no task replaces the
  results of another.
  """

  def __init__(
    self, path: str, *, step: int, model: str, tasks: Mapping[str, str], limit: int | None = None
  ):
    """Loads earlier results of the same model.

    Args:
      path: of the file, which need not exist.
      model: fingerprint of its parameters; other models' results are dropped.
      tasks: calls by name of the tasks to measure.
      limit: examples of each task; such results have a file of their own.
    """
    self._path, self._tasks = path, tasks
    self._values: dict[str, Any] = {'step': step, 'model': model}
    if limit is not None:
      self._values['limit'] = limit
    self._new: set[str] = set()
    if os.path.exists(path):
      remedy = 'remove it, and it is measured again'
      found = files.read_json(path, remedy=remedy)
      if found.get('model') == model:
        self._values = found
    self._calls: dict[str, str] = self._values.setdefault('tasks', {})
    for name, call in tasks.items():
      before = self._calls.get(name, call)
      if before != call:
        raise UsageError(
          f'--tasks: {path} holds eval/{name} of {before}, not of {call}; give '
          'this one a name of its own by name=, or remove the file'
        )

  def add(self, figures: Figures) -> None:
    """Adds new results and writes the file.

    Drops earlier results of the same tasks, which may come from other data or
    another seed.
    """
    known = {*self._tasks, *self._calls}
    owners = {owner(key, known) for key in figures}
    replaced = owners - self._new
    for key in [*self._values]:
      if key.startswith('eval/') and owner(key, known) in replaced:
        del self._values[key]
    self._new |= owners
    self._calls |= {n: c for n, c in self._tasks.items() if n in owners}
    self._values |= figures
    os.makedirs(os.path.dirname(self._path), exist_ok=True)
    text = metrics.to_json(self._values, indent=1)
    buckets.write_atomically(self._path, text + '\n')
