# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Files for post-training: JSON lines in TRL's formats.

  language modelling       {"text": ...} or {"messages": [...]}
  prompt and completion    {"prompt": ..., "completion": ...}

A prompt or a completion is a text, or a list of messages with `role` and
`content`; both are of one kind. The roles are system, which only comes first,
and then user and assistant by turns, the user first.

Errors name the file and the line.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from gpt_jax.files import lines, records
from gpt_jax.files.records import Record
from gpt_jax.spec import UsageError
from gpt_jax.tokenizers.chat import Message

# A text, or the messages of a conversation.
Content = str | list[Message]

_ROLES = ('system', 'user', 'assistant')
_MEND = 'mend or remove the line'


class Example(NamedTuple):
  """A row to learn from.

  Attributes:
    where: 'file:line'.
    prompt: what the completion follows; None: the row has no prompt.
    completion: all of the row if there is no prompt.
  """

  where: str
  prompt: Content | None
  completion: Content


def examples(path: str) -> Iterator[Example]:
  """Streams the rows of a file for supervised fine-tuning."""
  for record in read(path):
    yield example(record)


def read(path: str) -> Iterator[Record]:
  """The objects of a file of JSON lines; or the rows of another table."""
  if lines.kind(path) == '.json':
    raise UsageError(
      f'{path}: by its name one JSON value; for JSON lines rename it to .jsonl'
    )
  return records.read(path)


def example(record: Record) -> Example:
  """A row with `messages`, `text`, or `prompt` and `completion`."""
  where, found = record
  if 'messages' in found:
    messages = content(record, 'messages')
    if isinstance(messages, str):
      raise UsageError(
        f'{where}: messages={messages!r} is a text; give a list of messages'
      )
    check_roles(where, messages)
    if messages[-1]['role'] != 'assistant':
      messages = messages[: _after_last_answer(where, messages)]
    return Example(where, None, messages)
  if 'text' in found:
    text = content(record, 'text')
    if not isinstance(text, str):
      raise UsageError(f'{where}: text is a list; name it messages')
    return Example(where, None, text)
  if 'prompt' not in found and 'completion' not in found:
    raise UsageError(
      f'{where}: has neither messages, nor text, nor prompt and completion, '
      f'but {", ".join(map(repr, found)) or "nothing"}; rename its entries'
    )
  prompt, completion = (content(record, n) for n in ('prompt', 'completion'))
  check_pair(where, prompt, completion)
  return Example(where, prompt, completion)


def content(record: Record, column: str) -> Content:
  """A text, or a list of messages whose roles are known; neither is empty."""
  where, value = record.where, record[column]
  if isinstance(value, str):
    if not value.strip():
      raise UsageError(f'{where}: {column} is empty; {_MEND}')
    return value
  if not isinstance(value, list) or not value:
    raise UsageError(
      f'{where}: {column}={value!r} is neither a text nor a list of messages; '
      f'{_MEND}'
    )
  return [_message(where, column, i, x) for i, x in enumerate(value)]


def _message(where: str, column: str, i: int, value: Any) -> Message:
  name = f'{column}[{i}]'
  if not isinstance(value, dict):
    raise UsageError(
      f'{where}: {name}={value!r} is no message, which has role and content; '
      f'{_MEND}'
    )
  role, said = value.get('role'), value.get('content')
  if role not in _ROLES:
    raise UsageError(
      f'{where}: {name}: role={role!r} is unknown; one of {", ".join(_ROLES)}'
    )
  if not isinstance(said, str):
    raise UsageError(f'{where}: {name}: content={said!r} is no text; {_MEND}')
  if not said.strip() and role == 'assistant':
    raise UsageError(f'{where}: {name}: the answer is empty; {_MEND}')
  return value


def check_pair(where: str, prompt: Content, completion: Content) -> None:
  """Checks that a completion can follow a prompt."""
  if isinstance(prompt, str) != isinstance(completion, str):
    raise UsageError(
      f'{where}: of prompt and completion one is a text and one a list of '
      'messages; give both as texts, or both as messages'
    )
  if isinstance(prompt, str) or isinstance(completion, str):
    return
  check_roles(where, [*prompt, *completion])
  if completion[0]['role'] != 'assistant':
    raise UsageError(
      f'{where}: the completion begins with the role '
      f'{completion[0]["role"]!r}, and the assistant is to answer; {_MEND}'
    )


def check_roles(where: str, messages: Sequence[Message]) -> None:
  """Checks the order of the roles."""
  turns = [message['role'] for message in messages]
  for i, role in enumerate(turns):
    first = i - (turns[0] == 'system')
    if i == 0 and role == 'system':
      continue
    expected = ('user', 'assistant')[first % 2]
    if role != expected:
      raise UsageError(
        f'{where}: message {i} is of the role {role!r}, and {expected!r} is '
        'due: system comes first or not at all, then user and assistant by '
        f'turns; {_MEND}'
      )


def _after_last_answer(where: str, messages: Sequence[Message]) -> int:
  """The number of messages up to the assistant's last one."""
  for count in range(len(messages), 0, -1):
    if messages[count - 1]['role'] == 'assistant':
      return count
  raise UsageError(
    f'{where}: has no message of the assistant, and these are learned; {_MEND}'
  )
