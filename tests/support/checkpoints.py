# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Small checkpoints in Hugging Face's format, and their options."""

import json
import pathlib
import re
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from gpt_jax import hf
from gpt_jax.core.nn.transformer import Transformer, make_model
from gpt_jax.hf.base import Options
from gpt_jax.hf.families import FAMILIES
from tests.support.golden_io import ROOT, config, tensors


def _sizes(width: int, layers: int, **more: int) -> dict[str, int]:
  return {
    **{'vocab_size': 23, 'num_attention_heads': 6, 'hidden_size': width},
    **{'num_hidden_layers': layers, **more},
  }


# The options that a family requires, by model_type: sizes that differ.
_FFN = {'intermediate_size': 29}
_LLAMA = _sizes(34, 3, head_dim=4, max_position_embeddings=128, **_FFN)
_GROUPS = {'num_key_value_heads': 2, 'head_dim': 8, **_FFN}
_GEMMA = _sizes(18, 7, sliding_window=5, **_GROUPS)
_T5 = {'vocab_size': 23, 'd_model': 17, 'num_heads': 5, 'd_kv': 7, 'd_ff': 29}
REQUIRED: dict[str, dict[str, Any]] = {
  'llama': _LLAMA,
  'mistral': _LLAMA,
  'qwen3': _sizes(17, 5, **_GROUPS),
  'olmo2': _sizes(48, 5, **_FFN),
  'gemma2': _GEMMA,
  'gemma3_text': _GEMMA,
  'falcon': _sizes(24, 3),
  't5': {**_T5, 'num_layers': 3},
  'switch_transformers': _T5,
  'big_bird': {
    **{'vocab_size': 50_358, 'hidden_size': 768, 'num_hidden_layers': 12},
    **{'num_attention_heads': 12, 'intermediate_size': 3072},
  },
}


def fields(model_type: str, **options: Any) -> dict[str, Any]:
  """What a family reads from its required options and others."""
  given = Options(REQUIRED[model_type] | options)
  return FAMILIES[model_type].fields(given)


def write(folder: pathlib.Path, values: dict[str, Any], weights: dict[str, Any]) -> str:
  """Writes a checkpoint; returns its folder."""
  folder.mkdir(exist_ok=True)
  (folder / 'config.json').write_text(json.dumps(values))
  save_file(weights, folder / 'model.safetensors', metadata={'format': 'pt'})
  return str(folder)


def changed(folder: pathlib.Path, name: str, **options: Any) -> str:
  """Writes a recorded checkpoint with other options."""
  return write(folder / name, config(ROOT / name) | options, tensors(ROOT / name))


def plain(model: Transformer, **changes: Any) -> Transformer:
  """The model as if it had been trained here."""
  fields = {name: getattr(model, name) for name in hf.transformer_fields()}
  return make_model(**{**fields, **changes})


def assert_tensors(folder: pathlib.Path, expected: dict[str, Any]) -> None:
  """The folder holds these tensors, to the last bit, and no others."""
  found = load_file(folder / 'model.safetensors')
  assert {*found} == {*expected}
  for name, value in expected.items():
    np.testing.assert_array_equal(found[name], value, name, strict=True)


def assert_round_trip(
  folder: pathlib.Path, model: Any, params: Any, weights: dict[str, Any]
) -> None:
  """An export of an import has the tensors that were imported."""
  hf.save(str(folder), model, params)
  assert_tensors(folder, weights)


def renamed(weights: dict[str, Any], *pairs: tuple[str, str]) -> dict[str, Any]:
  """Tensors under names in which patterns are replaced, one after another."""
  out = {}
  for name, value in weights.items():
    for old, new in pairs:
      name = re.sub(old, new, name)
    out[name] = value
  return out


def with_vocabulary(folder: pathlib.Path) -> None:
  """Writes GPT-2 of the tiny fixture, with 112 tokens: letters and a merge."""
  (folder / 'model.safetensors').write_bytes((ROOT / 'gpt2_lm' / 'model.safetensors').read_bytes())
  (folder / 'config.json').write_text(json.dumps(config(ROOT / 'gpt2_lm')))
  tokens = [chr(i) for i in range(33, 127)] + ['Ġ', 'ab', '<|endoftext|>']
  known = {token: i for i, token in enumerate(tokens)}
  (folder / 'vocab.json').write_text(json.dumps(known))
  (folder / 'merges.txt').write_text('#version: 0.2\na b\n')
