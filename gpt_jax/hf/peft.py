# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters in PEFT's format: read onto their base, and written.

A folder has adapter_config.json and adapter_model.safetensors, with two tensors
for each adapted module, lora_A [r, inputs] and lora_B [outputs, r]. The
module's weight becomes W + scale B A, or its transpose for GPT-2's Conv1D,
whose weight is [inputs, outputs]. Which it is follows from the base, as in
PEFT, which corrects a wrong `fan_in_fan_out`.

PEFT adapts a fused module, such as GPT-2's c_attn, as one matrix; our queries,
keys and values have adapters of their own. Their A's are stacked and their B's
form blocks, so that the rank is their sum, unless all A's are equal.
"""

import json
import math
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file

from gpt_jax.core.files import arrays, files
from gpt_jax.core.spec import UsageError
from gpt_jax.hf.base import Options, choice
from gpt_jax.hf.layout import DTYPES, Imported, TensorSlot, joined_shape, places, shapes, slots

CONFIG, WEIGHTS = 'adapter_config.json', 'adapter_model.safetensors'
_PREFIX = 'base_model.model.'
# Options that are read, and those that do not change what an adapter computes.
_KNOWN = {
  'peft_type',
  'base_model_name_or_path',
  'r',
  'lora_alpha',
  'use_rslora',
  'alpha_pattern',
  'rank_pattern',
  'fan_in_fan_out',
  'bias',
  'init_lora_weights',
  'auto_mapping',
  'revision',
  'inference_mode',
  'task_type',
  'target_modules',
  'exclude_modules',
  'layers_to_transform',
  'layers_pattern',
  'lora_dropout',
  'peft_version',
  'megatron_config',
  'megatron_core',
  'loftq_config',
  'qalora_group_size',
  'runtime_config',
  'ensure_weight_tying',
  'eva_config',
}
# Patterns that are matched at once: names, in which a point is any character.
_NAME = re.compile(r'(?:\\\.|[\w.^$-])*')
# Matches the others as PEFT does, in a process of its own: a pattern may take
# time that is exponential in a name, and Python's `re` cannot be interrupted.
_MATCHER = r"""
import json, re, sys
patterns, modules = json.load(sys.stdin)
try:
  whole = [re.compile(rf'(.*\.)?({x})') for x in patterns]
  fits = [[bool(x.fullmatch(m)) for x in whole] for m in modules]
except (re.error, RecursionError, OverflowError, MemoryError) as e:
  fits = str(e) or 'it is too large'
json.dump(fits, sys.stdout)
"""
_SECONDS = 10  # for all patterns of an option
# Ways to initialize A and B that leave the base as it is.
_DRAWN = (True, False, 'gaussian', 'orthogonal', 'eva')


class Adapter(NamedTuple):
  """An adapter that was read.

  Attributes:
    folder: that it is in.
    base: the folder of the model that it adapts.
    pairs: lora_A and lora_B by the module's name.
    scales: of B A, by the module's name.
    transposed: the modules whose weights are [inputs, outputs].
  """

  folder: str
  base: str
  pairs: dict[str, tuple[np.ndarray, np.ndarray]]
  scales: dict[str, float]
  transposed: frozenset[str] = frozenset()

  def of(self, model: Imported) -> 'Adapter':
    """The adapter with our names of the base's modules.

    Raises:
      UsageError: it is one of another model.
    """
    known, prefix = shapes(model), model.family.prefix
    ours = {
      slot.tensor.names[0].removesuffix('.weight'): slot
      for slot in slots(model)
      # A tied table is none.
      if len(slot.tensor.names) == 1 and slot.tensor.names[0].endswith('.weight')
    }
    pairs, scales, transposed = {}, {}, set()
    for module, (a, b) in self.pairs.items():
      # Classes without a head have names without the family's prefix.
      name = module if module in ours else prefix + module
      slot, wanted = ours.get(name), (b.shape[0], a.shape[1])
      shape = joined_shape(model, known, slot) if slot else None
      turned = bool(slot and len(shape or ()) == 2 and _of_columns(model, slot))
      wanted = wanted[::-1] if turned else wanted
      if shape != wanted:
        has = 'no such weight' if shape is None else f'one of {shape}'
        raise UsageError(
          f'{self.folder}: adapts {module}.weight of shape {wanted}, and '
          f'{self.base} has {has}; give the base that it was trained on'
        )
      pairs[name], scales[name] = (a, b), self.scales[module]
      if turned:
        transposed.add(name)
    return Adapter(self.folder, self.base, pairs, scales, frozenset(transposed))

  def merged(self, name: str, weight: np.ndarray) -> np.ndarray:
    """The weight called `name`, with its adapter if it has one."""
    module = name.removesuffix('.weight')
    if module == name or module not in self.pairs:
      return weight
    a, b = self.pairs[module]
    with np.errstate(over='ignore', invalid='ignore'):
      product = np.float32(self.scales[module]) * (b @ a)
      total = weight + (product.T if module in self.transposed else product)
    if not np.isfinite(total).all():
      raise UsageError(
        f'{self.folder}: {name} with its adapter has numbers that float32 does '
        'not hold; ask who made it'
      )
    return total


def read(folder: str) -> Adapter | None:
  """Reads a PEFT folder; None: it has no adapter_config.json, or a model."""
  path = os.path.join(folder, CONFIG)
  if os.path.exists(os.path.join(folder, 'config.json')):
    return None  # an adapter beside a model is not applied unasked
  if not os.path.exists(path):
    check_format(folder)
    return None
  values = files.read_json(path, remedy='copy the folder again')
  options = _Options(values)
  _check(options, values)
  base = options.get('base_model_name_or_path', '')
  if not isinstance(base, str) or not os.path.isdir(base):
    raise options.fail(
      'base_model_name_or_path',
      'is not a folder here; set it to that of the model that was adapted',
    )
  file = os.path.join(folder, WEIGHTS)
  tensors = _tensors(file)
  pairs = {}
  for name in tensors:
    found = re.fullmatch(rf'{re.escape(_PREFIX)}(.+)\.lora_([AB])\.weight', name)
    if not found:
      raise UsageError(
        f'{file}: {name} is neither lora_A nor lora_B of a module; merge the '
        'adapter with PEFT, by merge_and_unload, and give that folder'
      )
    names = [f'{_PREFIX}{found[1]}.lora_{x}.weight' for x in 'AB']
    if {*names} - {*tensors}:
      raise UsageError(f'{file}: has {name} without its partner; copy the folder again')
    a, b = (tensors[n] for n in names)
    if not a.ndim == b.ndim == 2 or not 0 < a.shape[0] == b.shape[1]:
      raise UsageError(
        f'{file}: {names[0]} is {a.shape} and lora_B {b.shape}, no two '
        'matrices of one rank; copy the folder again'
      )
    pairs[found[1]] = a, b
  if not pairs:
    raise UsageError(f'{file}: adapts no module; copy the folder again')
  return Adapter(folder, base, pairs, _scales(options, pairs))


def _tensors(file: str) -> dict[str, np.ndarray]:
  """The tensors of an adapter, in float32."""
  found = {}
  files.check_regular(file, remedy='copy the folder again')
  try:
    with safe_open(file, 'numpy') as opened:
      names = opened.keys()
      dtypes = {n: opened.get_slice(n).get_dtype() for n in names}
    for name, dtype in dtypes.items():
      if dtype not in DTYPES:
        raise UsageError(f'{file}: {name} is of type {dtype}; one of {", ".join(DTYPES)}')
    found = load_file(file)
  except (SafetensorError, OSError) as e:
    raise UsageError(f'{file}: {e}; copy the folder again') from e
  tensors = {name: x.astype(np.float32) for name, x in found.items()}
  for name, x in tensors.items():
    if not np.isfinite(x).all():
      raise UsageError(
        f'{file}: {name} holds NaN or infinite numbers; copy the folder again, or ask who made it'
      )
  return tensors


def check_format(folder: str) -> None:
  """Says of GGUF, in place of a folder or in one, what is read instead."""
  names = [folder]
  if os.path.isdir(folder):
    names = [os.path.join(folder, name) for name in sorted(os.listdir(folder))]
  for name in names:
    if name.lower().endswith('.gguf'):
      raise UsageError(
        f'{name}: is a GGUF file, made for inference, which is not read; give '
        'the Hugging Face folder that it was made from, with config.json, '
        '*.safetensors and the tokenizer'
      )


def base_of(folder: str) -> str:
  """The folder of an adapter's base; of a model, the folder itself."""
  adapter = read(folder)
  return adapter.base if adapter else folder


class _Options(Options):
  """An adapter_config.json."""

  def fail(self, name: str, why: str) -> UsageError:
    error = super().fail(name, why)
    return UsageError(str(error).replace('config.json', CONFIG, 1))


def _check(options: _Options, values: dict[str, Any]) -> None:
  """Refuses what is not plain LoRA."""
  options.only('peft_type', 'LORA')
  options.only('bias', 'none')
  options.only('init_lora_weights', *_DRAWN)
  for name, value in values.items():
    if value and name not in _KNOWN:
      raise options.fail(
        name,
        'only plain LoRA is read; merge the adapter with PEFT, by '
        'merge_and_unload, and give that folder',
      )


def _scales(
  options: _Options, pairs: Mapping[str, tuple[np.ndarray, np.ndarray]]
) -> dict[str, float]:
  """Alpha / r, or alpha / sqrt(r); a module may have its own of both."""
  ranks = _of_modules(options, 'rank_pattern', 'r', pairs)
  alphas = _of_modules(options, 'alpha_pattern', 'lora_alpha', pairs)
  stable, scales = options.flag('use_rslora', False), {}
  for module, (a, _) in pairs.items():
    rank, needed = a.shape[0], ranks[module]
    if rank != needed:
      raise UsageError(
        f'{CONFIG}: gives {module} the rank {needed}, and its tensors have '
        f'{rank}; copy the folder again'
      )
    scales[module] = alphas[module] / (math.sqrt(rank) if stable else rank)
  return scales


def _of_modules(
  options: _Options, patterns: str, default: str, modules: Collection[str]
) -> dict[str, float]:
  """The number of each module: of the first fitting pattern, if one fits."""
  values = options.get(patterns, {})
  if not isinstance(values, dict):
    raise options.fail(patterns, 'must be an object')
  numbers = {pattern: _Options(values).number(pattern) for pattern in values}
  usual = options.number(default, 8)
  fits = {
    pattern: {m for m in modules if re.fullmatch(rf'(.*\.)?({pattern})', m)}
    for pattern in values
    if _NAME.fullmatch(pattern)
  }
  fits |= _matched(options, patterns, [p for p in values if p not in fits], modules)
  return {m: next((x for p, x in numbers.items() if m in fits[p]), usual) for m in modules}


def _matched(
  options: _Options, name: str, patterns: Sequence[str], modules: Collection[str]
) -> dict[str, set[str]]:
  """The modules that each of an option's patterns fits."""
  if not patterns:
    return {}
  try:
    matcher = subprocess.run(
      [sys.executable, '-I', '-c', _MATCHER],
      input=json.dumps([patterns, [*modules]]),
      capture_output=True,
      text=True,
      timeout=_SECONDS,
      check=True,
    )
  except subprocess.TimeoutExpired as e:
    raise options.fail(
      name,
      f'its patterns take more than {_SECONDS} s to match; write the names of the modules instead',
    ) from e
  fits = json.loads(matcher.stdout)
  if isinstance(fits, str):
    raise options.fail(name, f'cannot be read ({fits})')
  return {
    pattern: {m for m, each in zip(modules, fits, strict=True) if each[i]}
    for i, pattern in enumerate(patterns)
  }


def write(
  folder: str,
  model: Imported,
  adapters: dict[str, np.ndarray],
  heads: dict[str, np.ndarray],
  *,
  alpha: float,
  rslora: bool,
  base: str | None,
  dropout: float = 0.0,
) -> None:
  """Writes an adapter of a model.

  Args:
    folder: created if need be.
    model: that is adapted, heads included.
    adapters: by name, ours: 'decoder/.../query/kernel_A' and 'kernel_B'.
    heads: by name, 'heads/score/kernel'; they are trained in full.
    rslora: see `tuning.objectives.lora`.
    base: for `base_model_name_or_path`; None: it is not known.
    dropout: on the adapters' inputs in training.
  """
  pairs = {
    name.removesuffix('_A'): (x, adapters[f'{name[:-1]}B'])
    for name, x in adapters.items()
    if name.endswith('_A')
  }
  tensors: dict[str, np.ndarray] = {}
  ranks: dict[str, int] = {}  # of each adapted module
  modules, saved, columns, left = [], [], set(), {*pairs}
  for slot in slots(model):
    tensor = slot.tensor
    module, _, leaf = _name(model, tensor.names[0]).rpartition('.')
    if tensor.paths and tensor.paths[0].startswith('heads/'):
      value = tensor.join([heads[path] for path in tensor.paths])
      tensors[f'{_PREFIX}{module}.{leaf}'] = value
      saved.append(module)
      continue
    if leaf != 'weight':
      continue
    modules.append(module)
    found = _of_slot(model, slot, pairs)
    if not any(found) or slot.tensor.experts:
      continue
    left -= {name for name, _ in places(model, slot)}
    a, b, of_columns = _joined(model, slot, found)
    columns.add(of_columns)
    tensors[f'{_PREFIX}{module}.lora_A.weight'] = a
    tensors[f'{_PREFIX}{module}.lora_B.weight'] = b
    ranks[module] = a.shape[0]
  if left:
    raise UsageError(
      f'{sorted(left)[0]}: PEFT has no adapter of this kernel in '
      f'{model.family.model_type}; export the merged model'
    )
  rank = next(iter(pairs.values()))[0].shape[-1]
  others = {name: r for name, r in ranks.items() if r != rank}

  def scaled(r: int) -> float:
    return alpha * (math.sqrt(r / rank) if rslora else r / rank)

  config = {
    'peft_type': 'LORA',
    'task_type': _task_type(model),
    'base_model_name_or_path': base,
    'inference_mode': True,
    'r': rank,
    'lora_alpha': alpha,
    'use_rslora': rslora,
    'rank_pattern': others,
    'alpha_pattern': {name: scaled(r) for name, r in others.items()},
    'target_modules': _targets(ranks, modules),
    'modules_to_save': [*dict.fromkeys(saved)] or None,
    'fan_in_fan_out': True in columns,
    'lora_dropout': dropout,
    'bias': 'none',
    'init_lora_weights': True,
  }
  for name, x in tensors.items():
    if not np.isfinite(x).all():
      raise UsageError(
        f'{name} has NaN or infinite numbers, so that nothing would read the '
        'file; export an earlier step'
      )
  os.makedirs(folder, exist_ok=True)
  tensors = {n: np.ascontiguousarray(x) for n, x in tensors.items()}
  path = os.path.join(folder, WEIGHTS)
  with files.replacing(path) as temporary:
    arrays.write_tensors(temporary, tensors)
  # Written last: without it a folder holds no adapter.
  with files.replacing(os.path.join(folder, CONFIG)) as temporary:
    text = json.dumps(config, indent=2) + '\n'
    pathlib.Path(temporary).write_text(text, encoding='utf-8')


def _name(model: Imported, name: str) -> str:
  """A tensor's name in the class of transformers, which PEFT adapts."""
  kind, family = model.origin.kind, model.family
  if kind in ('body', 'pooled') or (kind == 'lm' and family.bare):
    return name.removeprefix(family.prefix)
  return name


def _task_type(model: Imported) -> str | None:
  """PEFT's name of what the class is for; None: it has none."""
  kind = model.origin.kind
  if kind.endswith('classification'):
    return 'SEQ_CLS'
  if kind == 'lm' and choice(model, 'attention').name == 'bidirectional':
    return None
  lm = 'SEQ_2_SEQ_LM' if model.num_encoder_layers else 'CAUSAL_LM'
  return {'lm': lm, 'spans': 'QUESTION_ANS', 'tokens': 'TOKEN_CLS'}.get(kind)


# A [inputs, r] and B [r, outputs] of a kernel; None: it has none.
_Pair = tuple[np.ndarray, np.ndarray] | None


def _of_slot(
  model: Imported, slot: TensorSlot, pairs: Mapping[str, tuple[Any, Any]]
) -> list[_Pair]:
  """The adapters of a tensor's kernels, in its layer."""
  found = []
  for name, index in places(model, slot):
    pair = pairs.get(name)
    if pair is not None and index:
      pair = pair[0][index], pair[1][index]
    found.append(pair)
  return found


def _joined(
  model: Imported, slot: TensorSlot, pairs: Sequence[_Pair]
) -> tuple[np.ndarray, np.ndarray, bool]:
  """lora_A and lora_B of a tensor, and whether it is [inputs, outputs]."""
  sizes, there = (_sizes(model, slot), [pair for pair in pairs if pair is not None])
  first, rank = there[0][0], there[0][0].shape[-1]
  equal = len(there) == len(pairs) and all(np.array_equal(first, a) for a, _ in there)
  rows, parts = rank if equal else rank * len(there), []
  start = 0
  for pair, size in zip(pairs, sizes, strict=True):
    block = np.zeros((rows, size), np.float32)
    if pair is not None:
      block[start : start + rank] = pair[1]
      start += 0 if equal else rank
    parts.append(block)
  of_columns = _of_columns(model, slot)
  b = slot.tensor.join(parts)
  a = first if equal else np.concatenate([a for a, _ in there], axis=-1)
  return a.T, b.T if of_columns else b, of_columns


def _sizes(model: Imported, slot: TensorSlot) -> list[int]:
  """The outputs of a tensor's kernels."""
  known = shapes(model)
  return [known[name].shape[-1] for name, _ in places(model, slot)]


def _of_columns(model: Imported, slot: TensorSlot) -> bool:
  """Whether a tensor is [inputs, outputs]."""
  # Which axis `join` has the inputs on shows with more than there are outputs.
  sizes = _sizes(model, slot)
  num_in = sum(sizes) + 1
  probe = [np.broadcast_to(np.float32(0), (num_in, n)) for n in sizes]
  return slot.tensor.join(probe).shape[0] == num_in


def _targets(adapted: Collection[str], modules: Collection[str]) -> list[str]:
  """`target_modules`: last names where they mean these modules alone."""
  last = {name.rpartition('.')[2] for name in adapted}
  meant = {name for name in modules if name.rpartition('.')[2] in last}
  return sorted(last if meant == {*adapted} else adapted)
