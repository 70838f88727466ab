# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A bucket of Cloud Storage's JSON API, in memory, which may go wrong.

It knows what TensorStore's driver `gcs` asks for: reading an object or a range
of it, writing one at once, listing and deleting, with generations.
"""

import http.server
import itertools
import json
import threading
import time
import urllib.parse
from collections.abc import Callable


class Bucket:
  """Objects by name, and a server for them at `url`.

  Attributes:
    objects: name -> (generation, bytes).
    faults: how many requests went wrong.
  """

  def __init__(self, fault: Callable[[int], str] = lambda number: ''):
    """Serves until `close`.

    Args:
      fault: of the request of a number, from 0: '', 'busy' (503), 'slow',
        'partly' (the connection ends midway), 'silent' (no answer).
    """
    self.objects: dict[str, tuple[int, bytes]] = {}
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

      do_GET = do_POST = do_DELETE = _any

      def log_message(self, format, *args):
        """Says nothing."""

    self._server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
    self._server.daemon_threads = True
    threading.Thread(target=self._server.serve_forever, daemon=True).start()
    self.url = f'http://127.0.0.1:{self._server.server_port}'

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
    if fault == 'busy':
      code, headers, data = 503, {}, b'busy'
    else:
      with self._lock:
        code, headers, data = self._answer(request, body)
    request.send_response(code)
    for name, value in {**headers, 'Content-Length': len(data)}.items():
      request.send_header(name, str(value))
    request.end_headers()
    request.wfile.write(data)

  def _answer(self, request, body: bytes) -> tuple[int, dict, bytes]:
    parts = urllib.parse.urlsplit(request.path)
    query = {k: v[0] for k, v in urllib.parse.parse_qs(parts.query).items()}
    _, found, name = parts.path.partition('/o/')
    name = urllib.parse.unquote(name) if found else query.get('name', '')
    generation, data = self.objects.get(name, (0, b''))
    wanted = query.get('ifGenerationMatch')
    if wanted is not None and int(wanted) != generation:
      return 412, {}, b''
    if request.command == 'POST':
      self.objects[name] = next(self._generations), body
      return 200, {}, json.dumps(self._about(name)).encode()
    if not found:
      return 200, {}, json.dumps(self._listed(query)).encode()
    if not generation:
      return 404, {}, b''
    if request.command == 'DELETE':
      del self.objects[name]
      return 204, {}, b''
    if query.get('ifGenerationNotMatch') == str(generation):
      return 304, {}, b''
    headers = {'x-goog-generation': generation}
    if given := request.headers.get('Range'):
      first, _, last = given.removeprefix('bytes=').partition('-')
      start, stop = int(first), min(int(last or len(data)), len(data) - 1) + 1
      headers['Content-Range'] = f'bytes {start}-{stop - 1}/{len(data)}'
      return 206, headers, data[start:stop]
    return 200, headers, data

  def _about(self, name: str) -> dict[str, str]:
    generation, data = self.objects[name]
    size = str(len(data))
    return {'name': name, 'generation': str(generation), 'size': size}

  def _listed(self, query: dict[str, str]) -> dict:
    """A page of two, so that there are several."""
    start = max(query.get('startOffset', ''), query.get('pageToken', ''))
    names = sorted(
      name
      for name in self.objects
      if name.startswith(query.get('prefix', ''))
      and start <= name
      and ('endOffset' not in query or name < query['endOffset'])
    )
    more = {'nextPageToken': names[2]} if len(names) > 2 else {}
    return {'items': [self._about(name) for name in names[:2]], **more}
