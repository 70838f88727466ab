# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The server's endpoints.

POST /v1/completions        GET /v1/models        GET /health
POST /v1/chat/completions   GET /v1/models/NAME   GET / (see page.html)
"""

import asyncio
import functools
import json
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpt_jax.core import spec
from gpt_jax.core.runtime.log import log
from gpt_jax.core.spec import UsageError
from gpt_jax.serving import errors, logprobs, page, requests
from gpt_jax.serving.access import Access, AccessCheck
from gpt_jax.serving.errors import ApiError
from gpt_jax.serving.logprobs import Listed, Named
from gpt_jax.serving.requests import ServedModel
from gpt_jax.serving.worker import TextPiece, Ticket, Worker

# The JSON of OpenAI's answers: whole answers, and events of streams.


class Usage(NamedTuple):
  """The number of tokens of a request.

  Attributes:
    prompt: in its prompts, each counted once.
    completion: sampled for all choices, without stop tokens.
  """

  prompt: int
  completion: int

  def json(self) -> dict[str, int]:
    """The JSON of OpenAI's API."""
    return {
      'prompt_tokens': self.prompt,
      'completion_tokens': self.completion,
      'total_tokens': self.prompt + self.completion,
    }


class AnswerPart(NamedTuple):
  """A choice, or what is new of one in a stream.

  Attributes:
    finish: None before the end.
    tokens: with log-probabilities; None unless the request asks for them.
  """

  text: str = ''
  finish: str | None = None
  tokens: Sequence[Named] | None = None

  def then(self, new: 'AnswerPart') -> 'AnswerPart':
    """With what is new."""
    tokens = new.tokens
    if tokens is not None:
      tokens = [*(self.tokens or ()), *tokens]
    return AnswerPart(self.text + new.text, new.finish, tokens)


class TextAnswers:
  """Answers of /v1/completions."""

  def __init__(self, model: str):
    """`model` is the model's name for clients."""
    self._fields = _fields('cmpl-', 'text_completion', model)

  def opening(self, num_choices: int) -> list[dict[str, Any]]:
    """Events before the text."""
    del num_choices
    return []

  def event(self, row: int, part: AnswerPart) -> dict[str, Any]:
    """An event of a stream."""
    return self._fields | {'choices': [self._choice(row, part)]}

  def usage_event(self, usage: Usage) -> dict[str, Any]:
    """The event after the text."""
    return self._fields | {'choices': [], 'usage': usage.json()}

  def whole(self, parts: list[AnswerPart], usage: Usage) -> dict[str, Any]:
    """An answer that is not streamed, from all choices."""
    choices = [self._choice(i, part) for i, part in enumerate(parts)]
    return self._fields | {'choices': choices, 'usage': usage.json()}

  def _choice(self, index: int, part: AnswerPart) -> dict[str, Any]:
    scores = part.tokens
    return {
      'index': index,
      'text': part.text,
      'logprobs': None if scores is None else logprobs.of_completion(scores),
      'finish_reason': part.finish,
    }


class ChatAnswers:
  """Answers of /v1/chat/completions."""

  def __init__(self, model: str):
    """`model` is the model's name for clients."""
    self._fields = _fields('chatcmpl-', 'chat.completion', model)
    self._of_stream = self._fields | {'object': 'chat.completion.chunk'}

  def opening(self, num_choices: int) -> list[dict[str, Any]]:
    """Events before the text: the role."""
    delta = {'role': 'assistant', 'content': ''}
    return [self._event(i, delta, AnswerPart()) for i in range(num_choices)]

  def event(self, row: int, part: AnswerPart) -> dict[str, Any]:
    """An event of a stream."""
    delta = {'content': part.text} if part.text else {}
    return self._event(row, delta, part)

  def usage_event(self, usage: Usage) -> dict[str, Any]:
    """The event after the text."""
    return self._of_stream | {'choices': [], 'usage': usage.json()}

  def whole(self, parts: list[AnswerPart], usage: Usage) -> dict[str, Any]:
    """An answer that is not streamed, from all choices."""
    choices = [
      {
        'index': i,
        'message': {'role': 'assistant', 'content': part.text, 'refusal': None},
        'logprobs': self._logprobs(part),
        'finish_reason': part.finish,
      }
      for i, part in enumerate(parts)
    ]
    return self._fields | {'choices': choices, 'usage': usage.json()}

  def _event(self, index: int, delta: dict[str, str], part: AnswerPart):
    choice = {'index': index, 'delta': delta, 'logprobs': self._logprobs(part)}
    choice |= {'finish_reason': part.finish}
    return self._of_stream | {'choices': [choice]}

  def _logprobs(self, part: AnswerPart) -> dict[str, Any] | None:
    return None if part.tokens is None else logprobs.of_chat(part.tokens)


def server_sent(event: dict[str, Any]) -> str:
  """Encodes an event of a stream."""
  return f'data: {json.dumps(event, separators=(",", ":"))}\n\n'


# Ends a complete stream.
DONE = 'data: [DONE]\n\n'


def _fields(prefix: str, kind: str, model: str) -> dict[str, Any]:
  """The first fields of all parts of an answer."""
  return {
    'id': prefix + uuid.uuid4().hex,
    'object': kind,
    'created': int(time.time()),
    'model': model,
  }


# Failures are answered and logged, but no detail leaks out: a client learns
# what it did wrong, not what went wrong here. The log has a line a request.

# nginx's status for a client that has gone; it is never sent.
GONE = 499


class GuardedApp:
  """The ASGI application `app`; handles its failures."""

  def __init__(self, app: ASGIApp):
    """Wraps an application, which may raise."""
    self._app = app

  async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
    """Answers one request."""
    start = time.monotonic()
    sent: dict[str, Any] = {'status': GONE}

    async def watched(message: Message) -> None:
      if message['type'] == 'http.response.start':
        sent.update(status=message['status'], headers=message['headers'])
      await send(message)

    try:
      await self._app(scope, receive, watched)
    except ClientDisconnect:
      sent['status'] = GONE
    except asyncio.CancelledError:  # by the server, which stops
      await _fail(errors.stopping(), sent, scope, receive, watched)
    except BaseException:  # panics of native code are no `Exception`s
      log.exception('a request failed')
      await _fail(errors.internal(), sent, scope, receive, watched)
    log.info(
      '%s %s %d %s%.2f s',
      scope['method'],
      spec.shown(scope['path'])[1:-1],
      sent['status'],
      scope['state'].get('note', ''),
      time.monotonic() - start,
    )


async def _fail(
  error: ApiError, sent: dict[str, Any], scope: Scope, receive: Receive, send: Send
) -> None:
  """Sends an error: as the answer, or as the last event of a stream."""
  if 'headers' not in sent:
    await error.response()(scope, receive, send)
  elif any(b'event-stream' in value for _, value in sent['headers']):
    body = server_sent(error.body).encode()
    await send({'type': 'http.response.body', 'body': body})


# Requests that are parsed and encoded at a time. A large one takes half a
# second and 100 MB; with two, other threads still get Python's lock.
_NUM_READERS = 2

Form = TextAnswers | ChatAnswers
_Parts = AsyncIterator[tuple[TextPiece, AnswerPart]]
T = TypeVar('T')


def build(
  served: ServedModel, worker: Worker, *, access: Access, max_body_bytes: int, body_seconds: float
) -> ASGIApp:
  """The application that serves the model of `worker`.

  Args:
    body_seconds: the longest time that a body may take.
  """
  api = Api(served, worker, max_body_bytes=max_body_bytes, body_seconds=body_seconds)
  app = Starlette(
    routes=[
      Route('/v1/completions', api.completions, methods=['POST']),
      Route('/v1/chat/completions', api.chat, methods=['POST']),
      Route('/v1/models', api.models),
      Route('/v1/models/{name:path}', api.model),
      Route('/health', api.health),
      Route('/', page.response(), methods=['GET']),
    ],
    exception_handlers={ApiError: _refused, HTTPException: _no_such_path, Exception: _failed},
  )
  return GuardedApp(AccessCheck(app, access))


class Api:
  """The endpoints."""

  def __init__(
    self, served: ServedModel, worker: Worker, *, max_body_bytes: int, body_seconds: float
  ):
    """The arguments are those of `build`."""
    self._served = served
    self._worker = worker
    self._max_body_bytes = max_body_bytes
    self._body_seconds = body_seconds
    self._readers = ThreadPoolExecutor(_NUM_READERS, 'reader')
    self._created = int(time.time())

  async def completions(self, http: HttpRequest) -> Response:
    """POST /v1/completions."""
    form = TextAnswers(self._served.name)
    return await self._answer(http, requests.Completion, form)

  async def chat(self, http: HttpRequest) -> Response:
    """POST /v1/chat/completions."""
    form = ChatAnswers(self._served.name)
    return await self._answer(http, requests.ChatRequest, form)

  async def models(self, http: HttpRequest) -> Response:
    """GET /v1/models."""
    del http
    return JSONResponse({'object': 'list', 'data': [self._model()]})

  async def model(self, http: HttpRequest) -> Response:
    """GET /v1/models/NAME."""
    requests.check_name(self._served, http.path_params['name'])
    return JSONResponse(self._model())

  async def health(self, http: HttpRequest) -> Response:
    """GET /health: whether the engine is alive, and its load."""
    del http
    alive = self._worker.alive
    return JSONResponse(
      {
        'status': 'ok' if alive else 'failed',
        'running': self._worker.engine.num_running,
        'waiting': self._worker.engine.num_waiting,
      },
      200 if alive else 503,
    )

  def _model(self) -> dict[str, Any]:
    return {
      'id': self._served.name,
      'object': 'model',
      'created': self._created,
      'owned_by': 'gpt_jax',
      'context_length': self._served.context_length,
      'chat': self._served.template is not None,
    }

  async def _body(self, http: HttpRequest) -> bytes:
    """Reads a body of at most `max_body_bytes`."""
    most = self._max_body_bytes
    too_long = ApiError(413, f'the body has more than {most:,} bytes')
    declared = http.headers.get('content-length', '0')
    if not declared.isdecimal() or int(declared) > most:
      raise too_long
    body = bytearray()
    try:
      async with asyncio.timeout(self._body_seconds):
        async for chunk in http.stream():
          body += chunk
          if len(body) > most:
            raise too_long
    except TimeoutError as e:
      raise ApiError(408, f'the body did not come within {self._body_seconds:g} seconds') from e
    return bytes(body)

  async def _answer(
    self,
    http: HttpRequest,
    kind: type[requests.Completion] | type[requests.ChatRequest],
    form: TextAnswers | ChatAnswers,
  ) -> Response:
    self._worker.check_room(1)  # before any work
    body = await self._body(http)
    most = self._worker.max_rows
    asked = await self._read(lambda: requests.parse(kind, body, max_prompts=most))
    each = requests.num_candidates(self._served, asked)
    self._worker.check_room(asked.num_prompts * each)
    rows, num_read = await self._read(lambda: requests.plan(self._served, asked))
    ticket = self._worker.open(rows)
    parts = _parts(self._served, asked, ticket)
    if each > asked.n:
      parts = _best(self._served, asked, ticket, parts, each)
    num_choices = asked.num_prompts * asked.n
    if asked.stream:
      options = asked.stream_options
      with_usage = options is not None and options.include_usage
      events = _events(http, parts, num_choices, num_read, form, with_usage)
      return _EventStream(ticket, events)
    try:
      work = _whole(http, parts, num_choices, num_read, form)
      whole = await _unless_gone(http, work)
      return JSONResponse(whole)
    finally:
      ticket.close()

  async def _read(self, work: Callable[[], T]) -> T:
    """Runs `work` on a thread, so that a long request holds up no other."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(self._readers, work)


class _EventStream(StreamingResponse):
  """Server-sent events; frees the rows however the stream ends."""

  media_type = 'text/event-stream'

  def __init__(self, ticket: Ticket, events: AsyncIterator[str]):
    """`events` are those of `ticket`."""
    # So that no proxy holds back or stores events.
    headers = {'Cache-Control': 'no-store', 'X-Accel-Buffering': 'no'}
    super().__init__(events, headers=headers)
    self._ticket = ticket

  async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
    """Sends the events; cancelled when the client has gone."""
    try:
      await super().__call__(scope, receive, send)
    finally:
      self._ticket.close()


async def _parts(
  served: ServedModel, asked: requests.Completion | requests.ChatRequest, ticket: Ticket
) -> _Parts:
  """The pieces of all rows, with what the request asks for besides new text."""
  prompts = [row.request.ids for row in ticket.rows]
  listed: dict[int, Listed] = {}
  async for piece in ticket.pieces():
    own, text, tokens = prompts[piece.row], piece.text, None
    if asked.echo and piece.row not in listed:
      text = served.tokenizer.decode(own) + text
    if piece.row not in listed:
      listed[piece.row] = Listed(served.tokenizer, [] if asked.echo else own)
    if asked.num_top is not None:
      stops = piece.finish is None or ticket.rows[piece.row].stopped
      take = functools.partial(
        listed[piece.row].take, piece.scores, text, rest=not (asked.stop and stops)
      )
      # Those of a prompt may be many.
      many = len(piece.scores) > 1
      tokens = await asyncio.to_thread(take) if many else take()
    yield piece, AnswerPart(text, piece.finish, tokens)


async def _best(
  served: ServedModel,
  asked: requests.Completion | requests.ChatRequest,
  ticket: Ticket,
  parts: _Parts,
  each: int,
) -> _Parts:
  """The best choices of each prompt, each as a whole, with all samples.

  Args:
    each: continuations of a prompt.
  """
  choices = [AnswerPart()] * len(ticket.rows)
  texts, drawn = [''] * len(choices), 0
  async for piece, part in parts:
    choices[piece.row] = choices[piece.row].then(part)
    texts[piece.row] += piece.text
    drawn += piece.tokens
  assert served.rank is not None
  for number, prompt in enumerate(requests.contents(served, asked)):
    start = number * each
    own = texts[start : start + each]
    try:
      rank = functools.partial(served.rank, prompt, own)
      ranked = await ticket.aside(rank)
    except UsageError as e:
      raise ApiError(400, str(e)) from e
    for place, (index, _) in enumerate(ranked[: asked.n]):
      part = choices[start + index]
      row = number * asked.n + place
      yield TextPiece(row, part.text, drawn, part.finish), part
      drawn = 0


async def _events(
  http: HttpRequest, parts: _Parts, num_choices: int, num_read: int, form: Form, with_usage: bool
) -> AsyncIterator[str]:
  """The events of a stream."""
  # As in OpenAI's API, null until the last event.
  more = {'usage': None} if with_usage else {}
  drawn = 0
  for event in form.opening(num_choices):
    yield server_sent(event | more)
  try:
    async for piece, part in parts:
      drawn += piece.tokens
      if part.text or part.finish or part.tokens:
        yield server_sent(form.event(piece.row, part) | more)
  except ApiError as e:
    yield server_sent(e.body)
    return
  usage = _noted(http, Usage(num_read, drawn))
  if with_usage:
    yield server_sent(form.usage_event(usage))
  yield DONE


async def _whole(
  http: HttpRequest, parts: _Parts, num_choices: int, num_read: int, form: Form
) -> dict[str, Any]:
  """The complete answer."""
  choices = [AnswerPart()] * num_choices
  drawn = 0
  async for piece, part in parts:
    choices[piece.row] = choices[piece.row].then(part)
    drawn += piece.tokens
  return form.whole(choices, _noted(http, Usage(num_read, drawn)))


async def _unless_gone(
  http: HttpRequest, work: Coroutine[Any, Any, dict[str, Any]]
) -> dict[str, Any]:
  """Cancels `work` when the client goes.

  Raises:
    ClientDisconnect: the client has gone.
  """

  async def gone() -> None:
    while (await http.receive())['type'] != 'http.disconnect':
      pass

  working, watching = asyncio.create_task(work), asyncio.create_task(gone())
  try:
    both = {working, watching}
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    if not working.done():
      raise ClientDisconnect
    return working.result()
  finally:
    working.cancel()
    watching.cancel()


def _noted(http: HttpRequest, usage: Usage) -> Usage:
  """Notes the usage for the line in the log."""
  http.state.note = f'{usage.prompt}+{usage.completion} tokens '
  return usage


async def _refused(http: HttpRequest, error: Exception) -> Response:
  del http
  assert isinstance(error, ApiError)
  return error.response()


async def _failed(http: HttpRequest, error: Exception) -> Response:
  """Starlette raises the error again after this: `GuardedApp` logs it."""
  del http, error
  return errors.internal().response()


async def _no_such_path(http: HttpRequest, error: Exception) -> Response:
  assert isinstance(error, HTTPException)
  said = {
    404: 'there is no such path here; see /v1/models, /v1/completions, '
    '/v1/chat/completions and /health',
    405: f'{http.method} is not for this path',
  }.get(error.status_code, error.detail)
  response = ApiError(error.status_code, said).response()
  response.headers.update(error.headers or {})
  return response
