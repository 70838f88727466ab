# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Runs pipelines of Apache Beam, and says what went wrong as without it."""

import re
import shlex
from collections.abc import Callable
from typing import NamedTuple

import apache_beam as beam  # pyright: ignore[reportMissingImports]
from apache_beam import runners  # pyright: ignore[reportMissingImports]
from apache_beam.options import (  # pyright: ignore[reportMissingImports]
  pipeline_options,
)

from gpt_jax.spec import UsageError
from gpt_jax.text.holdout import Split


class Job(NamedTuple):
  """Where pipelines run."""

  runner: str  # as Beam names it: DirectRunner, DataflowRunner, ...
  options: str  # of Beam, as a command line has them


def check(job: Job, split: Split, holdout: str):
  """Looks whether a job can be done, before anything is."""
  if split.units is None:
    raise UsageError(
      f'data.holdout={holdout!r}: counts characters over the whole '
      'corpus, which no worker of --runner sees; take '
      "'documents(fraction=0.02)', or leave --runner out"
    )
  _runner(job.runner)


def run(job: Job, lay_out: Callable[[beam.Pipeline], None]):
  """Runs a pipeline, and waits for its end."""
  parsed = pipeline_options.PipelineOptions(shlex.split(job.options))
  pipeline = beam.Pipeline(runner=_runner(job.runner), options=parsed)
  lay_out(pipeline)
  try:
    pipeline.run().wait_until_finish()
  except Exception as e:
    # Beam raises what a worker raised as text, or with its own added.
    of_ours = isinstance(e, UsageError) or re.search(
      r'gpt_jax\.[\w.]*(?:UsageError|Bad): ', str(e)
    )
    if of_ours:
      raise UsageError(_line(e)) from e
    raise


def _runner(name: str):
  try:
    return runners.create_runner(name)
  except (ValueError, ImportError, AttributeError) as e:
    raise UsageError(
      f'--runner={name}: {_line(e)}; name one of Beam, such as DirectRunner, '
      'DataflowRunner, FlinkRunner or SparkRunner'
    ) from e


def _line(error: Exception) -> str:
  """The text of an error without what Beam adds."""
  text = str(error)
  found = re.search(r'gpt_jax\.[\w.]*(?:UsageError|Bad): (.*)', text)
  line = found[1] if found else text.strip().partition('\n')[0]
  return line.partition(' [while running')[0]
