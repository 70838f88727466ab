# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The choices of `data.clean`."""

import contextlib
from importlib import metadata

from gpt_jax.core import spec
from gpt_jax.core.spec import Table, UsageError
from gpt_jax.core.text.clean.steps import Step

FIELD = 'data.clean'
# In the folder of a token store, while it is being prepared.
FOLDER = 'cleaning'


def load(text: str) -> list[Step]:
  """Builds the steps of `data.clean`, without checking what they need."""
  loaded = spec.build_all(FIELD, text, STEPS)
  calls = spec.bind_all(FIELD, text, STEPS)
  names = [call.name for call in calls]
  if len(names) > 1 and 'none' in names:
    raise UsageError(f"{FIELD}={text!r}: 'none' stands alone; leave it out")
  steps: list[Step] = []
  for part in loaded:
    steps += part if isinstance(part, list) else [part]
  cutting = [s for s in steps if getattr(s, 'rule', '') == 'pieces']
  if len(cutting) > 1:
    raise UsageError(
      f'{FIELD}={text!r}: documents are cut into pieces twice; give one '
      "decontaminate(..., rule='pieces') all evaluation files"
    )
  if twice := [call.name for i, call in enumerate(calls) if call in calls[:i]]:
    raise UsageError(
      f'{FIELD}={text!r}: names {twice[0]} twice with the same arguments; once is enough'
    )
  return steps


def ready(steps: list[Step]) -> list[Step]:
  """The steps, with classifiers trained."""
  return [step.ready() for step in steps]


def versions() -> dict[str, str]:
  """Versions of the installed libraries that the result depends on."""
  found = {}
  for name in ('datasketch', 'py3langid', 'scikit-learn'):
    with contextlib.suppress(metadata.PackageNotFoundError):
      found[name] = metadata.version(name)
  return found


def none() -> list[Step]:
  """Keeps all documents as they are."""
  return []


STEPS = Table(
  {
    'none': none,
    'c4': 'gpt_jax.core.text.clean.c4:c4',
    'gopher': 'gpt_jax.core.text.clean.gopher:Gopher',
    'language': 'gpt_jax.core.text.clean.language:Language',
    'quality': 'gpt_jax.core.text.clean.quality:quality',
    'minhash': 'gpt_jax.core.text.clean.minhash:minhash',
    'decontaminate': 'gpt_jax.core.text.clean.decontaminate:decontaminate',
  }
)
