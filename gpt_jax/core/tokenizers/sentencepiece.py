# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""SentencePiece models (Kudo and Richardson, 2018): ours and published ones.

`training` trains ours.
"""

import functools
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import sentencepiece as spm
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from gpt_jax.core.files.document import Document
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers import saved, words
from gpt_jax.core.tokenizers.tokenizer import Maker
from gpt_jax.core.tokenizers.words import SPACE_MARK

MODEL = 'sentencepiece.model'
# The fields of sentencepiece_model.proto that are read or changed here: name,
# number, type (protobuf's, or a message below), default. Protobuf keeps the
# others. The package's own classes need a protobuf that Apache Beam refuses.
_FIELDS = {
  'Piece': (('piece', 1, 'STRING', ''), ('score', 2, 'FLOAT', '0'), ('type', 3, 'INT32', '1')),
  'Trainer': (('model_type', 3, 'INT32', '1'), ('byte_fallback', 35, 'BOOL', 'false')),
  'Normalizer': (
    ('name', 1, 'STRING', ''),
    ('precompiled_charsmap', 2, 'BYTES', ''),
    ('add_dummy_prefix', 3, 'BOOL', 'true'),
    ('remove_extra_whitespaces', 4, 'BOOL', 'true'),
  ),
  'Model': (
    ('pieces', 1, 'Piece', None),
    ('trainer_spec', 2, 'Trainer', None),
    ('normalizer_spec', 3, 'Normalizer', None),
  ),
}
_EOS = 'eos.json'  # the piece that ends a document, where a user named it

# Our models encode a text in segments of about this many characters, cut after
# newlines, which no piece spans. Long inputs are slow: BPE took twice the time
# for whole books.
_SEGMENT = 1 << 12


class SentencePiece(saved.Vocabulary):
  """A SentencePiece model.

  Lossless where we trained it (kind `sentencepiece`), unless with normalisation
  or without byte fallback. A published model (`sentencepiece_file`) follows its
  own settings, and may for instance merge spaces.
  """

  in_threads = True
  run_ids = frozenset()

  def __init__(self, kind: str, contents: dict[str, bytes]):
    """Reads the model from its file in `contents`."""
    super().__init__(kind, contents)
    self._model = spm.SentencePieceProcessor()
    try:
      # An empty file would be loaded as an empty model.
      self._model.LoadFromSerializedProto(contents[MODEL] or b'empty')
    except RuntimeError as e:
      raise UsageError('is not a SentencePiece model; fetch it again') from e
    self._settle(self._model.vocab_size(), self._find_eos())
    # A U+2581 of the text would be read as a space. Spelled in bytes it
    # survives.
    self._mark = np.empty(0, np.int32)
    self._cuts = kind == 'sentencepiece'
    if self._cuts:
      spelled = [f'<0x{byte:02X}>' for byte in SPACE_MARK.encode()]
      ids = [self._model.piece_to_id(piece) for piece in spelled]
      if all(map(self._model.is_byte, ids)):
        self._mark = np.array(ids, np.int32)
    both, *alone = self.encode_batch(['x y', 'x', 'y'])
    self.parts_at_spaces = np.array_equal(both, np.concatenate(alone))

  @property
  def processor(self) -> spm.SentencePieceProcessor:
    """The model in the library's own class."""
    return self._model

  @property
  def proto(self) -> Any:
    """The model as a message of `message`."""
    return message().FromString(self._model.serialized_model_proto())

  def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
    if not self._cuts:
      return self._encode(list(texts))
    groups = [list(self._segments(text)) for text in texts]
    segments = [segment for group in groups for segment in group]
    ids = self._encode(segments)
    if len(self._mark):
      ids = [
        self._mark if segment == SPACE_MARK else found
        for segment, found in zip(segments, ids, strict=True)
      ]
    joined, start = [], 0
    for group in groups:
      joined.append(np.concatenate(ids[start : start + len(group)]))
      start += len(group)
    return joined

  def offsets(self, text: str) -> np.ndarray:
    found, start = [np.empty((0, 2), np.int32)], 0
    for part in self._segments(text) if self._cuts else [text]:
      if len(self._mark) and part == SPACE_MARK:
        spans = [(0, 1)] * len(self._mark)
      else:
        mapping = self._model.encode(part, return_type='offset_mapping')
        spans = mapping['offsets']
      found.append(np.array(spans, np.int32).reshape(-1, 2) + np.int32(start))
      start += len(part)
    return np.concatenate(found)

  def decode(self, ids: Iterable[int]) -> str:
    kept = self._visible(ids)
    return self._model.decode(kept) if kept else ''

  @property
  def special_names(self) -> dict[str, int]:
    model = self._model
    controls = filter(model.is_control, range(self._size))
    return {model.id_to_piece(i): i for i in controls}

  def id_of(self, token: str) -> int | None:
    i = self._model.piece_to_id(token)
    return i if self._model.id_to_piece(i) == token else None

  def token(self, i: int) -> str | None:
    return self._model.id_to_piece(i)

  @property
  def spells_marks(self) -> bool:
    """Whether a U+2581 of a text is spelled in bytes, so that it stays."""
    return bool(len(self._mark))

  @functools.cached_property
  def _words(self) -> words.Words:
    special = {*self.special_names.values(), self.eos_id, self._model.unk_id()}
    return words.of_text(
      None if i in special else words.of_marks(self._model.id_to_piece(i))
      for i in range(self.vocab_size)
    )

  def _encode(self, texts: list[str]) -> list[np.ndarray]:
    # As arrays: lists of Python integers would take a quarter of the time.
    found = self._model.encode(texts, return_type='numpy', num_threads=1)
    self._check_rows(found)
    return found

  def _segments(self, text: str) -> Iterator[str]:
    """Splits a text; a U+2581 of the text becomes a segment of its own."""
    if len(self._mark) and SPACE_MARK in text:
      before, *others = text.split(SPACE_MARK)
      yield from self._segments(before)
      for other in others:
        yield SPACE_MARK
        yield from self._segments(other)
      return
    start = 0
    while cut := text.find('\n', start + _SEGMENT) + 1:
      yield text[start:cut]
      start = cut
    yield text[start:]

  def _find_eos(self) -> int:
    if _EOS not in self.contents:
      eos_id = self._model.eos_id()
      if eos_id < 0:
        raise UsageError(
          'has no piece for the end of a document (eos); name one of its '
          f"pieces, as in eos='{self._model.id_to_piece(0)}'"
        )
      return eos_id
    eos = json.loads(self.contents[_EOS])
    eos_id = self._model.piece_to_id(eos)
    if self._model.id_to_piece(eos_id) != eos:
      raise UsageError(f'has no piece {eos!r}; name the end by eos=')
    return eos_id


@functools.cache
def message() -> Any:
  """The protobuf class of a model: see `_FIELDS`."""
  file = descriptor_pb2.FileDescriptorProto(
    name='gpt_jax/sentencepiece.proto', package='gpt_jax', syntax='proto2'
  )
  kinds = descriptor_pb2.FieldDescriptorProto
  for name, fields in _FIELDS.items():
    made = file.message_type.add(name=name)
    for field, number, kind, default in fields:
      added = made.field.add(name=field, number=number, default_value=default)
      repeated = field == 'pieces'
      added.label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
      if kind in _FIELDS:
        added.type, added.type_name = kinds.TYPE_MESSAGE, f'.gpt_jax.{kind}'
      else:
        added.type = kinds.Type.Value(f'TYPE_{kind}')
  pool = descriptor_pool.DescriptorPool()
  pool.Add(file)
  return message_factory.GetMessageClass(pool.FindMessageTypeByName('gpt_jax.Model'))


def sentencepiece_file(path: str, eos: str = '') -> Maker:
  """A published model, such as LLaMA's tokenizer.model.

  Args:
    eos: the piece that ends documents; by default the model's own.
  """

  def read(documents: Iterable[Document]) -> SentencePiece:
    del documents
    contents = {MODEL: saved.user_file(path, 'a SentencePiece model')}
    if eos:
      contents[_EOS] = json.dumps(eos).encode()
    try:
      return SentencePiece('sentencepiece_file', contents)
    except UsageError as e:
      raise UsageError(f'tokenizer.name: {path!r} {e}; or name another model') from e

  return Maker(read)
