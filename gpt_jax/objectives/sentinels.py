# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The tokens that stand for spans: T5's <extra_id_0>, <extra_id_1>, ...

In T5's vocabulary the first has the highest id.
"""

import itertools
from collections.abc import Collection, Mapping

from gpt_jax.data.tokenizers.training import sentinel
from gpt_jax.spec import UsageError


def sentinel_ids(names: Mapping[str, int]) -> list[int]:
  """Those of a tokenizer's special tokens, in their order."""
  return [names[sentinel(i)] for i in range(count(names))]


def count(names: Collection[str]) -> int:
  """How many there are, up to the first that is missing."""
  return next(i for i in itertools.count() if sentinel(i) not in names)


def check(names: Collection[str], needed: int, objective: str) -> None:
  """Checks that special tokens have as many sentinels as an objective needs.

  Args:
    names: of the tokenizer's special tokens.
    needed: sentinels.
    objective: `objective.name`.

  Raises:
    UsageError: one is missing.
  """
  if (found := count(names)) < needed:
    raise UsageError(
      f'tokenizer.name: has no {sentinel(found)}, and a row of '
      f"objective.name={objective!r} needs {needed} such sentinels; take T5's "
      f'by hf_tokenizer, or sentencepiece(..., sentinels={needed})'
    )
