# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Errors of the `tokenizers` library, which raises plain `Exception`s.

And panics: its `PanicException` is not even an `Exception`, so that nothing
that catches errors would see it.
"""

import contextlib
from collections.abc import Iterator

import tokenizers
from tokenizers import models

from gpt_jax.core.spec import UsageError

_SHOWN = 200  # characters of an error: some repeat their input


@contextlib.contextmanager
def errors(what: str) -> Iterator[None]:
  """Turns whatever the library raises into a UsageError.

  Args:
    what: is wrong, with '{}' where the library's words go.
  """
  try:
    yield
  except UsageError:
    raise
  except BaseException as e:
    panic = type(e).__name__ == 'PanicException'
    if not panic and not isinstance(e, Exception):
      raise
    words = ' '.join(str(e).split())
    raise UsageError(what.replace('{}', words[:_SHOWN])) from e


def load(data: bytes) -> tokenizers.Tokenizer:
  """Makes a tokenizer from a tokenizer.json, without cuts and padding.

  And without dropout, which would give a text other ids each time.
  """
  with errors('is not a tokenizer.json: {}'):
    made = tokenizers.Tokenizer.from_str(data.decode())
    made.no_truncation()
    made.no_padding()
    if isinstance(made.model, models.BPE):
      made.model.dropout = None
    return made
