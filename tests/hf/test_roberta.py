# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""RoBERTa's positions and biases, and what is refused."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from gpt_jax import hf
from gpt_jax.hf.base import Options
from gpt_jax.hf.bert import ROBERTA
from gpt_jax.spec import UsageError
from tests.support import tiny
from tests.support.golden_io import ROOT, config, tensors

MLM = ROOT / 'roberta_mlm'
BIASES = ('lm_head.bias', 'lm_head.decoder.bias')


def test_positions_count_the_tokens_that_are_no_padding():
  """cumsum(id != pad) + pad in the table's rows; 1 is padding."""
  model, params = hf.load(str(MLM))
  # The shape of the recorded call, whose program is compiled already.
  ids = np.full((3, 18), 1)
  ids[:2, :5] = [5, 7, 1, 11, 13], [1, 1, 17, 19, 23]
  rows = np.full((3, 18), 1)
  rows[:2, :5] = [2, 3, 1, 4, 5], [1, 1, 2, 3, 4]
  # The mask hides what it hides, and moves nothing.
  mask = np.ones((3, 18), np.int32)
  mask[:, 4] = 0
  inputs = {'input_ids': ids, 'attention_mask': mask}
  counted = hf.forward(model, params, **inputs)
  given = hf.forward(model, params, **inputs, position_ids=rows)
  np.testing.assert_array_equal(counted['logits'], given['logits'])
  given = hf.forward(model, params, **inputs, position_ids=rows + 1)
  assert np.abs(counted['logits'] - given['logits'])[0, 0].max() > 1e-2


@pytest.mark.parametrize('spelling', BIASES)
def test_exports_have_both_spellings_of_the_bias(tmp_path, spelling):
  weights = tensors(MLM)
  bias = weights.pop(BIASES[0])
  (tmp_path / 'config.json').write_text(json.dumps(config(MLM)))
  save_file(weights | {spelling: bias}, tmp_path / 'model.safetensors')
  hf.save(str(tmp_path / 'out'), *hf.load(str(tmp_path)))
  found = load_file(tmp_path / 'out' / 'model.safetensors')
  for name in BIASES:
    np.testing.assert_array_equal(found[name], bias)


def test_fields():
  values = config(MLM) | {'hidden_act': 'gelu_new'}
  fields = ROBERTA.fields(Options(values))
  # The head's activation is the exact one, whatever the layers have.
  assert fields['ffn'] == 'gelu_tanh'
  assert fields['output'] == "tied(bias=True, transform='gelu')"
  # Two rows of the table are before the first token's.
  assert fields['context_length'] == values['max_position_embeddings'] - 2
  for bad in (-1, True, 'one'):
    with pytest.raises(UsageError, match=r'pad_token_id=.*whole number from 0'):
      ROBERTA.fields(Options(values | {'pad_token_id': bad}))
  with pytest.raises(UsageError, match='max_position_embeddings=2: has no'):
    ROBERTA.fields(Options(values | {'max_position_embeddings': 2}))


def test_no_class_says_whether_sentences_belong_together(tmp_path):
  model, params = hf.load(str(MLM))
  fields = {name: getattr(model, name) for name in hf.transformer_fields()}
  with pytest.raises(UsageError, match=r'is a roberta, which has no class'):
    hf.save(str(tmp_path), tiny.model(**fields), params, kind='pretraining')
