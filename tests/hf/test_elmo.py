# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""ELMo's tensors by name: read, computed, written back to the last bit."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from gpt_jax import hf
from gpt_jax.nn.stack import layer_outputs
from gpt_jax.spec import UsageError
from tests.support.golden_io import ROOT, case, config, tensors

FOLDER = ROOT / 'elmo_mini'
OF_TASK = 'scalar_mix.'


def write(folder, **changes):
  folder.mkdir()
  given = {'model_type': 'elmo', **config(FOLDER), **changes}
  (folder / 'config.json').write_text(json.dumps(given))
  save_file(tensors(FOLDER), folder / 'model.safetensors')
  return str(folder)


def test_a_checkpoint_computes_the_recorded_values_and_comes_back(tmp_path):
  model, params = hf.load(write(tmp_path / 'in'))
  golden = case(FOLDER, 'main')
  real = golden.valid['tokens']
  out, sown = model.apply(
    {'params': params},
    golden.inputs['characters'],
    mask_BL=real,
    mutable=['intermediates'],
  )
  sown = sown['intermediates']
  layers = np.stack([sown['embedded'][0], *layer_outputs(sown)])
  np.testing.assert_allclose(
    layers[:, real], golden.outputs['layers'][:, real], rtol=1e-5, atol=1e-5
  )
  ahead = np.split(out.hidden_BLD, 2, axis=-1)[0]
  logits = model.apply({'params': params}, ahead, method='logits')
  np.testing.assert_allclose(
    logits[:, :-1][real[:, 1:]],
    golden.outputs['forward_logits'][real[:, 1:]],
    rtol=1e-5,
    atol=1e-5,
  )
  hf.save(str(tmp_path / 'out'), model, params)
  written = tensors(tmp_path / 'out')
  expected = {
    n: x for n, x in tensors(FOLDER).items() if not n.startswith(OF_TASK)
  }
  assert written.keys() == expected.keys()
  for name, x in expected.items():
    np.testing.assert_array_equal(written[name], x, err_msg=name)
  assert config(tmp_path / 'out') == config(tmp_path / 'in')


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'filters': 3}, 'filters=3: must be pairs of a width and a number'),
    ({'filters': [[1, 4]]}, r'conv\.|highway\.|not'),
    ({'cell_size': 11}, r'input_linearity.weight is \(40, 6\), not \(44, 6\)'),
    ({'num_layers': 3}, r'2\.input_linearity.weight is missing'),
  ],
)
def test_what_does_not_fit_is_refused(changes, message, tmp_path):
  folder = write(tmp_path / 'in', **changes)
  with pytest.raises(UsageError, match=message):
    hf.load(folder)
