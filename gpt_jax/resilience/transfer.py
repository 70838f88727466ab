# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Large pieces of data that the processes of a run fetch from each other.

They go over TCP, beside the training: JAX's key-value store is for small
values, and its collectives wait for the training step, take device memory, and
need every process to take part.

A caller first sends a line with the run's secret, then one line of JSON for
each piece. The answer to it is a line of JSON with the size and CRC-32 of the
piece, or with an error, and the piece.
"""

import contextlib
import hmac
import json
import socket
import socketserver
import threading
import zlib
from collections.abc import Callable
from typing import Any

from gpt_jax.core.runtime import jax_internals

# The longest line that is read, and the seconds that a caller has for its
# secret.
_LONGEST, _PATIENCE = 4096, 10.0


class PieceServer:
  """Serves pieces to the other processes, each caller in a thread."""

  def __init__(self, secret: str, read: Callable[[Any], bytes]):
    """Listens on a free port of the address that the hosts connect by.

    Args:
      secret: of the run; callers without it are dropped.
      read: from a request, plain JSON, to the piece; what it raises is the
        caller's error.
    """

    class Handler(socketserver.StreamRequestHandler):
      timeout = _PATIENCE
      # Else the second part of a small answer waits for the first's receipt.
      disable_nagle_algorithm = True

      def handle(self) -> None:
        with contextlib.suppress(OSError):  # the caller has gone
          said = self.rfile.readline(_LONGEST).strip()
          if hmac.compare_digest(said, secret.encode()):
            self.connection.settimeout(None)
            while line := self.rfile.readline(_LONGEST):
              self._answer(line)

      def _answer(self, line: bytes) -> None:
        piece, head = b'', {}
        try:
          piece = read(json.loads(line))
          head = {'size': len(piece), 'crc': zlib.crc32(piece)}
        except Exception as e:
          head = {'error': f'{type(e).__name__}: {e}'[:500]}
        self.wfile.write(json.dumps(head).encode() + b'\n')
        self.connection.sendall(piece)

    class Listener(socketserver.ThreadingTCPServer):
      daemon_threads = True
      address_family = _family(_own_address())

    self._listener = Listener((_own_address(), 0), Handler)
    threading.Thread(target=self._listener.serve_forever, daemon=True).start()

  @property
  def address(self) -> tuple[str, int]:
    """Host and port."""
    host, port = self._listener.server_address[:2]
    return str(host), port

  def close(self) -> None:
    """Stops listening."""
    self._listener.shutdown()
    self._listener.server_close()


class Client:
  """A connection to the `PieceServer` of another process."""

  def __init__(self, address: tuple[str, int], secret: str):
    """Connects."""
    self._socket = socket.create_connection(address, timeout=_PATIENCE)
    self._socket.settimeout(None)
    self._socket.sendall(secret.encode() + b'\n')
    self._file = self._socket.makefile('rb')

  def fetch(self, **request: Any) -> bytes:
    """Fetches a piece.

    Raises:
      OSError: the server has ended or has no such piece, or the piece changed
        on the way.
    """
    self._socket.sendall(json.dumps(request).encode() + b'\n')
    line = self._file.readline(_LONGEST)
    if not line.endswith(b'\n'):
      raise OSError('the other process has ended')
    head = json.loads(line)
    if 'error' in head:
      raise OSError(head['error'])
    piece = self._file.read(head['size'])
    if zlib.crc32(piece) != head['crc']:
      raise OSError('the data was cut or changed on the way')
    return piece

  def close(self) -> None:
    """Closes the connection."""
    self._file.close()
    self._socket.close()


def _own_address() -> str:
  """The address of this host in the network of the hosts."""
  coordinator = jax_internals.coordinator()
  host = (coordinator or '127.0.0.1:0').rpartition(':')[0].strip('[]')
  # Nothing is sent: connecting a datagram socket chooses the local address.
  with socket.socket(_family(host), socket.SOCK_DGRAM) as probe:
    probe.connect((host, 9))
    return probe.getsockname()[0]


def _family(host: str) -> socket.AddressFamily:
  return socket.getaddrinfo(host, None)[0][0]
