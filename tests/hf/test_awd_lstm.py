# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""AWD-LSTM's tensors by name: read, computed, written back to the last bit."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from gpt_jax import hf
from gpt_jax.nn.attend import LstmState
from gpt_jax.spec import UsageError
from tests.support.golden_io import ROOT, case, config, tensors

FOLDER = ROOT / 'awd_lstm'


def released(name):
  """The name in the released code, whose LSTMs are wrapped for weight drop."""
  raw = '_raw' if 'weight_hh' in name else ''
  return name.replace('_l0', f'_l0{raw}').replace('.weight_', '.module.weight_')


def write(folder, names=None, **changes):
  folder.mkdir()
  given = {'model_type': 'awd_lstm', **config(FOLDER), **changes}
  (folder / 'config.json').write_text(json.dumps(given))
  found = {names(n) if names else n: x for n, x in tensors(FOLDER).items()}
  save_file(found, folder / 'model.safetensors')
  return str(folder)


@pytest.mark.parametrize('names', [None, released])
def test_a_checkpoint_computes_what_torch_did_and_comes_back(names, tmp_path):
  folder = write(tmp_path / 'in', names)
  model, params = hf.load(folder)
  golden = case(FOLDER, 'eval')
  given = golden.inputs
  # Theirs is [1, batch, width]; our first axis is that of the single period.
  states = tuple(LstmState(given[f'h{i}'], given[f'c{i}']) for i in range(3))
  out = model.apply({'params': params}, given['input_ids'], caches=states)
  logits = model.apply({'params': params}, out.hidden_BLD, method='logits')
  assert golden.max_error('output', out.hidden_BLD) < 1e-5
  assert golden.max_error('logits', logits) < 1e-5
  hf.save(str(tmp_path / 'out'), model, params)
  written = tensors(tmp_path / 'out')
  expected = tensors(tmp_path / 'in')
  assert written.keys() == expected.keys()
  for name, x in expected.items():
    np.testing.assert_array_equal(written[name], x, err_msg=name)
  assert config(tmp_path / 'out') == config(tmp_path / 'in')


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'dropout': 0.5}, 'dropout=0.5: must have a rate for each place'),
    ({'dropout': {'input': 'a'}}, "input='a': must be a number"),
    ({'hidden_size': 11}, r'weight_ih_l0 is \(40, 6\), not \(44, 6\)'),
    ({'num_layers': 4}, 'rnns.3.weight_ih_l0 is missing'),
  ],
)
def test_what_does_not_fit_is_refused(changes, message, tmp_path):
  folder = write(tmp_path / 'in', **changes)
  with pytest.raises(UsageError, match=message):
    hf.load(folder)
