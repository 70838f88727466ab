# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Whether the objective can train the models of a config."""

from gpt_jax import spec
from gpt_jax.config import models
from gpt_jax.config.fields import Config
from gpt_jax.data import row_makers
from gpt_jax.nn.pattern import period
from gpt_jax.objectives import choices as objectives
from gpt_jax.spec import UsageError


def check_objective(config: Config) -> None:
  """Checks that the objective can train the models.

  Raises:
    UsageError: it cannot.
  """
  name = config.objective.name
  needs = objectives.needs(name)
  objectives.check_parts(name, config.models)
  teacher = config.objective.teacher
  if teacher and not (needs.frozen or needs.stored):
    raise UsageError(
      f'objective.teacher={teacher!r}: objective.name={name!r} has no teacher; '
      'leave it empty'
    )
  for part in ('', *config.models):
    with models.named(part):
      _check_model(models.of_part(config, part))
  rows = config.data.rows
  (call,) = spec.parse('data.rows', rows)
  if needs.rows and call.name not in needs.rows:
    raise UsageError(
      f'data.rows={rows!r}: objective.name={name!r} is made from '
      + ' or '.join(needs.rows)
    )
  if needs.pair and row_makers.pair_of(rows) != needs.pair:
    raise UsageError(
      f'data.rows={rows!r}: makes other pairs than objective.name={name!r} '
      f'is trained on; set data.rows="pairs({needs.pair!r})"'
    )


def _check_model(config: Config) -> None:
  """Checks that the objective can train `config.model`."""
  model, name = config.model, config.objective.name
  needs = objectives.needs(name)
  causal = [p.attention.causal for p in period(model.attention, model.ffn)]
  if needs.attention == 'causal' and not all(causal):
    raise UsageError(
      f'model.attention={model.attention!r}: tokens would see the targets of '
      f'objective.name={name!r}; take causal patterns'
    )
  if needs.attention == 'bidirectional' and any(causal):
    raise UsageError(
      f'model.attention={model.attention!r}: objective.name={name!r} trains '
      "models that see both sides of a token; take 'bidirectional'"
    )
  if needs.encoder != bool(model.num_encoder_layers):
    trained, give = (
      ('encoder-decoders', '1 or more')
      if needs.encoder
      else (('decoders' if needs.attention == 'causal' else 'encoders'), '0')
    )
    raise UsageError(
      f'model.num_encoder_layers={model.num_encoder_layers}: objective.name='
      f'{name!r} trains {trained}; give {give}'
    )
