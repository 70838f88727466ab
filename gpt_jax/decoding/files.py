# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Prompts and sources from flags and files; files of results, resumable."""

import hashlib
import itertools
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gpt_jax.core.files import lines
from gpt_jax.core.files.buckets import write_atomically
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers import special
from gpt_jax.core.tokenizers.special import sentinel
from gpt_jax.core.tokenizers.tokenizer import Tokenizer
from gpt_jax.decoding.chat import ChatTemplate, Message


class Prompt(NamedTuple):
  """A prompt: a text to continue, or the messages of a chat.

  Attributes:
    where: the flag or 'file:line', for errors.
    text: to continue; None: it has messages.
    messages: of a chat, each with `role` and `content`.
  """

  where: str
  text: str | None
  messages: Sequence[Message] | None = None

  @property
  def fields(self) -> dict[str, Any]:
    """The fields of a line of JSON."""
    if self.text is not None:
      return {'prompt': self.text}
    return {'messages': self.messages}

  def ids(self, tokenizer: Tokenizer, template: ChatTemplate | None) -> list[int]:
    """The ids of the prompt."""
    try:
      if self.text is not None:
        check(self.text)
        return tokenizer.special.prompt(tokenizer.encode(self.text))
      if template is None:
        raise UsageError('has messages, and the model has no chat template; give a prompt')
      return template.ids(tokenizer, self.messages or ())
    except UsageError as e:
      raise UsageError(f'{self.where}: {e}') from e


def check(text: str) -> None:
  """Refuses a text with half characters, which stand for bytes not UTF-8."""
  try:
    text.encode()
  except UnicodeEncodeError as e:
    raise UsageError(f'the text is not UTF-8 ({e.reason}); convert it') from e


def typed(flag: str, texts: Sequence[str]) -> list[str]:
  """Texts of a flag; `-` stands for standard input."""
  if texts.count('-') > 1:
    raise UsageError(f'{flag}=-: standard input is read once; give it once')
  found = [lines.whole_input() if text == '-' else text for text in texts]
  if not all(found):
    raise UsageError(f'{flag} is empty; give a text')
  return found


def read(path: str) -> list[Prompt]:
  """Reads a file of prompts.

  Each line of a .txt is a prompt. Each line of a .jsonl is an object with a
  `prompt`, or with the `messages` of a chat, which have `role` and `content`.
  """
  kind = os.path.splitext(path)[1]
  if kind not in ('.txt', '.jsonl'):
    raise UsageError(
      f'--prompts={path}: is neither .txt (a prompt a line) nor .jsonl '
      '(objects with prompt or messages); rename it'
    )
  found = [
    Prompt(where, line) if kind == '.txt' else _from_json(where, line)
    for where, line in lines.texts(path)
    if line.strip()
  ]
  if not found:
    raise UsageError(f'--prompts={path}: holds no prompt; write one a line')
  return found


def entry(where: str, line: str) -> dict[str, Any]:
  """The object of a line of JSON; empty if the line is no object."""
  try:
    found = json.loads(line)
  except (ValueError, RecursionError) as e:
    raise UsageError(f'{where}: is not JSON ({e}); mend the line') from e
  found = found if isinstance(found, dict) else {}
  try:
    check(_line(found))
  except UsageError as e:
    raise UsageError(f'{where}: {e}') from e
  return found


def _from_json(where: str, line: str) -> Prompt:
  found = entry(where, line)
  text, messages = found.get('prompt'), found.get('messages')
  if isinstance(text, str) and text and messages is None:
    return Prompt(where, text)
  if isinstance(messages, list) and messages and text is None:
    keys = ('role', 'content')
    if all(isinstance(m, dict) and all(isinstance(m.get(k), str) for k in keys) for m in messages):
      return Prompt(where, None, messages)
  raise UsageError(
    f'{where}: needs a prompt, a text that is not empty, or messages, a list '
    'of objects with role and content; mend the line'
  )


class ResultsFile:
  """A file of results, a JSON line each, that survives crashes.

  A line is written when its row has finished; `finish` sorts the lines by
  `index`. `FILE.run` holds what the results depend on. A line that a crash cut
  off is dropped, and its row computed again.
  """

  def __init__(self, path: str, settings: Mapping[str, Any]):
    """Opens or makes the file; `settings` is what the results depend on."""
    self._path = path
    self.rows: dict[int, dict[str, Any]] = {}
    known, whole = f'{path}.run', json.dumps(settings, sort_keys=True)
    if os.path.exists(path):
      self._check(known, json.loads(whole))
      self._read()
    else:
      write_atomically(known, whole + '\n')
    self._file = open(path, 'a', encoding='utf-8')  # noqa: SIM115

  def add(self, index: int, row: Mapping[str, Any]) -> None:
    """Writes a finished row."""
    self.rows[index] = {'index': index, **row}
    self._file.write(_line(self.rows[index]))
    self._file.flush()

  def close(self) -> None:
    """Closes the file as it is, to be resumed."""
    self._file.close()

  def finish(self) -> None:
    """Sorts the rows and closes the file."""
    self.close()
    rows = [self.rows[index] for index in sorted(self.rows)]
    write_atomically(self._path, ''.join(map(_line, rows)))

  def _check(self, known: str, settings: dict[str, Any]) -> None:
    """Refuses results of other settings."""
    try:
      with open(known, encoding='utf-8') as file:
        before = json.load(file)
      changed = sorted(
        name for name in {*before, *settings} if before.get(name) != settings.get(name)
      )
    except FileNotFoundError as e:
      raise UsageError(
        f'--out={self._path}: exists, but its record {known} does not; name another file'
      ) from e
    except (ValueError, TypeError, AttributeError) as e:
      raise UsageError(f'--out={self._path}: {known} is damaged; name another file') from e
    if changed:
      raise UsageError(
        f'--out={self._path}: holds results of another '
        f'{", another ".join(changed)}; name another file, or delete it'
      )

  def _read(self) -> None:
    """Reads the rows, and cuts off an incomplete last line."""
    with open(self._path, 'rb+') as file:
      data = file.read()
      end = data.rfind(b'\n') + 1
      for number, line in enumerate(data[:end].split(b'\n')[:-1], start=1):
        try:
          row = json.loads(line)
          self.rows[row['index']] = row
        except (ValueError, RecursionError, KeyError, TypeError) as e:
          raise UsageError(f'--out={self._path}: line {number} is damaged; delete the line') from e
      file.truncate(end)


def digest(texts: Iterable['Prompt | SourceEntry']) -> str:
  """The sha256 of the fields of texts."""
  total = hashlib.sha256()
  for text in texts:
    total.update(_line(text.fields).encode())
  return total.hexdigest()


def _line(row: Mapping[str, Any]) -> str:
  return json.dumps(row, ensure_ascii=False) + '\n'


# Sources with blanks, which an encoder-decoder fills.
#
# A blank is the token of training's: T5's <extra_id_0>, <extra_id_1>, ..., or
# BART's <mask>. T5 answers with the contents of its blanks, BART with the whole
# text.
#
#   source  Paris <extra_id_0> France.
#   answer  <extra_id_0> is in <extra_id_1>


def encode_blanks(tokenizer: Tokenizer, text: str) -> np.ndarray:
  """Encodes a source in which the names of blanks are tokens: int32 [N].

  Names of other special tokens stay text. White space before a blank belongs to
  the blank, as the piece that it stands for begins with it.
  """
  known = tokenizer.special
  names = _sentinels(known.names)
  names |= {n: i for n, i in known.names.items() if i == known.mask_id}
  blank = '|'.join(map(re.escape, sorted(names, key=len, reverse=True)))
  if not names or not re.search(blank, text):
    return tokenizer.encode(text)
  others = {n: i for n, i in known.names.items() if n not in names}
  text = re.sub(rf'\s+({blank})', r'\1', special.guarded(text, others))
  if tokenizer.parts_at_spaces:  # it puts a space before each part itself
    text = re.sub(rf'({blank}) ', r'\1', text)
  return tokenizer.encode_special(text)


def has_blanks(tokenizer: Tokenizer, ids: Sequence[int]) -> bool:
  """Whether a source has a blank."""
  known = tokenizer.special
  return not {known.mask_id, *_sentinels(known.names).values()}.isdisjoint(ids)


def fill_blanks(tokenizer: Tokenizer, source: Sequence[int], answer: Sequence[int]) -> str:
  """The text with its blanks filled.

  A blank that the answer lacks is left out. If the source has no sentinels, the
  answer is the whole text.

  Args:
    source: ids that the encoder read.
    answer: ids that the decoder generated.
  """
  sentinels = {*_sentinels(tokenizer.special.names).values()}
  if sentinels.isdisjoint(source):
    return tokenizer.decode(answer).strip()
  spans: dict[int, list[int]] = {}
  span: list[int] = []
  for i in answer:
    if i in sentinels:
      span = []
      spans.setdefault(i, span)  # the first time counts
    else:
      span.append(i)
  parts = [spans.get(i, []) if i in sentinels else [i] for i in source]
  return tokenizer.decode(itertools.chain(*parts)).strip()


def _sentinels(names: Mapping[str, int]) -> dict[str, int]:
  """The sentinels among special tokens, in their order."""
  numbered = map(sentinel, itertools.count())
  found = itertools.takewhile(lambda name: name in names, numbered)
  return {name: names[name] for name in found}


class SourceEntry(NamedTuple):
  """A source text to answer.

  Attributes:
    where: the flag or 'file:line', for errors.
  """

  where: str
  text: str

  @property
  def fields(self) -> dict[str, Any]:
    """The fields of a line of JSON."""
    return {'source': self.text}

  def encoded(self, tokenizer: Tokenizer) -> Any:
    """The ids of the text, int [N]."""
    try:
      check(self.text)
      return encode_blanks(tokenizer, self.text)
    except UsageError as e:
      raise UsageError(f'{self.where}: {e}') from e


def read_sources(path: str) -> list[SourceEntry]:
  """Reads a file of sources.

  Each line of a .jsonl is an object with a `source`; each line of any other
  file is a source. None may be empty, so that answers match the lines.
  """
  found = [*lines.texts(path)]
  while found and not found[-1][1].strip():
    found.pop()
  of_json = os.path.splitext(path)[1] == '.jsonl'
  sources = []
  for where, line in found:
    text = entry(where, line).get('source') if of_json else line
    if not isinstance(text, str) or not text.strip():
      raise UsageError(f'{where}: needs a source, a text that is not empty; mend the line')
    sources.append(SourceEntry(where, text))
  if not sources:
    raise UsageError(f'--sources={path}: holds no source; write one a line')
  return sources
