# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the files of a checkpoint of Hugging Face say about its tokenizer.

`special.json` is written here; `core.tokenizers.special` reads it.
"""

import copy
import json
import logging
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard

from gpt_jax.core.files import files
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers.bpe import Bpe
from gpt_jax.core.tokenizers.hf import HfTokenizer
from gpt_jax.core.tokenizers.sentencepiece import SentencePiece
from gpt_jax.core.tokenizers.special import (
  ADDED,
  BESIDE,
  CONFIG,
  ENCODERS,
  GENERATION,
  MAP,
  SPECIAL,
  content,
  usual,
)
from gpt_jax.core.tokenizers.tokenizer import Tokenizer, build, of_kind
from gpt_jax.decoding import chat
from gpt_jax.decoding import constraints as constraints_lib
from gpt_jax.hf_tokenizers import generation as generation_lib

log = logging.getLogger('gpt_jax')

AGAIN = 'download it again'
MODEL = 'config.json'
_SHOWN = 8  # the most tokens that a warning names

# Tokenizers that put BOS first by default, by Hugging Face's class; used only
# where there is no tokenizer.json with a post-processor.
_STARTS = ('Llama', 'CodeLlama', 'Gemma')
_STARTING_MODELS = ('llama', 'mistral', 'mixtral', 'gemma', 'gemma2', 'gemma3')

_ROLES = tuple(f'{role}_token' for role in ('bos', 'eos', 'pad', 'sep', 'cls', 'mask'))

# A tokenizer that a checkpoint's vocabulary defines.
Vocabulary = HfTokenizer | Bpe | SentencePiece


class NoEndError(UsageError):
  """No token of the model ends a document."""


def beside(folder: str, name: str) -> dict[str, Any]:
  """The entries of a JSON file of a folder; none if it is missing."""
  path = os.path.join(folder, name)
  data = files.read_regular(path, remedy=AGAIN)
  return {} if data is None else files.parse(data, path, remedy=AGAIN)


def generation(folder: str) -> tuple[dict[str, Any], str]:
  """A checkpoint's settings of generation, and the name of their file.

  As in transformers, config.json counts only without generation_config.json.
  """
  for name in (GENERATION, MODEL):
    if os.path.exists(os.path.join(folder, name)):
      return beside(folder, name), name
  return {}, GENERATION


def tokenizer(name: str, folder: str, model_folder: str = '') -> Tokenizer:
  """The tokenizer of a checkpoint of Hugging Face.

  Args:
    name: a call that reads its vocabulary.
    folder: of the tokenizer, whose other files name special tokens.
    model_folder: of the model, if that is another one.
  """
  vocabulary = single_of(build(name, []))
  more = special_files(folder, vocabulary, model_folder)
  return of_kind(vocabulary.kind, {**vocabulary.contents, **more})


def single_of(made: Tokenizer) -> Vocabulary:
  """A tokenizer that a file defines, as one of the classes that do so."""
  assert isinstance(made, Vocabulary)
  return made


def special_files(folder: str, vocabulary: Vocabulary, model_folder: str = '') -> dict[str, bytes]:
  """Files of a checkpoint for its saved tokenizer, with `special.json`.

  Roles are only given to tokens that have an embedding in the model.

  Args:
    model_folder: of the model's own files; '': `folder`.
  """
  model_folder = model_folder or folder
  copies = {}
  for name in BESIDE:
    home = model_folder if name == GENERATION else folder
    data = files.read_regular(os.path.join(home, name), remedy=AGAIN)
    if data is not None:
      copies[name] = data
  config, map_, added = (beside(folder, name) for name in (CONFIG, MAP, ADDED))
  model = beside(model_folder, MODEL)
  size = model.get('vocab_size')
  size = size if type(size) is int else vocabulary.vocab_size
  eos_id = vocabulary.eos_id
  if eos_id >= size:
    raise NoEndError(
      f'{os.path.join(model_folder, MODEL)}: vocab_size={size}: the token that '
      f'ends documents has id {eos_id}; name another one as eos_token in '
      f'{CONFIG}'
    )
  rows = min(size, vocabulary.vocab_size)
  says = _Says(folder, vocabulary, rows, config, map_, added, model)
  bos, names = says.role('bos'), says.names()
  values, source = generation(model_folder)
  stops = says.stops(values.get('eos_token_id'))
  constraints = generation_lib.read(values, source, vocab_size=size, stops=stops)
  pad = says.role_or_usual('pad', names)
  ids = {f'{x}_token_id': says.role(x) for x in ('bos', 'eos', 'pad')}
  entries = {
    'start': says.start(bos),
    'first': eos_id if bos is None else bos,
    'stop': stops,
    'constraints': constraints_lib.written(constraints),
    'pad': eos_id if pad is None else pad,
    'names': names,
    'rows': rows,
    'model_ids': {name: i for name, i in ids.items() if i is not None}
    | _model_ids(model, says.known),
    **{name: says.role_or_usual(name, names) for name in ENCODERS},
  }
  return copies | {SPECIAL: json.dumps(entries, indent=2).encode() + b'\n'}


class _Says(NamedTuple):
  """What a checkpoint's files say about special tokens."""

  folder: str
  vocabulary: Vocabulary
  rows: int  # of the model's table of tokens
  config: dict[str, Any]  # tokenizer_config.json
  map: dict[str, Any]  # special_tokens_map.json
  added: dict[str, Any]  # added_tokens.json
  model: dict[str, Any]  # config.json

  def known(self, i: Any) -> TypeGuard[int]:
    """Whether it is the id of a token with an embedding."""
    return isinstance(i, int) and 0 <= i < self.rows

  def role(self, name: str) -> int | None:
    """The token of a role: by the tokenizer's files, or else the model's."""
    for entries in (self.config, self.map):
      i = self.vocabulary.id_of(content(entries.get(f'{name}_token')) or '')
      if self.known(i):
        return i
    i = self.model.get(f'{name}_token_id')
    return i if self.known(i) else None

  def role_or_usual(self, name: str, names: Mapping[str, int]) -> int | None:
    """The token of a role, or else the one that usually has it."""
    i = self.role(name)
    i = usual(name, names) if i is None else i
    return i if self.known(i) else None

  def start(self, bos: int | None) -> tuple[int, ...]:
    """The ids before a text: by tokenizer.json, or else by the class."""
    if self.vocabulary.text_start is not None:
      return self.vocabulary.text_start
    kind = self.config.get('tokenizer_class') or ''
    by_class = (
      kind.startswith(_STARTS) if kind else self.model.get('model_type') in _STARTING_MODELS
    )
    if bos is None or not self.config.get('add_bos_token', by_class):
      return ()
    return (bos,)

  def stops(self, ends: Any) -> list[int]:
    """The ids that end an answer; `ends` is an `eos_token_id`."""
    ends = ends if isinstance(ends, list) else [ends]
    return sorted({self.vocabulary.eos_id, *filter(self.known, ends)})

  def names(self) -> dict[str, int]:
    """The ids of special tokens, by name; warns of those without one."""
    names, unknown = dict(self.vocabulary.special_names), set()
    for token in filter(None, self._special_tokens()):
      if (i := self.vocabulary.id_of(token)) is not None:
        names[token] = i
      else:
        unknown.add(token)
    if unknown:
      log.warning(
        '%s: the vocabulary that is read has no token %s, so texts spell these '
        'out; save the tokenizer with transformers, which writes a '
        'tokenizer.json: AutoTokenizer.from_pretrained(FOLDER)'
        '.save_pretrained(FOLDER)',
        self.folder,
        ', '.join(sorted(unknown)[:_SHOWN]),
      )
    return names

  def _special_tokens(self) -> Iterator[str | None]:
    """What the files beside the vocabulary call special."""
    decoder = self.config.get('added_tokens_decoder') or {}
    if not isinstance(decoder, dict) or not all(
      isinstance(token, dict) for token in decoder.values()
    ):
      path = os.path.join(self.folder, CONFIG)
      raise UsageError(f'{path}: added_tokens_decoder is damaged; copy it again')
    tokens = [content(t) for t in decoder.values() if t.get('special', True)]
    for entries in (self.config, self.map):
      tokens += [content(v) for k, v in entries.items() if k in _ROLES]
    yield from tokens
    if self.vocabulary.text_start is None:  # else tokenizer.json says it
      plain = {content(t) for t in decoder.values()} - {*tokens}
      yield from {*self.added} - plain


def _model_ids(model: Mapping[str, Any], known: Callable[[Any], bool]) -> dict[str, Any]:
  """The ids of special tokens in a config.json that have a row."""

  def fits(i: Any) -> bool:
    # LLaMA's first files have the padding -1: none.
    return type(i) is int and (i < 0 or known(i))

  ids = {}
  for name, value in model.items():
    if not name.endswith('_token_id'):
      continue
    several = isinstance(value, list)
    left = [i for i in (value if several else [value]) if fits(i)]
    if left or value is None:
      ids[name] = left if several else value
  return ids


def with_stops(contents: Mapping[str, bytes], stops: Sequence[int]) -> dict[str, bytes]:
  """The files of an import that name its stop tokens, with other ones."""
  entries = json.loads(contents[SPECIAL])
  if GENERATION in contents:
    generation = json.loads(contents[GENERATION])
  else:  # the file replaces what config.json says about generation
    ids = entries.get('model_ids', {}).items()
    generation = {name: i for name, i in ids if i is not None}
    rules = constraints_lib.restored(entries.get('constraints', {}))
    generation |= generation_lib.written(rules)
  files = {SPECIAL: entries | {'stop': stops}, GENERATION: generation | {'eos_token_id': stops}}
  return {name: json.dumps(values, indent=2).encode() + b'\n' for name, values in files.items()}


def with_template(tokenizer: Any, template: chat.ChatTemplate, ends: Collection[int] = ()) -> Any:
  """A copy of a tokenizer that is saved with a chat template.

  Args:
    ends: special tokens that end an answer. Those of an import will end
      generation, here and in transformers; our own tokenizers have one such
      token, the end of a document.
  """
  made: Any = copy.copy(tokenizer)
  contents = dict(made.contents)
  contents[chat.FILE] = template.source.encode()
  if SPECIAL in contents and not {*ends} <= made.special.stop_ids:
    stops = sorted({*made.special.stop_ids, *ends})
    contents |= with_stops(contents, stops)
    made = of_kind(made.kind, contents)
  if not {CONFIG, MAP} & contents.keys():
    roles = json.dumps(chat.roles_of(tokenizer), indent=2)
    contents[CONFIG] = roles.encode() + b'\n'
  made.contents = contents
  return made
