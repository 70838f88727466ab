# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What an import from Hugging Face leaves in its workdir for an export."""

import os

from gpt_jax import hf
from gpt_jax.data import files, json_file
from gpt_jax.nn.transformer import Transformer
from gpt_jax.training.parts import Parts

ORIGIN = 'hf.json'


def is_import(workdir: str) -> bool:
  """Whether the model of a workdir was imported."""
  return files.read(workdir, ORIGIN) is not None


def model_of(parts: Parts, workdir: str) -> Transformer:
  """The model of a workdir, with its origin where it was imported."""
  origin = files.read(workdir, ORIGIN)
  if origin is None:
    return parts.model
  known = json_file.parse(
    origin,
    os.path.join(workdir, ORIGIN),
    remedy='convert the checkpoint again with --from_hf',
    needs=('config', 'kind', 'names'),
  )
  known['names'] = tuple(known['names'])
  return hf.Imported(**parts.config.model, origin=hf.Origin(**known))
