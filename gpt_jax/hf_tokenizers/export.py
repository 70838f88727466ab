# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Exports our tokenizers as files that transformers' AutoTokenizer reads.

Each becomes a `tokenizer.json` (`in_library`), the only file that is
complete: other files are read by a class that transformers picks by the model's
type, which adds spaces, tokens or normalisation of its own. The result is
compared with our tokenizer on texts that are known to be hard and on texts from
the vocabulary; a difference is an error.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tokenizers
from tokenizers import AddedToken, processors

from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers import hf, special
from gpt_jax.core.tokenizers.sentencepiece import SentencePiece
from gpt_jax.core.tokenizers.tokenizer import Tokenizer
from gpt_jax.hf_tokenizers import in_library

_HARD = (
  '',
  ' ',
  '  ',
  '   \n',
  '\n\n\n',
  '\t',
  '\t\tx',
  ' a',
  'a ',
  '  a   b  ',
  'a\r\nb\rc\n',
  '\r\n\r\n',
  '\x00',
  '\x0b\x0c\x1c\x85',
  'a\u00a0b\u2003c',
  '\ufeffa',
  'a\u200bb\u200dc\u00ad',
  '\u2028x\u2029',
  'x \u3000 y',
  '\u00e9t\u00e9',
  'e\u0301te\u0301',
  'E\u0301A\u030a',
  '\u0130I\u0131',
  'a\u0323\u0307',
  '\u1ea9',
  '\u212b\u2126',
  '\u1100\u1161',
  '\uac00',
  '\ufb01 \uff21 \u00bd \u2460 \u2122',
  '\u00df\u1e9e\u017f',
  '\U0001f600',
  '\U0001f468\u200d\U0001f469\u200d\U0001f467',
  '\u2764\ufe0f',
  '\U0001f1e9\U0001f1ea',
  '\u4f60\u597d',
  '\u3053\u3093',
  '\u0627\u0644',
  '\u2581',
  'a\u2581b',
  ' \u2581 ',
  '\u2581\u2581',
  '\ufffd',
  '\ufdd0',
  '<0x41>',
  '<0x0A> <0xFF>',
  '<s>',
  '</s>',
  '<unk>',
  '<pad>',
  '<mask>',
  '[CLS] [SEP] [MASK]',
  '<|endoftext|>',
  '<extra_id_0>',
  'a</s>b',
  'aaa',
  'aaaaa',
  'aaaaaaaa',
  '-----------',
  '=' * 37,
  ' ' * 23,
  '\n' * 19,
  "it's don't I'LL",
  '12345 3.14',
  'def f(x):\n    return x\n',
  'AbC dEf',
  'http://a.b/c?d=e&f',
  '{"a": [1, 2]}',
  '##a ##',
  '\u2019tis',
  '\\n',
)
_NUM_RANDOM, _NUM_PIECES = 400, 17


class Template(NamedTuple):
  """The ids that a model reads around texts."""

  start: tuple[int, ...] = ()  # before the first text
  # Between two texts; None: the model reads no pairs.
  between: tuple[int, ...] | None = None
  end: tuple[int, ...] = ()  # after the last
  # Whether the model has types of tokens, of which the second text's is 1.
  typed: bool = False
  last: bool = False  # whether the last token's type is 2, as XLNet's


def files(
  tokenizer: Tokenizer, template: Template, roles: Mapping[str, int], *, names: bool
) -> dict[str, bytes]:
  """The files of a tokenizer that we made, by Hugging Face's names.

  Args:
    tokenizer: not an import, which has files of its own.
    template: the ids around a text.
    roles: ids of special tokens, as {'eos_token': 0}.
    names: whether names of special tokens in a text are these tokens, as for a
      model that fills a [MASK].
  """
  if tokenizer.source_vocab_size:
    raise UsageError('has a tokenizer of its own for sources')
  library = in_library.of(tokenizer)
  if not isinstance(tokenizer, hf.HfTokenizer):
    _check(tokenizer, library)
  token = library.id_to_token
  model = json.loads(library.to_str())['model']
  unknown = model.get('unk_token')
  if model.get('unk_id') is not None:
    unknown = model['vocab'][model['unk_id']][0]
  unknown_id = library.token_to_id(unknown or '')
  if unknown_id is not None:
    roles = {**roles, 'unk_token': unknown_id}
  known = {*roles.values(), *tokenizer.special.names.values()}
  mask = tokenizer.special.mask_id
  library.add_special_tokens(
    [
      # The space before a mask belongs to it: see `special.with_masks`.
      AddedToken(str(token(i)), lstrip=i == mask, special=True)
      for i in sorted(known)
    ]
  )
  library.post_processor = _processor(template, library)
  inputs = ['input_ids', *['token_type_ids'] * template.typed, 'attention_mask']
  config = {
    'tokenizer_class': 'PreTrainedTokenizerFast',
    'clean_up_tokenization_spaces': False,
    'model_input_names': inputs,
    'split_special_tokens': not names,
    **{role: token(i) for role, i in roles.items()},
  }
  return {
    'tokenizer.json': library.to_str().encode(),
    special.CONFIG: json.dumps(config, indent=2).encode() + b'\n',
  }


def _processor(template: Template, library: tokenizers.Tokenizer) -> Any:
  """Puts the template's tokens around a text."""
  between = template.between
  typed = 1 if template.typed else 0

  def part(ids: Sequence[int], kind: int) -> list[str]:
    return [f'{library.id_to_token(i)}:{kind}' for i in ids]

  def end(kind: int) -> list[str]:
    *most, last = [part([i], kind)[0] for i in template.end] or ['']
    if template.last and template.typed:
      last = part(template.end[-1:], 2)[0]
    return [*most, last] if last else []

  start = part(template.start, 0)
  pair = ['$A:0', f'$B:{typed}']
  if between is not None:
    pair = [*start, '$A:0', *part(between, 0), f'$B:{typed}', *end(typed)]
  around = {*template.start, *(between or ()), *template.end}
  return processors.TemplateProcessing(
    single=[*start, '$A:0', *end(0)],
    pair=pair,
    special_tokens=[(str(library.id_to_token(i)), i) for i in sorted(around)],
  )


def approximate(tokenizer: Tokenizer) -> str:
  """The texts that may still get other ids in transformers; '': none."""
  if isinstance(tokenizer, SentencePiece) and tokenizer.proto.normalizer_spec.precompiled_charsmap:
    return (
      'texts whose letters have several accents or vowel signs in another '
      'order than NFKC gives them, such as vocalised Arabic and pointed Hebrew '
      'as they are typed, and to some letters of rare scripts'
    )
  return ''


def _check(tokenizer: Tokenizer, library: tokenizers.Tokenizer) -> None:
  """Raises if any of many texts gets other ids."""
  library.encode_special_tokens = True
  try:
    for text in _texts(tokenizer):
      ours, theirs = _ids(tokenizer, text), _library_ids(library, text)
      if ours != theirs:
        raise UsageError(
          f'transformers would read {text[:40]!r} as {theirs}, and the '
          f'tokenizer of this run reads {ours}'
        )
  finally:
    library.encode_special_tokens = False


def _ids(tokenizer: Tokenizer, text: str) -> list[int] | None:
  """The ids of a text; None: the tokenizer refuses it."""
  try:
    return tokenizer.encode(text).tolist()
  except UsageError:
    return None


def _library_ids(library: tokenizers.Tokenizer, text: str) -> list[int] | None:
  try:
    return library.encode(text, add_special_tokens=False).ids
  except Exception:  # `tokenizers` raises plain `Exception`
    return None


def _texts(tokenizer: Tokenizer) -> Iterator[str]:
  """Hard texts, and random ones from pieces of the vocabulary."""
  yield from _HARD
  yield from tokenizer.special.names
  rng = np.random.default_rng(0)
  for _ in range(_NUM_RANDOM):
    ids = rng.integers(tokenizer.vocab_size, size=_NUM_PIECES)
    yield ''.join(tokenizer.decode([i]) for i in ids.tolist())
    yield tokenizer.decode(ids.tolist())
