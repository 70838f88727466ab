# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The config as a flat list of fields, as JSON, and compared with another."""

import json
import logging
import re
from typing import Any

from ml_collections import ConfigDict

# A ConfigDict: no type checker knows its fields.
Config = Any

# Fields of older configs, and what they are called now.
RENAMED = {'batch.rows': 'batch.size'}
# Fields that older configs lack, and what models did before.
ADDED = {
  'data.sentences': 'none',
  'mesh.context': 1,
  'model.share': 'none',
  'model.num_source_layers': 0,
  'model.source_vocab_size': 0,
  'model.value_size': 0,
  'model.encoder_num_heads': 0,
  'model.encoder_d_ff': 0,
  'objective.teacher': '',
  'optim.start': '',
  'optim.drawn': '',
  'optim.trained': '',
  'finetune.pooler': 'tanh',
  'finetune.order': None,
  'finetune.tasks': '',
  'finetune.mixing': 'proportional',
  'finetune.scores': 'standard',
}
# A run may go on with other values here: they do not change its result.
FREE_ON_RESUME = (
  'batch.micro_rows',
  'checkpoint.',
  'data.store',
  'data.workers',
  'eval.',
  'hosts.',
  'log.',
  'mesh.',
  'model.attention_backend',
  # So that a run that stopped at a spike can go on.
  'optim.on_spike',
  'optim.state',
  # The grid of `scaling`, which may grow.
  'sweep.',
  'watchdog.',
)

# Of a field of a part, what stands for `model.` before it.
_PART = re.compile(r'models\.[^.]+\.')


def flatten(config: Any, prefix: str = '') -> dict[str, Any]:
  """`{'model.num_layers': 12, ...}` sorted within each section."""
  flat = {}
  for name, value in config.items():
    if isinstance(value, ConfigDict | dict):
      flat.update(flatten(value, f'{prefix}{name}.'))
    else:
      flat[prefix + name] = value
  return flat


def unlocked(config: Config) -> Config:
  """A copy that can be changed."""
  return config.copy_and_resolve_references().unlock()


def rename(config: Any) -> list[str]:
  """Moves what stands under an old name to the new one.

  Args:
    config: changed in place; a dict, or a ConfigDict that is not locked.

  Returns:
    The old names that were found, for `hint`.
  """
  found = []
  for old, new in RENAMED.items():
    (section, name), (_, new_name) = old.split('.'), new.split('.')
    part = config.get(section)
    if isinstance(part, dict | ConfigDict) and name in part:
      part[new_name] = part[name]
      del part[name]
      found.append(old)
  return found


def hint(old: str) -> None:
  """Tells that a field has another name now."""
  logging.getLogger('gpt_jax').warning('%s is now %s', old, RENAMED[old])


def to_json(config: Config) -> str:
  """The resolved config as indented JSON."""
  return json.dumps(config.to_dict(), indent=2) + '\n'


def from_json(text: str) -> Config:
  """Reads what `to_json` wrote, now or under older names."""
  return from_dict(json.loads(text))


def from_dict(tree: dict[str, Any]) -> Config:
  """Like `from_json`, of what the text holds; `tree` is changed.

  Raises:
    ValueError: a name is none that a field can have.
  """
  rename(tree)
  models = tree.setdefault('models', {})
  sections = {name: [tree.get(name)] for name in tree}
  if isinstance(models, dict):
    sections['model'] = [tree.get('model'), *models.values()]
  for field, value in ADDED.items():
    section, name = field.split('.')
    for part in sections.get(section, []):
      if isinstance(part, dict):
        part.setdefault(name, value)
  model = tree.get('model')
  if isinstance(model, dict) and isinstance(model.get('input'), str):
    # What an argument of `tokens` was called.
    model['input'] = re.sub(r'\bsegments\s*=', 'token_types=', model['input'])
  for part in _of_tasks(tree):
    if isinstance(part.get('labels'), str):  # which the list was before
      part['labels'] = part['labels'].split(', ') if part['labels'] else []
  return ConfigDict(tree).lock()


def _of_tasks(tree: dict[str, Any]) -> list[dict[str, Any]]:
  """The sections that name classes."""
  tuned = tree.get('finetune')
  if not isinstance(tuned, dict):
    return []
  each = tuned.get('each')
  parts = each.values() if isinstance(each, dict) else ()
  return [tuned, *(part for part in parts if isinstance(part, dict))]


def differences(old: Config, new: Config) -> list[str]:
  """Fields that change a run's result: `'seed: 0 -> 1'`."""
  before, after = flatten(old), flatten(new)
  return [
    f'{field}: {before.get(field)!r} -> {after.get(field)!r}'
    for field in dict.fromkeys([*before, *after])
    if before.get(field) != after.get(field)
    and not _PART.sub('model.', field).startswith(FREE_ON_RESUME)
  ]
