# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Chat templates: from messages to the ids that a chat model was trained on.

A template is a program by the model's authors, in Jinja and by Hugging Face's
conventions (https://huggingface.co/docs/transformers/chat_templating). It runs
in Jinja's sandbox. The names of special tokens that it writes become those
tokens; in a message they stay text, so that no message can end itself or pose
as another.
"""

import datetime
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox
import numpy as np

from gpt_jax.files import files
from gpt_jax.spec import UsageError
from gpt_jax.tokenizers import special
from gpt_jax.tokenizers.tokenizer import Tokenizer

# A message: 'role', 'content', and any other entries that the template reads.
Message = Mapping[str, Any]

_FILE = 'chat_template.jinja'
_REMEDY = 'copy the tokenizer folder again'


class ChatTemplate:
  """The chat template of a model."""

  def __init__(self, source: str, variables: Mapping[str, str]):
    try:
      self._template = _environment().from_string(source)
    except jinja2.TemplateError as e:
      raise UsageError(
        f'the chat template is damaged: {_message(e)}; {_REMEDY}'
      ) from e
    self._variables = dict(variables)

  @classmethod
  def load(cls, folder: str) -> 'ChatTemplate | None':
    """The template of a saved tokenizer, or of a checkpoint, if it has one.

    chat_template.jinja takes precedence over the entry of
    tokenizer_config.json. Of several templates the one named `default` is
    taken.
    """
    data = files.read(folder, special.CONFIG)
    path = files.join(folder, special.CONFIG)
    config = files.parse(data or b'{}', path, remedy=_REMEDY)
    data = files.read(folder, special.MAP)
    path = files.join(folder, special.MAP)
    others = files.parse(data or b'{}', path, remedy=_REMEDY)
    source = config.get('chat_template')
    if (alone := files.read(folder, _FILE)) is not None:
      source = alone.decode('utf-8', errors='replace')
    if isinstance(source, list):
      source = _default(source, folder)
    if not source:
      return None
    variables = {}
    for name, token in (others | config).items():
      content = special.content(token) if name.endswith('_token') else None
      if content is not None:
        variables[name] = content
    return cls(str(source), variables)

  def render(
    self, messages: Sequence[Message], add_generation_prompt: bool = True
  ) -> str:
    """The text of a chat.

    Args:
      add_generation_prompt: ends it with the text that starts an answer.
    """
    try:
      return self._template.render(
        messages=messages,
        add_generation_prompt=add_generation_prompt,
        tools=None,
        documents=None,
        **self._variables,
      )
    except Exception as e:  # a program of others: it may raise anything
      raise UsageError(f'the chat template fails: {_message(e)}') from e

  def ids(
    self,
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    add_generation_prompt: bool = True,
    *,
    encode: Callable[[str], np.ndarray] | None = None,
  ) -> list[int]:
    """The ids of a chat, in which no message names a special token.

    Args:
      encode: instead of `tokenizer.encode_special`, to refuse long texts.
    """
    guarded = _guarded(messages, tokenizer.special.names)
    text = self.render(guarded, add_generation_prompt)
    ids = [int(i) for i in (encode or tokenizer.encode_special)(text)]
    if not ids:
      raise UsageError('the chat template makes nothing of the messages')
    return ids


class _Generation(jinja2.ext.Extension):
  """The block `generation`, which marks answers to train on; keeps its body."""

  tags = {'generation'}  # noqa: RUF012

  def parse(self, parser: Any) -> Any:
    """Replaces the block by its body."""
    line = next(parser.stream).lineno
    body = parser.parse_statements(('name:endgeneration',), drop_needle=True)
    return jinja2.nodes.Scope(body, lineno=line)


def _environment() -> jinja2.Environment:
  """Jinja with Hugging Face's settings."""
  made = jinja2.sandbox.ImmutableSandboxedEnvironment(
    trim_blocks=True,
    lstrip_blocks=True,
    extensions=[jinja2.ext.loopcontrols, _Generation],
  )
  made.filters['tojson'] = _to_json
  made.globals['raise_exception'] = _raise
  made.globals['strftime_now'] = lambda form: datetime.datetime.now().strftime(
    form
  )
  return made


def _to_json(
  value: Any,
  ensure_ascii: bool = False,
  indent: int | None = None,
  separators: tuple[str, str] | None = None,
  sort_keys: bool = False,
) -> str:
  """Unlike Jinja's own filter, it does not escape for HTML."""
  return json.dumps(
    value,
    ensure_ascii=ensure_ascii,
    indent=indent,
    separators=separators,
    sort_keys=sort_keys,
  )


def _raise(message: str) -> NoReturn:
  raise jinja2.TemplateError(message)


def _message(error: Exception) -> str:
  line = getattr(error, 'lineno', None)
  where = f'line {line}: ' if line else ''
  text = ' '.join(str(error).split())
  return f'{where}{text or type(error).__name__}'


def _default(templates: list[Any], folder: str) -> str:
  """The default of a list of named templates."""
  path = files.join(folder, special.CONFIG)
  try:
    named = {entry['name']: entry['template'] for entry in templates}
  except (KeyError, TypeError) as e:
    raise UsageError(f'{path}: chat_template is damaged; {_REMEDY}') from e
  if 'default' not in named:
    raise UsageError(
      f'{path}: none of the chat templates {", ".join(map(repr, named))} is '
      f'named default; put the one to use into {_FILE}'
    )
  return named['default']


def _guarded(value: Any, names: Mapping[str, int]) -> Any:
  """The same data, without the name of a special token in any text."""
  if isinstance(value, str):
    return special.guarded(value, names)
  if isinstance(value, Mapping):
    return {key: _guarded(item, names) for key, item in value.items()}
  if isinstance(value, list | tuple):
    return [_guarded(item, names) for item in value]
  return value
