# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The loss of a trained model on its run's held-out text."""

from collections.abc import Callable, Mapping

from gpt_jax.core import config as config_lib
from gpt_jax.core import spec
from gpt_jax.core.config import Config
from gpt_jax.core.objectives.choices import OBJECTIVES
from gpt_jax.core.rows.row_makers import ROWS
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokens import eval_sets
from gpt_jax.core.tokens.eval_sets import EvalSet
from gpt_jax.core.training import parts as parts_lib
from gpt_jax.core.training import store_data
from gpt_jax.core.training.held_out import HeldOut
from gpt_jax.evaluation import figures, results
from gpt_jax.opening.models import Trained

# Pairs of texts that a head can tell apart, see `papers.bert.masked`.
PAIRS = ('next', 'order')


def measure(trained: Trained, workdir: str, config: Config | None = None) -> dict[str, float]:
  """Losses of the held-out split of a run and of the sets of `eval.sets`.

  `config` may have another objective and other rows than the run's.
  """
  if config is None:
    config = trained.parts.config
  assert config is not None
  sets = held_out_sets(config, workdir)
  config_lib.check_objective(config)
  # Some objectives need the tokenizer to make batches.
  parts = parts_lib.build(config, tokenizer=trained.tokenizer)
  values = HeldOut(parts, sets)(trained.state.eval_params)
  assert values is not None  # nothing stopped it
  for key, value in values.items():
    if key.endswith('/tokens') and not value:
      raise UsageError(
        f'{key}=0: the held-out text has no token that objective.name='
        f'{config.objective.name!r} predicts; hold more text out'
      )
  figures.check_finite(values)
  return values


def held_out_sets(config: Config, workdir: str) -> dict[str, EvalSet]:
  """The held-out split of a run, and the sets of `eval.sets`."""
  store = store_data.open_store(config, workdir)
  sets = eval_sets.held_out(config, store.ordered('stdlib', config.data.rows))
  if not sets:
    raise UsageError('data.holdout=none: this run held no text out; set data.holdout')
  return sets


def of_pairs(trained: Trained, workdir: str, kind: str) -> dict[str, float]:
  """How well an encoder's head tells pairs of held-out texts apart.

  The pairs may be of another kind than in training (ALBERT, table 5).

  Args:
    kind: 'next' or 'order', see `papers.bert.masked`.

  Returns:
    `eval/NAME/pairs_KIND_accuracy` and `..._loss` of each held-out set.
  """
  config = with_pairs(trained.parts.config, kind)
  values = measure(trained, workdir, config)
  return {
    key.replace('/pair_', f'/pairs_{kind}_'): value
    for key, value in values.items()
    if '/pair_' in key
  }


def with_pairs(config: Config, kind: str) -> Config:
  """The config of a run whose head tells pairs apart, for another kind."""
  text = config.objective.name
  (objective,) = spec.bind_all('objective.name', text, OBJECTIVES)
  # UniLM's bidirectional rows are pairs of next sentences.
  unified = objective.name == 'unified'
  if not unified and objective.kwargs.get('pair', 'none') == 'none':
    raise UsageError(
      f'--pairs={kind}: objective.name={text!r} trained no head of pairs; give '
      "a run of masked(pair='next') or masked(pair='order')"
    )
  (rows,) = spec.bind_all('data.rows', config.data.rows, ROWS)
  config = config_lib.unlocked(config)
  if unified:
    config.objective.name = f'masked(pair={kind!r})'
  else:
    config.objective.name = _with_kind(objective, OBJECTIVES, kind)
  config.data.rows = _with_kind(rows, ROWS, kind)
  return config.lock()


def _with_kind(call: spec.Call, choices: Mapping[str, Callable], kind: str) -> str:
  kwargs = {**call.kwargs, 'pair': kind}
  return results.written(call._replace(kwargs=kwargs), choices)
