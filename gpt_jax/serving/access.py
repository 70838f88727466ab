# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Who may use the server: host names, pages of other sites, the API key.

A page in a browser on this machine can reach a server at 127.0.0.1. It may send
requests whose answers the browser hides (cross-site), or make its own name
point to 127.0.0.1 and read the answers, too (DNS rebinding). The headers
Origin, Sec-Fetch-Site and Content-Type reveal the first, Host the second: no
page can set them freely.
"""

import hmac
import ipaddress
import os
import re
import stat
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from gpt_jax.core import spec
from gpt_jax.core.spec import UsageError
from gpt_jax.serving.errors import ApiError

KEY_VARIABLE = 'GPT_JAX_API_KEY'

# Requests that need no key: for probes, and the page, which asks for the key.
_OPEN_PATHS = ('/health', '/')

_NAME = r'\[[0-9a-f:.]+\]|[a-z0-9._-]+'
_HOST = re.compile(rf'({_NAME})(?::\d{{1,5}})?', re.IGNORECASE)
# Printable ASCII without a space: what a header can carry.
_KEY = re.compile(r'[!-~]+')
# A longer file cannot be a key.
_MOST_KEY_BYTES = 4096

# Values of Sec-Fetch-Site in requests that no other site has made.
_OWN_SITES = ('same-origin', 'none')


class Access(NamedTuple):
  """Who may use a server.

  Attributes:
    bound_host: the host that the server listens at.
    allowed_hosts: further names by which clients reach it; '*': any.
    key: must be in `Authorization: Bearer`; None: no key is needed.
  """

  bound_host: str = '127.0.0.1'
  allowed_hosts: tuple[str, ...] = ()
  key: str | None = None


class AccessCheck:
  """The ASGI application `app` for requests that `access` admits."""

  def __init__(self, app: ASGIApp, access: Access):
    """Wraps an application."""
    self._app = app
    self._access = access

  async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
    """Answers one request."""
    error = refusal(self._access, scope)
    await (error.response() if error else self._app)(scope, receive, send)


def refusal(access: Access, scope: Scope) -> ApiError | None:
  """Why a request is refused by its headers; None if it is not."""
  headers = Headers(scope=scope)
  if problem := _framing_problem(headers, scope):
    return ApiError(400, problem, closes=True)
  host = headers.get('host', '')
  if not _is_own_host(access, host, scope['server'][0]):
    return ApiError(
      421,
      f'this server does not answer to the host {spec.shown(host)}; whoever '
      'runs it can allow names with --allowed_hosts',
    )
  origin = headers.get('origin')
  site = headers.get('sec-fetch-site', 'none')
  is_own = site in _OWN_SITES or _opens_page(headers, scope)
  if not is_own or not _is_own_origin(access, host, origin):
    return ApiError(403, 'pages of other sites may not use this server')
  if scope['path'] in _OPEN_PATHS:
    return None
  if access.key and not _has_key(headers.get('authorization', ''), access.key):
    return ApiError(
      401,
      'this server needs its API key; send the header Authorization: Bearer KEY',
      code='invalid_api_key',
    )
  # Without the server's consent a page can send texts and forms, but no JSON.
  kind = headers.get('content-type', '').partition(';')[0].strip().lower()
  if scope['method'] == 'POST' and kind != 'application/json':
    return ApiError(
      415,
      'the body must be JSON, and the header say so: Content-Type: '
      "application/json (curl: -H 'Content-Type: application/json')",
    )
  return None


def read_allowed_hosts(names: Sequence[str]) -> tuple[str, ...]:
  """The names of --allowed_hosts, normalised as those in a Host header."""
  for name in names:
    if name != '*' and not re.fullmatch(_NAME, name, re.IGNORECASE):
      raise UsageError(
        f'--allowed_hosts={",".join(names)}: {spec.shown(name)} is not the '
        'name of a host; give names or addresses without scheme and port, such '
        'as models.example.com, or * for any'
      )
  return tuple(_normal(name) for name in names)


def read_key(path: str | None) -> str | None:
  """The API key of the file `path`, or else of the environment; or None."""
  if path is None:
    key, source = os.environ.get(KEY_VARIABLE), KEY_VARIABLE
    if key is None:
      return None
    remedy = 'unset it, or put a key into it'
  else:
    source = f'--api_key_file={path}'
    with open(path, 'rb') as file:
      mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
      data = file.read(_MOST_KEY_BYTES + 1)
    if mode & 0o077:
      raise UsageError(
        f'{source}: other users may read or write it (mode {mode:03o}); run '
        f'chmod 600 on it, and change the key if somebody may have read it'
      )
    key = data.decode('latin-1')
    remedy = 'write a key into it, such as that of openssl rand -hex 32'
  key = key.strip()
  if not key:
    raise UsageError(f'{source}: is empty; {remedy}')
  if len(key) > _MOST_KEY_BYTES or not _KEY.fullmatch(key):
    raise UsageError(
      f'{source}: must hold one key, of up to {_MOST_KEY_BYTES:,} printable '
      f'ASCII characters without spaces; {remedy}'
    )
  return key


def is_loopback(address: str) -> bool:
  """Whether only this machine reaches an address."""
  return ipaddress.ip_address(address.partition('%')[0]).is_loopback


def _framing_problem(headers: Headers, scope: Scope) -> str | None:
  """Why it is unclear where a body ends; None if it is not.

  A proxy may see another end, and take what follows for another request (RFC
  9112, sections 6.1 and 6.3).
  """
  if 'transfer-encoding' not in headers:
    return None
  if 'content-length' in headers:
    return 'send Transfer-Encoding or Content-Length, not both'
  if scope['http_version'] == '1.0':
    return 'HTTP/1.0 has no Transfer-Encoding; send Content-Length'
  return None


def _opens_page(headers: Headers, scope: Scope) -> bool:
  """Whether a browser follows a link to the page, from wherever it is.

  Another site cannot read what it opens, and the page starts nothing itself.
  """
  return (
    scope['path'] == '/'
    and scope['method'] in ('GET', 'HEAD')
    and headers.get('sec-fetch-mode') == 'navigate'
    and headers.get('sec-fetch-dest', 'document') == 'document'
  )


def _is_own_host(access: Access, host: str, reached: str) -> bool:
  """Whether a Host header names this server, reached at address `reached`."""
  found = _HOST.fullmatch(host)
  if not found:
    return False
  name = _normal(found[1])
  if '*' in access.allowed_hosts or name in access.allowed_hosts:
    return True
  if name in ('localhost', _normal(access.bound_host)):
    return True
  # Anyone can point a name here, but not an address.
  address = _address(name)
  return address is not None and (address.is_loopback or address == _address(reached))


def _is_own_origin(access: Access, host: str, origin: str | None) -> bool:
  """Whether a page of this server, or no page (None), sent a request."""
  if origin is None:
    return True
  try:
    netloc = urlsplit(origin).netloc
  except ValueError:  # an unclosed bracket
    return False
  found = _HOST.fullmatch(netloc)
  if not found:
    return False
  # A proxy may have replaced the page's Host.
  return netloc.lower() == host.lower() or (_normal(found[1]) in access.allowed_hosts)


def _normal(name: str) -> str:
  """A host's name for comparison: no case, no brackets, no last dot."""
  return name.lower().strip('[]').removesuffix('.')


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
  """An IP address; IPv4 within IPv6 is IPv4."""
  try:
    address = ipaddress.ip_address(name.partition('%')[0])
  except ValueError:
    return None
  mapped = getattr(address, 'ipv4_mapped', None)
  return mapped or address


def _has_key(authorization: str, key: str) -> bool:
  """Compares in a time that reveals nothing about the key."""
  scheme, _, given = authorization.partition(' ')
  same = hmac.compare_digest(given.strip().encode(), key.encode())
  return same and scheme.lower() == 'bearer'
