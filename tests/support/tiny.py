# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Models and configs small enough for tests, with sizes that all differ."""

import functools
import json
import pathlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import pytest
from flax import linen as nn
from jax.sharding import Mesh
from ml_collections import ConfigDict

from configs import base
from gpt_jax.core import config as config_lib
from gpt_jax.core import sharding
from gpt_jax.core.checkpoints.checkpointer import Checkpointer
from gpt_jax.core.nn.transformer import Transformer, make_model
from gpt_jax.core.objectives.base import Needs, Objective
from gpt_jax.core.objectives.loss import Loss
from gpt_jax.core.tokenizers.tokenizer import Tokenizer
from gpt_jax.core.training import parts as parts_lib
from gpt_jax.core.training.device_check import mesh_of
from gpt_jax.core.training.parts import Parts

B, L, V, D, F, K = 3, 11, 23, 17, 29, 7
H, G = 6, 2  # heads divide by key/value heads, so these are not prime

# Flags of a run on this project's own configs, as bytes.
_CONFIGS = pathlib.Path(__file__).parents[2] / 'configs'
SMOKE = [
  f'--config={_CONFIGS}/smoke.py',
  f"--config.data.source=text('{_CONFIGS}/*.py')",
  '--config.data.holdout=tail(fraction=0.1)',
  '--config.tokenizer.name=bytes',
]


def flags(**sections: dict[str, Any]) -> list[str]:
  """Flags that set fields of a config: `flags(model=dict(num_layers=2))`."""
  return [
    f'--config.{section}.{field}={value}'
    for section, fields in sections.items()
    for field, value in fields.items()
  ]


MODEL = {
  'vocab_size': V,
  'context_length': 13,
  'num_layers': 5,
  'd_model': D,
  'num_heads': H,
  'num_kv_heads': G,
  'head_size': K,
  'value_size': 0,
  'encoder_num_heads': 0,
  'd_ff': F,
  'encoder_d_ff': 0,
  'num_encoder_layers': 0,
  'num_source_layers': 0,
  'source_vocab_size': 0,
  'input': 'tokens',
  'position': 'learned',
  'attention': 'full',
  'encoder_attention': None,
  'attention_scale': 'rsqrt',
  'attention_backend': 'auto',
  'ffn': 'gelu_tanh',
  'encoder_ffn': None,
  'norm': 'layernorm',
  'block': 'pre',
  'bias': 'all',
  'output': 'tied',
  'dropout': 'none',
  'matmul': 'plain',
  'init_weights': 'normal(stddev=0.02)',
  'dtype': 'float32',
  'remat': 'none',
  'loop': 'scan',
  'share': 'none',
  'pipeline': 'circular',
}

# What splits over a mesh cannot be prime: all of these divide by 8.
MESHABLE = {
  'model.vocab_size': 48,
  'model.context_length': 7,
  'model.num_layers': 3,
  'model.d_model': 24,
  'model.num_heads': 8,
  'model.num_kv_heads': 4,
  'model.head_size': 2,
  'model.d_ff': 40,
  'batch.size': 16,
  'batch.micro_rows': 16,
}


def model(**changes: Any) -> Transformer:
  """The model of `MODEL` with some fields changed."""
  return make_model(**{**MODEL, **changes})


def config(**changes: Any) -> ConfigDict:
  """The base config with the model of `MODEL`, unresolved.

  `changes` replace fields by their dotted names.
  """
  out = base.get_config().unlock()
  fields = {f'model.{name}': value for name, value in MODEL.items()}
  # Two rows on each of the eight devices.
  fields |= {'batch.size': 16, 'schedule.num_steps': 20, **changes}
  out.update_from_flattened_dict(fields)
  return out.lock()


def holding(**changes: Any) -> ConfigDict:
  """The config with values that a `ConfigDict` itself may refuse."""
  found = config()
  for field, value in changes.items():
    *sections, name = field.split('.')
    section: Any = found
    for part in sections:
      section = section[part]
    with section.unlocked(), section.ignore_type():
      section[name] = value
  return found


def random_like(tree: Any, *, seed: int, size: float = 0.3) -> Any:
  """Normal float32 numbers, around 1 for norm scales and 0 for the rest.

  Unlike initial parameters they leave no bias at 0 and no scale at 1, where
  a mistake could hide.
  """
  rng = np.random.default_rng(seed)

  def draw(path, leaf):
    center = 1.0 if path[-1].key == 'scale' else 0.0
    return np.float32(center + size * rng.normal(size=leaf.shape))

  return jax.tree_util.tree_map_with_path(draw, tree)


def shapes(objective: Objective) -> Any:
  """The shapes of an objective's parameters."""
  return nn.meta.unbox(objective.shapes)


@functools.cache
def params(module: Transformer, seed: int = 0) -> Any:
  """Random parameters of a model, as `random_like` makes them."""
  tokens = np.zeros((1, 1), np.int32)
  shapes = jax.eval_shape(module.init, jax.random.key(0), tokens)
  return random_like(nn.meta.unbox(shapes['params']), seed=seed)


def tokens(*shape: int, seed: int = 0, vocab_size: int = V) -> np.ndarray:
  """Random ids."""
  return np.random.default_rng(seed).integers(vocab_size, size=shape, dtype=np.int32)


def batch(rows: int, length: int, vocab_size: int) -> dict[str, np.ndarray]:
  """A causal batch in which a third of the tokens do not count."""
  ids = tokens(rows, length + 1, vocab_size=vocab_size)
  rng = np.random.default_rng(1)
  weights = rng.random((rows, length)) < np.linspace(0.2, 1, rows)[:, None]
  return {'inputs': ids[:, :-1], 'targets': ids[:, 1:], 'weights': weights.astype(np.float32)}


def make_mesh(
  data: int, fsdp: int, tensor: int, *, expert: int = 1, context: int = 1, stage: int = 1
) -> Mesh:
  """A mesh of the first devices, as many as it needs."""
  shape = (data, stage, fsdp, expert, context, tensor)
  devices = np.array(jax.devices()[: np.prod(shape)])
  return Mesh(devices.reshape(shape), sharding.AXES)


@pytest.fixture(autouse=True, scope='module')
def one_device() -> Iterator[None]:
  """Meshes are of one device, unless a test makes its own."""
  make = sharding.make_mesh

  def alone(config: Any, devices: Any = None, *, width: int = 0) -> Mesh:
    return make(config, devices or jax.devices()[:1], width=width)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(sharding, 'make_mesh', alone)
    yield


def build(
  config: ConfigDict,
  sizes: tuple[int, int, int],
  *,
  expert: int = 1,
  context: int = 1,
  stage: int = 1,
  **parts: Any,
) -> Parts:
  """A run on the first devices: `sizes` of data, fsdp, tensor."""
  run = parts_lib.build(config_lib.resolve(config))._replace(**parts)
  mesh = make_mesh(*sizes, expert=expert, context=context, stage=stage)
  return run._replace(
    mesh=mesh,
    shardings=parts_lib.state_shardings(
      run.objective,
      run.optimizer,
      mesh,
      run.rules,
      run.average,
      run.outer,
      on_host=run.config.optim.state == 'host',
    ),
    batch_sharding=sharding.batch_sharding(mesh, run.rules),
  )


def save(folder: pathlib.Path, tokenizer: Tokenizer, **fields: Any) -> None:
  """A workdir of a model of random parameters; `fields` are as in `config`."""
  fields = {'model.vocab_size': tokenizer.vocab_size, 'optim.name': 'sgd', **fields}
  fields |= {'tokenizer.name': 'bytes'}
  resolved = config_lib.resolve(config(**fields))
  parts = parts_lib.build(resolved, mesh_of(resolved, jax.devices()[:1]))
  Checkpointer(str(folder)).finish(parts_lib.initial_state(parts))
  (folder / 'config.json').write_text(config_lib.to_json(parts.config))
  tokenizer.save(str(folder / 'tokenizer'))


def change_config(workdir: pathlib.Path, old: str, new: str) -> int:
  """Replaces a text in a run's config, as a user does by hand; returns how often."""
  path = workdir / 'config.json'
  fields = json.loads(path.read_text())
  del fields['sha256']
  text = json.dumps(fields)
  path.write_text(text.replace(old, new))
  return text.count(old)


def assert_close(found: Any, expected: Any) -> None:
  """Equal trees, but for the order of float32 sums."""

  def compare(a, b):
    scale = float(np.max(np.abs(b)))
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-5 * scale + 2e-7)

  jax.tree.map(compare, found, expected)


@dataclass(frozen=True)
class LossOnly(Objective):
  """An objective of a loss alone, whose parameters and batches are given."""

  function: Callable[..., Loss]

  @property
  def needs(self) -> Needs:
    return Needs()

  def loss(self, params, batch, key) -> Loss:
    return self.function(params, batch, key)
