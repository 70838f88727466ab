# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a fine-tuning trains, and the base of a run that trains adapters.

A run with `finetune.lora` saves its adapters and heads only. WORKDIR/base.json
has the folder of the model that they adapt, and a fingerprint of its
parameters, which the checkpoints' records repeat. Whoever opens the run reads
the base from its folder, and another base is refused. If the base was moved,
its folder in base.json may be edited: the fingerprint still decides.
"""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax

from gpt_jax.core import spec
from gpt_jax.core.checkpoints import restore
from gpt_jax.core.config import Config
from gpt_jax.core.files import buckets, files
from gpt_jax.core.nn import params as params_lib
from gpt_jax.core.nn.transformer import Transformer
from gpt_jax.core.objectives.base import Objective
from gpt_jax.core.objectives.choices import LORAS
from gpt_jax.core.optim import train_state
from gpt_jax.core.optim.train_state import Rates, TrainState
from gpt_jax.core.runtime.log import log
from gpt_jax.core.spec import UsageError
from gpt_jax.core.training import run as run_lib
from gpt_jax.core.training.parts import Parts
from gpt_jax.core.training.past import RunInput
from gpt_jax.core.training.run import Data, Run
from gpt_jax.tuning.objectives import freezing
from gpt_jax.tuning.objectives.lora import BASE, FIELD, Lora

_FILE = 'base.json'


class Base(NamedTuple):
  """The contents of base.json."""

  folder: str
  fingerprint: str


def of(config: Config) -> Lora | None:
  """The adapters that a config trains; None: none."""
  tuned = config.get('finetune')
  return spec.build(FIELD, tuned.lora, LORAS) if tuned else None


def tuned(config: Config, model: Transformer, objective: Objective) -> tuple[Objective, Rates]:
  """The objective and the rates of a config with a section `finetune`."""
  section, factors, stages = config.finetune, [], None
  num_rows = section.vocab_size
  if section.get('features'):
    factors.append(freezing.heads)
  elif section.freeze:
    factors.append(freezing.above(model, section.freeze, num_rows))
  if section.layer_decay != 1:
    factors.append(freezing.by_level(model, num_rows, section.layer_decay))
  if section.unfreeze:
    stages = freezing.gradual(model, num_rows, section.unfreeze)
  return adapted(config, objective), Rates(tuple(factors), stages)


def adapted(config: Config, objective: Objective) -> Objective:
  """The objective with adapters, if the config has any."""
  lora = of(config)
  if lora is None:
    return objective
  tuned, call = config.finetune, f'{FIELD}={config.finetune.lora!r}'
  if tuned.init in (None, 'none'):
    raise UsageError(f"{call}: adapts a trained model, and --init=none has none; give 'none'")
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
        f'{call}: trains adapters beside all that is taken from --init, and '
        f'{field}={value!r} contradicts it; give {needed!r}'
      )
  if objective.tasks or objective.stages() or objective.needs.adds:
    raise UsageError(
      f'{call}: objective.name={config.objective.name!r} trains several '
      "models or tasks, which have no adapters; give 'none'"
    )
  return lora.objective(objective, tuned.vocab_size)


def given(config: Config, params: Mapping[str, Any]) -> Mapping[str, Any]:
  """The names, in the run's tree, of the parameters of a model to train.

  They are the same but with adapters.

  Args:
    params: by name: 'embed/embedding', 'heads/pooler/kernel'.
  """
  if of(config) is None:
    return params
  return {
    n if n.startswith(('heads/', 'parts/')) else f'parts/{BASE}/{n}': x for n, x in params.items()
  }


def fingerprint(params: Any) -> str:
  """A digest of the base's parameters; '': the tree has no base."""
  if BASE not in params.get('parts', {}):
    return ''
  base = params['parts'][BASE]
  leaves = restore.arrays(base, restore.fingerprint(base))
  text = json.dumps({name: list(x) for name, x in sorted(leaves.items())})
  return hashlib.sha256(text.encode()).hexdigest()[:16]


def resume_or_start(
  parts: Parts,
  workdir: str,
  data: Data,
  *,
  first: Callable[[], TrainState],
  folder: str,
  **others: Any,
) -> tuple[Run, TrainState]:
  """`run.resume_or_start` of a run that may train adapters.

  `folder` is that of the model that the run starts from; '': none.
  """
  lora = of(parts.config)
  if lora is None:
    return run_lib.resume_or_start(parts, workdir, data, first=first, **others)
  start = first()
  base, trained = Base(folder, fingerprint(start.params)), count(start.params)
  run, state = run_lib.resume_or_start(
    parts,
    workdir,
    data,
    first=first,
    start=start,
    inputs=[
      RunInput(
        'base', base.fingerprint, 'has adapters of the model with fingerprint {}, and --init has'
      )
    ],
    **others,
  )
  if run.active:
    write(workdir, base)
  log.info(
    '%s: %d of %d parameters are trained, beside the model %s',
    parts.config.finetune.lora,
    *trained,
    base.fingerprint,
  )
  return run, state


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
    contents = files.read_json(path, remedy=remedy, needs=Base._fields)
  except FileNotFoundError as e:
    raise UsageError(f'{path}: is missing, and says what the adapters are of; {remedy}') from e
  return Base(str(contents['folder']), str(contents['fingerprint']))


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


def count(params: Any) -> tuple[int, int]:
  """The number of trained parameters beside a base, and of all."""
  trained = train_state.trained(params, (BASE,))
  sizes = [sum(x.size for x in jax.tree.leaves(t)) for t in (trained, params)]
  return sizes[0], sizes[1]
