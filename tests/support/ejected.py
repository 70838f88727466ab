# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Runs of a config by the package, and by the file that it is ejected to."""

import types
from typing import Any, NamedTuple

import jax
import numpy as np

from gpt_jax.core import config as config_lib
from gpt_jax.core import sharding
from gpt_jax.core.config import loading
from gpt_jax.core.optim.train_state import TrainState
from gpt_jax.core.rows import row_order
from gpt_jax.core.rows.batch_rows import BatchRows
from gpt_jax.core.training import compiled, parts
from gpt_jax.ejecting import file, weights
from tests.support import tiny


class Run(NamedTuple):
  """The losses of the steps, and the last parameters, in the file's form."""

  losses: list[float]
  params: Any


def config_of(name: str, **changes: Any) -> Any:
  """A resolved config with other fields, by their dotted names."""
  config = loading.read(name).unlock()
  for field, value in changes.items():
    section, entry = field.split('.', 1)
    if section == 'data' and entry == 'sources':
      config.data.sources = value
      continue
    with config[section].ignore_type():
      config[section][entry] = value
  return config_lib.resolve(config.lock())


def module_of(config: Any) -> Any:
  """The ejected file, as a module."""
  module = types.ModuleType('ejected')
  exec(compile(file.text(config, 'A test.'), 'ejected.py', 'exec'), module.__dict__)
  return module


def by_package(config: Any, store: Any, steps: int) -> tuple[Any, Run]:
  """The first parameters, in the package's form, and the run of some steps."""
  run = parts.build(config, tiny.make_mesh(1, 1, 1), tokenizer=store.tokenizer())
  first = tiny.random_like(parts.param_shapes(run.objective), seed=1, size=0.1)
  state = TrainState(np.int32(0), first, jax.jit(run.optimizer.init)(first))
  state = jax.device_put(state, run.shardings)
  batches = row_order.batches(
    store,
    seed=config.seed,
    start=0,
    stop=steps,
    rows=lambda step: BatchRows(*run.ramp.batch(step)),
    make_batch=run.objective.make_batch,
  )
  calls, losses = {}, []
  for step, batch in enumerate(batches):
    shape = run.ramp.shape(step)
    if shape not in calls:
      calls[shape] = compiled.compile_train_step(run, shape).call
    state, metrics = calls[shape](state, run.put(batch, shape.rows))
    losses.append(float(metrics['loss']))
  return first, Run(losses, weights.to_plain(jax.tree.map(np.array, state.params)))


def by_file(module: Any, first: Any, folder: Any, steps: int) -> Run:
  """The same by the ejected file, from the package's first parameters."""
  with jax.numpy_rank_promotion('allow'):
    store = module.open_store(str(folder))
    params = jax.tree.map(jax.numpy.array, weights.to_plain(first))
    module.__dict__[first_of(module)] = lambda *_: params
    params, losses = module.train(store, str(folder / 'run.npz'), None, steps, steps)
  return Run(losses, jax.tree.map(np.array, params))


def first_of(module: Any) -> str:
  """The name of the function that draws the first parameters."""
  (name,) = {'init_decoder', 'init_encoder', 'init_encoder_decoder'} & vars(module).keys()
  return name


def init_of(module: Any) -> Any:
  """The function that draws the first parameters."""
  return vars(module)[first_of(module)]


def moments_of(module: Any) -> Any:
  """The function that makes the optimizer's state."""
  (name,) = {'init_adam', 'init_adafactor'} & vars(module).keys()
  return vars(module)[name]


def package_step(config: Any) -> Any:
  """The package's traced step, of the last stage's shape."""
  run = parts.build(config, tiny.make_mesh(1, 1, 1))
  jitted, args = compiled.jit_train_step(run, run.ramp.stages[-1].shape)
  with sharding.use(run.mesh, run.rules):
    return jitted.trace(*args)


def file_step(config: Any) -> Any:
  """The file's, for a batch of the same shapes."""
  step, args = step_of(config)
  with jax.numpy_rank_promotion('allow'):
    return step.trace(*args)


def step_of(config: Any) -> tuple[Any, Any]:
  """The file's jitted step, and its abstract arguments, of the last stage's shape."""
  module, run = module_of(config), parts.build(config, tiny.make_mesh(1, 1, 1))
  batch = dict(compiled.abstract_batch(run, *run.ramp.stages[-1].shape, training=True))
  names = {'masked_targets': 'targets', 'masked_weights': 'weights', 'pair_labels': 'pair'}
  batch = {names.get(name, name): x for name, x in batch.items()}
  with jax.numpy_rank_promotion('allow'):
    params = jax.eval_shape(init_of(module), jax.random.key(0))
    moments = jax.eval_shape(moments_of(module), params)
  number = jax.ShapeDtypeStruct((), np.float32)
  return module.train_step, (params, moments, batch, number, number)


# A config of each paper of the lineage, and the most lines of its file.
LINEAGE = {
  'transformer': ('configs/transformer.py:base', 800),
  'gpt1': ('configs/gpt1.py:117m', 600),
  'bert': ('configs/bert.py:base', 800),
  'gpt2': ('configs/gpt2.py:small', 600),
  't5': ('configs/t5.py:base', 800),
  'gpt3': ('configs/gpt3.py:125m', 600),
  'switch': ('configs/switch.py:base-8', 800),
  'switch_t5': ('configs/switch.py:t5-base-128', 800),
  'gopher': ('configs/gopher.py:44m', 600),
  'chinchilla': ('configs/chinchilla.py:70b', 600),
  'palm': ('configs/palm.py:8b', 600),
  'llama': ('configs/llama.py:7b', 600),
  'llama3': ('configs/llama3.py:8b', 600),
}


def leaves(tree: Any) -> list[Any]:
  """The arrays of a tree."""
  return jax.tree.leaves(tree)


def logits_of_package(config: Any, tokens: Any) -> tuple[Any, Any]:
  """Random parameters, and a decoder's logits with them."""
  model = config_lib.transformer(config)
  params = tiny.random_like(parts.param_shapes(config_lib.objective(config)), seed=3, size=0.1)
  out = model.apply({'params': params}, tokens)
  return params, model.apply({'params': params}, out.hidden_BLD, method='logits')


def logits_of_file(module: Any, params: Any, tokens: Any) -> Any:
  """The file's, with its parameters."""
  with jax.numpy_rank_promotion('allow'):
    return module.logits(params, module.hidden_states(params, {'inputs': tokens}))


def count(jaxpr: Any, primitive: str) -> int:
  """How often a program has a primitive, in all of its functions; a loop counts once."""
  jaxpr = getattr(jaxpr, 'jaxpr', jaxpr)
  inner = [x for e in jaxpr.eqns for x in jax.tree.leaves([*e.params.values()]) if is_jaxpr(x)]
  own = sum(equation.primitive.name == primitive for equation in jaxpr.eqns)
  return own + sum(count(x, primitive) for x in inner)


def is_jaxpr(x: Any) -> bool:
  """Whether a parameter of an equation is a program."""
  return hasattr(x, 'eqns') or hasattr(x, 'jaxpr')
