# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Errors as OpenAI's API words them."""

from typing import Any

from starlette.responses import JSONResponse

# OpenAI's types of errors; others of the client are invalid requests.
_TYPES = {
  429: 'rate_limit_error',
  500: 'server_error',
  503: 'server_error',
}


class ApiError(Exception):
  """A request is answered with an error.

  Attributes:
    status: of HTTP.
    message: says what is wrong and how to go on; the client sees it.
    param: the parameter that is amiss.
    code: OpenAI's name of the case, for programs.
    retry_after: seconds after which another attempt may succeed.
  """

  def __init__(
    self,
    status: int,
    message: str,
    *,
    param: str | None = None,
    code: str | None = None,
    retry_after: int | None = None,
  ):
    """Arguments as the attributes."""
    super().__init__(message)
    self.status = status
    self.message = message
    self.param = param
    self.code = code
    self.retry_after = retry_after

  @property
  def body(self) -> dict[str, Any]:
    """OpenAI's JSON."""
    kind = _TYPES.get(self.status, 'invalid_request_error')
    fields = {'message': self.message, 'type': kind}
    return {'error': {**fields, 'param': self.param, 'code': self.code}}

  def response(self) -> JSONResponse:
    """The answer."""
    retry = self.retry_after
    headers = {} if retry is None else {'Retry-After': str(retry)}
    if self.status == 401:
      headers['WWW-Authenticate'] = 'Bearer'
    return JSONResponse(self.body, self.status, headers)


def stopping() -> ApiError:
  """The server was told to stop before the answer was complete."""
  return ApiError(
    503, 'the server is stopping; try again', code='stopping', retry_after=1
  )


def internal() -> ApiError:
  """The fault is ours; its cause is in the log alone."""
  return ApiError(500, 'the server failed on this request; its log says why')
