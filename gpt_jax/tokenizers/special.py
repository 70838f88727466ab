# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Special tokens: those before a text, those that end an answer, and others.

A model that we train reads documents that end with `eos_id`, so it is evaluated
after that token. A model of Hugging Face gets what its own tokenizer puts
before a text: `<s>` for LLaMA, nothing for GPT-2. An import writes this into
the file `special.json` of its saved tokenizer. Encoders' tokens [CLS], [SEP]
and [MASK] are known by their roles.
"""

import json
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeGuard

import numpy as np

from gpt_jax.files.files import parse
from gpt_jax.spec import UsageError
from gpt_jax.tokenizers import constraints as constraints_lib
from gpt_jax.tokenizers.constraints import ANY, Constraints

log = logging.getLogger('gpt_jax')

_SHOWN = 8  # the most tokens that a warning names

# Splits the name of a special token in a user's text, so that it stays text.
# Unicode reserves this code point for such uses: no text has it.
BREAK = '\ufdd0'

# The end of a document in tokenizers whose files do not name it.
END_OF_DOCUMENT = '<|endoftext|>'

# What an import knows about special tokens.
SPECIAL = 'special.json'
CONFIG, MAP = 'tokenizer_config.json', 'special_tokens_map.json'
_ADDED, _GENERATION = 'added_tokens.json', 'generation_config.json'
# Files of Hugging Face that do not change the ids of a text.
BESIDE = (CONFIG, MAP, _ADDED, _GENERATION, 'chat_template.jinja')
_MODEL = 'config.json'  # read here; the import of the model keeps it

# Tokenizers that put BOS first by default, by Hugging Face's class; used only
# where there is no tokenizer.json with a post-processor.
_STARTS = ('Llama', 'CodeLlama', 'Gemma')
_STARTING_MODELS = ('llama', 'mistral', 'mixtral', 'gemma', 'gemma2', 'gemma3')


class Special(NamedTuple):
  """The special tokens of a tokenizer, as the model was trained."""

  document_start: tuple[int, ...]  # before a text that is scored
  # Before a text that is continued or fine-tuned on.
  prompt_start: tuple[int, ...]
  # Before a text whose first token is predicted too, if nothing else is: BOS,
  # or else the end of a document.
  first_id: int
  stop_ids: frozenset[int]  # each ends generation
  pad_id: int  # fills rows; without a token for that, the end of a document
  names: Mapping[str, int]  # ids of the special tokens that a template may name
  eos_id: int  # ends each document, and each side of a pair of texts
  # Before an encoder's row: [CLS], or RoBERTa's <s>; None: there is none.
  cls_id: int | None = None
  # After each text of such a row: [SEP], or RoBERTa's </s>.
  sep_id: int | None = None
  mask_id: int | None = None  # replaces a token that an encoder is to predict
  # Never generated: ids without a token, and those that an import's
  # generation_config.json forbids.
  never_ids: frozenset[int] = frozenset()
  # Which tokens may come next, by the import's files.
  constraints: Constraints = ANY

  def before(self, *, first_scored: bool) -> tuple[int, ...]:
    """The ids before a text; at least one if its first token is scored."""
    return self.document_start or (self.first_id,) * first_scored

  def prompt(self, ids: Any) -> list[int]:
    """The ids of a prompt with those before it; never empty."""
    return [*self.prompt_start, *map(int, ids)] or [self.first_id]


class Imported(Protocol):
  """A tokenizer that was read from a checkpoint's vocabulary."""

  vocab_size: int
  eos_id: int

  @property
  def text_start(self) -> tuple[int, ...] | None:
    """The ids that its file puts before a text; None: the file does not say."""
    ...

  def id_of(self, token: str) -> int | None: ...

  @property
  def special_names(self) -> Mapping[str, int]:
    """Special tokens of its file."""
    ...


def of(
  contents: Mapping[str, bytes], eos_id: int, names: Mapping[str, int]
) -> Special:
  """The special tokens of a saved tokenizer.

  Args:
    contents: its files; without `special.json` roles go by the usual names.
    names: the special tokens of its vocabulary.
  """
  if SPECIAL not in contents:
    cls, sep, mask = (_usual(role, names) for role in _ENCODERS)
    pad = _usual('pad', names)
    pad = eos_id if pad is None else pad
    stops = frozenset([eos_id])
    return Special(
      *((eos_id,), (), eos_id, stops, pad, names, eos_id),
      *(cls, sep, mask),
    )
  found = json.loads(contents[SPECIAL])
  start = tuple(found['start'])
  stops, names = frozenset(found['stop']), found['names']
  # Imports of older versions lack these entries.
  cls, sep, mask = (found.get(r, _usual(r, names)) for r in _ENCODERS)
  constraints = constraints_lib.restored(found.get('constraints', {}))
  return Special(
    *(start, start, found['first'], stops, found['pad'], names, eos_id),
    *(cls, sep, mask),
    never_ids=frozenset(constraints.never),
    constraints=constraints,
  )


class NoEndError(UsageError):
  """No token of the model ends a document."""


def num_rows(contents: Mapping[str, bytes], size: int) -> int:
  """The `vocab_size`: how many of `size` ids have an embedding in the model.

  A vocabulary may have tokens without one, such as <pad> for LLaMA 2.
  """
  found = json.loads(contents.get(SPECIAL, b'{}')).get('rows')
  return size if found is None else min(size, found)


def from_hf(folder: str, made: Imported) -> dict[str, bytes]:
  """Files of a checkpoint for its saved tokenizer, with `special.json`.

  Roles are only given to tokens that have an embedding in the model.
  """
  kept = {}
  for name in (*BESIDE, _MODEL):
    path = os.path.join(folder, name)
    if os.path.isfile(path):
      with open(path, 'rb') as file:
        kept[name] = file.read()
  config, map_, added, model = (
    parse(
      kept.get(name, b'{}'),
      os.path.join(folder, name),
      remedy='download it again',
    )
    for name in (CONFIG, MAP, _ADDED, _MODEL)
  )
  size = model.get('vocab_size')
  size = size if type(size) is int else made.vocab_size
  if made.eos_id >= size:
    raise NoEndError(
      f'{os.path.join(folder, _MODEL)}: vocab_size={size}: the token that ends '
      f'documents has id {made.eos_id}; name another one as eos_token in '
      f'{CONFIG}'
    )
  rows = min(size, made.vocab_size)

  def known(i: Any) -> TypeGuard[int]:
    return isinstance(i, int) and 0 <= i < rows

  def role(name: str) -> int | None:
    for entries in (config, map_):
      i = made.id_of(content(entries.get(f'{name}_token')) or '')
      if known(i):
        return i
    i = model.get(f'{name}_token_id')
    return i if known(i) else None

  bos = role('bos')
  start = made.text_start
  if start is None:  # no tokenizer.json
    kind = config.get('tokenizer_class') or ''
    usual = (
      kind.startswith(_STARTS)
      if kind
      else (model.get('model_type') in _STARTING_MODELS)
    )
    puts = config.get('add_bos_token', usual) and bos is not None
    start = (bos,) if puts else ()
  names = dict(made.special_names)
  decoder = config.get('added_tokens_decoder') or {}
  if not isinstance(decoder, dict) or not all(
    isinstance(token, dict) for token in decoder.values()
  ):
    path = os.path.join(folder, CONFIG)
    raise UsageError(f'{path}: added_tokens_decoder is damaged; copy it again')
  tokens = [content(t) for t in decoder.values() if t.get('special', True)]
  roles = [v for e in (config, map_) for k, v in e.items() if k in _ROLES]
  tokens += map(content, roles)
  if made.text_start is None:  # else tokenizer.json says which are special
    plain = {content(t) for t in decoder.values()} - {*tokens}
    tokens += {*added} - plain
  unknown = set()
  for token in filter(None, tokens):
    if (i := made.id_of(token)) is not None:
      names[token] = i
    else:
      unknown.add(token)
  if unknown:
    log.warning(
      '%s: the vocabulary that is read has no token %s, so texts spell these '
      'out; save the tokenizer with transformers, which writes a '
      'tokenizer.json: AutoTokenizer.from_pretrained(FOLDER)'
      '.save_pretrained(FOLDER)',
      *(folder, ', '.join(sorted(unknown)[:_SHOWN])),
    )
  roles = {name: role(name) for name in (*_ENCODERS, 'pad')}
  for name, i in roles.items():
    usual = _usual(name, names) if i is None else i
    roles[name] = usual if known(usual) else None
  pad = roles.pop('pad')
  values, source = generation(folder)
  ends = values.get('eos_token_id')
  ends = ends if isinstance(ends, list) else [ends]
  stops = sorted({made.eos_id, *filter(known, ends)})
  constraints = constraints_lib.read(
    *(values, source), vocab_size=size, stops=stops
  )
  entries = {
    'start': start,
    'first': made.eos_id if bos is None else bos,
    'stop': stops,
    'constraints': constraints_lib.written(constraints),
    'pad': made.eos_id if pad is None else pad,
    'names': names,
    'rows': rows,
    **roles,
  }
  kept.pop(_MODEL, None)
  return kept | {SPECIAL: json.dumps(entries, indent=2).encode() + b'\n'}


def with_stops(
  contents: Mapping[str, bytes], stops: Sequence[int]
) -> dict[str, bytes]:
  """The files of an import that name its stop tokens, with other ones."""
  files = {SPECIAL: {'stop': stops}, _GENERATION: {'eos_token_id': stops}}
  return {
    name: json.dumps(
      json.loads(contents.get(name, b'{}')) | new, indent=2
    ).encode()
    + b'\n'
    for name, new in files.items()
  }


def generation(folder: str) -> tuple[dict[str, Any], str]:
  """A checkpoint's settings of generation, and the name of their file.

  As in transformers, config.json counts only without generation_config.json.
  """
  for name in (_GENERATION, _MODEL):
    path = os.path.join(folder, name)
    if os.path.isfile(path):
      with open(path, 'rb') as file:
        values = parse(file.read(), path, remedy='download it again')
      return values, name
  return {}, _GENERATION


def _usual(role: str, names: Mapping[str, int]) -> int | None:
  """The token of a role, by its names in published vocabularies.

  Without a <mask>, as in LLaMA's, <s> and </s> have other uses.
  """
  for name in _USUAL[role]:
    if name in names and (name not in _SHARED or '<mask>' in names):
      return names[name]
  return None


def encode(
  text: str, names: Mapping[str, int], plain: Callable[[str], np.ndarray]
) -> np.ndarray:
  """Encodes a text in which names of special tokens are those tokens.

  Args:
    text: a name that is split by `BREAK` stays text.
  """
  ids = [np.empty(0, np.int32)]
  for start, stop, token in _parts(text, names):
    if token is None:
      ids.append(plain(text[start:stop].replace(BREAK, '')))
    else:
      ids.append(np.array([token], np.int32))
  return np.concatenate(ids)


def offsets(
  text: str, names: Mapping[str, int], plain: Callable[[str], np.ndarray]
) -> np.ndarray:
  """Where the tokens of `encode` come from: int32 [num_tokens, 2].

  Args:
    text: may contain `BREAK`, which no token covers alone.
    plain: `Tokenizer.offsets`.
  """
  found = [np.empty((0, 2), np.int32)]
  for start, stop, token in _parts(text, names):
    if token is not None:
      found.append(np.array([[start, stop]], np.int32))
      continue
    kept = [i for i in range(start, stop) if text[i] != BREAK]
    of_part = plain(''.join(text[i] for i in kept))
    first = np.array([*kept, stop], np.int32)
    after = np.array([start, *(i + 1 for i in kept)], np.int32)
    starts, stops = first[of_part[:, 0]], after[of_part[:, 1]]
    # Some of the tokens that make one character have an empty range.
    stops = np.where(of_part[:, 0] == of_part[:, 1], starts, stops)
    found.append(np.stack([starts, stops], axis=1))
  return np.concatenate(found)


def _parts(
  text: str, names: Mapping[str, int]
) -> Iterator[tuple[int, int, int | None]]:
  """Splits a text at names: start, stop, and the token's id, None: plain."""
  longest = sorted(names, key=len, reverse=True)
  pattern = '|'.join(map(re.escape, longest)) or r'(?!)'
  start = 0
  for match in re.finditer(pattern, text):
    yield start, match.start(), None
    yield *match.span(), names[match[0]]
    start = match.end()
  yield start, len(text), None


def guarded(text: str, names: Mapping[str, int]) -> str:
  """The text with the names of special tokens split by `BREAK`."""
  text = text.replace(BREAK, '')
  for name in sorted(names, key=len, reverse=True):
    text = text.replace(name, name[:1] + BREAK + name[1:])
  return text


def with_masks(made: Any, text: str) -> np.ndarray:
  """Encodes a text in which the name of the mask is that token.

  Other names of special tokens stay text. Space before a mask belongs to it, as
  the piece that it replaces begins with a space.
  """
  found: Special = made.special
  if found.mask_id is None:
    raise UsageError(
      'the tokenizer has no token for what is to be predicted, [MASK] or <mask>'
    )
  (mask,) = (n for n, i in found.names.items() if i == found.mask_id)
  others = {name: i for name, i in found.names.items() if name != mask}
  text = re.sub(rf'\s+{re.escape(mask)}', mask, guarded(text, others))
  return made.encode_special(text)


def content(token: Any) -> str | None:
  """The text of a token, which may be given with options."""
  token = token.get('content') if isinstance(token, dict) else token
  return token if isinstance(token, str) else None


_ROLES = tuple(
  f'{role}_token' for role in ('bos', 'eos', 'pad', 'sep', 'cls', 'mask')
)

# Roles in the rows of an encoder: fields of `Special`.
_ENCODERS = ('cls', 'sep', 'mask')

_USUAL = {
  'cls': ('[CLS]', '<cls>', '<s>'),
  'sep': ('[SEP]', '<sep>', '</s>'),
  'mask': ('[MASK]', '<mask>'),
  'pad': ('[PAD]', '<pad>'),
}
_SHARED = ('<s>', '</s>')
