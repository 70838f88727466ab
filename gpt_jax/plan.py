# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Plans a run before it is launched: what a budget buys.

  gpt-jax plan --budget 5.76e23
  gpt-jax plan --chips v4-512 --days 21 --mfu 0.45
  gpt-jax plan --budget 5.76e23 --inference_tokens 2e12
  gpt-jax plan --budget 1e18 --fit W/scaling.json --json

Of a budget of training FLOPs it shows the parameters and tokens that
Chinchilla's three approaches and Kaplan's law give it, and the nearest of the
papers' configs in ./configs.
"""

from absl import flags

from gpt_jax import command
from gpt_jax.planning import budget


def define(values: flags.FlagValues) -> None:
  """Adds this command's flags."""
  budget.define(values)
  flags.DEFINE_bool('json', False, 'Print one JSON object.', flag_values=values)


def main(args: command.Args) -> None:
  """Runs the command."""
  budget.main(args)
