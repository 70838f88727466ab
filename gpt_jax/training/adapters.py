# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The base of a run that trains adapters: where it is, and whether it is it.

A run with `finetune.lora` saves its adapters and heads only. WORKDIR/base.json
has the folder of the model that they adapt, and a fingerprint of its
parameters, which the checkpoints' records repeat. Whoever opens the run reads
the base from its folder, and another base is refused. If the base was moved,
its folder in base.json may be edited: the fingerprint still decides.
"""

import hashlib
import json
import os
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import jax

from gpt_jax import spec
from gpt_jax.checkpoints import restore
from gpt_jax.config import Config
from gpt_jax.files import buckets, files
from gpt_jax.nn import params as params_lib
from gpt_jax.objectives.base import Objective
from gpt_jax.objectives.choices import LORAS
from gpt_jax.objectives.lora import BASE, FIELD, Lora
from gpt_jax.optim import train_state
from gpt_jax.spec import UsageError

_FILE = 'base.json'


class Base(NamedTuple):
  """The contents of base.json."""

  folder: str
  fingerprint: str


def of(config: Config) -> Lora | None:
  """The adapters that a config trains; None: none."""
  tuned = config.get('finetune')
  return spec.build(FIELD, tuned.lora, LORAS) if tuned else None


def adapted(config: Config, objective: Objective) -> Objective:
  """The objective with adapters, if the config has any."""
  lora = of(config)
  if lora is None:
    return objective
  tuned, given = config.finetune, f'{FIELD}={config.finetune.lora!r}'
  if tuned.init in (None, 'none'):
    raise UsageError(
      f"{given}: adapts a trained model, and --init=none has none; give 'none'"
    )
  fields = {
    'finetune.transfer': (tuned.transfer, 'all'),
    'finetune.freeze': (tuned.freeze, 0),
    'finetune.unfreeze': (tuned.unfreeze, 0),
    'finetune.layer_decay': (tuned.layer_decay, 1.0),
    'finetune.features': (tuned.features or '', ''),
    'optim.trained': (config.optim.trained, ''),
  }
  for field, (value, needed) in fields.items():
    if value != needed:
      raise UsageError(
        f'{given}: trains adapters beside all that is taken from --init, and '
        f'{field}={value!r} contradicts it; give {needed!r}'
      )
  if objective.tasks or objective.stages() or objective.needs.adds:
    raise UsageError(
      f'{given}: objective.name={config.objective.name!r} trains several '
      "models or tasks, which have no adapters; give 'none'"
    )
  return lora.objective(objective, tuned.vocab_size)


def given(config: Config, params: Mapping[str, Any]) -> Mapping[str, Any]:
  """The names, in the run's tree, of the parameters of a model to train.

  Args:
    params: by name: 'embed/embedding', 'heads/pooler/kernel'.
  """
  if of(config) is None:
    return params
  return {
    n if n.startswith(('heads/', 'parts/')) else f'parts/{BASE}/{n}': x
    for n, x in params.items()
  }


def fingerprint(params: Any) -> str:
  """A digest of the base's parameters; '': the tree has no base."""
  if BASE not in params.get('parts', {}):
    return ''
  base = params['parts'][BASE]
  leaves = restore.arrays(base, restore.fingerprint(base))
  text = json.dumps({name: list(x) for name, x in sorted(leaves.items())})
  return hashlib.sha256(text.encode()).hexdigest()[:16]


def write(workdir: str, base: Base) -> None:
  """Writes base.json."""
  if files.is_local(base.folder):
    base = base._replace(folder=os.path.abspath(base.folder))
  text = json.dumps(base._asdict(), indent=2) + '\n'
  # No checkpoint can be read without it, so it is uploaded at once.
  buckets.write_atomically(os.path.join(workdir, _FILE), text)


def read(workdir: str) -> Base:
  """Reads base.json."""
  path = os.path.join(workdir, _FILE)
  remedy = 'restore it from a copy'
  try:
    found = files.read_json(path, remedy=remedy, needs=Base._fields)
  except FileNotFoundError as e:
    raise UsageError(
      f'{path}: is missing, and says what the adapters are of; {remedy}'
    ) from e
  return Base(str(found['folder']), str(found['fingerprint']))


def check_names(shapes: Any, params: Mapping[str, Any], what: str) -> None:
  """Refuses a model without the parameters of the base.

  Args:
    shapes: the run's parameters, real or abstract.
    params: by name, as in `given`.
    what: the start of the message.
  """
  names = params_lib.flatten(shapes['parts'][BASE])
  for name, x in names.items():
    if name not in params or params[name].shape != x.shape:
      raise UsageError(
        f'{what}: is not the model that the adapters are of: it has no {name} '
        f'of shape {x.shape}; put that model back'
      )


def check(found: str, base: Base, what: str) -> None:
  """Refuses a base with another fingerprint."""
  if found != base.fingerprint:
    raise UsageError(
      f'{what}: is not the model that the adapters are of: the fingerprint of '
      f'its parameters is {found}, not {base.fingerprint}; put that model back'
    )


def count(params: Any, unsaved: Collection[str]) -> tuple[int, int]:
  """The number of trained parameters, and of all."""
  trained = train_state.trained(params, unsaved)
  sizes = [sum(x.size for x in jax.tree.leaves(t)) for t in (trained, params)]
  return sizes[0], sizes[1]
