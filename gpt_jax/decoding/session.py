# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A conversation with a model on a terminal, or line by line from a pipe."""

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator

from gpt_jax.core.files import lines
from gpt_jax.core.spec import UsageError, printable
from gpt_jax.decoding import files as files_lib
from gpt_jax.decoding.chat import ChatTemplate, Message
from gpt_jax.decoding.sampler import seeds_of
from gpt_jax.decoding.texts import Options, TextGenerator, fitted

_HELP = """\
/reset  start a new conversation
/exit   leave, like Ctrl-D
/help   this list
Ctrl-C stops an answer. To begin a text with /, begin the line with //.
"""


class Session:
  """A conversation so far, and the model that answers.

  With a chat template the lines are a user's messages. Without one the
  conversation is a single text, which the model continues after each line.
  """

  def __init__(self, model: TextGenerator, template: ChatTemplate | None):
    """Starts with an empty conversation."""
    assert model.options.num_samples == 1
    self._model, self._template = model, template
    self._tokenizer, self._options = model.tokenizer, model.options
    self._num_answers = 0
    self.reset()

  @property
  def chats(self) -> bool:
    """Whether the model has a chat template."""
    return self._template is not None

  def reset(self) -> None:
    """Starts a new conversation."""
    self._messages: list[Message] = []
    self._text = ''

  def answer(self, line: str, stopping: Callable[[], bool]) -> Iterator[str]:
    """Yields the answer to a line in pieces, and keeps what was generated.

    `stopping` is called before each token; True ends the answer.
    """
    files_lib.check(line)
    messages = [*self._messages, {'role': 'user', 'content': line}]
    ids, messages = self._prompt(line, messages)
    # Equal lines get different answers; the session is a function of its seed.
    self._num_answers += 1
    seed = seeds_of(self._options.seed, self._num_answers)[-1]
    request = self._model.prompt_request(ids, seed)
    pieces = []
    for piece in self._model.stream(request, stopping):
      pieces.append(piece)
      yield piece
    answer = ''.join(pieces)
    self._messages = [*messages, {'role': 'assistant', 'content': answer}]
    self._text += line + answer + '\n'

  def _prompt(self, line: str, messages: list[Message]) -> tuple[list[int], list[Message]]:
    """The ids of the conversation, and the messages that they hold."""

    def checked(ids: list[int], options: Options, *, first: bool) -> list[int]:
      more = [] if first else ['forget what was said with /reset']
      # A chat is cut between messages, so a single message stays whole.
      cuts = not (first and self._template)
      if cuts and self._options.truncate == 'none':
        more.append('start again with --truncate=left')
      return fitted(
        ids,
        self._tokenizer,
        options,
        context_length=self._model.context_length,
        where='the message' if first else 'the conversation',
        more=more,
      )

    if self._template is None:
      encoded = self._tokenizer.encode(self._text + line)
      ids = self._tokenizer.special.prompt(encoded)
      return checked(ids, self._options, first=not self._text), messages
    whole = self._options._replace(truncate='none')
    while True:
      ids = self._template.ids(self._tokenizer, messages)
      try:
        return checked(ids, whole, first=len(messages) == 1), messages
      except UsageError:
        if self._options.truncate == 'none' or len(messages) == 1:
          raise
        messages = messages[2:]  # the oldest question and its answer


def run(session: Session) -> None:
  """Reads lines and prints answers until the input ends.

  On a terminal, an error is shown and the session goes on; in a pipe it ends.
  """
  on_terminal = sys.stdin.isatty()
  if on_terminal:
    kind = 'chat' if session.chats else 'text, continued after each line'
    print(f'A {kind}; /help lists the commands.', file=sys.stderr)
  num_lines = 0
  for line in _typed() if on_terminal else (x for _, x in lines.piped()):
    num_lines += 1
    try:
      if not _do(session, line):
        break
    except UsageError as e:
      if not on_terminal:
        raise
      print(printable(' '.join(str(e).split())), file=sys.stderr)
  if not num_lines and not on_terminal:
    raise UsageError(
      '--prompt is missing, and nothing comes on standard input; give a text '
      'to continue, or lines to answer'
    )


def _typed() -> Iterator[str]:
  """Lines typed on a terminal, with editing and history."""
  with contextlib.suppress(ImportError):  # Python may be built without it
    import readline  # noqa: F401
  while True:
    try:
      yield input('> ')
    except KeyboardInterrupt:
      print()
    except EOFError:
      print()
      return


def _do(session: Session, line: str) -> bool:
  """Answers a line or runs its command; False ends the session."""
  command = line.strip()
  if not command:
    return True
  if command.startswith('/') and not command.startswith('//'):
    if command == '/exit':
      return False
    if command == '/reset':
      session.reset()
    elif command == '/help':
      print(_HELP, end='', file=sys.stderr)
    else:
      raise UsageError(
        f'{command.split()[0]}: is not a command; /help lists them, and // '
        'begins a text with a slash'
      )
    return True
  text = line.replace('/', '', 1) if command.startswith('//') else line
  with _interrupts() as stopping:
    for piece in session.answer(text, stopping):
      print(piece, end='', flush=True)
  print()
  return True


@contextlib.contextmanager
def _interrupts() -> Iterator[Callable[[], bool]]:
  """Yields a function: whether Ctrl-C was typed. It stops between two steps."""
  typed = False

  def note(number: int, frame: object) -> None:
    nonlocal typed
    if typed:
      raise KeyboardInterrupt
    typed = True

  before = signal.signal(signal.SIGINT, note)
  try:
    yield lambda: typed
  finally:
    signal.signal(signal.SIGINT, before)
