# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""ELECTRA's two models, and fine-tuned ones, as trained here.

Fine-tuned ones of DistilBERT and DeBERTa, too.
"""

import jax
import numpy as np
import pytest

from gpt_jax import hf
from gpt_jax.hf.base import Options
from gpt_jax.hf.bert import ELECTRA
from gpt_jax.nn.transformer import Transformer
from gpt_jax.spec import UsageError
from tests.support.golden_io import ROOT, config, tensors


def plain(name):
  """A fixture's model without what says where it came from."""
  model, params = hf.load(str(ROOT / name))
  fields = {field: getattr(model, field) for field in hf.transformer_fields()}
  return Transformer(**fields), params


@pytest.mark.parametrize(
  'name, kind, architecture',
  [
    ('electra_disc', 'replaced', 'ElectraForPreTraining'),
    ('electra_gen', 'lm', 'ElectraForMaskedLM'),
    ('electra_cls', 'gelu_classification', 'ElectraForSequenceClassification'),
    (
      *('deberta_cls', 'gelu_classification'),
      'DebertaForSequenceClassification',
    ),
    (
      *('deberta_v3_cls', 'gelu_classification'),
      'DebertaV2ForSequenceClassification',
    ),
    (
      *('distilbert_cls', 'relu_classification'),
      'DistilBertForSequenceClassification',
    ),
  ],
)
def test_models_of_our_own(tmp_path, name, kind, architecture):
  model, params = plain(name)
  labels = {str(i): f'{i}' for i in range(3)}
  options = {'id2label': labels} if name.endswith('cls') else {}
  hf.save(str(tmp_path), model, params, kind=kind, options=options)
  assert config(tmp_path)['architectures'] == [architecture]
  before, after = tensors(ROOT / name), tensors(tmp_path)
  assert {*before} == {*after}
  for tensor, value in before.items():
    np.testing.assert_array_equal(after[tensor], value, tensor)


def test_a_discriminator_as_wide_as_its_embeddings(tmp_path):
  """Its body is BERT's, which has no such head."""
  model, params = plain('electra_disc')
  wide = model.clone(input='tokens(token_types=2, norm=True)')
  rng = np.random.default_rng(0)
  del params['embed_projection']

  def wider(x):
    return np.float32(rng.normal(size=(*x.shape[:-1], 32)))

  for name in ('embed', 'positions', 'segments', 'embed_norm'):
    params[name] = jax.tree.map(wider, params[name])
  hf.save(str(tmp_path), wide, params, kind='replaced')
  again, params_again = hf.load(str(tmp_path))
  assert again.input == wide.input
  assert config(tmp_path)['embedding_size'] == 32
  jax.tree.map(np.testing.assert_array_equal, params_again, params)
  with pytest.raises(UsageError, match='is a bert, which has no class'):
    hf.save(str(tmp_path / 'no'), wide, params, kind='classification')


def test_fields():
  options = config(ROOT / 'electra_gen')
  fields = ELECTRA.fields(Options(options))
  assert fields['input'] == 'tokens(token_types=2, norm=True, d_embed=24)'
  # Its head has GELU whatever the layers have.
  fields = ELECTRA.fields(Options(options | {'hidden_act': 'relu'}))
  assert fields['ffn'] == 'relu'
  assert fields['output'] == "tied(bias=True, transform='gelu')"
