# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""Two tokenizers: one for the sources of pairs of texts, one for all else.

  tokenizer.name = "sides('saved(\"W\")', source='wordpiece(vocab_size=8000)')"

For an encoder in front of a pre-trained one, which may have a vocabulary of its
own (BART, section 3.4).
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from gpt_jax.data import files
from gpt_jax.data.tokenizers import saved
from gpt_jax.data.tokenizers.special import Special

KIND = 'sides'
TARGET, SOURCE = 'target', 'source'


class Sides:
  """A tokenizer, as `tokenizer.Tokenizer` says, of targets.

  Attributes:
    target: what it is.
    source: encodes sources: see `tokenizer.of_sources`.
  """

  def __init__(self, target: Any, source: Any):
    """Takes two tokenizers, neither of them such a pair."""
    assert not isinstance(target, Sides) and not isinstance(source, Sides)
    self.target, self.source = target, source
    self.vocab_size: int = target.vocab_size
    self.eos_id: int = target.eos_id
    self.special: Special = target.special
    self._contents = {
      f'{KIND}.txt': f'{target.fingerprint}\n{source.fingerprint}\n'.encode()
    }

  @property
  def fingerprint(self) -> str:
    """Of both."""
    return saved.fingerprint(KIND, self._contents)

  @property
  def in_threads(self) -> bool:
    """Whether both do."""
    return self.target.in_threads and self.source.in_threads

  @property
  def parts_at_spaces(self) -> bool:
    """Whether both do."""
    return self.target.parts_at_spaces and self.source.parts_at_spaces

  @property
  def run_ids(self) -> frozenset[int]:
    """That of targets."""
    return self.target.run_ids

  def encode(self, text: str) -> np.ndarray:
    """That of targets."""
    return self.target.encode(text)

  def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
    """That of targets."""
    return self.target.encode_batch(texts)

  def encode_special(self, text: str) -> np.ndarray:
    """That of targets."""
    return self.target.encode_special(text)

  def decode(self, ids: Iterable[int]) -> str:
    """That of targets."""
    return self.target.decode(ids)

  def offsets(self, text: str) -> np.ndarray:
    """That of targets."""
    return self.target.offsets(text)

  def word_starts(self, ids: np.ndarray) -> np.ndarray:
    """That of targets."""
    return self.target.word_starts(ids)

  def save(self, folder: str) -> None:
    """Writes both, each in a folder of its own."""
    self.target.save(files.join(folder, TARGET))
    self.source.save(files.join(folder, SOURCE))
    saved.write(folder, KIND, self._contents)
