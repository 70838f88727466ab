# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rotary positions in config.json, in the spellings of two times.

Since transformers 5.0 all stands in `rope_parameters`; before, the base in
`rope_theta` and the rest in `rope_scaling`. Both are read and, so that any
release understands an export, written.
"""

import math
from typing import Any

from gpt_jax.core import spec
from gpt_jax.core.nn.positions import SCALINGS
from gpt_jax.core.nn.transformer import Transformer
from gpt_jax.hf.base import Entry, Options, choice, layers, shortest_period

THETA = 10_000.0
_CONTEXT = 'original_max_position_embeddings'
# Names in `layer_types`: layers that see all tokens, and layers with a window.
FULL, SLIDING = _KINDS = 'full_attention', 'sliding_attention'


def read_rope(
  options: Options, default_theta: float = THETA, default_fraction: float | None = None
) -> str:
  """`model.position`.

  Args:
    options: of config.json.
    default_theta: base, if the options have none.
    default_fraction: fraction of each head's features that are rotated, if the
      options have none; None: the family always rotates whole heads.
  """
  return _read(values(options), options, default_theta, default_fraction)


def entry(theta: float = THETA) -> Entry:
  """`model.position` of families that rotate whole heads; default `theta`."""
  return Entry(lambda options: {'position': read_rope(options, theta)}, write_rope)


def entry_with_local(theta: float) -> Entry:
  """The same if layers with a window have a separate base."""
  return Entry(lambda options: {'position': read_with_local(options, theta)}, write_with_local)


def read_with_local(options: Options, default_theta: float) -> str:
  """`model.position` of Gemma 3.

  Since transformers 5.0, `rope_parameters` has an object for each kind of
  layer; before, `rope_local_base_freq` was the base of layers with a window.
  """
  kinds = options.get('rope_parameters', {})
  if not isinstance(kinds, dict) or any(
    not isinstance(kinds.get(kind, {}), dict) for kind in (*kinds, *_KINDS)
  ):
    raise options.fail('rope_parameters', 'must hold an object for each kind')
  if unknown := {*kinds} - {*_KINDS}:
    raise options.fail('rope_parameters', f'{sorted(unknown)[0]} is not a kind of layer')
  older = options.get('rope_scaling', {})
  if not isinstance(older, dict):
    raise options.fail('rope_scaling', 'must be an object')
  full = Options({**kinds.get(FULL, {}), **older})
  local = Options(kinds.get(SLIDING, {}))
  local.only('rope_type', 'default')
  local.only('partial_rotary_factor', 1.0)
  theta = options.number('rope_local_base_freq', THETA)
  theta = local.number('rope_theta', theta)
  call = _read(full, options, default_theta, None)
  return f'{call.removesuffix(")")}, local_theta={theta})'


def _read(
  rope: Options, options: Options, default_theta: float, default_fraction: float | None
) -> str:
  """A `rope` call, from its own options `rope` and all options."""
  theta = rope.number('rope_theta', options.number('rope_theta', default_theta))
  if default_fraction is None:
    for where in (options, rope):
      where.only('partial_rotary_factor', 1.0)
    call = f'rope(theta={theta}'
  else:
    fraction = rope.number('partial_rotary_factor', default_fraction)
    call = f'rope(theta={theta}, fraction={fraction}'
  kind = 'type' if rope.get('rope_type') is None else 'rope_type'
  name = rope.get(kind, 'default')
  if not isinstance(name, str) or name not in _READERS:
    known = ', '.join(_READERS)
    raise rope.fail(kind, f'is not supported; one of {known}')
  scaling = _READERS[name](rope, options)
  if scaling != 'none':
    call += f', scaling={scaling!r}'
  return call + ')'


def values(options: Options) -> Options:
  """The options of the scaling, in either spelling."""
  # HF's order, where a config has both spellings.
  name = 'rope_scaling' if options.get('rope_scaling') else 'rope_parameters'
  found = options.get(name, {})
  if not isinstance(found, dict):
    raise options.fail(name, 'must be an object')
  if any(isinstance(v, dict) for v in found.values()):
    raise options.fail(name, 'is not supported for each kind of layer')
  return Options(found)


def _read_llama3(rope: Options, options: Options) -> str:
  return (
    f'llama3(factor={rope.number("factor")}, '
    f'original_context={_original(rope, options)}, '
    f'low_freq_factor={rope.number("low_freq_factor")}, '
    f'high_freq_factor={rope.number("high_freq_factor")})'
  )


def _read_yarn(rope: Options, options: Options) -> str:
  original = _original(rope, options)
  ratio = options.size('max_position_embeddings') / original
  factor = rope.number('factor', ratio)
  if factor <= 0:
    raise rope.fail('factor', 'must be above 0')
  # HF also takes its default for 0.
  fast = rope.number('beta_fast', 32.0) or 32.0
  slow = rope.number('beta_slow', 1.0) or 1.0
  call = f'yarn(factor={factor}, original_context={original}, beta_fast={fast}, beta_slow={slow}'
  attention = rope.get('attention_factor')
  scales = [rope.number(n, 0.0) for n in ('mscale', 'mscale_all_dim')]
  if attention is not None:
    if rope.number('attention_factor') <= 0:
      raise rope.fail('attention_factor', 'must be above 0')
  elif all(scales):
    # DeepSeek's two factors.
    log = max(math.log(factor), 0)
    attention = (0.1 * scales[0] * log + 1) / (0.1 * scales[1] * log + 1)
  if attention is not None:
    call += f', attention_factor={attention}'
  if not rope.flag('truncate', True):
    call += ', truncate=False'
  return call + ')'


def _original(rope: Options, options: Options) -> int:
  """The context length before scaling."""
  if options.get(_CONTEXT) is not None:
    return options.size(_CONTEXT)
  return rope.size(_CONTEXT, options.size('max_position_embeddings'))


def same(model: Transformer, other: Transformer) -> bool:
  """Whether two models rotate alike, however their scalings are written."""
  one, two = (choice(m, 'position') for m in (model, other))
  if one.name != 'rope' or two.name != 'rope':
    return one == two
  kept = [{**c.kwargs, 'scaling': _options(c)} for c in (one, two)]
  return kept[0] == kept[1]


def write_rope(model: Transformer, *, partial: bool = False) -> dict[str, Any]:
  """The options for `read_rope`; none for other positions.

  `partial` writes the fraction of each head that is rotated (GPT-NeoX).
  """
  position = choice(model, 'position')
  if position.name != 'rope':
    return {}
  theta, scaling = position.kwargs['theta'], _options(position)
  parameters = {'rope_theta': theta, **(scaling or {'rope_type': 'default'})}
  if not partial:
    return {'rope_theta': theta, 'rope_scaling': scaling, 'rope_parameters': parameters}
  # If both are given, HF reads everything from `rope_scaling`.
  fraction = {'partial_rotary_factor': position.kwargs['fraction']}
  return {
    'rotary_emb_base': theta,
    'rotary_pct': position.kwargs['fraction'],
    'rope_scaling': {**parameters, **fraction} if scaling else None,
    'rope_parameters': {**parameters, **fraction},
  }


def write_with_local(model: Transformer) -> dict[str, Any]:
  """The options for `read_with_local`."""
  written, position = write_rope(model), choice(model, 'position')
  if not written:
    return {}
  # HF's default, if layers with a window have no separate base.
  theta = position.kwargs['local_theta'] or THETA
  local = {'rope_theta': theta, 'rope_type': 'default'}
  kinds = zip(_KINDS, (written['rope_parameters'], local), strict=True)
  return {**written, 'rope_local_base_freq': theta, 'rope_parameters': dict(kinds)}


def _options(position: spec.Call) -> dict[str, Any] | None:
  """The scaling of a `rope`, by HF's names."""
  text = position.kwargs['scaling']
  (scaling,) = spec.bind_all('model.position: scaling', text, SCALINGS)
  if scaling.name == 'none':
    return None
  options: dict[str, Any] = {'rope_type': scaling.name}
  for name, value in scaling.kwargs.items():
    if name == 'original_context':
      options[_CONTEXT] = value
    elif name == 'truncate':
      options |= {} if value else {name: False}
    elif value or name != 'attention_factor':
      options[name] = float(value)
  return options


_READERS = {
  'default': lambda rope, options: 'none',
  'linear': lambda rope, options: f'linear(factor={rope.number("factor")})',
  'llama3': _read_llama3,
  'yarn': _read_yarn,
}


# Which layers have a sliding window: `layer_types` in config.json.


def read_windows(options: Options, default: list[str], window: int | None) -> str:
  """`model.attention`.

  Args:
    options: of config.json.
    default: the kind of each layer, if the options do not say.
    window: of sliding layers; None: sliding layers are rejected.
  """
  kinds = options.get('layer_types', default)
  count = len(default)
  if not isinstance(kinds, list) or len(kinds) != count:
    raise options.fail('layer_types', f'must be a list of {count} names')
  patterns = {FULL: 'full'}
  if window is not None:
    patterns[SLIDING] = f'local(window={window})'
  for kind in kinds:
    if not isinstance(kind, str) or kind not in patterns:
      raise options.fail(
        'layer_types',
        f'{kind!r} is not supported' + (' without sliding_window' if kind == SLIDING else ''),
      )
  return shortest_period([patterns[kind] for kind in kinds])


def write_windows(model: Transformer) -> dict[str, Any]:
  """The inverse; of several windows the first, so that `save` refuses."""
  patterns = layers(model)
  windows = [p.kwargs['window'] for p in patterns if p.name == 'local']
  return {
    'layer_types': [SLIDING if p.name == 'local' else FULL for p in patterns],
    'sliding_window': windows[0] if windows else None,
  }
