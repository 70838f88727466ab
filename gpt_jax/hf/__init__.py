# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Hugging Face checkpoints: read, write, and run under HF's own names.

  model, params = hf.load('gpt2')       # a folder
  out = hf.forward(model, params, input_ids=ids)
  hf.save('copy', model, params)

`base.py` says how to add a model family.
"""

from gpt_jax.core.nn.params import nest
from gpt_jax.hf.checkpoint import SHARD_BYTES, HeaderSource, load, num_bytes, save, save_adapter
from gpt_jax.hf.forward import forward
from gpt_jax.hf.layout import ExportOrigin, Imported, imported, transformer_fields
from gpt_jax.hf.peft import CONFIG as ADAPTER
from gpt_jax.hf.peft import base_of, check_format

__all__ = [
  'ADAPTER',
  'SHARD_BYTES',
  'ExportOrigin',
  'HeaderSource',
  'Imported',
  'base_of',
  'check_format',
  'forward',
  'imported',
  'load',
  'nest',
  'num_bytes',
  'save',
  'save_adapter',
  'transformer_fields',
]
