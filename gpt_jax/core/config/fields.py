# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The fields of a config: flat list, JSON, comparison, unknown names."""

import difflib
import json
import re
from typing import Any

from ml_collections import ConfigDict, FieldReference
from ml_collections.config_flags import config_path

from gpt_jax.core.config import defaults
from gpt_jax.core.spec import UsageError, shown

# A ConfigDict, whose fields are unknown to type checkers.
Config = Any

# The prefix of a part's field, in place of `model.`.
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
  """A mutable copy."""
  return config.copy_and_resolve_references().unlock()


def to_json(config: Config) -> str:
  """The resolved config as indented JSON."""
  return json.dumps(config.to_dict(), indent=2) + '\n'


def from_json(text: str) -> Config:
  """Parses the output of `to_json`, or a config.json; `check_known` refuses unknown fields."""
  fields = json.loads(text)
  fields.pop('sha256', None)  # which `workdir.read_config` compares
  return ConfigDict(fields).lock()


def differences(old: Config, new: Config) -> list[str]:
  """Fields that change a run's result: `'seed: 0 -> 1'`."""
  before, after = flatten(old), flatten(new)
  return [
    f'{field}: {before.get(field)!r} -> {after.get(field)!r}'
    for field in dict.fromkeys([*before, *after])
    if before.get(field) != after.get(field)
    and not _PART.sub('model.', field).startswith(defaults.FREE_ON_RESUME)
  ]


# Known fields, and suggestions for unknown names.


# Sections whose field names the user chooses. The sections of `models` have the
# fields of `model`.
OPEN = ('data.sources', 'eval.sets', 'eval.words', 'finetune.task_dropout', 'finetune.each')

# Other frameworks' names of fields and of their arguments -> ours.
_RATE = "schedule.name='cosine(peak=3e-4, warmup=2000)'"
_ADAM = "optim.name='adamw(b1=0.9, b2=0.95, eps=1e-8, weight_decay=0.1)'"
_DROPOUT = "model.dropout='rates(embedding=0.1, residual=0.1, attention=0.1)'"
_WORDS = {
  _RATE: 'lr learning_rate max_lr base_lr peak_lr min_lr warmup warmup_steps '
  'warmup_iters num_warmup_steps warmup_ratio lr_scheduler lr_scheduler_type '
  'lr_schedule scheduler decay_lr lr_decay_iters',
  _ADAM: 'optimizer weight_decay beta1 beta2 betas adam_beta1 adam_beta2 adam_epsilon',
  _DROPOUT: 'dropout attention_dropout attn_dropout resid_dropout attn_pdrop '
  'resid_pdrop embd_pdrop hidden_dropout hidden_dropout_prob dropout_rate',
  'optim.clip_norm': 'grad_clip gradient_clipping max_grad_norm clip_grad clip_grad_norm clip',
  'batch.size': 'batch_size train_batch_size global_batch_size per_device_train_batch_size',
  'batch.micro_rows': 'micro_batch_size gradient_accumulation_steps grad_accum '
  'gradient_accumulation accumulate_grad_batches',
  'schedule.num_steps': 'epochs num_epochs num_train_epochs max_epochs '
  'max_steps total_steps train_steps num_train_steps max_iters steps '
  'num_iterations',
  'model.num_layers': 'n_layer n_layers num_hidden_layers layers depth',
  'model.num_heads': 'n_head n_heads num_attention_heads heads',
  'model.encoder_num_heads': 'encoder_attention_heads',
  'model.encoder_d_ff': 'encoder_ffn_dim',
  'model.num_kv_heads': 'n_kv_heads n_kv_head num_key_value_heads',
  'model.d_model': 'n_embd n_embed hidden_size hidden_dim dim emb_dim '
  'embed_dim embedding_size width',
  'model.d_ff': 'intermediate_size ffn_dim n_inner d_inner mlp_dim',
  'model.head_size': 'head_dim d_head d_kv',
  'model.context_length': 'block_size seq_len seq_length sequence_length '
  'max_seq_len max_seq_length max_position_embeddings n_ctx n_positions '
  'max_length',
  'model.ffn': 'activation activation_function hidden_act',
  'model.remat': 'gradient_checkpointing activation_checkpointing',
  'model.output': 'tie_word_embeddings tie_embeddings',
  "model.position='rope(theta=1e4)'": 'rope_theta',
  "model.attention='local(window=256)'": 'sliding_window',
  "model.dtype='bfloat16'": 'bf16 fp16 mixed_precision',
  'checkpoint.every_steps': 'save_steps save_interval save_every checkpoint_interval ckpt_every',
  'checkpoint.keep': 'save_total_limit',
  'eval.every_steps': 'eval_steps eval_interval eval_every',
  'eval.num_batches': 'eval_iters',
  'log.every_steps': 'log_interval logging_steps log_every',
  'log.trackers': 'report_to wandb wandb_log',
  'data.source': 'dataset data_path data_dir train_file train_data',
  'data.workers': 'num_workers num_proc',
  'mesh.data': 'devices num_devices gpus num_gpus',
}
_MEANT = {word: field for field, words in _WORDS.items() for word in words.split()}
# The fields that replace them in a config for fine-tuning.
_TUNED = {
  _RATE: 'finetune.peak and finetune.warmup',
  _DROPOUT: 'finetune.dropout',
  'schedule.num_steps': 'finetune.epochs',
}


def tree(*optional: str) -> Config:
  """The default config, with some of `defaults.OPTIONAL`."""
  config: Any = defaults.get_config().unlock()
  for name in optional:
    config[name] = defaults.optional(name)
  return config


def check_known(config: Config) -> None:
  """Checks that a config has all known fields and no others.

  Values may be of any type; the sections of `OPEN` may have any fields.
  """
  known = tree(*(name for name in defaults.OPTIONAL if name in config))
  _check_section(config, known, '', known)
  for name, part in config.models.items():
    if not isinstance(part, ConfigDict):
      raise UsageError(
        f'models.{name}={shown(part)}: must be a section with the fields that '
        'differ from model, such as dict(d_model=64)'
      )
    for field in part:
      if field not in known.model:
        raise _unknown(f'models.{name}.{field}', part[field], known)


def check_override(config: Config, field: str) -> None:
  """Checks that `--config.FIELD` overrides a known field.

  A part in `config.models` gets the field if it lacks it.
  """
  known = tree(*(name for name in defaults.OPTIONAL if name in config))
  try:
    names = config_path.split(field)
  except (ValueError, SyntaxError, TypeError) as e:
    raise UsageError(
      f'--config.{field}: is not the name of a field; write --config.SECTION.FIELD=VALUE'
    ) from e
  section: Any = config
  for i, name in enumerate(names):
    found = isinstance(section, ConfigDict) and name in section
    if not found and names[0] == 'models' and i == 2 and name in config.model:
      with section.unlocked():
        section[name] = FieldReference(config.model[name], field_type=config.model.get_type(name))
    elif not found:
      raise _unknown('.'.join(map(str, names)), None, known)
    elif section.get_type(name) is list:
      raise UsageError(f'--config.{field}: is filled in by the run; leave the flag out')
    section = section[name]


def meant(field: str, known: Config | None = None) -> str:
  """A known field similar to a name: 'batch.size'; '' if none is likely.

  Args:
    field: with or without its section.
    known: the config with the known fields; None: that of a run.
  """
  whole: Any = tree() if known is None else known
  path, _, name = field.replace('-', '_').rpartition('.')
  if found := _MEANT.get(name.lower()):
    return _TUNED.get(found, found) if 'finetune' in whole else found
  section = whole
  for part in path.split('.') if path else ():
    section = section.get(part, {}) if isinstance(section, ConfigDict) else {}
  fields = [*section] if isinstance(section, ConfigDict) else []
  near = difflib.get_close_matches(name, fields, 1)
  if near:
    return f'{path}.{near[0]}' if path else near[0]
  by_name: dict[str, list[str]] = {}
  for each in flatten(whole):
    by_name.setdefault(each.rpartition('.')[2], []).append(each)
  if not path:
    by_name |= {each: [each] for each in whole}
  near = difflib.get_close_matches(name, [*by_name], 1, 0.75)
  return ' or '.join(by_name[near[0]]) if near else ''


def _check_section(config: Any, section: Any, prefix: str, known: Any) -> None:
  """Checks a section; `known` is the whole config, for suggestions."""
  for name, value in config.items():
    field = prefix + name
    if name not in section:
      raise _unknown(field, value, known)
    is_section = isinstance(section[name], ConfigDict)
    if is_section != isinstance(value, ConfigDict):
      what = 'a section, such as dict(...)' if is_section else 'one value'
      raise UsageError(f'{field}={shown(value)}: must be {what}')
    if is_section and field not in (*OPEN, 'models'):
      _check_section(value, section[name], f'{field}.', known)
  for name in section:
    if name not in config:
      raise UsageError(
        f'{prefix}{name} is missing from the config; build the config on one '
        'of configs/, which have all fields'
      )


def _unknown(field: str, value: Any, known: Config) -> UsageError:
  """The error about an unknown field."""
  plain = value is None or isinstance(value, ConfigDict)
  given = '' if plain else f'={shown(value)}'
  # A part has the fields of `model`.
  part = re.match(r'models\.[^.]+\.', field)
  if isinstance(value, ConfigDict):
    found = difflib.get_close_matches(field, _sections(known), 1)
    likely = found[0] if found else ''
  else:
    likely = meant(field.replace(part[0], 'model.') if part else field, known)
  if part and likely.startswith('model.'):
    likely = likely.replace('model.', part[0], 1)
  likely = f'did you mean {likely}? ' * bool(likely)
  return UsageError(
    f'{field}{given}: there is no such field; {likely}gpt-jax inspect --fields lists all fields'
  )


def _sections(config: Config, prefix: str = '') -> list[str]:
  """The names of all sections: 'mesh', 'mesh.rules'."""
  found = []
  for name, value in config.items():
    if isinstance(value, ConfigDict):
      found += [prefix + name, *_sections(value, f'{prefix}{name}.')]
  return found
