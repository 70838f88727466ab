# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Files for post-training: JSON lines in TRL's formats.

  language modelling       {"text": ...} or {"messages": [...]}
  prompt and completion    {"prompt": ..., "completion": ...}
  preference               {"prompt": ..., "chosen": ..., "rejected": ...}
  ranking                  {"prompt": ..., "completions": [best, ..., worst]}

A prompt or a completion is a text, or a list of messages with `role` and
`content`; both are of one kind. Without `prompt` the prompt of a preference is
what `chosen` and `rejected` have in common at their beginning. So it is where
`prompt` is a text and the others are whole conversations, which contain it, as
in ultrafeedback_binarized; TRL does the same. The roles are
system, which only comes first, and then user and assistant by turns, the user
first. After the assistant one or several messages of the role tool may come,
with what tools returned; the assistant answers them. A message of the assistant
may have `tool_calls`, and then needs no `content`.

Errors name the file and the line.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from gpt_jax.core.files import lines, records
from gpt_jax.core.files.records import Record
from gpt_jax.core.spec import UsageError
from gpt_jax.decoding.chat import Message

# A text, or the messages of a conversation.
Content = str | list[Message]

# The roles that may come after each; '': at the beginning.
_AFTER = {
  '': ('system', 'user'),
  'system': ('user',),
  'user': ('assistant',),
  'assistant': ('user', 'tool'),
  'tool': ('assistant', 'tool'),
}
_ROLES = tuple(role for role in _AFTER if role)
_MEND = 'mend or remove the line'


class TextExample(NamedTuple):
  """A row to learn from.

  Attributes:
    where: 'file:line'.
    prompt: what the completion follows; None: the row has no prompt.
    completion: all of the row if there is no prompt.
  """

  where: str
  prompt: Content | None
  completion: Content


def examples(path: str) -> Iterator[TextExample]:
  """Streams the rows of a file for supervised fine-tuning."""
  for record in read(path):
    yield example(record)


def read(path: str) -> Iterator[Record]:
  """The objects of a file of JSON lines; or the rows of another table."""
  if lines.kind(path) == '.json':
    raise UsageError(f'{path}: by its name one JSON value; for JSON lines rename it to .jsonl')
  return records.read(path)


def example(record: Record) -> TextExample:
  """A row with `messages`, `text`, or `prompt` and `completion`."""
  where, fields = record
  if 'messages' in fields:
    messages = content(record, 'messages')
    if isinstance(messages, str):
      raise UsageError(f'{where}: messages={messages!r} is a text; give a list of messages')
    check_roles(where, messages)
    if messages[-1]['role'] != 'assistant':
      messages = messages[: _after_last_answer(where, messages)]
    return TextExample(where, None, messages)
  if 'text' in fields:
    text = content(record, 'text')
    if not isinstance(text, str):
      raise UsageError(f'{where}: text is a list; name it messages')
    return TextExample(where, None, text)
  if 'prompt' not in fields and 'completion' not in fields:
    raise UsageError(
      f'{where}: has neither messages, nor text, nor prompt and completion, '
      f'but {", ".join(map(repr, fields)) or "nothing"}; rename its entries'
    )
  prompt, completion = (content(record, n) for n in ('prompt', 'completion'))
  check_pair(where, prompt, completion)
  return TextExample(where, prompt, completion)


class RankedTexts(NamedTuple):
  """Completions of a prompt in the order of preference.

  Attributes:
    where: 'file:line'.
    completions: at least two, all different, the best one first.
  """

  where: str
  prompt: Content
  completions: list[Content]

  @property
  def key(self) -> str:
    """Equal for rankings of the same prompt."""
    return json.dumps(self.prompt)

  def examples(self) -> list[TextExample]:
    """The prompt with each completion."""
    return [TextExample(self.where, self.prompt, c) for c in self.completions]


def rankings(path: str) -> Iterator[RankedTexts]:
  """Streams the preferences and the rankings of a file."""
  for record in read(path):
    yield ranking(record)


def ranking(record: Record) -> RankedTexts:
  """A row with `chosen` and `rejected`, or with `completions`."""
  where, fields = record
  if 'completions' in fields:
    listed = fields['completions']
    if not isinstance(listed, list) or len(listed) < 2:
      raise UsageError(
        f'{where}: completions={listed!r} is not a list of two or more, from '
        f'the best to the worst; {_MEND}'
      )
    named = {f'completions[{i}]': x for i, x in enumerate(listed)}
  elif 'chosen' in fields or 'rejected' in fields:
    named = {name: record[name] for name in ('chosen', 'rejected')}
  else:
    raise UsageError(
      f'{where}: has neither chosen and rejected nor completions, but '
      f'{", ".join(map(repr, fields)) or "nothing"}; rename its entries'
    )
  each = [content(Record(where, named), name) for name in named]
  if len({isinstance(x, str) for x in each}) > 1:
    raise UsageError(
      f'{where}: some of {", ".join(named)} are texts and some lists of '
      'messages; give all as texts, or all as messages'
    )
  for name, value in named.items():
    same = next(n for n, x in named.items() if x == value)
    if same != name:
      raise UsageError(f'{where}: {same} and {name} are equal; {_MEND}')
  prompt = None
  if 'prompt' in fields or 'completions' in fields:
    prompt = content(record, 'prompt')
  if prompt is None or (isinstance(prompt, str) and not isinstance(each[0], str)):
    prompt, each = _common_prompt(where, [*named], each, alone=prompt is None)
  for completion in each:
    if prompt or not isinstance(prompt, str):
      check_pair(where, prompt, completion)
  return RankedTexts(where, prompt, each)


def _common_prompt(
  where: str, names: Sequence[str], each: list[Content], *, alone: bool
) -> tuple[Content, list[Content]]:
  """The common beginning, and the rests; a space before them is theirs.

  Args:
    each: their values.
    alone: whether the line has no `prompt`; else it is a text, and these are
      conversations.
  """
  first: Any = each[0]
  count = 0
  for same in zip(*each, strict=False):
    if any(x != same[0] for x in same):
      break
    count += 1
  if isinstance(first, str) and first[:count].endswith(' '):
    count -= 1
  if not count and not alone:
    raise UsageError(
      f'{where}: prompt is a text, and {" and ".join(names)} are conversations '
      'that do not begin with the same message; give prompt as a list of '
      'messages, or conversations with the prompt'
    )
  rests = [x[count:] for x in each]
  for name, rest in zip(names, rests, strict=True):
    if not rest or (isinstance(rest, str) and not rest.strip()):
      mend = f'{_MEND}, or give prompt' if alone else _MEND
      raise UsageError(
        f'{where}: {name} has nothing after the beginning that it shares with the other; {mend}'
      )
  return first[:count], rests


def split_by_prompt(
  found: Sequence[RankedTexts], share: float, seed: int, path: str
) -> dict[str, list[RankedTexts]]:
  """Splits rankings, all of a prompt to one side.

  Args:
    share: of the prompts, at least one, for the dev split.
    seed: draws them.
  """
  keys = list(dict.fromkeys(one.key for one in found))
  if len(keys) < 2:
    raise UsageError(
      f'{path}: has {len(keys)} prompts, so none is left to evaluate on; give '
      'another file with --dev'
    )
  order = np.random.default_rng(seed).permutation(len(keys))
  held = {keys[i] for i in order[: max(1, round(share * len(keys)))]}
  if len(held) == len(keys):
    held.pop()
  return {
    'train': [one for one in found if one.key not in held],
    'dev': [one for one in found if one.key in held],
  }


def check_apart(train: Sequence[RankedTexts], dev: Sequence[RankedTexts]) -> None:
  """Refuses splits that share a prompt: its pairs resemble each other."""
  places = {one.key: one.where for one in train}
  for one in dev:
    if one.key in places:
      raise UsageError(
        f'{one.where}: has the prompt of {places[one.key]}, which is trained '
        'on; remove it from one of the files, or give one file alone, which is '
        'split by prompt'
      )


def content(record: Record, column: str) -> Content:
  """A text, or a list of messages whose roles are known; neither is empty."""
  where, value = record.where, record[column]
  if isinstance(value, str):
    if not value.strip():
      raise UsageError(f'{where}: {column} is empty; {_MEND}')
    return value
  if not isinstance(value, list) or not value:
    raise UsageError(
      f'{where}: {column}={value!r} is neither a text nor a list of messages; {_MEND}'
    )
  return [_message(where, column, i, x) for i, x in enumerate(value)]


def _message(where: str, column: str, i: int, value: Any) -> Message:
  name = f'{column}[{i}]'
  if not isinstance(value, dict):
    raise UsageError(f'{where}: {name}={value!r} is not a message, with role and content; {_MEND}')
  role, said = value.get('role'), value.get('content')
  if role not in _ROLES:
    raise UsageError(f'{where}: {name}: role={role!r} is unknown; one of {", ".join(_ROLES)}')
  if value.get('tool_calls'):
    if role != 'assistant':
      raise UsageError(
        f'{where}: {name}: has tool_calls and the role {role!r}, and the '
        f'assistant alone calls tools; {_MEND}'
      )
    # A template may write it beside the calls.
    said = '' if said is None else said
    value = {**value, 'content': said}
  if not isinstance(said, str):
    raise UsageError(f'{where}: {name}: content={said!r} is not a text; {_MEND}')
  empty = not said.strip() and not value.get('tool_calls')
  if empty and role == 'assistant':
    raise UsageError(f'{where}: {name}: the answer is empty; {_MEND}')
  return value


def check_pair(where: str, prompt: Content, completion: Content) -> None:
  """Checks that a completion can follow a prompt."""
  if isinstance(prompt, str) != isinstance(completion, str):
    raise UsageError(
      f'{where}: of prompt and completion, one is a text and one a list of '
      'messages; give both as texts, or both as messages'
    )
  if isinstance(prompt, str) or isinstance(completion, str):
    return
  check_roles(where, [*prompt, *completion])
  if completion[0]['role'] != 'assistant':
    raise UsageError(
      f'{where}: the completion begins with the role '
      f'{completion[0]["role"]!r}, and the assistant must answer; {_MEND}'
    )


def check_roles(where: str, messages: Sequence[Message]) -> None:
  """Checks the order of the roles."""
  before = ''
  for i, message in enumerate(messages):
    role, expected = message['role'], _AFTER[before]
    if role not in expected:
      due = ' or '.join(repr(x) for x in expected if x != 'system')
      raise UsageError(
        f'{where}: message {i} has the role {role!r}, and {due} is due: '
        'system comes first or not at all, then user and assistant by turns, '
        f'and what tools return after the assistant; {_MEND}'
      )
    before = role


def _after_last_answer(where: str, messages: Sequence[Message]) -> int:
  """The number of messages up to the assistant's last one."""
  for count in range(len(messages), 0, -1):
    if messages[count - 1]['role'] == 'assistant':
      return count
  raise UsageError(f'{where}: has no message of the assistant, and these are learned; {_MEND}')
