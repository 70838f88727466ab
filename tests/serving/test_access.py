# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Who may use the server, over real connections; and its key."""

import json
import os
import socket

import openai
import pytest

from gpt_jax.serving import access
from gpt_jax.serving.access import Access
from tests.support.served import Running, make_engine, received

KEY = 'kö'.encode().hex()
JSON = 'Content-Type: application/json'
BODY = b'{"prompt": "a", "max_tokens": 1, "temperature": 0}'


@pytest.fixture(scope='module')
def named():
  """With a key and a name, as behind a proxy."""
  allowed = Access('0.0.0.0', ('models.example.com',), KEY)
  running = Running(make_engine, access=allowed)
  yield running
  running.stop()


def ask(api, *headers, path='/v1/completions', body=BODY, version='1.1'):
  """Status and error of an answer to a request with these headers alone."""
  method = 'POST' if path == '/v1/completions' else 'GET'
  lines = [f'{method} {path} HTTP/{version}', 'Connection: close', *headers]
  if method == 'POST':
    lines.append(f'Content-Length: {len(body)}')
  with socket.create_connection(api.address, timeout=60) as connection:
    head = '\r\n'.join([*lines, '', '']).encode()
    connection.sendall(head + (body if method == 'POST' else b''))
    head, _, rest = received(connection).partition(b'\r\n\r\n')
  return int(head.split()[1]), json.loads(rest).get('error')


@pytest.mark.parametrize('path', ['/v1/completions', '/v1/models', '/health'])
@pytest.mark.parametrize(
  ('host', 'status'),
  [
    ('localhost', 200),
    ('LOCALHOST:8000', 200),
    ('localhost.:8000', 200),
    ('127.0.0.1', 200),
    ('127.0.0.1:1', 200),
    ('127.8.9.1', 200),
    ('[::1]:8000', 200),
    ('evil.example', 421),
    ('evil.example:8000', 421),
    ('localhost.evil.example', 421),
    ('127.0.0.1.evil.example', 421),
    ('evil.example@localhost', 421),
    ('localhost@evil.example', 421),
    ('localhost:80:80', 421),
    ('localhost, evil.example', 421),
    ('192.0.2.1', 421),
    ('[::2]', 421),
    ('[::1', 421),
    ('', 421),
  ],
)
def test_hosts(api, path, host, status):
  found, error = ask(api, f'Host: {host}', JSON, path=path)
  assert found == status
  if error:
    assert error['type'] == 'invalid_request_error'
    assert '--allowed_hosts' in error['message']


def test_a_request_without_a_host(api):
  assert ask(api, JSON, version='1.0')[0] == 421
  assert ask(api, 'Host: localhost', 'Host: evil.example', JSON)[0] == 400


@pytest.mark.parametrize(
  ('reached', 'host', 'status'),
  [
    ('192.0.2.7', '192.0.2.7:8000', None),
    ('::ffff:192.0.2.7', '192.0.2.7', None),
    ('fe80::7%eth0', '[fe80::7]', None),
    ('2001:db8::7', '[2001:DB8:0::7]:80', None),
    ('192.0.2.7', '192.0.2.8', 421),
    ('192.0.2.7', 'models.example.com', 421),
    ('192.0.2.7', 'gpu3', None),
  ],
)
def test_the_address_that_a_client_has_reached(reached, host, status):
  """Of a server that listens at all of them, or was given a name."""
  scope = {
    'type': 'http',
    'headers': [(b'host', host.encode())],
    'server': (reached, 8000),
    'path': '/v1/models',
    'method': 'GET',
  }
  error = access.refusal(Access('gpu3'), scope)
  assert (error and error.status) == status
  anything = Access('gpu3', ('*',))
  assert access.refusal(anything, scope) is None


@pytest.mark.parametrize(
  ('headers', 'status'),
  [
    (['Origin: http://localhost:8000'], 200),
    (['Origin: http://LOCALHOST:8000', 'Sec-Fetch-Site: same-origin'], 200),
    (['Sec-Fetch-Site: none'], 200),
    (['Origin: http://localhost:3000'], 403),
    (['Origin: http://localhost'], 403),
    (['Origin: http://127.0.0.1:8000'], 403),
    (['Origin: https://evil.example'], 403),
    (['Origin: https://evil.example#http://localhost:8000'], 403),
    (['Origin: null'], 403),
    (['Origin: '], 403),
    (['Origin: http://[::1'], 403),
    (['Origin: file://'], 403),
    (['Sec-Fetch-Site: cross-site'], 403),
    (['Sec-Fetch-Site: same-site'], 403),
    (['Origin: http://localhost:8000', 'Sec-Fetch-Site: cross-site'], 403),
  ],
)
def test_pages_of_other_sites(api, headers, status):
  for path in ('/v1/completions', '/v1/models', '/health'):
    found, error = ask(api, 'Host: localhost:8000', JSON, *headers, path=path)
    assert found == status
    assert error is None or error['type'] == 'invalid_request_error'


LINK = ['Sec-Fetch-Site: cross-site', 'Sec-Fetch-Mode: navigate']


@pytest.mark.parametrize(
  ('path', 'headers', 'status'),
  [
    ('/', [*LINK, 'Sec-Fetch-Dest: document'], 200),
    ('/', LINK, 200),
    ('/', ['Sec-Fetch-Site: same-site', LINK[1]], 200),
    ('/', [*LINK, 'Sec-Fetch-Dest: iframe'], 403),
    ('/', [*LINK, 'Origin: https://evil.example'], 403),
    ('/', [LINK[0], 'Sec-Fetch-Mode: no-cors'], 403),
    ('/', LINK[:1], 403),
    ('/v1/models', [*LINK, 'Sec-Fetch-Dest: document'], 403),
    ('/health', LINK, 403),
  ],
)
def test_a_link_to_the_page(named, path, headers, status):
  """From another site; it opens the page, and nothing else."""
  found = answered(named, f'GET {path} HTTP/1.1', HOST, *headers)
  assert found.startswith(f'HTTP/1.1 {status} '.encode())


HOST = 'Host: localhost'
CHUNKED = 'Transfer-Encoding: chunked'


def answered(api, *lines, body=b''):
  """The whole answer to lines as they are."""
  with socket.create_connection(api.address, timeout=60) as connection:
    head = '\r\n'.join([*lines, 'Connection: close', '', '']).encode()
    connection.sendall(head + body)
    return received(connection)


@pytest.mark.parametrize(
  'lines',
  [
    ['POST /v1/completions HTTP/1.1', CHUNKED, 'Content-Length: 5'],
    ['POST /v1/completions HTTP/1.1', 'Content-Length: 5', CHUNKED],
    ['POST /v1/completions HTTP/1.1', CHUNKED.lower(), 'content-length: 0'],
    ['POST /nowhere HTTP/1.1', CHUNKED, 'Content-Length: 5'],
    ['GET /health HTTP/1.1', CHUNKED, 'Content-Length: 5'],
    ['POST /v1/completions HTTP/1.0', CHUNKED],
  ],
)
def test_a_body_with_two_ends(api, lines):
  """One answer, though a second request follows where a proxy may see it."""
  smuggled = b'0\r\n\r\nGET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n'
  with socket.create_connection(api.address, timeout=60) as connection:
    head = '\r\n'.join([*lines, HOST, JSON, '', '']).encode()
    connection.sendall(head + smuggled)
    found = received(connection)
  assert found.startswith(b'HTTP/1.1 400 ') and found.count(b'HTTP/1.1') == 1
  error = json.loads(found.partition(b'\r\n\r\n')[2])['error']
  assert error['type'] == 'invalid_request_error'
  assert 'Content-Length' in error['message']


def test_a_page_behind_a_proxy(named):
  """Which may put its own Host before the page's."""
  key = f'Authorization: Bearer {KEY}'
  own = 'Origin: https://models.example.com'
  for host in ('models.example.com', '127.0.0.1:8000'):
    assert ask(named, f'Host: {host}', own, key, JSON)[0] == 200
  other = 'Origin: https://other.example.com'
  assert ask(named, 'Host: models.example.com', other, key, JSON)[0] == 403


@pytest.mark.parametrize(
  ('kind', 'status'),
  [
    ('application/json', 200),
    ('Application/JSON; charset=utf-8', 200),
    ('text/plain', 415),
    ('text/plain; application/json', 415),
    ('application/x-www-form-urlencoded', 415),
    ('multipart/form-data; boundary=x', 415),
    ('application/jsonx', 415),
    ('', 415),
    (None, 415),
  ],
)
def test_bodies_are_json(api, kind, status):
  headers = [] if kind is None else [f'Content-Type: {kind}']
  found, error = ask(api, 'Host: localhost', *headers)
  assert found == status
  if error:
    assert 'curl: -H' in error['message']


def test_a_key(named):
  ask_one = {'model': 'tiny', 'prompt': 'a', 'max_tokens': 1}
  client = named.client.with_options(api_key=KEY)
  assert client.completions.create(**ask_one).usage.completion_tokens <= 1
  assert client.models.list().data
  for wrong in (f'{KEY}x', KEY[:-1], KEY.upper(), 'none'):
    with pytest.raises(openai.AuthenticationError) as e:
      named.client.with_options(api_key=wrong).models.list()
    assert e.value.code == 'invalid_api_key' and KEY not in str(e.value)
    assert e.value.response.headers['www-authenticate'] == 'Bearer'


@pytest.mark.parametrize(
  ('authorization', 'status'),
  [
    (f'Bearer {KEY}', 200),
    (f'bearer  {KEY}', 200),
    (KEY, 401),
    (f'Basic {KEY}', 401),
    (f'Bearer {KEY}, Bearer x', 401),
    ('Bearer \xf6', 401),
    ('Bearer', 401),
    (None, 401),
  ],
)
def test_how_a_key_is_sent(named, authorization, status):
  headers = ['Host: models.example.com', JSON]
  if authorization is not None:
    headers.append(f'Authorization: {authorization}')
  for path in ('/v1/completions', '/v1/models'):
    assert ask(named, *headers, path=path)[0] == status
  # Nothing is said of paths and bodies before.
  assert ask(named, *headers, path='/x')[0] == (404 if status == 200 else 401)
  assert ask(named, *headers, path='/health')[0] == 200


@pytest.fixture
def key_file(tmp_path, monkeypatch):
  monkeypatch.delenv(access.KEY_VARIABLE, raising=False)

  def write(contents, mode=0o600):
    path = tmp_path / 'key'
    path.write_bytes(contents)
    os.chmod(path, mode)
    return str(path)

  return write


def test_a_key_is_read_from_a_file_or_the_environment(key_file, monkeypatch):
  assert access.read_key(None) is None
  monkeypatch.setenv(access.KEY_VARIABLE, ' of-the-environment\n')
  assert access.read_key(None) == 'of-the-environment'
  assert access.read_key(key_file(b'sk-1/+=\n')) == 'sk-1/+='
  assert access.read_key(key_file(b'a', mode=0o400)) == 'a'


@pytest.mark.parametrize(
  ('contents', 'mode', 'why'),
  [
    (b'', 0o600, 'is empty; write a key'),
    (b' \n', 0o600, 'is empty'),
    (b'two\nlines', 0o600, 'must hold one key'),
    (b'a b', 0o600, 'must hold one key'),
    ('ö'.encode(), 0o600, 'must .* printable ASCII'),
    (b'a\0b', 0o600, 'must .* printable ASCII'),
    (b'a' * 4097, 0o600, 'must .* up to 4,096'),
    (b'a', 0o644, r'other users may read .* \(mode 644\); run chmod 600'),
    (b'a', 0o640, 'other users may read'),
    (b'a', 0o602, 'other users may'),
  ],
)
def test_a_file_that_holds_no_key(key_file, contents, mode, why):
  path = key_file(contents, mode)
  with pytest.raises(ValueError, match=f'--api_key_file={path}: {why}'):
    access.read_key(path)


def test_an_empty_key_in_the_environment(monkeypatch):
  monkeypatch.setenv(access.KEY_VARIABLE, '')
  with pytest.raises(ValueError, match='GPT_JAX_API_KEY: is empty; unset it'):
    access.read_key(None)


def test_names_of_hosts():
  names = ['Models.Example.com.', '10.0.0.7', '[2001:db8::7]', '*']
  assert access.read_allowed_hosts(names) == ('models.example.com', '10.0.0.7', '2001:db8::7', '*')
  for wrong in ('https://a.example', 'a.example:80', '*.example', ''):
    with pytest.raises(ValueError, match='without scheme and port'):
      access.read_allowed_hosts(['a', wrong])


@pytest.mark.parametrize(
  ('address', 'is_loopback'),
  [
    ('127.0.0.1', True),
    ('127.3.2.1', True),
    ('::1', True),
    ('0.0.0.0', False),
    ('::', False),
    ('fe80::1%eth0', False),
  ],
)
def test_loopback(address, is_loopback):
  assert access.is_loopback(address) == is_loopback
