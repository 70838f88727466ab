# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tensors of AWD-LSTM and ELMo by name: read, computed, written back.

To the last bit.
"""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from gpt_jax import hf
from gpt_jax.core.nn.caches import LstmState
from gpt_jax.core.nn.row import Row
from gpt_jax.core.nn.stack import layer_outputs
from gpt_jax.core.spec import UsageError
from tests.support.golden_io import ROOT, case, config, tensors

AWD_LSTM, ELMO = ROOT / 'awd_lstm', ROOT / 'elmo_mini'
MODEL_TYPES = {AWD_LSTM: 'awd_lstm', ELMO: 'elmo'}
OF_TASK = 'scalar_mix.'


def released(name):
  """The name in the released code, whose LSTMs are wrapped for weight drop."""
  raw = '_raw' if 'weight_hh' in name else ''
  return name.replace('_l0', f'_l0{raw}').replace('.weight_', '.module.weight_')


def write(folder, fixture, names=None, **changes):
  folder.mkdir()
  given = {'model_type': MODEL_TYPES[fixture], **config(fixture), **changes}
  (folder / 'config.json').write_text(json.dumps(given))
  found = {names(n) if names else n: x for n, x in tensors(fixture).items()}
  save_file(found, folder / 'model.safetensors')
  return str(folder)


def assert_comes_back(model, params, tmp_path, unread='-'):
  """From the folder `in`, of which all but `unread` is written to `out`."""
  hf.save(str(tmp_path / 'out'), model, params)
  written, expected = tensors(tmp_path / 'out'), tensors(tmp_path / 'in')
  expected = {n: x for n, x in expected.items() if not n.startswith(unread)}
  assert written.keys() == expected.keys()
  for name, x in expected.items():
    np.testing.assert_array_equal(written[name], x, err_msg=name)
  assert config(tmp_path / 'out') == config(tmp_path / 'in')


@pytest.mark.parametrize('names', [None, released])
def test_an_awd_lstm_computes_what_torch_did_and_comes_back(names, tmp_path):
  folder = write(tmp_path / 'in', AWD_LSTM, names)
  model, params = hf.load(folder)
  golden = case(AWD_LSTM, 'eval')
  given = golden.inputs
  # Theirs is [1, batch, width]; our first axis is that of the single period.
  states = tuple(LstmState(given[f'h{i}'], given[f'c{i}']) for i in range(3))
  out = model.apply({'params': params}, given['input_ids'], states)
  logits = model.apply({'params': params}, out.hidden_BLD, method='logits')
  assert golden.max_error('output', out.hidden_BLD) < 1e-5
  assert golden.max_error('logits', logits) < 1e-5
  assert_comes_back(model, params, tmp_path)


def test_elmo_computes_the_recorded_values_and_comes_back(tmp_path):
  model, params = hf.load(write(tmp_path / 'in', ELMO))
  golden = case(ELMO, 'main')
  real = golden.valid['tokens']
  out, sown = model.apply(
    {'params': params}, Row(golden.inputs['characters'], real_BL=real), mutable=['intermediates']
  )
  sown = sown['intermediates']
  layers = np.stack([sown['embedded'][0], *layer_outputs(sown)])
  np.testing.assert_allclose(
    layers[:, real], golden.outputs['layers'][:, real], rtol=1e-5, atol=1e-5
  )
  ahead = np.split(out.hidden_BLD, 2, axis=-1)[0]
  logits = model.apply({'params': params}, ahead, method='logits')
  np.testing.assert_allclose(
    logits[:, :-1][real[:, 1:]], golden.outputs['forward_logits'][real[:, 1:]], rtol=1e-5, atol=1e-5
  )
  assert_comes_back(model, params, tmp_path, OF_TASK)


@pytest.mark.parametrize(
  ('fixture', 'changes', 'message'),
  [
    (AWD_LSTM, {'dropout': 0.5}, 'dropout=0.5: must have a rate for each place'),
    (AWD_LSTM, {'dropout': {'input': 'a'}}, "input='a': must be a number"),
    (AWD_LSTM, {'hidden_size': 11}, r'weight_ih_l0 is \(40, 6\), not \(44, 6\)'),
    (AWD_LSTM, {'num_layers': 4}, 'num_layers=4: is more than the files'),
    (ELMO, {'filters': 3}, 'filters=3: must be pairs of a width and a number'),
    (ELMO, {'filters': [[1, 4]]}, r'conv\.|highway\.|not'),
    (ELMO, {'cell_size': 11}, r'input_linearity.weight is \(40, 6\), not \(44, 6\)'),
    (ELMO, {'num_layers': 3}, r'2\.input_linearity.weight is missing'),
  ],
)
def test_what_does_not_fit_is_refused(fixture, changes, message, tmp_path):
  folder = write(tmp_path / 'in', fixture, **changes)
  with pytest.raises(UsageError, match=message):
    hf.load(folder)
