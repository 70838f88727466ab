# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A Hugging Face Hub in memory, which may go wrong.

It knows what huggingface_hub asks for: repositories and their revisions, the
listing of a commit, files and ranges of them, making a repository, and a commit
with small files in it and large ones sent before.
"""

import base64
import hashlib
import http.server
import json
import pathlib
import re
import threading
import urllib.parse
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

TOKEN = 'hf_of_a_test'
_PAGE = 3  # files that a page of a listing has
# What the Hub stores apart from Git.
_LARGE = ('.safetensors', '.parquet')


class Answer(NamedTuple):
  """What is sent back."""

  body: bytes = b''
  headers: Mapping[str, str] = MappingProxyType({})
  status: int = 200


def _json(value, **headers):
  return Answer(json.dumps(value).encode(), {'Content-Type': 'application/json', **headers})


def _refused(status, code, message='no'):
  return Answer(b'{}', {'X-Error-Code': code, 'X-Error-Message': message}, status)


class Repository:
  """Files by commit.

  Attributes:
    commits: hash -> path -> bytes.
    refs: branch or tag -> hash.
    sizes: path -> bytes, where the server lies about them.
  """

  def __init__(self, *, private=False, gated=False):
    self.private, self.gated = private, gated
    self.commits: dict[str, dict[str, bytes]] = {}
    self.refs: dict[str, str] = {}
    self.sizes: dict[str, int] = {}

  def commit(self, files, ref='main'):
    """Adds files to those of a branch, None removes one; returns the hash."""
    whole = {**self.commits.get(self.refs.get(ref, ''), {}), **files}
    whole = {path: data for path, data in whole.items() if data is not None}
    digest = hashlib.sha1(str(len(self.commits)).encode())
    for path, data in sorted(whole.items()):
      digest.update(path.encode() + hashlib.sha256(data).digest())
    self.commits[digest.hexdigest()] = whole
    self.refs[ref] = digest.hexdigest()
    return digest.hexdigest()

  def at(self, revision):
    """The hash of a revision; None if there is none."""
    return self.refs.get(revision, revision if revision in self.commits else None)


class Hub:
  """Repositories, and a server for them at `url`.

  Attributes:
    repositories: ('models' or 'datasets', 'ORG/NAME') -> repository.
    requests: (method, path, Range) of all requests.
    cut: paths whose next answer ends midway.
    gone: paths whose download is refused with 403.
    down: whether each request is answered with 503.
  """

  def __init__(self):
    self.repositories: dict[tuple[str, str], Repository] = {}
    self.requests: list[tuple[str, str, str]] = []
    self.cut: set[str] = set()
    self.gone: set[str] = set()
    self.down = self._closed = False
    self._large: dict[str, bytes] = {}
    hub = self

    class Handler(http.server.BaseHTTPRequestHandler):
      """Hands requests to the hub."""

      protocol_version = 'HTTP/1.1'

      def _any(self):
        hub._serve(self)

      do_GET = do_HEAD = do_POST = do_PUT = _any

      def log_message(self, format, *args):
        """Says nothing."""

    self._server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
    self._server.daemon_threads = True
    threading.Thread(target=self._server.serve_forever, daemon=True).start()
    self.url = f'http://127.0.0.1:{self._server.server_port}'

  def close(self):
    """Ends the server, and connections that are open."""
    self._closed = True
    self._server.shutdown()
    self._server.server_close()

  def add(self, name, files, kind='models', **how):
    """A repository with one commit: of files by path, or of a folder."""
    if isinstance(files, pathlib.Path):
      files = {p.name: p.read_bytes() for p in files.iterdir() if p.is_file()}
    repository = self.repositories[kind, name] = Repository(**how)
    repository.commit(files)
    return repository

  def variables(self, home):
    """Of the environment of a process that shall use this hub."""
    return {
      'HF_ENDPOINT': self.url,
      'HF_HOME': str(home),
      'HF_HUB_OFFLINE': '0',
      # Its transfers are of a protocol of their own.
      'HF_HUB_DISABLE_XET': '1',
    }

  def use(self, monkeypatch, home):
    """Makes this process use the hub: its library has read the environment."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, 'ENDPOINT', self.url)
    template = self.url + '/{repo_id}/resolve/{revision}/{filename}'
    monkeypatch.setattr(constants, 'HUGGINGFACE_CO_URL_TEMPLATE', template)
    monkeypatch.setattr(constants, 'HF_HUB_OFFLINE', False)
    monkeypatch.setattr(constants, 'HF_HUB_CACHE', f'{home}/hub')
    monkeypatch.setattr(constants, 'HF_TOKEN_PATH', f'{home}/token')
    monkeypatch.setattr(constants, 'HF_HUB_DISABLE_XET', True)
    monkeypatch.delenv('HF_TOKEN', raising=False)

  def fetched(self, path):
    """The ranges of a file that were asked for; '' is all of it."""
    return [r for method, p, r in self.requests if method == 'GET' and p.endswith(path)]

  def _serve(self, request):
    body = request.rfile.read(int(request.headers.get('Content-Length', 0)))
    if self._closed:
      request.close_connection = True
      return
    parts = urllib.parse.urlsplit(request.path)
    path = urllib.parse.unquote(parts.path)
    self.requests.append((request.command, path, request.headers.get('Range', '')))
    token = request.headers.get('Authorization', '').removeprefix('Bearer ')
    query = dict(urllib.parse.parse_qsl(parts.query))
    if self.down:
      answer = Answer(b'{}', {}, 503)
    elif token and token != TOKEN:
      answer = _refused(401, '', 'Invalid credentials')
    elif request.command in ('POST', 'PUT'):
      answer = self._write(path, body, bool(token))
    else:
      answer = self._read(path, query, bool(token), request.headers)
    request.send_response(answer.status)
    for name, value in {'Content-Length': str(len(answer.body)), **answer.headers}.items():
      request.send_header(name, value)
    request.end_headers()
    data = answer.body
    if request.command == 'HEAD':
      return
    if cut := {x for x in self.cut if path.endswith(x)}:
      self.cut -= cut
      data = data[: len(data) // 2]
      request.close_connection = True
    request.wfile.write(data)

  def _read(self, path, query, known, headers):
    if path == '/api/whoami-v2':
      return _json({'name': 'someone', 'type': 'user', 'orgs': []})
    if found := re.fullmatch(r'/api/(models|datasets)/([^/]+/[^/]+)/tree/([^/]+)(/.*)?', path):
      return self._tree(found[1], found[2], found[3], query, known)
    if found := re.fullmatch(r'/api/(models|datasets)/([^/]+/[^/]+)(?:/revision/(.+))?', path):
      return self._info(found[1], found[2], found[3] or 'main', known)
    if found := re.fullmatch(r'/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)', path):
      kind = 'datasets' if found[1] else 'models'
      return self._file(kind, found[2], found[3], found[4], known, headers)
    return Answer(status=404)

  def _found(self, kind, name, revision, known):
    """The repository and the hash, or a refusal."""
    repository = self.repositories.get((kind, name))
    if repository is None or (repository.private and not known):
      return _refused(404 if known else 401, 'RepoNotFound')
    commit = repository.at(revision)
    if commit is None:
      return _refused(404, 'RevisionNotFound')
    return repository, commit

  def _info(self, kind, name, revision, known):
    found = self._found(kind, name, revision, known)
    if isinstance(found, Answer):
      return found
    repository, commit = found
    files = [{'rfilename': path} for path in repository.commits.get(commit, {})]
    return _json({'id': name, 'sha': commit, 'private': repository.private, 'siblings': files})

  def _tree(self, kind, name, revision, query, known):
    found = self._found(kind, name, revision, known)
    if isinstance(found, Answer):
      return found
    repository, commit = found
    entries = []
    for path, data in sorted(repository.commits[commit].items()):
      if '/' in path and query.get('recursive', 'False').lower() != 'true':
        continue
      digest = hashlib.sha1(data).hexdigest()
      size = repository.sizes.get(path, len(data))
      entry = {'type': 'file', 'path': path, 'size': size, 'oid': digest}
      if path.endswith(_LARGE):
        entry['lfs'] = {'oid': hashlib.sha256(data).hexdigest(), 'size': size, 'pointerSize': 127}
      entries.append(entry)
    start = int(query.get('cursor', 0))
    more = {}
    if start + _PAGE < len(entries):
      rest = urllib.parse.urlencode(query | {'cursor': start + _PAGE})
      more['Link'] = f'<{self.url}/api/{kind}/{name}/tree/{commit}?{rest}>; rel="next"'
    return _json(entries[start : start + _PAGE], **more)

  def _file(self, kind, name, revision, path, known, headers):
    found = self._found(kind, name, revision, known)
    if isinstance(found, Answer):
      return found
    repository, commit = found
    if repository.gated:
      return _refused(403 if known else 401, 'GatedRepo', 'Access to it is restricted.')
    data = repository.commits[commit].get(path)
    if path in self.gone and headers.get('Accept-Encoding') != 'identity':  # of HEAD
      return _refused(403, '')
    if data is None:
      return _refused(404, 'EntryNotFound')
    digest = hashlib.sha256 if path.endswith(_LARGE) else hashlib.sha1
    about = {'ETag': f'"{digest(data).hexdigest()}"', 'X-Repo-Commit': commit}
    if path in repository.sizes:
      about['X-Linked-Size'] = str(repository.sizes[path])
    if asked := headers.get('Range'):
      start = int(asked.removeprefix('bytes=').partition('-')[0])
      about['Content-Range'] = f'bytes {start}-{len(data) - 1}/{len(data)}'
      return Answer(data[start:], about, 206)
    return Answer(data, about)

  def _write(self, path, body, known):
    if found := re.fullmatch(r'/large/(\w+)', path):
      assert hashlib.sha256(body).hexdigest() == found[1]
      self._large[found[1]] = body
      return Answer()
    if not known:
      return _refused(401, '', 'Invalid username or password.')
    value = [json.loads(line) for line in body.decode().splitlines()]
    if path == '/api/repos/create':
      return self._create(**value[0])
    if found := re.fullmatch(r'/([^/]+/[^/]+)\.git/info/lfs/objects/batch', path):
      objects = [
        x | ({} if x['oid'] in self._large else self._upload(x['oid'])) for x in value[0]['objects']
      ]
      return _json({'objects': objects, 'transfer': 'basic'})
    found = re.fullmatch(r'/api/models/([^/]+/[^/]+)/(preupload|commit)/([^/]+)', path)
    if found is None or ('models', found[1]) not in self.repositories:
      return _refused(404, 'RepoNotFound')
    if found[2] == 'preupload':
      modes = [
        {'path': x['path'], 'uploadMode': 'lfs' if x['path'].endswith(_LARGE) else 'regular'}
        for x in value[0]['files']
      ]
      return _json({'files': [x | {'shouldIgnore': False, 'oid': None} for x in modes]})
    files: dict[str, bytes | None] = {}
    for line in value:
      entry = line['value']
      if line['key'] == 'file':
        files[entry['path']] = base64.b64decode(entry['content'])
      elif line['key'] == 'lfsFile':
        files[entry['path']] = self._large[entry['oid']]
      elif line['key'] == 'deletedFile':
        files[entry['path']] = None
    commit = self.repositories['models', found[1]].commit(files, found[3])
    url = f'{self.url}/{found[1]}/commit/{commit}'
    return _json({'success': True, 'commitOid': commit, 'commitUrl': url})

  def _upload(self, oid):
    return {'actions': {'upload': {'href': f'{self.url}/large/{oid}'}}}

  def _create(self, name, organization=None, visibility='public', **_):
    name = f'{organization}/{name}'
    if organization not in ('someone', 'org'):
      return _refused(403, '', f"You don't have the rights to create a model under {organization}")
    if ('models', name) in self.repositories:
      return _json({'url': f'{self.url}/{name}'})._replace(status=409)
    self.add(name, {'.gitattributes': b''}, private=visibility == 'private')
    return _json({'url': f'{self.url}/{name}', 'name': name})
