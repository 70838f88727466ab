# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Special tokens: what stands before a text, and what ends an answer.

A model that we train reads documents that end with `eos_id`, so it is
evaluated after that token. One of Hugging Face is given what its own tokenizer
puts before a text: `<s>` for LLaMA, nothing for GPT-2. An import settles this
once, in the file `special.json` of its saved tokenizer. An encoder's rows are
made of the tokens [CLS], [SEP] and [MASK], known by their roles.
"""

import json
import os
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, TypeGuard

import numpy as np

from gpt_jax.files.files import parse
from gpt_jax.spec import UsageError
from gpt_jax.tokenizers import constraints as constraints_lib
from gpt_jax.tokenizers.constraints import ANY, Constraints

# Parts the name of a special token in a user's text, so that it stays text.
# Unicode reserves this code point for such uses: no text holds it.
BREAK = '\ufdd0'

# What an import settles about special tokens.
SPECIAL = 'special.json'
CONFIG, MAP = 'tokenizer_config.json', 'special_tokens_map.json'
_ADDED, _GENERATION = 'added_tokens.json', 'generation_config.json'
# Files of Hugging Face that say more than the ids of a text.
BESIDE = (CONFIG, MAP, _ADDED, _GENERATION, 'chat_template.jinja')
_MODEL = 'config.json'  # read here, kept by the import of the model

# Tokenizers that put BOS first unless told otherwise, by Hugging Face's class;
# of interest only where no tokenizer.json has a post-processor.
_STARTS = ('Llama', 'CodeLlama', 'Gemma')
_STARTING_MODELS = ('llama', 'mistral', 'mixtral', 'gemma', 'gemma2', 'gemma3')


class Special(NamedTuple):
  """The special tokens of a tokenizer, as the model was trained."""

  document_start: tuple[int, ...]  # before a text that is scored
  # Before a text that is continued or fine-tuned on.
  prompt_start: tuple[int, ...]
  # Before a text of which even the first token is to be predicted, where
  # nothing else stands: BOS, or else the end of a document.
  first_id: int
  stop_ids: frozenset[int]  # each ends what is generated
  pad_id: int  # fills rows; the end of a document where no token is for it
  names: Mapping[str, int]  # ids of the special tokens that a template may name
  eos_id: int  # ends each document, and each side of a pair of texts
  # Before an encoder's row: [CLS], or RoBERTa's <s>; None: it has none.
  cls_id: int | None = None
  # After each text of such a row: [SEP], or RoBERTa's </s>.
  sep_id: int | None = None
  mask_id: int | None = None  # stands for a token that an encoder is to predict
  # Never generated: ids without a token, and what an import's
  # generation_config.json forbids.
  never_ids: frozenset[int] = frozenset()
  # Which tokens may come next, as the import's files say.
  constraints: Constraints = ANY

  def before(self, *, first_scored: bool) -> tuple[int, ...]:
    """What stands before a text; a token at least if its first is scored."""
    return self.document_start or (self.first_id,) * first_scored

  def prompt(self, ids: Any) -> list[int]:
    """The ids of a prompt after what stands before it; never empty."""
    return [*self.prompt_start, *map(int, ids)] or [self.first_id]


class Imported(Protocol):
  """A tokenizer of which an import may say more."""

  vocab_size: int
  eos_id: int

  @property
  def text_start(self) -> tuple[int, ...] | None:
    """What its file puts before a text; None: the file does not say."""
    ...

  def id_of(self, token: str) -> int | None: ...

  @property
  def special_names(self) -> Mapping[str, int]:
    """Those of its file."""
    ...


def of(
  contents: Mapping[str, bytes], eos_id: int, names: Mapping[str, int]
) -> Special:
  """What the files of a saved tokenizer say.

  Args:
    contents: the files; without `special.json` roles go by the usual names.
    names: the tokenizer's own special tokens.
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
  # Imports before there were encoders lack these entries.
  cls, sep, mask = (found.get(r, _usual(r, names)) for r in _ENCODERS)
  constraints = constraints_lib.restored(found.get('constraints', {}))
  return Special(
    *(start, start, found['first'], stops, found['pad'], names, eos_id),
    *(cls, sep, mask),
    never_ids=frozenset(constraints.never),
    constraints=constraints,
  )


def num_rows(contents: Mapping[str, bytes], size: int) -> int:
  """How many of the first `size` ids the model has rows for: `vocab_size`.

  A vocabulary may have tokens for which the model has none, as LLaMA 2's <pad>.
  """
  found = json.loads(contents.get(SPECIAL, b'{}')).get('rows')
  return size if found is None else min(size, found)


def from_hf(folder: str, made: Imported) -> dict[str, bytes]:
  """Files of a checkpoint for its saved tokenizer, with `special.json`.

  A role has only a token for which the model has a row.
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
    raise UsageError(
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
  tokens = [content(t) for t in decoder.values() if t.get('special', True)]
  roles = [v for e in (config, map_) for k, v in e.items() if k in _ROLES]
  tokens += [*added, *map(content, roles)]
  for token in filter(None, tokens):
    if (i := made.id_of(token)) is not None:
      names[token] = i
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


def generation(folder: str) -> tuple[dict[str, Any], str]:
  """A checkpoint's settings of generation, and the file that holds them.

  As in transformers, config.json counts only if there is no other file.
  """
  for name in (_GENERATION, _MODEL):
    path = os.path.join(folder, name)
    if os.path.isfile(path):
      with open(path, 'rb') as file:
        values = parse(file.read(), path, remedy='download it again')
      return values, name
  return {}, _GENERATION


def _usual(role: str, names: Mapping[str, int]) -> int | None:
  """The token of a role by the names that published vocabularies have.

  <s> and </s> have other uses where there is no <mask>, as in LLaMA's.
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
    text: where a name is parted by `BREAK`, it stays text.
  """
  longest = sorted(names, key=len, reverse=True)
  pattern = '|'.join(map(re.escape, longest)) or r'(?!)'
  ids, start = [np.empty(0, np.int32)], 0
  for match in re.finditer(pattern, text):
    ids.append(plain(text[start : match.start()].replace(BREAK, '')))
    ids.append(np.array([names[match[0]]], np.int32))
    start = match.end()
  ids.append(plain(text[start:].replace(BREAK, '')))
  return np.concatenate(ids)


def guarded(text: str, names: Mapping[str, int]) -> str:
  """The text with the names of special tokens parted by `BREAK`."""
  text = text.replace(BREAK, '')
  for name in sorted(names, key=len, reverse=True):
    text = text.replace(name, name[:1] + BREAK + name[1:])
  return text


def with_masks(made: Any, text: str) -> np.ndarray:
  """Encodes a text in which the name of the mask is that token.

  Other names of special tokens stay text. Space before a mask belongs to it,
  as a piece that it stands for begins with that.
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
  """The text of a token, which may come with how it is matched."""
  token = token.get('content') if isinstance(token, dict) else token
  return token if isinstance(token, str) else None


_ROLES = tuple(
  f'{role}_token' for role in ('bos', 'eos', 'pad', 'sep', 'cls', 'mask')
)

# Roles in the rows of an encoder, as the last fields of `Special`.
_ENCODERS = ('cls', 'sep', 'mask')

_USUAL = {
  'cls': ('[CLS]', '<cls>', '<s>'),
  'sep': ('[SEP]', '<sep>', '</s>'),
  'mask': ('[MASK]', '<mask>'),
  'pad': ('[PAD]', '<pad>'),
}
_SHARED = ('<s>', '</s>')
