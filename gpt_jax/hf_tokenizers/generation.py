# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A checkpoint's settings of generation, read and written.

Hugging Face has these in generation_config.json, older checkpoints in
config.json. An import writes them into `special.json` of its tokenizer, so that
a run that starts from the import has them too.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from gpt_jax.core.spec import UsageError
from gpt_jax.decoding.constraints import Constraints

# Options that change the choice of tokens and are not supported, with the
# values that change nothing.
_REFUSED: dict[str, tuple[Any, ...]] = {
  'constraints': (),
  'diversity_penalty': (0,),
  'dola_layers': (),
  'encoder_no_repeat_ngram_size': (0,),
  'encoder_repetition_penalty': (1,),
  'exponential_decay_length_penalty': (),
  'force_words_ids': ([],),
  'forced_decoder_ids': ([],),
  'guidance_scale': (1,),
  'num_beam_groups': (1,),
  'penalty_alpha': (0,),
  'renormalize_logits': (False,),
  'sequence_bias': ([], {}),
  'stop_strings': ([],),
  'token_healing': (False,),
  'watermarking_config': (),
}

# Ways of sampling, which are the user's choice, with their defaults.
_OF_USER: dict[str, Any] = {
  'do_sample': False,
  'temperature': 1.0,
  'top_k': 50,
  'top_p': 1.0,
  'min_p': 0.0,
  'typical_p': 1.0,
  'epsilon_cutoff': 0.0,
  'eta_cutoff': 0.0,
  'repetition_penalty': 1.0,
  'num_beams': 1,
  'max_length': 20,
  'max_new_tokens': None,
}


def read(values: Mapping[str, Any], name: str, *, vocab_size: int, stops: Any) -> Constraints:
  """The constraints of a checkpoint's file.

  Args:
    values: of generation_config.json, or of config.json if there is none.
    stops: ids that end an answer.
  """
  options = _Options(values, name, vocab_size)
  for option, accepted in _REFUSED.items():
    value = values.get(option)
    if value is not None and value not in accepted:
      raise options.fail(
        option,
        'changes which tokens are generated, and is not supported; remove it '
        'from the file to generate without it',
      )
  runs = options.runs('bad_words_ids')
  # As in transformers, these never forbid an end.
  words = [run for run in runs if run not in {(i,) for i in stops}]
  never = {*(run[0] for run in words if len(run) == 1), *options.ids('suppress_tokens')}
  first, last = (options.one('forced_bos_token_id'), options.one('forced_eos_token_id'))
  for option, i in (('forced_bos_token_id', first), ('forced_eos_token_id', last)):
    if i is not None and i in options.ids('suppress_tokens'):
      raise options.fail(option, 'is also one of suppress_tokens; remove one')
  early = values.get('early_stopping')
  if early not in (None, True, False):
    raise options.fail('early_stopping', 'is not supported, only true or false')
  # As in transformers, min_new_tokens overrides min_length.
  of_answer = values.get('min_new_tokens') is not None
  return Constraints(
    never=tuple(sorted(never)),
    never_first=tuple(sorted(options.ids('begin_suppress_tokens'))),
    sequences=tuple(run for run in words if len(run) > 1),
    first_id=first,
    last_id=last,
    min_length=0 if of_answer else options.whole('min_length'),
    min_tokens=options.whole('min_new_tokens'),
    no_repeat_ngram=options.whole('no_repeat_ngram_size'),
    length_penalty=options.number('length_penalty'),
    early_stopping=early,
  )


def recommended(values: Mapping[str, Any]) -> dict[str, Any]:
  """The file's way of sampling, which an import does not apply."""
  return {
    name: values[name]
    for name, default in _OF_USER.items()
    if values.get(name) is not None and values[name] != default
  }


def written(constraints: Constraints) -> dict[str, Any]:
  """The inverse of `read`: entries of a generation_config.json."""
  bad = [[i] for i in constraints.never]
  found = {
    'bad_words_ids': [*bad, *map(list, constraints.sequences)] or None,
    'begin_suppress_tokens': list(constraints.never_first) or None,
    'forced_bos_token_id': constraints.first_id,
    'forced_eos_token_id': constraints.last_id,
    'min_length': constraints.min_length or None,
    'min_new_tokens': constraints.min_tokens or None,
    'no_repeat_ngram_size': constraints.no_repeat_ngram or None,
    'length_penalty': constraints.length_penalty,
    'early_stopping': constraints.early_stopping,
  }
  return {name: value for name, value in found.items() if value is not None}


class _Options(NamedTuple):
  """The options of a file, with errors that name the option."""

  values: Mapping[str, Any]
  name: str
  vocab_size: int

  def fail(self, option: str, why: str) -> UsageError:
    value = f'{self.values.get(option)!r}'
    if len(value) > 60:
      value = f'{value[:57]}...'
    return UsageError(f'{self.name}: {option}={value}: {why}')

  def _checked(self, option: str, good: Callable[[Any], bool], kind: str):
    value = self.values.get(option)
    if value is not None and not good(value):
      raise self.fail(option, f'must be {kind}')
    return value

  def _is_id(self, value: Any) -> bool:
    return type(value) is int and 0 <= value < self.vocab_size

  def one(self, option: str) -> int | None:
    kind = f'a token id below {self.vocab_size}'
    return self._checked(option, self._is_id, kind)

  def ids(self, option: str) -> list[int]:
    def good(value: Any) -> bool:
      return isinstance(value, list) and all(map(self._is_id, value))

    kind = f'a list of token ids below {self.vocab_size}'
    return self._checked(option, good, kind) or []

  def runs(self, option: str) -> list[tuple[int, ...]]:
    def good(value: Any) -> bool:
      return isinstance(value, list) and all(
        isinstance(run, list) and run and all(map(self._is_id, run)) for run in value
      )

    kind = f'a list of lists of token ids below {self.vocab_size}'
    return [*map(tuple, self._checked(option, good, kind) or [])]

  def whole(self, option: str) -> int:
    kind = 'a whole number from 0 to 1,000,000'
    return self._checked(option, lambda x: type(x) is int and 0 <= x <= 10**6, kind) or 0

  def number(self, option: str) -> float | None:
    def good(value: Any) -> bool:
      return type(value) in (int, float) and abs(value) < 1e6

    value = self._checked(option, good, 'a number')
    return value if value is None else float(value)
