# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Draws where the wall time of a run went."""

import os

from gpt_jax.plots.figure import load_pyplot, save_figure
from gpt_jax.spec import UsageError
from gpt_jax.training import goodput, metrics


def wall_time(
  workdir: str, out: str | None = None
) -> tuple[str, goodput.Account]:
  """Draws where the wall time went; returns the PNG's path and the figures.

  Raises:
    UsageError: the workdir has no metrics, or no starts in them.
  """
  try:
    account = goodput.account(metrics.read(workdir))
  except ValueError as e:
    raise UsageError(f'--workdir={workdir}: {e}; train a run there') from e
  figure, axes = load_pyplot().subplots(figsize=(7, 3), dpi=120)
  kinds = list(reversed(goodput.KINDS))
  bars = axes.barh(kinds, [account.seconds[kind] for kind in kinds])
  shares = [account.seconds[kind] / account.total for kind in kinds]
  axes.bar_label(bars, [f'{share:.1%}' for share in shares], padding=3)
  axes.margins(x=0.12)
  axes.set_xlabel(f'seconds of {account.total:,.0f}')
  axes.set_title(f'goodput {account.goodput:.1%}')
  return save_figure(
    figure, out or os.path.join(workdir, 'goodput.png')
  ), account
