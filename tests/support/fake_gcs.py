# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A bucket of Cloud Storage's JSON API, in memory, which may go wrong.

It knows what TensorStore's driver `gcs` asks for, and gcsfs and the client
library of Cloud Storage, which Orbax uses: reading an object or a range of it,
writing one at once or in parts, listing, copying and deleting, with
generations.
"""

import contextlib
import email
import email.message
import http.server
import itertools
import json
import threading
import time
import urllib.parse
from collections.abc import Callable, Mapping
from typing import Any, ClassVar


class Bucket:
  """Objects by name, and a server for them at `url`.

  Attributes:
    objects: name -> (generation, bytes).
    faults: how many requests went wrong.
  """

  # fault -> status, headers and text of the answer.
  REFUSALS: ClassVar[dict[str, tuple[int, dict, bytes]]] = {
    'busy': (503, {}, b'busy'),
    'many': (429, {}, b'too many requests'),
    'expired': (
      401,
      {'Content-Type': 'application/json'},
      b'{"error": {"code": 401, "message": "Invalid Credentials"}}',
    ),
  }

  def __init__(self, fault: Callable[[int], str] = lambda number: ''):
    """Serves until `close`.

    Args:
      fault: of the request of a number, from 0: '', 'busy' (503), 'many'
        (429), 'slow', 'partly' (the connection ends midway), 'torn' (it ends
        midway in the answer), 'lost' (it is done, and the connection ends),
        'silent' (no answer), 'expired' (of the credentials).
    """
    self.objects: dict[str, tuple[int, bytes]] = {}
    self._uploads: dict[str, bytes] = {}
    self.faults = 0
    self._fault, self._numbers = fault, itertools.count()
    self._generations = itertools.count(1)
    self._closed, self._lock = threading.Event(), threading.Lock()
    bucket = self

    class Handler(http.server.BaseHTTPRequestHandler):
      """Hands requests to the bucket."""

      protocol_version = 'HTTP/1.1'

      def _any(self):
        bucket._serve(self)

      do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = _any

      def log_message(self, format, *args):
        """Says nothing."""

    self._server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
    self._server.daemon_threads = True
    threading.Thread(target=self._server.serve_forever, daemon=True).start()
    self.url = f'http://127.0.0.1:{self._server.server_port}'

  def variables(self) -> dict[str, str]:
    """Of the environment: TensorStore's own, read when a driver starts."""
    return {'TENSORSTORE_GCS_HTTP_URL': self.url, 'GOOGLE_AUTH_TOKEN_FOR_TESTING': 'none'}

  def close(self) -> None:
    """Ends the server."""
    self._closed.set()
    self._server.shutdown()
    self._server.server_close()

  def _serve(self, request) -> None:
    fault = self._fault(next(self._numbers))
    self.faults += bool(fault)
    size = int(request.headers.get('Content-Length', 0))
    if fault == 'partly':
      request.rfile.read(size // 2)
      request.close_connection = True
      request.connection.close()
      return
    body = request.rfile.read(size)
    if fault == 'silent':
      self._closed.wait()
      return
    if fault == 'slow':
      time.sleep(0.2)
    if fault in self.REFUSALS:
      code, headers, data = self.REFUSALS[fault]
    else:
      with self._lock:
        code, headers, data = self._answer(request, body)
    if fault == 'lost':
      request.close_connection = True
      request.connection.close()
      return
    with contextlib.suppress(ConnectionError):  # whoever asked has gone
      request.send_response(code)
      for name, value in {'Content-Length': len(data), **headers}.items():
        request.send_header(name, str(value))
      request.end_headers()
      if fault == 'torn':
        request.close_connection = True
        data = data[: len(data) // 2]
      if request.command != 'HEAD':
        request.wfile.write(data)

  def _answer(self, request, body: bytes) -> tuple[int, dict, bytes]:
    kind = request.headers.get('Content-Type', '')
    if request.path.startswith('/batch/'):
      return self._batch(kind, body)
    return self._one(request.command, request.path, request.headers, body)

  def _batch(self, kind: str, body: bytes) -> tuple[int, dict, bytes]:
    """Several requests in one; all that is asked for so are deletions."""
    answers = []
    for part in _parts(kind, body):
      line = part.get_payload().lstrip().partition('\r\n')[0].split()
      path = urllib.parse.urlsplit(line[1]).path
      code, _, _ = self._one(line[0], path, {}, b'')
      answers.append(
        'Content-Type: application/http\r\n'
        f'Content-ID: response-{part["Content-ID"]}\r\n\r\n'
        f'HTTP/1.1 {code} done\r\nContent-Length: 0\r\n\r\n\r\n'
      )
    text = ''.join(f'--xx\r\n{answer}' for answer in answers) + '--xx--\r\n'
    return 200, {'Content-Type': 'multipart/mixed; boundary=xx'}, text.encode()

  def _one(
    self, command: str, path: str, given: Mapping[str, str], body: bytes
  ) -> tuple[int, dict, bytes]:
    parts = urllib.parse.urlsplit(path)
    query = {k: v[0] for k, v in urllib.parse.parse_qs(parts.query).items()}
    _, found, name = parts.path.partition('/o/')
    if not found and not parts.path.rstrip('/').endswith('/o'):
      return _json({'name': 'bucket', 'location': 'here'})
    name, copied, to = name.partition('/rewriteTo/')
    name = urllib.parse.unquote(name) if found else query.get('name', '')
    if command == 'POST' and copied:
      to = urllib.parse.unquote(to.partition('/o/')[2])
      self.objects[to] = next(self._generations), self.objects[name][1]
      return _json({'done': True, 'resource': self._about(to)})
    how = query.get('uploadType')
    if command == 'POST' and how == 'resumable':
      name = name or json.loads(body)['name']
      place = urllib.parse.urlencode({'uploadType': 'put', 'name': name})
      self._uploads[name] = b''
      base = parts.path.rstrip('/')
      return 200, {'Location': f'{self.url}{base}?{place}'}, b''
    if command == 'PUT':
      self._uploads[name] += body
      _, _, whole = given.get('Content-Range', '').partition('/')
      if whole == '*':
        last = len(self._uploads[name]) - 1
        return 308, {'Range': f'bytes=0-{last}'}, b''
      body = self._uploads.pop(name)
    if how == 'multipart':
      about, data = _parts(given['Content-Type'], body)
      name = json.loads(about.get_payload())['name']
      body = data.get_payload(decode=True)
    generation, data = self.objects.get(name, (0, b''))
    wanted = query.get('ifGenerationMatch')
    if wanted is not None and int(wanted) != generation:
      return 412, {}, b''
    if command in ('POST', 'PUT'):
      self.objects[name] = next(self._generations), body
      return _json(self._about(name))
    if not found:
      return _json(self._listed(query))
    if not generation:
      return 404, {}, b''
    if command == 'DELETE':
      del self.objects[name]
      return 204, {}, b''
    if query.get('ifGenerationNotMatch') == str(generation):
      return 304, {}, b''
    if query.get('alt') != 'media':
      return _json(self._about(name))
    headers = {'x-goog-generation': generation}
    if asked := given.get('Range'):
      first, _, last = asked.removeprefix('bytes=').partition('-')
      if not first:  # the last ones
        first, last = str(len(data) - int(last)), ''
      if int(first) >= len(data):
        return 416, {**headers, 'Content-Range': f'bytes */{len(data)}'}, b''
      start, stop = int(first), min(int(last or len(data)), len(data) - 1) + 1
      headers['Content-Range'] = f'bytes {start}-{stop - 1}/{len(data)}'
      return 206, headers, data[start:stop]
    return 200, headers, data

  def _about(self, name: str) -> dict[str, str]:
    generation, data = self.objects[name]
    return {
      'name': name,
      'bucket': 'bucket',
      'generation': str(generation),
      'size': str(len(data)),
      'updated': '2026-01-02T03:04:05.678Z',
      'timeCreated': '2026-01-02T03:04:05.678Z',
    }

  def _listed(self, query: dict[str, str]) -> dict:
    """A page of two, so that there are several."""
    prefix = query.get('prefix', '')
    start = max(query.get('startOffset', ''), query.get('pageToken', ''))
    names = sorted(
      name
      for name in self.objects
      if name.startswith(prefix)
      and start <= name
      and ('endOffset' not in query or name < query['endOffset'])
    )
    more = {'nextPageToken': names[2]} if len(names) > 2 else {}
    folders = set()
    if delimiter := query.get('delimiter'):
      below = {n: n[len(prefix) :].partition(delimiter) for n in names[:2]}
      folders = {prefix + a + b for a, b, _ in below.values() if b}
      names = [n for n in names[:2] if not below[n][1]]
    items = [self._about(name) for name in names[:2]]
    kind = 'storage#objects'
    return {'kind': kind, 'items': items, 'prefixes': sorted(folders), **more}


def _json(value: dict) -> tuple[int, dict, bytes]:
  kind = {'Content-Type': 'application/json'}
  return 200, kind, json.dumps(value).encode()


def _parts(kind: str, body: bytes) -> list[email.message.Message]:
  """Those of a body of several parts."""
  head = f'Content-Type: {kind}\r\n\r\n'.encode()
  whole: Any = email.message_from_bytes(head + body)
  return whole.get_payload()
