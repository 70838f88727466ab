# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Kinds of flags, and the flags that several commands share."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple

from absl import flags

from gpt_jax.core import ranges
from gpt_jax.core.config import loading


class _Number(flags.ArgumentParser):
  """Reads a number within a range."""

  def __init__(self, declared: ranges.Range):
    """`declared` is the range."""
    whole = declared.kind is int
    self._convert = flags.IntegerParser() if whole else flags.FloatParser()
    self._declared = declared

  def flag_type(self) -> str:
    """For the help in XML."""
    return self._convert.flag_type()

  def parse(self, argument: Any) -> Any:
    """Raises ValueError, which absl reports with the flag's name."""
    try:
      value = self._convert.convert(argument)
    except (TypeError, ValueError):
      raise ValueError(f'takes {self._declared.text()}') from None
    if problem := self._declared.problem(value):
      raise ValueError(problem)
    return value


class _Numbers(flags.ArgumentParser):
  """Reads a comma-separated list of different whole numbers."""

  def __init__(self, least: int, some: bool):
    """`some`: at least one."""
    self._least, self._some = least, some

  def flag_type(self) -> str:
    """For the help in XML."""
    return 'comma separated list of numbers'

  def parse(self, argument: Any) -> list[int]:
    """Raises ValueError, which absl reports with the flag's name."""
    texts = [text.strip() for text in argument.split(',')] if argument else []
    found = {int(text) for text in texts if text.isdecimal()}
    short = len(found) < max(len(texts), self._some)
    if short or min(found, default=self._least) < self._least:
      raise ValueError(f'give distinct whole numbers from {self._least}')
    return [*map(int, texts)]


Bucket = Literal['', 'run', 'runs', 'folder', 'in place']


class Path(NamedTuple):
  """What the path is that a flag names.

  Attributes:
    written: whether it is written and never read.
    bucket: what is done where it is in a bucket. '': it is refused, as a file
      is. 'run': checkpoints and token store are used there, and the rest of
      the folder is mirrored here; 'runs', 'folder': all of it is mirrored.
      'in place': the command itself writes there.
  """

  written: bool = False
  bucket: Bucket = ''


class Flags(flags.FlagValues):
  """The flags of a command; each method adds one flag, or a group.

  `use` is its text in --help. `paths` has the flags that name files or folders.
  """

  def __init__(self) -> None:
    """Without flags."""
    super().__init__()
    self.__dict__['paths'] = {}  # an attribute would be taken for a flag

  def path(
    self,
    name: str,
    default: str | None,
    use: str,
    *,
    written: bool = False,
    bucket: Bucket = '',
    several: bool = False,
  ) -> None:
    """A file or folder, or a comma list of `several`; see `Path`."""
    self.paths[name] = Path(written, bucket)
    (self.words if several else self.text)(name, default, use)

  def text(self, name: str, default: str | None, use: str) -> None:
    """A text."""
    flags.DEFINE_string(name, default, use, flag_values=self)

  def texts(self, name: str, use: str) -> None:
    """Texts: the flag may be repeated."""
    flags.DEFINE_multi_string(name, [], use, flag_values=self)

  def words(self, name: str, default: str | None, use: str) -> None:
    """A comma-separated list of words."""
    flags.DEFINE_list(name, default, use, flag_values=self)

  def number(self, name: str, default: Any, use: str, kind: Any) -> None:
    """A number of `kind`, such as `ranges.Count`."""
    parser = _Number(ranges.declared(kind))
    flags.DEFINE(parser, name, default, use, flag_values=self)  # type: ignore

  def numbers(
    self, name: str, default: str, use: str, *, least: int = 0, some: bool = True
  ) -> None:
    """Comma-separated whole numbers from `least` on; `some`: at least one."""
    parser, serializer = _Numbers(least, some), flags.ListSerializer(',')
    flags.DEFINE(parser, name, default, use, self, serializer)  # type: ignore

  def switch(self, name: str, use: str, default: bool | None = False) -> None:
    """Yes or no; None: the command decides."""
    flags.DEFINE_bool(name, default, use, flag_values=self)

  def choice(self, name: str, default: str | None, choices: Sequence[str], use: str) -> None:
    """One of `choices`."""
    flags.DEFINE_enum(name, default, choices, use, flag_values=self)

  def config(self) -> None:
    """`--config FILE[:SIZE]` and its overrides `--config.a.b=...`."""
    self.paths['config'] = Path()
    loading.define(self)

  def workdir(self, use: str, bucket: Bucket = 'run') -> None:
    """`--workdir`."""
    self.path('workdir', None, use, bucket=bucket)

  def json(self) -> None:
    """`--json`."""
    self.switch('json', 'Print one JSON object.')

  def distributed(self) -> None:
    """`--distributed`."""
    self.switch(
      'distributed',
      'Run on several hosts; give it on each. Cloud TPU hosts find each other; '
      'on others set JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and '
      'JAX_PROCESS_ID.',
    )

  def post_training(self, **files: str) -> None:
    """What all methods of post-training take.

    Args:
      **files: what a file is, by the argument of the method that it sets.
    """
    self.config()
    self.workdir('Folder of the run; made when missing.')
    use = 'What to start from: a workdir, a Hugging Face folder, or none.'
    self.path('init', None, use, bucket='run')
    self.distributed()
    self.json()
    for name, what in files.items():
      self.path(name, None, f'{what}; sets finetune.task.')

  def drawing(self) -> None:
    """How the next token is sampled."""
    self.number(
      'max_tokens',
      None,
      'The most tokens to sample; empty: 100, or as the context has room.',
      ranges.Count,
    )
    self.number(
      'temperature', 1.0, 'Divides the logits; 0 takes the most probable token.', ranges.NotNegative
    )
    use = 'Sample from the k most probable tokens; 0: from all.'
    self.number('top_k', 0, use, ranges.Whole)
    use = 'Sample from the smallest set of tokens that reaches this probability.'
    self.number('top_p', 1.0, use, ranges.Probability)
    use = 'Sample from tokens whose probability is at least this fraction of the highest.'
    self.number('min_p', 0.0, use, ranges.Probability)
    use = 'Above 1: makes tokens that have already occurred less probable.'
    self.number('repetition_penalty', 1.0, use, ranges.Positive)
    self.number('seed', 0, 'Seed of the sampling.', ranges.Seed)

  def weights(self) -> None:
    """`--weights`."""
    self.choice(
      'weights',
      'float',
      ['float', 'int8'],
      'Multiply with the weights as they are, or with 8-bit integers, which is '
      'faster for several rows and a little less accurate.',
    )

  def average(self) -> None:
    """`--average`."""
    use = (
      'Use the mean of the parameters of the last N checkpoints; 0: the newest '
      'alone, or the average of optim.ema.'
    )
    self.number('average', 0, use, ranges.Whole)

  def best_of(self) -> None:
    """`--best_of` and `--reward`."""
    use = 'With --reward: samples per prompt; the best are kept.'
    self.number('best_of', 1, use, ranges.Count)
    use = (
      'Model that scores the samples of --best_of: a workdir of gpt-jax '
      'reward, a Hugging Face folder of a decoder that classifies with one '
      'label, or a workdir of finetune on a task such as sst2.'
    )
    self.path('reward', None, use, bucket='run')

  def beam(self, penalties: Sequence[str]) -> None:
    """`--beam` and its options, which `decoding.settings.beam` reads."""
    use = 'Hypotheses of a beam search; 0: no beam search.'
    self.number('beam', 0, use, ranges.Whole)
    theirs = "empty: as in the model's generation_config.json, or"
    use = 'With --beam: exponent of the length that scores are divided by; '
    self.number('length_penalty', None, f'{use}{theirs} 1.', ranges.Real)
    use = 'With --beam: measure of length: the number of tokens, or (5 + tokens) / 6.'
    self.choice('penalty', 'length', penalties, use)
    use = (
      'With --beam: stop when this many hypotheses have ended, even if an '
      f'unfinished one may become better; {theirs} no.'
    )
    self.switch('early_stopping', use, default=None)
    use = 'With --beam: no n-gram of this size occurs twice; 0: no such rule; '
    self.number('no_repeat_ngram', None, f'{use}{theirs} 0.', ranges.Whole)
    use = f'With --beam: minimum number of tokens before the end; {theirs} 0.'
    self.number('min_tokens', None, use, ranges.Whole)

  def draft(self) -> None:
    """`--draft` and `--draft_tokens`, of speculative decoding."""
    use = 'Workdir of a smaller model with the same tokenizer, to propose tokens.'
    self.path('draft', None, use, bucket='run')
    use = 'Tokens that the draft proposes at a time.'
    kind = Annotated[int, ranges.whole(1, 64)]
    self.number('draft_tokens', 4, use, kind)


def changed(args: Any, defaults: dict[str, Any]) -> str:
  """The first flag that differs from its default, or ''."""
  return next((n for n, x in defaults.items() if getattr(args, n) != x), '')
