# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A bucket of S3's REST API, in memory, which may go wrong.

It knows what TensorStore's driver `s3` asks for: reading, writing, deleting and
listing objects, with conditions on their ETags. It checks that requests are
signed, not the signature.
"""

import urllib.parse
from typing import ClassVar
from xml.sax import saxutils

from tests.support import fake_gcs


def _error(code: str) -> bytes:
  text = f'<Error><Code>{code}</Code><Message>{code}</Message></Error>'
  return text.encode()


class Bucket(fake_gcs.Bucket):
  """Objects by name, and a server for them at `url`."""

  REFUSALS: ClassVar[dict[str, tuple[int, dict, bytes]]] = {
    'busy': (503, {}, _error('ServiceUnavailable')),
    'many': (429, {}, _error('TooManyRequests')),
    'slow down': (503, {}, _error('SlowDown')),
    'expired': (400, {}, _error('ExpiredToken')),
  }

  def variables(self) -> dict[str, str]:
    """Of the environment, for a process that uses the bucket."""
    return {
      'AWS_ENDPOINT_URL_S3': self.url,
      'AWS_ACCESS_KEY_ID': 'id',
      'AWS_SECRET_ACCESS_KEY': 'key',
    }

  def _answer(self, request, body: bytes) -> tuple[int, dict, bytes]:
    if 'Credential=' not in request.headers.get('Authorization', ''):
      return 403, {}, _error('AccessDenied')
    parts = urllib.parse.urlsplit(request.path)
    query = dict(urllib.parse.parse_qsl(parts.query, keep_blank_values=True))
    bucket, _, name = urllib.parse.unquote(parts.path)[1:].partition('/')
    if bucket != 'bucket':
      return 404, {}, _error('NoSuchBucket')
    if not name:
      if 'list-type' in query:
        return 200, {'Content-Type': 'application/xml'}, self._found(query)
      return 200, {'x-amz-bucket-region': 'us-east-1'}, b''
    generation, data = self.objects.get(name, (0, b''))
    tag = f'"{generation}"' if generation else ''
    wanted = request.headers.get('If-Match')
    unwanted = request.headers.get('If-None-Match')
    differs = (wanted and wanted != tag) or (unwanted == '*' and tag)
    if differs and request.command in ('PUT', 'DELETE'):
      return 412, {}, _error('PreconditionFailed')
    if request.command == 'PUT':
      self.objects[name] = next(self._generations), body
      return 200, {'ETag': f'"{self.objects[name][0]}"'}, b''
    if not generation:
      return 404, {}, _error('NoSuchKey')
    if request.command == 'DELETE':
      del self.objects[name]
      return 204, {}, b''
    if wanted and wanted != tag:
      return 412, {}, _error('PreconditionFailed')
    if unwanted == tag:
      return 304, {'ETag': tag}, b''
    headers = {'ETag': tag}
    if asked := request.headers.get('Range'):
      first, _, last = asked.removeprefix('bytes=').partition('-')
      if not first:  # the last ones
        first, last = str(max(len(data) - int(last), 0)), ''
      if int(first) >= len(data):
        return 416, {**headers, 'Content-Range': f'bytes */{len(data)}'}, b''
      start, stop = int(first), min(int(last or len(data)), len(data) - 1) + 1
      headers['Content-Range'] = f'bytes {start}-{stop - 1}/{len(data)}'
      return 206, headers, data[start:stop]
    return 200, headers, data

  def _found(self, query: dict[str, str]) -> bytes:
    """A page of two, so that there are several."""
    after = query.get('continuation-token') or query.get('start-after', '')
    names = sorted(
      name for name in self.objects if name.startswith(query.get('prefix', '')) and name > after
    )
    page = ''.join(
      f'<Contents><Key>{saxutils.escape(name)}</Key>'
      f'<Size>{len(self.objects[name][1])}</Size></Contents>'
      for name in names[:2]
    )
    token = ''
    if more := len(names) > 2:
      last = saxutils.escape(names[1])
      token = f'<NextContinuationToken>{last}</NextContinuationToken>'
    return (
      '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult>'
      f'<IsTruncated>{str(more).lower()}</IsTruncated>'
      f'<KeyCount>{len(names[:2])}</KeyCount>{token}{page}</ListBucketResult>'
    ).encode()
