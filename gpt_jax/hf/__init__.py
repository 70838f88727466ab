# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Hugging Face checkpoints: read, write, and run under HF's own names.

  model, params = hf.load('gpt2')       # a folder
  out = hf.forward(model, params, input_ids=ids)
  hf.save('copy', model, params)

`base.py` says how to add a model family.
"""

from gpt_jax.hf.checkpoint import (
  SHARD_BYTES,
  Source,
  load,
  num_bytes,
  save,
  save_adapter,
)
from gpt_jax.hf.forward import forward
from gpt_jax.hf.layout import Imported, Origin, transformer_fields
from gpt_jax.hf.peft import CONFIG as ADAPTER
from gpt_jax.hf.peft import base_of
from gpt_jax.nn.params import nest

__all__ = [
  'ADAPTER',
  'SHARD_BYTES',
  'Imported',
  'Origin',
  'Source',
  'base_of',
  'forward',
  'load',
  'nest',
  'num_bytes',
  'save',
  'save_adapter',
  'transformer_fields',
]
