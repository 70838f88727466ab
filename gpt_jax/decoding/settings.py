# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Settings of sampling and of beam search, which flags and requests give."""

from typing import Any, NamedTuple

from gpt_jax.core.spec import UsageError


class Sampler(NamedTuple):
  """How the next token of a row is sampled.

  Attributes:
    temperature: divides the logits; 0 takes the most probable token.
    top_k: samples from the k most probable tokens; 0: from all.
    top_p: samples from the smallest set of tokens whose probabilities reach p
      (Holtzman et al., 2020, section 3.1); applied after top_k.
    min_p: samples from tokens at least this fraction as probable as the most
      probable one (Nguyen et al., 2024, section 3).
    repetition_penalty: divides the positive logits of tokens that occur in the
      row and multiplies the negative ones (Keskar et al., 2019, section 4.1;
      signs as in Hugging Face). 1 changes nothing.
  """

  temperature: float = 1.0
  top_k: int = 0
  top_p: float = 1.0
  min_p: float = 0.0
  repetition_penalty: float = 1.0


# score = sum of log-probabilities / ((offset + tokens) / divisor)^penalty
PENALTIES = {'length': (0.0, 1.0), 'gnmt': (5.0, 6.0)}


class BeamSettings(NamedTuple):
  """How to search for the most probable continuations of a text.

  A field that is None takes the value of the model's files (see `Constraints`),
  or else the default given here.

  Attributes:
    size: hypotheses that are followed at a time.
    length_penalty: exponent of the length by which the sum of log-probabilities
      is divided; 0: no division. Default: 1.
    penalty: of `PENALTIES`: the length is the number of new tokens including
      the end, or GNMT's (5 + tokens) / 6.
    early_stopping: stop as soon as `size` hypotheses have ended. Otherwise stop
      when the best open hypothesis, ended now, would score no more than the
      worst of them. Default: False.
    no_repeat_ngram: no n-gram of this size occurs twice, prompt included, but
      for a source; 0: any may. Default: 0.
    min_tokens: new tokens before the end may come. Default: 0.
  """

  size: int
  length_penalty: float | None = None
  penalty: str = 'length'
  early_stopping: bool | None = None
  no_repeat_ngram: int | None = None
  min_tokens: int | None = None


def beam(args: Any) -> BeamSettings | None:
  """The beam search of the flags of `Flags.beam`; None: tokens are sampled."""
  if args.beam:
    return BeamSettings(args.beam, *(getattr(args, name) for name in BeamSettings._fields[1:]))
  for name, default in BeamSettings._field_defaults.items():
    if getattr(args, name) != default:
      raise UsageError(f'--{name}: is an option of beam search; give --beam=4 too, or leave it out')
  return None
