# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A saved tokenizer: a folder with `tokenizer.json` and the files it names."""

import hashlib
import json
from collections.abc import Mapping

from gpt_jax.files import files
from gpt_jax.spec import UsageError

_INDEX = 'tokenizer.json'

# What an import settles about special tokens, and the files of Hugging Face
# that say more than the ids of a text. None changes those ids, so they are no
# part of the fingerprint, which stores of tokens are compared by.
SPECIAL = 'special.json'
BESIDE = (
  *('tokenizer_config.json', 'special_tokens_map.json', 'added_tokens.json'),
  *('generation_config.json', 'chat_template.jinja'),
)


def fingerprint(kind: str, contents: Mapping[str, bytes]) -> str:
  """Returns the sha256 of all that defines the ids of a text."""
  total = hashlib.sha256(kind.encode())
  for name, data in sorted(_defining(contents).items()):
    total.update(name.encode() + hashlib.sha256(data).digest())
  return total.hexdigest()


def write(folder: str, kind: str, contents: Mapping[str, bytes]):
  """Writes a tokenizer's files, the index last."""
  for name, data in contents.items():
    files.write(folder, name, data)
  index = {
    'kind': kind,
    'files': sorted(_defining(contents)),
    'fingerprint': fingerprint(kind, contents),
  }
  beside = {
    name: hashlib.sha256(contents[name]).hexdigest()
    for name in sorted(contents.keys() - _defining(contents).keys())
  }
  index |= {'beside': beside} if beside else {}
  files.write(folder, _INDEX, json.dumps(index, indent=2).encode() + b'\n')


def read(folder: str) -> tuple[str, dict[str, bytes]]:
  """Returns the kind of a saved tokenizer and its files."""

  def fail(name: str, what: str):
    return UsageError(
      f'{files.join(folder, name)}: {what}; copy the tokenizer folder again, '
      'or prepare the data again'
    )

  data = files.read(folder, _INDEX)
  if data is None:
    raise fail(_INDEX, 'there is no saved tokenizer')
  try:
    index = json.loads(data)
    kind, names = index['kind'], index['files']
    expected, beside = index['fingerprint'], index.get('beside', {})
  except (ValueError, RecursionError, KeyError, TypeError) as e:
    raise fail(_INDEX, 'is damaged') from e
  whole = isinstance(names, list) and all(isinstance(n, str) for n in names)
  if not whole or not isinstance(kind, str) or not isinstance(beside, dict):
    raise fail(_INDEX, 'is damaged')
  contents = {}
  for name in (*names, *beside):
    part = files.read(folder, files.inside(name, of=files.join(folder, _INDEX)))
    if part is None:
      raise fail(name, 'is missing')
    contents[name] = part
  if fingerprint(kind, contents) != expected:
    raise fail(_INDEX, f'{", ".join(names) or kind} was changed or damaged')
  for name, digest in beside.items():
    if hashlib.sha256(contents[name]).hexdigest() != digest:
      raise fail(name, 'was changed or damaged')
  return kind, contents


def _defining(contents: Mapping[str, bytes]) -> dict[str, bytes]:
  """Those of the files that the ids of a text depend on."""
  others = (SPECIAL, *BESIDE)
  return {name: data for name, data in contents.items() if name not in others}
