# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The choice `hf_tokenizer` of `tokenizer.name`: a published tokenizer.json."""

import json
import logging
import os
from collections.abc import Iterable

from gpt_jax.core.files.document import Document
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers import library, saved, special
from gpt_jax.core.tokenizers.hf import EOS, FILE, HfTokenizer
from gpt_jax.core.tokenizers.tokenizer import Maker
from gpt_jax.hf_tokenizers import classes
from gpt_jax.hf_tokenizers.special_files import CONFIG, MAP, MODEL, NoEndError, beside

log = logging.getLogger('gpt_jax')

# Names of the end of a document in published vocabularies, where no file says.
_USUAL = ('<|endoftext|>', '<|end_of_text|>', '</s>', '<eos>', '<|eos|>', '<EOT>')
# Ends of texts in encoders' rows, for vocabularies with none of these.
_ENCODERS = ('[SEP]', '<sep>')


def _without_dropout(data: bytes) -> bytes:
  """A tokenizer.json that reads a text in one way; the same bytes if it does.

  Transformers would go on to draw, by the exported file too.
  """
  with library.errors('is not a tokenizer.json: {}'):
    dropout = json.loads(data)['model'].get('dropout')
  if not dropout:
    return data
  log.warning(
    'tokenizer.json: its dropout=%s is turned off, so that a text has the same ids each time',
    dropout,
  )
  return library.load(data).to_str().encode()


def hf_tokenizer(path: str, eos: str = '') -> Maker:
  """An existing `tokenizer.json`, such as Llama 3's.

  Args:
    eos: the token that ends documents; by default the one that the files beside
      it name, or else one with a usual name.
  """

  def read(documents: Iterable[Document]) -> HfTokenizer:
    del documents
    data = saved.user_file(path, 'a tokenizer.json')
    try:
      data = _without_dropout(data)
      folder = os.path.dirname(path)
      end = eos or _find_eos(folder, data)
      if os.path.basename(path) == 'tokenizer.json':
        data = classes.as_class(folder, data)
      return HfTokenizer({FILE: data, EOS: json.dumps(end).encode()})
    except UsageError as e:
      raise type(e)(f'tokenizer.name: {path!r}: {e}') from e

  return Maker(read)


def _find_eos(folder: str, data: bytes) -> str:
  """The token that ends documents."""
  try:
    added = json.loads(data).get('added_tokens') or []
    ids = {token['content']: token['id'] for token in added}
  except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
    raise UsageError(f'is not a tokenizer.json: {e}; fetch it again') from e
  for name in (CONFIG, MAP, MODEL):
    entries = beside(folder, name)
    if token := special.content(entries.get('eos_token')):
      return token
    eos_id = entries.get('eos_token_id')
    eos_ids = eos_id if isinstance(eos_id, list) else [eos_id]
    for token, i in ids.items():
      if i in eos_ids[:1]:
        return token
  usual = [token for token in _USUAL if token in ids]
  usual = usual or [token for token in _ENCODERS if token in ids]
  if len(usual) != 1:
    raise NoEndError(
      'does not say which token ends a document; name it, as in '
      f"hf_tokenizer('tokenizer.json', eos='{(usual or ['</s>'])[0]}'); its "
      f'special tokens are {", ".join(sorted(ids)) or "none"}'
    )
  return usual[0]
