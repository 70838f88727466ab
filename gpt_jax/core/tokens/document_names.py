# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Names of the documents of a token store, as far as the store knows them.

A store holds no names: of a large corpus they take gigabytes. Its inputs.json
lists the files that it was made from, which says where a document comes from if
each file is one document, or if there is one file.
"""

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from gpt_jax.core import spec
from gpt_jax.core.files import files, globs
from gpt_jax.core.spec import printable
from gpt_jax.core.text import holdout, inputs
from gpt_jax.core.tokens import mixture
from gpt_jax.core.tokens.manifest import Manifest
from gpt_jax.core.tokens.store import TokenStore

# Sources of which each file is one document.
_BY_FILE = ('text', 'stdlib')
# What precedes the names of files that hold no documents to train on.
_OTHERS = ('tokenizer: ', 'clean: ', 'holdout: ')


def of_store(store: TokenStore) -> Callable[[int], str]:
  """Number of a document -> its file, or as much as is known of it.

  'FILE' where each file is a document; 'FILE: document N' where all are in one
  file; else 'document N', in a mixture after the name of its source.

  Args:
    store: of the training split.
  """
  contents = store.manifest
  data = files.read(store.folder, inputs.NAME) or b'{}'
  path = files.join(store.folder, inputs.NAME)
  known = files.parse(data, path, remedy='remove it; names are then not known')
  call = spec.parse('data.source', contents.source)[0]
  parts = {'': (call, len(store))}
  if mixture.is_mixture(contents.source):
    parts = {
      pair.key: (spec.parse(f'data.sources.{pair.key}', pair.value)[0], contents.parts[pair.key])
      for pair in call.args
      if pair.key in contents.parts
    }
  names, first, lone = dict[int, str](), 0, list[tuple[int, str]]()
  for source, (call, stop) in sorted(parts.items(), key=lambda x: x[1][1]):
    end = int(np.searchsorted(store.document_ends, stop, 'right'))
    prefix = f'{source}/' if source else ''
    own = {
      name: look
      for name, look in sorted(known.items())
      if name.startswith(prefix) and not name.startswith(_OTHERS)
    }
    of_files = _one_each(contents, call, own, end - first)
    names |= zip(range(first, end), of_files, strict=False)
    lone.append((end, next(iter(own)) if len(own) == 1 else source))
    first = end

  def name(document: int) -> str:
    if document in names:
      return printable(names[document])
    place = printable(next(place for end, place in lone if document < end))
    return f'{place}: document {document}' if place else f'document {document}'

  return name


def files_of_texts(source: str, names: Iterable[str]) -> set[str]:
  """Those of the files of a corpus of which each is one document."""
  calls = {'': spec.parse('data.source', source)[0]}
  if mixture.is_mixture(source):
    calls = {
      f'{pair.key}/': spec.parse(f'data.sources.{pair.key}', pair.value)[0]
      for pair in calls[''].args
    }
  begin = tuple(prefix for prefix, call in calls.items() if call.name in _BY_FILE)
  return {name for name in names if name.startswith(begin) and not name.startswith(_OTHERS)}


def _one_each(
  contents: Manifest, call: spec.Call, found: Mapping[str, str], count: int
) -> list[str]:
  """The files of the `count` documents of a source; [] if that is not known.

  Args:
    found: its files in order, each with its entry in inputs.json.
  """
  if call.name not in _BY_FILE or contents.clean != 'none':
    return []
  # An empty file, 'size:hash' of which begins so, is no document.
  own = [
    name
    for name, look in found.items()
    if not look.startswith('0:') and not look.endswith(inputs.LEFT_OUT)
  ]
  held_out = spec.parse('data.holdout', contents.holdout)[0]
  if held_out.name == 'tail':
    # The first characters, the last document of which may be cut. A store that
    # an older version made does not say which files it left out.
    left_out = sum(
      number for kind, number in contents.skipped.items() if kind not in globs.NO_FILES
    )
    return own[:count] if left_out == len(found) - len(own) else []
  if held_out.name == 'documents':
    chosen = spec.build('data.holdout', contents.holdout, _CHOSEN)
    own = [name for name in own if not chosen(name)]
  return own if len(own) == count else []


_CHOSEN = {'documents': holdout.chosen}
