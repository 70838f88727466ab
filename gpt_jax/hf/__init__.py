# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Hugging Face checkpoints: read, write, and run under HF's own names.

  model, params = hf.load('gpt2')       # a folder
  out = hf.forward(model, params, input_ids=ids)
  hf.save('copy', model, params)

`base.py` says how to add a model family.
"""

from gpt_jax.hf.checkpoint import load, save
from gpt_jax.hf.forward import forward
from gpt_jax.hf.layout import Imported, Origin, transformer_fields

__all__ = [
  'Imported',
  'Origin',
  'forward',
  'load',
  'save',
  'transformer_fields',
]
