# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What flags ask of a model: which go together, and what they say."""

from typing import Any

from gpt_jax.decoding.beam import Beam
from gpt_jax.decoding.continuations import Options
from gpt_jax.decoding.sampler import Sampler
from gpt_jax.spec import UsageError

# What says how a token is drawn, and what it is where nothing is said.
DRAWING = {'seed': 0, 'stop': [], 'draft': None, **Sampler()._asdict()}
# What says how to search; `size` is --beam.
SEARCHING = {**Beam(0)._asdict()}
SEARCHING.pop('size')


def options(flags: Any) -> Options:
  """How texts are answered, by flags of the names in `DRAWING`."""
  return Options(
    max_tokens=flags.max_tokens,
    sampler=Sampler(*(getattr(flags, name) for name in Sampler._fields)),
    seed=flags.seed,
    num_samples=flags.num_samples,
    stop=tuple(flags.stop),
    truncate=flags.truncate,
  )


def beam(flags: Any) -> Beam | None:
  """How to search; None: tokens are drawn."""
  if not flags.beam:
    if searching := _changed(flags, SEARCHING):
      raise UsageError(
        f'--{searching}: says how beam search searches; give --beam=4 too, or '
        'leave it out'
      )
    return None
  return Beam(flags.beam, **{name: getattr(flags, name) for name in SEARCHING})


def check(flags: Any) -> None:
  """Checks flags together."""
  if not all(flags.stop):
    raise UsageError('--stop is empty; give a text, or leave the flag out')
  files = bool(flags.prompts) + bool(flags.sources)
  if files != bool(flags.out):
    raise UsageError(
      '--prompts and --out go together, and --sources and --out; give both'
    )
  kinds = ('prompt', 'prompts', 'source', 'sources')
  given = [f'--{kind}' for kind in kinds if getattr(flags, kind)]
  if len(given) > 1:
    raise UsageError(f'give one of {" and ".join(given)}; see --help')
  if flags.truncate != 'none' and (flags.source or flags.sources):
    raise UsageError(
      f'--truncate={flags.truncate}: is for prompts; a source that is too long '
      'loses its last tokens; leave it out'
    )
  if flags.out and (flags.json or flags.stream):
    raise UsageError(f'--out={flags.out}: give neither --json nor --stream')
  texts = len(flags.prompt) + len(flags.source)
  if flags.stream and (texts > 1 or flags.num_samples > 1 or flags.json):
    raise UsageError('--stream shows one sample; leave it out, or ask for one')
  if not given and (flags.json or flags.num_samples > 1):
    raise UsageError(
      '--prompt is missing: a session has neither --json nor --num_samples; '
      'give a text to continue'
    )
  if beam(flags):
    _check_beam(flags, given)


def check_model(flags: Any, *, answers: bool) -> None:
  """Checks the kind of text against the model's.

  Args:
    flags: of the command.
    answers: whether the model answers sources, rather than continue prompts.
  """
  sources = bool(flags.source or flags.sources)
  if answers and not sources:
    raise UsageError(
      f'--workdir={flags.workdir}: holds a model that answers a source; give '
      '--source or --sources'
    )
  if sources and not answers:
    raise UsageError(
      f'--workdir={flags.workdir}: holds no encoder-decoder, or UniLM that '
      'learned to write, which are what answers a source; give --prompt or '
      '--prompts'
    )


def _check_beam(flags: Any, given: list[str]) -> None:
  if not given:
    raise UsageError(
      f'--beam={flags.beam}: searches for an answer to a text; give --prompt '
      'or --source'
    )
  if drawing := _changed(flags, DRAWING):
    raise UsageError(
      f'--beam={flags.beam}: draws nothing, and knows no --{drawing}; leave '
      'one of them out'
    )
  if flags.stream:
    raise UsageError(
      f'--beam={flags.beam}: an answer is known at its end; leave --stream out'
    )
  if flags.num_samples > flags.beam:
    raise UsageError(
      f'--num_samples={flags.num_samples}: more than --beam={flags.beam} '
      'hypotheses are not followed; give a larger --beam'
    )


def _changed(flags: Any, defaults: dict[str, Any]) -> str:
  """The first flag that is not what it is where nothing is said; or ''."""
  changed = (n for n, value in defaults.items() if getattr(flags, n) != value)
  return next(changed, '')
