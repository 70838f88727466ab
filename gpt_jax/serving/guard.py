# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Around every request: what failed is answered and logged, nothing leaks out.

A client learns what it did wrong; of what went wrong here it learns only that
it did. The log has the rest, and a line for each request.
"""

import asyncio
import time
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpt_jax import spec
from gpt_jax.runtime.log import log
from gpt_jax.serving import answers, errors
from gpt_jax.serving.errors import ApiError

# nginx's status of a client that has gone; nobody is sent it.
GONE = 499


class Guard:
  """The ASGI application `app`, whose failures stay here."""

  def __init__(self, app: ASGIApp):
    """`app` may raise."""
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
    except asyncio.CancelledError:  # the server has waited long enough
      await _fail(errors.stopping(), sent, scope, receive, watched)
    except BaseException:  # a panic of native code is no Exception
      log.exception('a request failed')
      await _fail(errors.internal(), sent, scope, receive, watched)
    log.info(
      '%s %s %d %s%.2f s',
      *(scope['method'], spec.shown(scope['path'])[1:-1], sent['status']),
      *(scope['state'].get('note', ''), time.monotonic() - start),
    )


async def _fail(
  error: ApiError,
  sent: dict[str, Any],
  scope: Scope,
  receive: Receive,
  send: Send,
) -> None:
  """Says so to the client: as the answer, or as the last event of a stream."""
  if 'headers' not in sent:
    await error.response()(scope, receive, send)
  elif any(b'event-stream' in value for _, value in sent['headers']):
    body = answers.server_sent(error.body).encode()
    await send({'type': 'http.response.body', 'body': body})
