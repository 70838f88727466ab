# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Documents from TensorFlow Datasets, read from ArrayRecord files.

TensorFlow is not loaded. Data sets that need it to be prepared are prepared by
`tfds build` in an environment of their own, and read here.
"""

import contextlib
import functools
import importlib
import io
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from gpt_jax.core.files import lines
from gpt_jax.core.files.document import Bad, Document, OnBad, OnError, Skip, Source, unreadable
from gpt_jax.core.spec import NotPreparedError, UsageError, install, optional

_EXAMPLES = 256  # read at once
_UNIT = 1 << 14  # examples that one worker reads


def tfds(
  name: str,
  split: str = 'train',
  field: str = 'text',
  data_dir: str = '',
  on_error: OnError = 'fail',
) -> Source:
  """One document per example of a data set of TFDS, such as 'lm1b'.

  Args:
    name: with a config and a version if wanted: 'c4/en:3.1.0'.
    split: as TFDS writes it: 'train', 'train[:10%]', 'train+validation'.
    field: of each example; 'a/b' is a field inside another.
    data_dir: where prepared sets are; empty: TFDS_DATA_DIR, or
      ~/tensorflow_datasets.
    on_error: 'skip' counts what is no text instead of failing.
  """
  builder, call = by_name(name, data_dir), f'tfds({name!r})'
  return reader(builder, call, split, [field], on_error, make=_document)


def examples(name: str, split: str) -> Iterator[tuple[str, dict[str, Any]]]:
  """The examples of a set known by name, each with where it is: 'call:number'.

  Arguments as of `tfds`; values are as TFDS gives them.
  """
  found = _examples(by_name(name, ''), f'tfds({name!r})', split)
  where = f'tfds({name!r}): {split}'
  for number, example in _in_order(found, where, 0, len(found), lines.fail):
    yield f'{where}:{number}', example


def by_name(name: str, data_dir: str) -> Any:
  """The builder of a set that is prepared; arguments as of `tfds`."""
  library = _library()
  folder = data_dir or os.environ.get('TFDS_DATA_DIR', '~/tensorflow_datasets')
  folder = os.path.expanduser(folder)
  call = f'tfds({name!r})'
  builder = _find(library, name, folder)
  if builder is None:
    raise NotPreparedError(
      f'{call}: {folder} holds no such set, and without TensorFlow its builder '
      f'is not known. {_how(name, folder)}'
    )
  if not builder.is_prepared():
    _prepare(builder, name, folder)
    builder = _find(library, name, folder)
  return builder


def tfds_dir(
  path: str, split: str = 'train', field: str = 'text', on_error: OnError = 'fail'
) -> Source:
  """One document per example of the prepared data set in folder `path`.

  The folder is that of a version, which holds dataset_info.json; arguments as
  of `tfds`.
  """
  call = f'tfds_dir({path!r})'
  builder = in_folder(path, call)
  return reader(builder, call, split, [field], on_error, make=_document)


def in_folder(path: str, call: str) -> Any:
  """The builder of the set in a folder."""
  library = _library()
  path = os.path.expanduser(path)
  try:
    with _quiet(), _classes_of_tfds():
      return library.builder_from_directory(path)
  except UsageError as e:
    raise UsageError(f'{call}: {e}') from e
  except Exception as e:  # TFDS raises its own kinds, and those of its parts
    raise UsageError(
      f'{call}: is not a prepared set ({_line(e)}); name the folder of a '
      'version, with dataset_info.json'
    ) from e


def _library() -> Any:
  with _quiet():
    return optional('tensorflow_datasets', 'tfds(...) needs tensorflow-datasets', 'tfds')


@contextlib.contextmanager
def _classes_of_tfds() -> Iterator[None]:
  """Keeps TFDS from importing what a set's features.json names elsewhere.

  TFDS takes the name of any class from it, and imports its module: a set that
  was downloaded could run code. `cls_from_name` is the one place that does so.
  """
  feature = importlib.import_module('tensorflow_datasets.core.features.feature')
  connector = feature.FeatureConnector
  of_name = connector.cls_from_name

  def checked(name: str) -> Any:
    if not name.startswith('tensorflow_datasets.'):
      raise UsageError(
        f'its features.json names the class {name!a}, which is not of '
        'tensorflow_datasets, and importing it would run its code; do not '
        'trust where the set comes from, or prepare it again with features of '
        'TFDS'
      )
    return of_name(name)

  connector.cls_from_name = staticmethod(checked)
  try:
    yield
  finally:
    del connector.cls_from_name
    connector.cls_from_name = of_name


def _find(library: Any, name: str, folder: str) -> Any:
  """The builder of a set, by its code or else its files; None: not found."""
  with _quiet(), _classes_of_tfds():
    try:
      return library.builder(name, data_dir=folder, try_gcs=False)
    except UsageError as e:
      raise UsageError(f'tfds({name!r}) in {folder}: {e}') from e
    except library.core.DatasetNotFoundError:
      return None
    except Exception as e:
      raise UsageError(f'tfds({name!r}): {_line(e)}; name a set as TFDS does') from e


def _prepare(builder: Any, name: str, folder: str):
  """Prepares a set from downloads that the user provided; fetches nothing."""
  downloads = os.path.join(folder, 'downloads')
  infos = builder.url_infos or {}  # None: TFDS has no checksums of this set
  wanted = {info.filename for info in infos.values()} - {None}
  manual = [
    place
    for place in (os.path.join(downloads, 'manual'), downloads)
    if any(os.path.isfile(os.path.join(place, file)) for file in wanted)
  ]
  if not manual:
    # Without a network, TFDS's own attempts to download take minutes.
    raise NotPreparedError(
      f'tfds({name!r}): is not prepared in {folder}. {_how(name, folder)}'
      + (
        f', or put its downloads ({", ".join(sorted(wanted))}) into {downloads}/manual'
        if 0 < len(wanted) < 10
        else ''
      )
    )
  # Another process, so that TensorFlow, if installed, is not loaded here.
  command = [sys.executable, '-m', 'gpt_jax.core.files.tfds_build']
  done = subprocess.run(
    [*command, name, folder, manual[0]],
    stdin=subprocess.DEVNULL,
    stdout=subprocess.DEVNULL,
    stderr=subprocess.PIPE,
    text=True,
    check=False,
  )
  if done.returncode:
    why = (done.stderr.strip() or 'no message').splitlines()[-1]
    raise NotPreparedError(
      f'tfds({name!r}): preparing it from {manual[0]} failed: {why}. ' + _how(name, folder)
    )


def _examples(builder: Any, call: str, split: str) -> Any:
  """The examples of a split, by number."""
  try:
    with _quiet():
      return builder.as_data_source(split)
  except NotImplementedError as e:
    raise UsageError(
      f'{call}: is prepared as {builder.info.file_format}, which only '
      'TensorFlow reads; prepare it again with tfds build '
      '--file_format=array_record'
    ) from e
  except Exception as e:
    splits = ', '.join(sorted(builder.info.splits)) or 'none'
    raise UsageError(f'{call}: split={split!r}: {_line(e)}; it has {splits}') from e


def _in_order(
  found: Any, where: str, first: int, stop: int, skip: OnBad
) -> Iterator[tuple[int, dict[str, Any]]]:
  """Numbers the examples of a split, read some at once.

  Where that fails they are read one by one, and those that fail go to `skip`.

  Args:
    where: names the split.
  """
  for start in range(first, stop, _EXAMPLES):
    numbers = range(start, min(start + _EXAMPLES, stop))
    try:
      several = found.__getitems__([*numbers])
    except Exception:  # of Riegeli's, of protocol buffers, of the features
      several = (_one(found, where, number, skip) for number in numbers)
    for number, example in zip(numbers, several, strict=True):
      if example is not None:
        yield number, example


def _one(found: Any, where: str, number: int, skip: OnBad) -> Any:
  try:
    return found[number]
  except Exception as e:
    skip(unreadable(f'{where}:{number}', e))


def reader(
  builder: Any,
  call: str,
  split: str,
  fields: Sequence[str],
  on_error: OnError,
  *,
  make: Callable[[str, list[str]], Iterator[Document]],
  empty: str = Source.empty,
) -> Source:
  """Reads some fields of each example of a set.

  Args:
    make: the name of an example and its texts, to documents.
    empty: see `Source`.
  """
  found = _examples(builder, call, split)
  root = str(builder.data_dir)
  files = {
    name: os.path.join(root, name)
    for name in sorted(os.listdir(root))
    if os.path.isfile(os.path.join(root, name))
  }

  def unit(first: int, skip: Skip) -> Iterator[Document]:
    stop, where = min(first + _UNIT, len(found)), f'{call}: {split}'
    for number, example in _in_order(found, where, first, stop, skip):
      try:
        texts = [_text(f'{where}:{number}', example, field) for field in fields]
      except Bad as e:
        skip(e)
        continue
      yield from make(f'{split}:{number}', texts)

  units = [functools.partial(unit, first) for first in range(0, len(found), _UNIT)]
  return Source(units=units, files=files, on_error=on_error, empty=empty)


def _document(name: str, texts: list[str]) -> Iterator[Document]:
  (text,) = texts
  yield Document(name, text)


def _text(where: str, example: Any, field: str) -> str:
  value = example
  for part in field.split('/'):
    value = value.get(part) if isinstance(value, dict) else None
  if not isinstance(value, str | bytes):
    raise Bad(
      where,
      f'has no text under {field!r}',
      f', it holds {sorted(example)}; name a field of these in the call',
    )
  return value if isinstance(value, str) else lines.decoded(where, value)


def _how(name: str, folder: str) -> str:
  return (
    f'To get it: {install("tf")}, in an environment of its own, and run tfds '
    f'build {name} --data_dir={folder} --file_format=array_record'
  )


def _line(error: Exception) -> str:
  """The first line of an error's text."""
  return str(error).strip().partition('\n')[0] or type(error).__name__


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
  """Hides TFDS's progress bars, and deprecations of what it imports."""
  with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
    warnings.simplefilter('ignore')
    yield
