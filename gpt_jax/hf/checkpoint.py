# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Reads and writes a checkpoint's folder: config.json and safetensors files.

`HeaderSource` reads one tensor at a time, `load` all of them; `save` writes.
"""

import contextlib
import functools
import itertools
import json
import logging
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy
from safetensors import SafetensorError, safe_open

from gpt_jax.core.files import arrays, files
from gpt_jax.core.nn.build import ModelChoices
from gpt_jax.core.nn.choices import CHOICES
from gpt_jax.core.nn.params import flatten, nest
from gpt_jax.core.nn.transformer import Transformer, make_model, parameter_shapes
from gpt_jax.core.spec import UsageError
from gpt_jax.hf import heads, peft, rope, routers
from gpt_jax.hf.base import FOR_TRAINING, Bounds, Family, Tensor, choice, choices
from gpt_jax.hf.families import FAMILIES
from gpt_jax.hf.heads import SCORING
from gpt_jax.hf.layout import (
  DTYPES,
  ExportOrigin,
  Flat,
  Imported,
  TensorSlot,
  covered,
  family_of,
  fields_of,
  file_name,
  imported,
  joined_shape,
  part,
  places,
  shapes,
  slots,
  transformer_fields,
)

log = logging.getLogger('gpt_jax')

CONFIG = 'config.json'
SINGLE = 'model.safetensors'
INDEX = 'model.safetensors.index.json'
# Never read: they are pickles, or of another framework.
OTHERS = ('pytorch_model.bin', 'pytorch_model.bin.index.json', 'tf_model.h5', 'flax_model.msgpack')

_LONGEST = 380  # characters of an export's refusal, without the flag's name
# A model of up to this many numbers is compared with the files one tensor
# after another, even if they hold fewer.
_FEW = 10**7
_SHOWN = 16  # the most tensors that an error lists

# Called with the number of bytes read or written since the last call.
Progress = Callable[[int], None]

# The largest file of an export, unless one tensor is larger.
SHARD_BYTES = 10**9

# How to compare fields of two models, if equal texts are not required.
_SAME = {
  'position': rope.same,
  'ffn': functools.partial(routers.same, stack='decoder'),
  'encoder_ffn': functools.partial(routers.same, stack='encoder'),
}

# Choices of `model.position` that config.json cannot express, by name and
# argument ('': the name itself), and what a model needs instead.
_OURS = {
  ('learned_by_layer', ''): 'position=learned',
  ('transformer_xl', 'segment'): 'segment=0',
  ('transformer_xl', 'biases'): "biases='own'",
}

# Files of an export, complete or partial.
_EXPORTED = re.compile(
  r'(config\.json|model(-\d{5}-of-\d{5})?\.safetensors(\.index\.json)?)'
  r'(\.new)?'
)


_COPY = 'copy it again'


class TensorReader:
  """The tensors of a folder, in one file or in several with an index.

  Attributes:
    num_bytes: of all tensors together.
  """

  def __init__(self, folder: str):
    """Opens the files and reads their headers."""
    self._folder = folder
    self._files: dict[str, Any] = {}
    for name in (SINGLE, INDEX):
      files.check_regular(os.path.join(folder, name), remedy=_COPY)
    if os.path.isfile(os.path.join(folder, SINGLE)):
      file = self._open(SINGLE)
      self._files = dict.fromkeys(file.keys(), file)
    elif os.path.isfile(os.path.join(folder, INDEX)):
      index = read_json(folder, INDEX).get('weight_map')
      path = os.path.join(folder, INDEX)
      if not isinstance(index, dict):
        raise UsageError(f'{path}: has no weight_map; copy the file again')
      for name in index.values():
        files.inside(name, of=path)
      shards = {name: self._open(name) for name in sorted({*index.values()})}
      for name, shard in index.items():
        if name not in shards[shard].keys():  # noqa: SIM118
          raise UsageError(
            f'{folder}: {INDEX} puts {name} into {shard}, which lacks it; copy the folder again'
          )
        self._files[name] = shards[shard]
    else:
      raise UsageError(f'{folder}: {_nothing(folder)}')
    self.names = frozenset(self._files)
    self.num_bytes = sum(map(self.size, self.names))

  def shape(self, name: str) -> tuple[int, ...]:
    """The shape of a tensor, from the header."""
    return tuple(self._files[name].get_slice(name).get_shape())

  def dtype(self, name: str) -> str:
    """The number format in safetensors' terms, e.g. `BF16`."""
    return self._files[name].get_slice(name).get_dtype()

  def size(self, name: str) -> int:
    """Bytes of a tensor in the file; 0 if its format is not in `DTYPES`."""
    dtype = DTYPES.get(self.dtype(name))
    size = np.dtype(dtype).itemsize if dtype else 0
    return math.prod(self.shape(name)) * size

  def read(self, name: str, *, stored: bool = False) -> np.ndarray:
    """Reads a tensor as float32, or as stored; nothing of it is cached."""
    value = self._files[name].get_tensor(name)
    return value if stored else value.astype(np.float32, copy=False)

  def _open(self, name: str) -> Any:
    path = os.path.join(self._folder, name)
    files.check_regular(path, remedy=_COPY)
    try:
      # Not memory-mapped: pages that were read would count as memory.
      return safe_open(path, framework='np', backend='pread')
    except (SafetensorError, OSError) as e:
      raise UsageError(f'{path}: {e}; copy the file again') from e


def _nothing(folder: str) -> str:
  if not os.path.isdir(folder):
    return 'no such folder'
  others = [n for n in OTHERS if os.path.exists(os.path.join(folder, n))]
  if not others:
    return f'holds no {SINGLE}'
  return (
    f'holds {", ".join(others)}, which is not read: only safetensors are. '
    'Convert it where you trust it, with Hugging Face transformers: '
    f'AutoModel.from_pretrained({folder!r}).save_pretrained(NEW_FOLDER), '
    'with the AutoModel class of its head, e.g. AutoModelForCausalLM'
  )


def read_json(folder: str, name: str) -> dict[str, Any]:
  """Reads a JSON object."""
  path = os.path.join(folder, name)
  data = files.read_regular(path, remedy=_COPY)
  if data is None:
    raise UsageError(f'{path}: is missing; name a folder as save_pretrained writes it')
  return files.parse(data, path, remedy=_COPY)


def write(
  folder: str,
  config: dict[str, Any],
  shards: Sequence[Iterable[tuple[str, np.ndarray]]],
  besides: dict[str, bytes],
) -> None:
  """Writes the tensors and config.json; one shard at a time is in memory.

  Files of an earlier export are removed first. config.json gets its name last,
  so that an interrupted export has none.

  Args:
    folder: created if need be; other files in it stay.
    config: for config.json.
    shards: names and tensors of each file; several files get an index.
    besides: other files to write, by name.
  """
  os.makedirs(folder, exist_ok=True)
  for name in os.listdir(folder):
    if _EXPORTED.fullmatch(name):
      os.unlink(os.path.join(folder, name))
  new = []

  def path(name: str) -> str:
    temporary = os.path.join(folder, f'{name}.new')
    with contextlib.suppress(FileNotFoundError):
      os.unlink(temporary)  # left by a killed export, or a planted link
    files.create(temporary)
    new.append(temporary)
    return temporary

  try:
    index = _write_shards(shards, path)
    # config.json is renamed last.
    texts = {INDEX: index} if len(shards) > 1 else {}
    texts[CONFIG] = config
    contents = besides | {
      name: (json.dumps(values, indent=2) + '\n').encode() for name, values in texts.items()
    }
    for name, data in contents.items():
      with open(path(name), 'wb') as f:
        f.write(data)
    for each in new:
      with open(each, 'rb') as f:
        os.fsync(f.fileno())
    for each in new:
      os.replace(each, each.removesuffix('.new'))
  except OSError as e:
    e.filename = e.filename or folder  # which a full disk leaves out
    raise
  finally:
    for each in new:
      with contextlib.suppress(FileNotFoundError):
        os.unlink(each)


def _write_shards(
  shards: Sequence[Iterable[tuple[str, np.ndarray]]], path: Callable[[str], str]
) -> dict[str, Any]:
  """Writes each shard to `path(its name)`; returns the index."""
  places, total = {}, 0
  for i, shard in enumerate(shards, 1):
    name = f'model-{i:05}-of-{len(shards):05}.safetensors'
    name = name if len(shards) > 1 else SINGLE
    tensors = {n: np.ascontiguousarray(x) for n, x in shard}
    arrays.write_tensors(path(name), tensors)
    places |= dict.fromkeys(tensors, name)
    total += sum(x.nbytes for x in tensors.values())
    del tensors
  return {'metadata': {'total_size': total}, 'weight_map': places}


# Reading, one tensor at a time.


class HeaderSource:
  """A checkpoint of which only the headers have been read.

  Attributes:
    folder: of the checkpoint; of an adapter, its base's.
    model: its model, with everything that an export needs to know.
    shapes: its parameters by flat path: zeros that take no memory.
    axes: by path, the number of leading axes that index its parts.
    num_bytes: of all tensors in the files.
    unread: names of tensors that the model does not use.
  """

  def __init__(self, folder: str):
    """Opens a folder: a checkpoint, or an adapter of PEFT.

    An adapter is merged into the model that it names as its base.
    """
    self._adapter = peft.read(folder)
    if self._adapter:
      folder = self._adapter.base
    self.folder = folder
    config = read_json(folder, CONFIG)
    try:
      family, kind = family_of(config)
      self._reader = TensorReader(folder)
      names = self._reader.names
      kind = heads.kind_of_file(kind, family, names)
      name = family.output_bias
      # A bias of zeros is no parameter.
      bias = name in names and bool(self._reader.read(name).any())
      bounds = Bounds.of({n: self._reader.shape(n) for n in names}, shared=family.shared_layers)
      tied = family.output_table not in names
      fields = fields_of(family, kind, config, bias=bias, tied=tied, bounds=bounds)
      model = imported(fields, ExportOrigin(json.dumps(config), kind))
      origin, self.unread = _origin(model, self._reader)
      self.model = model.clone(origin=origin)
    except UsageError as e:
      raise self._named(e) from e
    self.shapes = shapes(self.model)
    self.axes = {
      path: len(index) for slot in slots(self.model) for path, index in places(self.model, slot)
    }
    self.num_bytes = self._reader.num_bytes
    if self._adapter:
      self._adapter = self._adapter.of(self.model)

  def fill(self, to: Any, progress: Progress = lambda count: None) -> None:
    """Reads all tensors and puts each into its parameters.

    `to` has by path arrays that take `array[index][...] = part`: NumPy's or
    TensorStore's, of float32.
    """
    for slot in slots(self.model):
      try:
        self._fill(slot, to, progress)
      except UsageError as e:
        raise self._named(e) from e

  def _fill(self, slot: TensorSlot, to: Any, progress: Progress) -> None:
    """Puts one tensor of the file into its parameters."""
    tensor, model = slot.tensor, self.model
    names = _present(model, self._reader, tensor)
    if not names and not tensor.paths:
      return
    first, *others = [file_name(model, n) for n in names]
    value = self._reader.read(first)
    # NaN is the largest of numbers that hold it.
    if value.size and not np.isfinite([value.max(), value.min()]).all():
      raise UsageError(
        f'{first} holds NaN or infinite numbers; copy the file again, or ask who made it'
      )
    for other in others:
      if not np.array_equal(value, self._reader.read(other), equal_nan=True):
        tied = model.options.get('tie_word_embeddings', True)
        raise UsageError(
          f'{first} and {other} are tied in this model, but differ; '
          + (
            'set tie_word_embeddings to false in config.json if they should'
            if tied
            else 'tie_word_embeddings=False is supported for one input table only'
          )
        )
    if self._adapter:
      value = self._adapter.merged(names[0], value)
    for path, piece in zip(tensor.paths, tensor.split(value), strict=True):
      part(model, to, path, slot)[...] = piece
    progress(sum(map(self._reader.size, (first, *others))))

  def unread_file(self) -> bytes:
    """A safetensors file of the tensors that the model does not use."""
    tensors = {n: self._reader.read(n, stored=True) for n in self.unread}
    return safetensors.numpy.save(tensors)

  def _named(self, error: UsageError) -> UsageError:
    text = str(error)
    return error if self.folder in text else UsageError(f'{self.folder}: {text}')


def _origin(model: Imported, reader: TensorReader) -> tuple[ExportOrigin, list[str]]:
  """The model's origin, and tensors not used; checks those of the files."""
  prefix = model.family.prefix
  bare = not any(n.startswith(prefix) for n in reader.names)
  model = model.clone(origin=model.origin._replace(bare=bare))
  expected = shapes(model)
  numbers = sum(math.prod(reader.shape(n)) for n in reader.names)
  needed = sum(x.size for x in expected.values())
  if needed > 2 * numbers + _FEW:  # else `joined_shape` would fill memory
    raise UsageError(
      f'{CONFIG}: its sizes are of {needed:,} numbers, and the files hold '
      f'{numbers:,}; copy them again'
    )
  assert covered(model) == {*expected}, covered(model) ^ {*expected}
  wrong, dtypes, known, rest = [], set(), [], {*reader.names}
  for slot in slots(model):
    tensor = slot.tensor
    names = _present(model, reader, tensor)
    if not names and tensor.paths:
      wrong.append(f'{file_name(model, tensor.names[0])} is missing')
    if len(tensor.names) > 1:
      known += names
    shape = joined_shape(model, expected, slot)
    for name in (file_name(model, n) for n in names):
      rest.discard(name)
      dtypes.add(reader.dtype(name))
      if reader.shape(name) != shape:
        wrong.append(f'{name} is {reader.shape(name)}, not {shape}')
      if reader.dtype(name) not in DTYPES:
        wrong.append(f'{name} is of type {reader.dtype(name)}')
  buffers = re.compile('|'.join(model.family.buffers) or '(?!)')
  unread = re.compile('|'.join(model.family.unread) or '(?!)')
  lost = [n for n in sorted(rest) if unread.fullmatch(prefix * bare + n)]
  for name in sorted(rest.difference(lost)):
    if not buffers.fullmatch(prefix * bare + name):
      wrong.append(f'{name} is not of this model')
  for name in lost:
    if reader.dtype(name) not in DTYPES:
      wrong.append(f'{name} is of type {reader.dtype(name)}')
  if wrong:
    more = f'; and {len(wrong) - _SHOWN} more' * (len(wrong) > _SHOWN)
    raise UsageError(f'the tensors do not fit: {"; ".join(wrong[:_SHOWN])}{more}')
  dtype = dtypes.pop() if len(dtypes) == 1 else 'F32'
  return model.origin._replace(names=tuple(known), dtype=dtype), lost


def _present(model: Imported, reader: TensorReader, tensor: Tensor) -> list[str]:
  """Which of a tensor's names are in the file, written with the prefix."""
  return [n for n in tensor.names if file_name(model, n) in reader.names]


# Loading all of a checkpoint, and saving a model.


def load(folder: str) -> tuple[Imported, Any]:
  """Reads a checkpoint: its model, and parameters as float32 NumPy arrays."""
  source = HeaderSource(folder)
  if source.unread:
    log.warning(
      '%s: the model does not use these tensors, so they are not imported, and '
      'an export does not hold them',
      ', '.join(source.unread),
    )
  flat = {n: np.empty(x.shape, np.float32) for n, x in source.shapes.items()}
  source.fill(flat)
  return source.model, nest(flat)


def save(
  folder: str,
  model: Transformer,
  params: Any,
  *,
  kind: str = 'lm',
  options: dict[str, Any] | None = None,
  besides: dict[str, bytes] | None = None,
  unread: bytes | None = None,
  shard_bytes: int = SHARD_BYTES,
  progress: Progress = lambda count: None,
) -> None:
  """Writes config.json and the tensors: model.safetensors, or several files.

  An imported model is written under its own names and number format, with its
  own config.json if that still describes it. Any other model is written as the
  first family that can express it.

  Args:
    folder: created if need be; other files in it stay.
    model: from `load`, or any `Transformer`.
    params: of `model`: arrays, or anything indexed like them.
    kind: of `heads.KINDS`, for a model that was not imported.
    options: further options for config.json, such as `eos_token_id`.
    besides: other files to write, such as a tokenizer's, by name.
    unread: from `HeaderSource.unread_file`, of the import that `model` is.
    shard_bytes: the largest size of a file, unless one tensor is larger; also
      the memory that writing takes.
    progress: called with the number of bytes written.
  """
  flat = flatten(params)
  if not isinstance(model, Imported) and kind not in SCORING:
    # Classes without a language-model head have no output parameters.
    model = model.clone(output='tied')
    body = flatten(parameter_shapes(model))
    kept = [n for n in flat if n in body or n.startswith('heads/')]
    flat = {n: flat[n] for n in kept}
  model, config = _describe(model, kind, options or {})
  _check_params(model, flat)

  def tensors(some: list[TensorSlot]) -> Iterator[tuple[str, np.ndarray]]:
    for slot in some:
      parts = [part(model, flat, p, slot) for p in slot.tensor.paths]
      joined = slot.tensor.join([np.asarray(x) for x in parts])
      with np.errstate(over='ignore'):
        stored = joined.astype(DTYPES[model.origin.dtype])
      if not np.isfinite(stored).all():
        raise _not_finite(slot.tensor.names[0], joined, model.origin.dtype)
      for name in _names(model, slot):
        yield name, stored
        progress(stored.nbytes)

  shards: list[Any] = [tensors(some) for some in _shards(model, shard_bytes)]
  if unread:
    shards[-1] = itertools.chain(shards[-1], _tensors_of(unread))
  named = {model.family.files.get(n, n): x for n, x in (besides or {}).items()}
  write(folder, config, shards, named)


def _tensors_of(file: bytes) -> Iterator[tuple[str, np.ndarray]]:
  """The tensors of a safetensors file; its library for NumPy lacks BF16."""
  for name, tensor in safetensors.deserialize(file):
    value = np.frombuffer(tensor['data'], DTYPES[tensor['dtype']])
    yield name, value.reshape(tensor['shape'])


def _not_finite(name: str, value: np.ndarray, dtype: str) -> UsageError:
  if not np.isfinite(value).all():
    return UsageError(
      f'{name} has NaN or infinite numbers, so that nothing would read the '
      'file; export an earlier step'
    )
  most = float(jnp.finfo(DTYPES[dtype]).max)
  most = f'{most:,.0f}' if dtype == 'F16' else f'{most:.3g}'
  return UsageError(
    f'{name} has numbers above {most}, which {dtype}, the type of the imported '
    'files, does not hold; import from files of float32'
  )


def save_adapter(
  folder: str,
  model: Transformer,
  adapters: Any,
  heads: Any,
  *,
  kind: str = 'lm',
  options: dict[str, Any] | None = None,
  **lora: Any,
) -> None:
  """Writes adapters of a model in PEFT's format, without the model.

  Args:
    folder: output.
    model: as for `save`, as are `kind` and `options`.
    adapters: the tree of `kernel_A` and `kernel_B`: see
      `tuning.objectives.lora`.
    heads: `params['heads']`, trained in full; None: there are none.
    **lora: `alpha`, `rslora`, `base` and `dropout` of `peft.write`.
  """
  if not isinstance(model, Imported) and kind not in SCORING:
    model = model.clone(output='tied')
  described, _ = _describe(model, kind, options or {})
  of_heads = flatten({'heads': heads or {}})
  peft.write(folder, described, flatten(adapters), of_heads, **lora)


def num_bytes(model: Transformer, params: Any) -> int:
  """About the number of bytes that `save` will write."""
  dtype = model.origin.dtype if isinstance(model, Imported) else 'F32'
  size = np.dtype(DTYPES[dtype]).itemsize
  return sum(math.prod(x.shape) for x in flatten(params).values()) * size


def _names(model: Imported, slot: TensorSlot) -> list[str]:
  """Names of a tensor in the file: several if it repeats tied copies."""
  tensor = slot.tensor
  known = [n for n in tensor.names if n in model.origin.names]
  names = dict.fromkeys((*(known or tensor.names[:1]), *tensor.always))
  return [file_name(model, name) for name in names]


def _shards(model: Imported, shard_bytes: int) -> list[list[TensorSlot]]:
  """The tensors of each file, in order."""
  out, room, zeros = [], -1, shapes(model)
  size = np.dtype(DTYPES[model.origin.dtype]).itemsize
  for slot in slots(model):
    count = len(_names(model, slot))
    needed = math.prod(joined_shape(model, zeros, slot)) * size * count
    if needed > room:
      out.append([])
      room = shard_bytes
    out[-1].append(slot)
    room -= needed
  return out


def _check_params(model: Imported, flat: Flat) -> None:
  expected = shapes(model)
  wrong = [f'{n} is missing' for n in expected if n not in flat]
  wrong += [f'{n} is not of this model' for n in flat if n not in expected]
  wrong += [
    f'{n} is {flat[n].shape}, not {x.shape}'
    for n, x in expected.items()
    if n in flat and flat[n].shape != x.shape
  ]
  if wrong:
    raise UsageError(f'params do not fit the model: {"; ".join(wrong)}')


def _describe(
  model: Transformer, kind: str, options: dict[str, Any]
) -> tuple[Imported, dict[str, Any]]:
  """The model with an origin, and a config.json that reads back as it."""
  if isinstance(model, Imported):
    config, kind = json.loads(model.origin.config), model.origin.kind
    written = model.family.options(model)
    if kind in SCORING:
      config |= {n: written[n] for n in model.family.rewritten}
    config |= options
    if _differences(model, model.family, kind, config):
      config |= written | options
      wrong = _differences(model, model.family, kind, config)
      if wrong:
        name = model.family.model_type
        raise UsageError(_shortened(f'{name} cannot express ', wrong))
    origin = model.origin._replace(config=json.dumps(config))
    return model.clone(origin=origin), config
  position = choice(model, 'position')
  for (name, argument), theirs in _OURS.items():
    ours = f'{argument}={position.kwargs.get(argument)!r}' if argument else name
    if position.name == name and ours != theirs:
      raise UsageError(
        f'model.position={model.position!r}: no export writes {ours}; take a run with {theirs}'
      )
  failures: list[tuple[Family, list[str]]] = []
  lacking = None
  for family in FAMILIES.values():
    classes = [n for n, k in family.architectures.items() if k == kind]
    config = {
      'architectures': classes[:1],
      'model_type': family.model_type,
      'torch_dtype': 'float32',
      **family.options(model),
      **options,
    }
    wrong = _differences(model, family, kind, config)
    if not wrong and classes:
      fields = {f: getattr(model, f) for f in transformer_fields()}
      origin = ExportOrigin(json.dumps(config), kind, bare=family.bare)
      return imported(fields, origin), config
    if not wrong:
      # Another family may have it: ELECTRA's body may equal BERT's.
      lacking = lacking or family
    failures.append((family, wrong))
  if lacking:
    others = [
      name for other in FAMILIES.values() for name, k in other.architectures.items() if k == kind
    ]
    raise UsageError(
      f'the model is a {lacking.model_type}, which has no class in '
      f'transformers with the head {kind!r} ({", ".join(others[:3])} have); '
      'export the language model that was fine-tuned, or predict here, with '
      'finetune --predict'
    )
  family, wrong = min(failures, key=lambda x: _distance(model, *x))
  start = f'no Hugging Face model computes the same; the nearest is {family.model_type}, but for '
  raise UsageError(_shortened(start, wrong))


def _distance(model: Transformer, family: Family, wrong: list[str]) -> int:
  """How far a family is from a model that it cannot express."""
  kind = 'decoder' if ModelChoices.of(model).causal else 'encoder'
  kind = 'seq2seq' if model.num_encoder_layers else kind
  names = ' '.join(family.architectures)
  theirs = 'encoder' if 'MaskedLM' in names else 'decoder'
  if 'Conditional' in names or 'MTModel' in names:
    theirs = 'seq2seq'
  fields = 0
  for text in wrong:
    calls = re.match(r'model\.\w+=\W?(\w+).*\(only \W?(\w+)', text)
    if calls is None:
      fields += 17  # an option that it lacks hides the fields that differ
    else:
      fields += 1 if calls[1] == calls[2] else 2
  return fields + 12 * (kind != theirs)


def _shortened(start: str, items: list[str]) -> str:
  """A sentence that lists items as far as there is room."""
  text, most = start, _LONGEST - 20
  for i, item in enumerate(items):
    if i and len(text) + len(item) > most:
      return f'{text}; and {len(items) - i} more'
    room = most - len(text)
    item = item if len(item) <= room else f'{item[: room - 3]}...'
    text += f'{"; " * bool(i)}{item}'
  return text


def _differences(
  model: Transformer, family: Family, kind: str, config: dict[str, Any]
) -> list[str]:
  """Fields for which a config.json does not mean this model."""
  output = choice(model, 'output')
  bias, tied = output.kwargs.get('bias', False), output.name == 'tied'
  try:
    other = make_model(**fields_of(family, kind, config, bias=bias, tied=tied))
  except UsageError as e:
    return [str(e)]
  wrong = []
  for field in transformer_fields():
    ours, theirs = getattr(model, field), getattr(other, field)
    if field in FOR_TRAINING or ours == theirs:
      continue
    if field in _SAME:
      same = _SAME[field](model, other)
    else:
      same = field in CHOICES and choices(model, field) == choices(other, field)
    if not same:
      wrong.append(f'model.{field}={ours!r} (only {theirs!r})')
  return wrong
