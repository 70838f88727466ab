# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Errors in the format of OpenAI's API."""

from typing import Any

from starlette.responses import JSONResponse

# OpenAI's types of errors; all others are invalid requests.
_TYPES = {429: 'rate_limit_error', 500: 'server_error', 503: 'server_error'}


class ApiError(Exception):
  """An error to answer a request with.

  Attributes:
    status: of HTTP.
    message: for the client: what is wrong, and the remedy.
    param: the parameter that is wrong.
    code: OpenAI's name of the error, for programs.
    retry_after: seconds after which another attempt may succeed.
    closes: whether the connection ends with the answer.
  """

  def __init__(
    self,
    status: int,
    message: str,
    *,
    param: str | None = None,
    code: str | None = None,
    retry_after: int | None = None,
    closes: bool = False,
  ):
    """The arguments are the attributes."""
    super().__init__(message)
    self.status = status
    self.message = message
    self.param = param
    self.code = code
    self.retry_after = retry_after
    self.closes = closes

  @property
  def body(self) -> dict[str, Any]:
    """The JSON of OpenAI's API."""
    kind = _TYPES.get(self.status, 'invalid_request_error')
    fields = {'message': self.message, 'type': kind}
    return {'error': {**fields, 'param': self.param, 'code': self.code}}

  def response(self) -> JSONResponse:
    """The response."""
    retry = self.retry_after
    headers = {} if retry is None else {'Retry-After': str(retry)}
    if self.closes:
      headers['Connection'] = 'close'
    if self.status == 401:
      headers['WWW-Authenticate'] = 'Bearer'
    return JSONResponse(self.body, self.status, headers)


def stopping() -> ApiError:
  """The server stops before the answer is complete."""
  return ApiError(503, 'the server is stopping; try again', code='stopping', retry_after=1)


def internal() -> ApiError:
  """The server failed; the cause is in the log alone."""
  return ApiError(500, 'the server failed on this request; its log says why')
