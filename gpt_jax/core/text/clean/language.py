# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Keeps documents of one language, as identified by py3langid.

C4 keeps what langdetect calls English "with a probability of at least 0.99"
(Raffel et al. 2020, section 2.2). py3langid (a naive Bayes model over byte
n-grams, inside its wheel) knows more languages, is faster and always gives the
same answer; its probabilities are its own: below some 30 words they rarely
reach 0.99.
"""

import dataclasses
import functools
from typing import Any

from gpt_jax.core.ranges import Probability
from gpt_jax.core.spec import UsageError, optional
from gpt_jax.core.text.clean import steps
from gpt_jax.core.text.clean.steps import Document, Outcome

# The number and characters of the pieces of a long document that are looked at.
_PIECES, _PIECE = 10, 300


@dataclasses.dataclass(frozen=True)
class Language(steps.Local):
  """Keeps documents of a language, by its code such as 'en'."""

  language: str
  probability: Probability = 0.99

  @property
  def name(self) -> str:
    return f'language({self.language})'

  def check(self) -> None:
    known = _identifier().labels
    if self.language not in known:
      raise UsageError(
        f'data.clean: language({self.language!r}) is unknown; one of ' + ', '.join(sorted(known))
      )

  def clean(self, document: Document) -> Outcome:
    text = sample(document.text)
    found, probability = _identifier().classify(text)
    if found == self.language:
      if probability >= self.probability:
        return steps.keep(document)
      rule = f'language {found}, but not certain'
    else:
      rule = 'other language'
    why = f'{found} {probability:.2f}: {text[:160]}'
    return steps.remove(document, rule, why)


def sample(text: str) -> str:
  """The part of a text that is looked at: pieces, spread evenly."""
  if len(text) <= _PIECES * _PIECE:
    return text
  starts = [(len(text) - _PIECE) * i // (_PIECES - 1) for i in range(_PIECES)]
  return '\n'.join(text[start : start + _PIECE] for start in starts)


@functools.cache
def _identifier() -> Any:
  langid = optional('py3langid.langid', 'data.clean: language(...) needs py3langid', 'clean')
  return langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True)
