# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Chat templates: from messages to the ids that a chat model was trained on.

A template is a program by the model's authors, in Jinja and by Hugging Face's
conventions (https://huggingface.co/docs/transformers/chat_templating). It runs
in Jinja's sandbox. The names of special tokens that it writes become those
tokens; in a message they stay text, so that no message can end itself or pose
as another.

For fine-tuning, `ChatTemplate.rendered` says which characters are the
assistant's: what the template marks by `{% generation %}`, or else what each
message of the assistant adds to the messages before it.
"""

import datetime
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox
import numpy as np

from gpt_jax.core.files import files
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers import special
from gpt_jax.core.tokenizers.tokenizer import Tokenizer

# A message: 'role', 'content', and any other entries that the template reads.
Message = Mapping[str, Any]

FILE = 'chat_template.jinja'
# What errors call the template of a model's folder.
_NAME = 'the chat template'
_REMEDY = 'copy the tokenizer folder again'
# Around the body of a block `generation`; Unicode reserves these code points
# for such uses: no text has them.
_BEGIN, _END = '\ufdd1', '\ufdd2'
_MARKS = re.compile(f'[{_BEGIN}{_END}]')


class Rendered(NamedTuple):
  """The text of a chat.

  Attributes:
    text: with the messages' names of special tokens split by `special.BREAK`.
    spans: start and stop, in characters, of what the assistant says.
  """

  text: str
  spans: list[tuple[int, int]]


class ChatTemplate:
  """The chat template of a model."""

  def __init__(self, source: str, variables: Mapping[str, str], name: str = _NAME):
    """Parses the template.

    Args:
      source: in Jinja.
      variables: what it can write by name, such as `eos_token`.
      name: what errors call it.
    """
    self.source, self._name = source, name
    try:
      source.encode()
      self._template = _environment().from_string(source)
    # Jinja's own errors, and those of Python, to which it translates: nesting
    # that is too deep, numbers that are too long.
    except Exception as e:
      remedy = _REMEDY if name == _NAME else 'mend the file'
      raise UsageError(f'{name} is damaged: {_message(e)}; {remedy}') from e
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
    if (alone := files.read(folder, FILE)) is not None:
      source = alone.decode('utf-8', errors='replace')
    if isinstance(source, list):
      source = _default(source, folder)
    if not source:
      return None
    if not isinstance(source, str):
      raise _damaged(folder)
    return cls(source, _tokens(others | config))

  def render(self, messages: Sequence[Message], add_generation_prompt: bool = True) -> str:
    """The text of a chat.

    Args:
      add_generation_prompt: ends it with the text that starts an answer.
    """
    return _MARKS.sub('', self._marked(messages, add_generation_prompt))

  def _checked(self, messages: Sequence[Message], names: Mapping[str, int]) -> Sequence[Message]:
    """The messages, guarded, if the template can write them."""
    try:
      self._check_tools(messages)
      return _guarded(messages, names)
    except RecursionError as e:
      raise UsageError(
        'the messages hold lists or objects that are nested too deeply; flatten them'
      ) from e

  def _check_tools(self, messages: Sequence[Message]) -> None:
    """Checks that the template writes what tools are asked and what they say.

    A word that comes nowhere else stands in place of the names of functions and
    of what tools say. The text must have it, and the latter outside what is
    marked as the assistant's.
    """
    probed, results, calls = [*messages], [], []
    for i, message in enumerate(messages):
      if message.get('role') == 'tool':
        results.append((i, f'xresult{i}x'))
        probed[i] = {**message, 'content': results[-1][1]}
      elif message.get('tool_calls'):
        calls.append((i, f'xcall{i}x'))
        probed[i] = _renamed(i, message, calls[-1][1])
    if not results and not calls:
      return
    text = self._marked(probed, False)
    others = re.sub(f'{_BEGIN}.*?{_END}', '', text, flags=re.DOTALL)
    for i, word in results:
      if word not in others:
        raise UsageError(
          f"{self._name} does not know the role 'tool' of message {i}; take "
          "another template, or put what tools return into the user's messages"
        )
    for i, word in calls:
      if word not in text:
        raise UsageError(
          f'{self._name} does not write the tool_calls of message {i}; take '
          'another template, or put the calls into the content'
        )

  def _marked(self, messages: Sequence[Message], add_generation_prompt: bool) -> str:
    try:
      text = self._template.render(
        messages=messages,
        add_generation_prompt=add_generation_prompt,
        tools=None,
        documents=None,
        **self._variables,
      )
      text.encode()  # a template can write half of a surrogate pair
      return text
    except Exception as e:  # a program of others: it may raise anything
      raise UsageError(f'{self._name} fails: {_message(e)}') from e

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
    guarded = self._checked(messages, tokenizer.special.names)
    text = self.render(guarded, add_generation_prompt)
    ids = [int(i) for i in (encode or tokenizer.encode_special)(text)]
    if not ids:
      raise UsageError('the chat template writes nothing for the messages')
    return ids

  def rendered(
    self, names: Mapping[str, int], messages: Sequence[Message], num_prompt: int = 0
  ) -> Rendered:
    """A chat to learn from, and what the assistant says in it.

    Without `{% generation %}` the assistant says what its message adds to the
    text before, up to the special token that ends its turn: white space after
    that token does not count.

    Args:
      names: `Special.names` of the tokenizer.
      num_prompt: what the assistant says in this many first messages is left
        out.
    """
    messages = self._checked(messages, names)
    marked = self._marked(messages, False)
    if _BEGIN in marked:
      text, spans = self._unmarked(marked)
      prompt = self.render(messages[:num_prompt]) if num_prompt else ''
      return Rendered(text, [s for s in spans if s[1] > len(prompt)])
    text, spans = _MARKS.sub('', marked), []
    for i, message in enumerate(messages):
      if i < num_prompt or message.get('role') != 'assistant':
        continue
      before = self.render(messages[:i])
      after = self.render(messages[: i + 1], False)
      if not (text.startswith(after) and after.startswith(before)):
        raise UsageError(
          'the chat template changes earlier messages when others follow, so '
          'what the assistant says is not known; mark it in the template by '
          '{% generation %} and {% endgeneration %}'
        )
      spans.append((len(before), len(before) + _turn(after[len(before) :], names)))
    return Rendered(text, spans)

  def _unmarked(self, marked: str) -> Rendered:
    """Drops the marks, and returns the spans between them."""
    text, bounds, marks = '', [], ''
    for part in re.split(f'([{_BEGIN}{_END}])', marked):
      if _MARKS.fullmatch(part):
        bounds.append(len(text))
        marks += part
      else:
        text += part
    starts, stops = bounds[::2], bounds[1::2]
    if marks != (_BEGIN + _END) * len(starts):
      raise UsageError(
        f'{self._name} nests blocks of {{% generation %}}, or cuts what one of them writes; mend it'
      )
    return Rendered(text, [*zip(starts, stops, strict=True)])


def _renamed(number: int, message: Message, name: str) -> Message:
  """The message with that name for each function that it calls."""

  def renamed(call: Message) -> Message:
    if 'function' in call:
      return {**call, 'function': renamed(call['function'])}
    return {**call, 'name': name} if call['name'] else call

  calls = message['tool_calls']
  try:
    return {**message, 'tool_calls': [renamed(call) for call in calls]}
  except (TypeError, KeyError) as e:
    raise UsageError(
      f'message {number}: tool_calls={calls!r} is not a list of {{"function": '
      '{"name": ..., "arguments": {...}}}; mend it'
    ) from e


def _turn(text: str, names: Mapping[str, int]) -> int:
  """The length of a turn without white space after its last special token."""
  turn = text.rstrip()
  return len(turn) if turn.endswith(tuple(names)) else len(text)


class _Generation(jinja2.ext.Extension):
  """The block `generation`, which marks answers to train on."""

  tags = {'generation'}  # noqa: RUF012

  def parse(self, parser: Any) -> Any:
    """Replaces the block by its body, between `_BEGIN` and `_END`."""
    line = next(parser.stream).lineno
    body = parser.parse_statements(('name:endgeneration',), drop_needle=True)
    begin, end = (
      jinja2.nodes.Output([jinja2.nodes.TemplateData(mark)], lineno=line) for mark in (_BEGIN, _END)
    )
    return [begin, jinja2.nodes.Scope(body, lineno=line), end]


def _tokens(entries: Mapping[str, Any]) -> dict[str, str]:
  """The names of special tokens in a tokenizer_config.json, by role."""
  found = {
    role: special.content(token) for role, token in entries.items() if role.endswith('_token')
  }
  return {role: name for role, name in found.items() if name is not None}


def _environment() -> jinja2.Environment:
  """Jinja with Hugging Face's settings."""
  made = jinja2.sandbox.ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, _Generation]
  )
  made.filters['tojson'] = _to_json
  made.globals['raise_exception'] = _raise
  made.globals['strftime_now'] = lambda form: datetime.datetime.now().strftime(form)
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
    value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
  )


def _raise(message: str) -> NoReturn:
  raise jinja2.TemplateError(message)


def _message(error: Exception) -> str:
  line = getattr(error, 'lineno', None)
  where = f'line {line}: ' if line else ''
  text = ' '.join(str(error).split())
  return f'{where}{text or type(error).__name__}'


def _damaged(folder: str) -> UsageError:
  path = files.join(folder, special.CONFIG)
  return UsageError(
    f'{path}: chat_template is damaged, neither a text nor a list of texts with names; {_REMEDY}'
  )


def _default(templates: list[Any], folder: str) -> str:
  """The default of a list of named templates."""
  path = files.join(folder, special.CONFIG)
  try:
    named = {entry['name']: entry['template'] for entry in templates}
  except (KeyError, TypeError) as e:
    raise _damaged(folder) from e
  if 'default' not in named:
    raise UsageError(
      f'{path}: none of the chat templates {", ".join(map(repr, named))} is '
      f'named default; put the one to use into {FILE}'
    )
  return named['default']


def _guarded(value: Any, names: Mapping[str, int]) -> Any:
  """The same data, without the name of a special token in any text."""
  if isinstance(value, str):
    return special.guarded(_MARKS.sub('', value), names)
  if isinstance(value, Mapping):
    return {_guarded(key, names): _guarded(item, names) for key, item in value.items()}
  if isinstance(value, list | tuple):
    return [_guarded(item, names) for item in value]
  return value


# Templates for models that were not trained to chat.


def choose(text: str, tokenizer: Tokenizer, folder: str) -> ChatTemplate:
  """The template to fine-tune with.

  Args:
    text: a name in `TEMPLATES`, or a file; '': the model's own.
    folder: of the tokenizer's files.
  """
  where = f'template={text!r}'
  if not text:
    own = ChatTemplate.load(folder)
    if own is None:
      raise UsageError(
        f'{where}: the model has no chat template; name one of {", ".join(TEMPLATES)}, or a file'
      )
    return own
  tokens = roles_of(tokenizer)
  if text in TEMPLATES:
    source = TEMPLATES[text]
    written = {n for n in ('<|im_start|>', '<|im_end|>') if n in source}
    lacking = [*sorted(written - {*tokenizer.special.names})]
    if 'eos_token' in source and not tokens['eos_token']:
      lacking.append('name for the end of a document')
    if lacking:
      others = [name for name in TEMPLATES if name != text]
      raise UsageError(
        f'{where}: the tokenizer has no {lacking[0]}, which it writes; take '
        f'one of {", ".join(others)}, or a file'
      )
    return ChatTemplate(source, tokens, where)
  try:
    with open(text, encoding='utf-8') as file:
      return ChatTemplate(file.read(), tokens, where)
  except (OSError, UnicodeDecodeError) as e:
    why = 'is not UTF-8'
    if isinstance(e, OSError):
      why = f'is none of {", ".join(TEMPLATES)}, and no file to read'
    raise UsageError(f'{where}: {why}; name one of these, or a file') from e


def roles_of(tokenizer: Any) -> dict[str, str]:
  """What a template may write as `bos_token`, `eos_token` and others."""
  contents: Mapping[str, bytes] = tokenizer.contents
  entries = {}
  for name in (special.MAP, special.CONFIG):
    entries |= json.loads(contents.get(name, b'{}'))
  names = {i: name for name, i in tokenizer.special.names.items()}
  start = tokenizer.special.prompt_start
  first = names.get(start[0], '') if start else ''
  if entries:
    return {'bos_token': '', 'eos_token': ''} | _tokens(entries)
  return {'bos_token': first, 'eos_token': names.get(tokenizer.eos_id, '')}


_CHATML = r"""
{%- for message in messages %}
  {{- '<|im_start|>' + message['role'] + '\n' }}
  {%- if message['role'] == 'assistant' %}
    {%- generation %}
      {{- message['content'] + '<|im_end|>' }}
    {%- endgeneration %}
  {%- else %}
    {{- message['content'] + '<|im_end|>' }}
  {%- endif %}
  {{- '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
  {{- '<|im_start|>assistant\n' }}
{%- endif %}
"""

_ZEPHYR = r"""
{%- for message in messages %}
  {{- '<|' + message['role'] + '|>\n' }}
  {%- if message['role'] == 'assistant' %}
    {%- generation %}
      {{- message['content'] + eos_token }}
    {%- endgeneration %}
  {%- else %}
    {{- message['content'] + eos_token }}
  {%- endif %}
  {{- '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
  {{- '<|assistant|>\n' }}
{%- endif %}
"""

_VICUNA = r"""
{%- for message in messages %}
  {%- if message['role'] == 'system' %}
    {{- message['content'] + ' ' }}
  {%- elif message['role'] == 'user' %}
    {{- 'USER: ' + message['content'] + ' ' }}
  {%- else %}
    {{- 'ASSISTANT:' }}
    {%- generation %}
      {{- ' ' + message['content'] + eos_token }}
    {%- endgeneration %}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
  {{- 'ASSISTANT:' }}
{%- endif %}
"""

_LLAMA2 = r"""
{%- for message in messages %}
  {%- if message['role'] == 'user' %}
    {{- bos_token + '[INST] ' }}
    {%- if loop.index0 == 1 and messages[0]['role'] == 'system' %}
      {{- '<<SYS>>\n' + messages[0]['content'] + '\n<</SYS>>\n\n' }}
    {%- endif %}
    {{- message['content'] | trim + ' [/INST]' }}
  {%- elif message['role'] == 'assistant' %}
    {%- generation %}
      {{- ' ' + message['content'] | trim + ' ' + eos_token }}
    {%- endgeneration %}
  {%- endif %}
{%- endfor %}
"""

# By name: for ChatML the tokenizer needs <|im_start|> and <|im_end|>; the
# others end an answer with the end of a document.
TEMPLATES = {'chatml': _CHATML, 'zephyr': _ZEPHYR, 'vicuna': _VICUNA, 'llama2': _LLAMA2}
