# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A server of the storage's API on this machine, to measure reads from it.

It serves the files of a folder as the objects of gs://bucket, by ranges, and
answers each request after a fixed time. It runs in a process of its own, so
that reading and answering do not share Python's lock.
"""

import contextlib
import http.server
import os
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Iterator
from unittest import mock


@contextlib.contextmanager
def serving(folder: str, seconds: float) -> Iterator[str]:
  """Yields the URL of a folder's files in a bucket.

  Args:
    seconds: until a request is answered.
  """
  with subprocess.Popen(
    [sys.executable, '-m', __name__, folder, str(seconds)],
    stdout=subprocess.PIPE,
    text=True,
  ) as server:
    try:
      assert server.stdout is not None
      variables = {
        'TENSORSTORE_GCS_HTTP_URL': server.stdout.readline().strip(),
        'GOOGLE_AUTH_TOKEN_FOR_TESTING': 'none',
      }
      with mock.patch.dict(os.environ, variables):
        yield 'gs://bucket/'
    finally:
      server.kill()


def _handler(folder: str, seconds: float) -> type:
  class Handler(http.server.BaseHTTPRequestHandler):
    """Answers reads."""

    protocol_version = 'HTTP/1.1'
    disable_nagle_algorithm = True

    def do_GET(self):  # the name that http.server asks for
      time.sleep(seconds)
      path = urllib.parse.urlsplit(self.path).path
      name = urllib.parse.unquote(path.partition('/o/')[2])
      try:
        with open(os.path.join(folder, name), 'rb') as file:
          self._send(file)
      except OSError:
        self.send_response(404)
        self.send_header('Content-Length', '0')
        self.end_headers()

    def _send(self, file):
      size = os.fstat(file.fileno()).st_size
      start, stop = 0, size
      if asked := self.headers['Range']:
        first, _, last = asked.removeprefix('bytes=').partition('-')
        start = int(first or max(size - int(last), 0))
        stop = min(int(last), size - 1) + 1 if first and last else size
      self.send_response(206 if asked else 200)
      self.send_header('Content-Length', str(stop - start))
      self.send_header('Content-Range', f'bytes {start}-{stop - 1}/{size}')
      self.send_header('x-goog-generation', '1')
      self.end_headers()
      file.seek(start)
      self.wfile.write(file.read(stop - start))

    def log_message(self, format, *args):
      """Says nothing."""

  return Handler


def _serve(folder: str, seconds: float) -> None:
  handler = _handler(folder, seconds)
  server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), handler)
  print(f'http://127.0.0.1:{server.server_port}', flush=True)
  server.serve_forever()


if __name__ == '__main__':
  _serve(sys.argv[1], float(sys.argv[2]))
