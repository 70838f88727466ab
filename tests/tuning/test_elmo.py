# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""ELMo's features: a frozen model, all words, its layers or static vectors."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest
from flax import linen as nn

from configs.finetune import base
from gpt_jax.core import config as config_lib
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers.simple import WordList
from gpt_jax.opening.models import Pretrained
from gpt_jax.papers.lstm import word_characters as characters
from gpt_jax.tuning import recipe, tasks
from gpt_jax.tuning.objectives import adapters
from tests.support import tiny

WORDS = WordList(['cats', 'dogs'])
LAYER = "lstm(7, projection=5, directions='separate'"
MODEL = tiny.model(
  vocab_size=WORDS.vocab_size,
  num_layers=2,
  d_model=10,
  input='characters(((1, 3), (2, 5)), d_embed=3, length=11)',
  attention=f'{LAYER}), {LAYER}, residual=True)',
  block='plain',
  position='none',
  output='untied(bias=True)',
)


def prepared(tmp_path, kind='classification', **changes):
  """A plan of fine-tuning the model, with a word that only dev has."""
  for split, word in (('train', 'birds'), ('dev', 'bird')):
    lines = ['text\tlabel', 'cats\tfew', f'dogs {word}\tmany', 'dogs\tfew']
    (tmp_path / f'{split}.tsv').write_text('\n'.join(lines) + '\n')
  config = base.get_config().unlock()
  config.finetune.task = f"{kind}('{tmp_path}/train.tsv', '{tmp_path}/dev.tsv')"
  config.update_from_flattened_dict({'batch.size': 3, **changes})
  fields = {name: getattr(MODEL, name) for name in tiny.MODEL}
  source = Pretrained('elmo', fields, 'words(vocab_size=4)', WORDS)
  return tasks.prepare(config.lock(), source, str(tmp_path / 'w'))


def test_words_outside_of_the_list_are_read_exactly(tmp_path):
  plan = prepared(tmp_path)
  assert plan.config.model.vocab_size == WORDS.vocab_size
  assert "read='concat'" in plan.config.objective.name
  for split, word in (('train', 'birds'), ('dev', 'bird')):
    batch = plan.each[''].splits[split].batch(np.arange(3))
    texts = [['</S>', 'dogs', word, '</S>'], ['</S>', 'dogs', '</S>']]
    for row, text in zip(batch['inputs'][1:], texts, strict=True):
      expected = characters.of_words(text, 11)
      np.testing.assert_array_equal(row[0, : len(text)], expected)
    np.testing.assert_array_equal(batch['lengths'][:, 0], [3, 4, 3])


@pytest.mark.parametrize(('features', 'shares'), [(None, 3), ('layer(0)', 0), ('', None)])
def test_the_model_is_frozen_unless_it_is_asked_for(features, shares, tmp_path):
  """By default the head reads a mix of the word vectors and both layers."""
  plan = prepared(tmp_path, **{'finetune.features': features})
  objective = config_lib.objective(plan.config)
  boxed = jax.eval_shape(objective.init, jax.random.key(0))
  params = tiny.random_like(nn.meta.unbox(boxed), seed=1)
  batch = plan.each[''].splits['train'].batch(np.arange(3))
  rates = adapters.tuned(plan.config, objective.model, objective)[1]

  def total(params):
    return objective.loss(rates.stopped(params, 0), batch, jax.random.key(0)).sum

  moved = jax.tree.map(lambda x: np.any(x), jax.jit(jax.grad(total))(params))
  heads = moved.pop('heads')
  assert all(jax.tree.leaves(heads))
  assert ('layers' in heads) == bool(shares)
  if shares:
    assert params['heads']['layers']['weights'].shape == (shares,)
  moved.pop('head'), moved.pop('head_bias')  # no word is predicted
  assert all(jax.tree.leaves(moved)) == (features == '')
  assert any(jax.tree.leaves(moved)) == (features == '')


def test_words_of_a_tokenizer_with_other_first_ids_are_refused():
  class Other(WordList):
    listed = ('cats', 'dogs')

  with pytest.raises(UsageError, match=r"begin with \('cats', 'dogs'\), not"):
    characters.opened(Other([]), [])


def test_answers_that_are_scored_alone_are_refused():
  config = base.get_config().unlock()
  config.finetune.task = 'race()'
  with pytest.raises(UsageError, match=r"task='race\(\)': scores each answer"):
    recipe.check_head(config.finetune, SimpleNamespace(kind='choice', paths={}), 'concat', '')
