# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""ALBERT's groups of layers and its biases, and what is refused."""

import json
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from gpt_jax import hf
from gpt_jax.hf.base import Options
from gpt_jax.hf.bert import ALBERT
from gpt_jax.nn.transformer import Transformer
from gpt_jax.spec import UsageError
from tests.support.golden_io import ROOT, config, tensors

GROUPS = ROOT / 'albert_groups'
BIASES = ('predictions.bias', 'predictions.decoder.bias')


def test_fields_of_groups_and_inner_layers():
  fields = ALBERT.fields(Options(config(GROUPS)))
  # Four layers, each of two inner ones; the first two layers are a group.
  assert fields['num_layers'] == 8
  assert fields['share'] == 'all(groups=2, inner=2)'
  odd = config(GROUPS) | {'num_hidden_layers': 5}
  with pytest.raises(UsageError, match='num_hidden_groups=2: does not divide'):
    ALBERT.fields(Options(odd))


@pytest.mark.parametrize('spelling', BIASES)
def test_exports_have_both_spellings_of_the_bias(tmp_path, spelling):
  weights = tensors(ROOT / 'albert_pretraining')
  bias = weights.pop(BIASES[0])
  values = config(ROOT / 'albert_pretraining')
  (tmp_path / 'config.json').write_text(json.dumps(values))
  save_file(weights | {spelling: bias}, tmp_path / 'model.safetensors')
  hf.save(str(tmp_path / 'out'), *hf.load(str(tmp_path)))
  found = load_file(tmp_path / 'out' / 'model.safetensors')
  for name in BIASES:
    np.testing.assert_array_equal(found[name], bias)


def test_a_model_of_our_own_with_both_heads(tmp_path):
  """As trained here, without the original config."""
  model, params = hf.load(str(GROUPS))
  fields: Any = {name: getattr(model, name) for name in hf.transformer_fields()}
  hf.save(str(tmp_path), Transformer(**fields), params, kind='pretraining')
  again, params_again = hf.load(str(tmp_path))
  assert {name: getattr(again, name) for name in fields} == fields
  assert again.origin.kind == 'pretraining'
  jax.tree.map(np.testing.assert_array_equal, params_again, params)
  other = Transformer(**fields | {'share': 'attention'})
  with pytest.raises(
    UsageError, match=r"albert cannot: model\.share='attention'"
  ):
    hf.save(str(tmp_path), other, params)
