# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Named held-out sets: stores of their own in the same tokens."""

import math

import jax
import numpy as np
import pytest

from gpt_jax.core.files import files
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokens import eval_sets, prepare
from gpt_jax.core.training import held_out as held_out_lib
from gpt_jax.core.training import metrics
from tests.support import tiny


@pytest.fixture
def config(corpus, make_config):
  (corpus / 'wiki.txt').write_text(' = One = \n alpha <unk> beta\n\n')
  (corpus / 'two.txt').write_text('δ' * 41)
  config = make_config(tokenizer='characters').unlock()
  config.data.source = "text('**/*.txt')"
  config.eval.sets.wiki = "text('wiki.txt')"
  config.eval.sets['two-b'] = "text('two.txt')"
  config.eval.words.wiki = 'words_and_lines'
  return config


def test_sets_are_prepared_once_and_opened(config, monkeypatch):
  store = prepare.ensure(config, 'D')
  found = eval_sets.held_out(config, store)
  assert [*found] == ['validation', 'two-b', 'wiki']
  wiki = found['wiki'].store
  tokenizer = store.tokenizer()
  text = tokenizer.decode(wiki.tokens(0, len(wiki)))
  assert text == ' = One = \n alpha <unk> beta\n\n'
  assert found['wiki'].num_words == 6 + 3
  assert found['two-b'].num_words is None
  assert found['two-b'].store.manifest.num_bytes == 82
  before = files.names('D')
  assert 'eval/wiki/manifest.json' in before
  with monkeypatch.context() as m:
    m.setattr(eval_sets, '_write', None)
    prepare.ensure(config, 'D')
  assert files.names('D') == before
  # A later set does not touch the store; other words need no preparing.
  config.eval.sets.three = "text('docs/03.txt')"
  config.eval.words.wiki = 'words'
  config.eval.words['two-b'] = 17
  found = eval_sets.held_out(config, prepare.ensure(config, 'D'))
  assert found['three'].store.manifest.num_documents == 1
  assert [found[name].num_words for name in ('wiki', 'two-b')] == [6, 17]


def test_a_set_that_broke_off_is_written_again(config, monkeypatch):
  store = prepare.ensure(config, 'D')
  files.delete('D', 'eval')
  with monkeypatch.context() as m, pytest.raises(KeyboardInterrupt):

    def die(*args):
      raise KeyboardInterrupt

    m.setattr('gpt_jax.core.text.inputs.write', die)
    eval_sets.ensure(config, store)
  assert files.names('D/eval/two-b')
  with pytest.raises(UsageError, match='no finished token store'):
    eval_sets.held_out(config, store)
  found = eval_sets.held_out(config, prepare.ensure(config, 'D'))
  assert len(found['wiki'].store) == 30


def test_another_call_or_tokenizer_is_refused(config):
  prepare.ensure(config, 'D')
  config.eval.sets.wiki = "text('two.txt')"
  with pytest.raises(UsageError, match=r'eval.sets.wiki=.*from .*wiki\.txt'):
    prepare.ensure(config, 'D')
  config.tokenizer.name = 'bytes'
  other = prepare.prepare(config, 'E')
  store = prepare.TokenStore.open('E')
  assert store.manifest == other
  config.eval.sets.wiki = "text('wiki.txt')"
  for name in files.names('D/eval'):
    files.write('E/eval', name, files.read('D/eval', name))
  with pytest.raises(UsageError, match=r'another tokenizer; remove'):
    eval_sets.ensure(config, store)


def test_the_measures(config):
  """Nats a token, a byte and a word; from probabilities that are known."""
  config.data.holdout = 'none'
  store = prepare.ensure(config, 'D')
  sets = eval_sets.held_out(config, store)
  vocab_size = store.manifest.vocab_size
  changes = {'model.vocab_size': vocab_size, 'model.num_layers': 1}
  run = tiny.build(tiny.config(**tiny.MESHABLE | changes), (1, 1, 1))
  # Without any weight the model gives each token the same probability.
  params = jax.tree.map(np.zeros_like, tiny.params(run.model))
  asked = []
  held_out = held_out_lib.HeldOut(run, sets)
  found = held_out(params, stop=lambda: asked.append(1))
  nats = math.log(vocab_size)
  assert len(asked) == 2
  expected = {
    'eval/wiki/loss': nats,
    'eval/wiki/perplexity': vocab_size,
    'eval/wiki/bits_per_byte': nats * 30 / 29 / math.log(2),
    'eval/wiki/tokens': 30,
    'eval/wiki/word_perplexity': math.exp(nats * 30 / 9),
    'eval/two-b/loss': nats,
    'eval/two-b/perplexity': vocab_size,
    'eval/two-b/bits_per_byte': nats * 42 / 82 / math.log(2),
    'eval/two-b/tokens': 42,
  }
  assert found.keys() == expected.keys()
  for name, value in expected.items():
    assert found[name] == pytest.approx(value, rel=1e-5), name
  first = next(iter(metrics.held_out_losses(found).values()))
  assert first == found['eval/two-b/loss']
  line = held_out_lib.summary(found)
  assert 'wiki loss' in line and 'per word' in line and 'two-b loss' in line
  assert held_out(params, stop=lambda: True) is None


def test_the_loss_that_counts_is_that_of_the_split():
  losses = {'eval/a/loss': 1.0, 'eval/validation/loss': 2.0, 'eval/a/x/loss': 3}
  assert next(iter(metrics.held_out_losses(losses).values())) == 2
  assert metrics.held_out_losses(losses) == {'validation': 2.0, 'a': 1.0}
  assert metrics.held_out_losses({'loss': 1.0}) == {}


def test_words_of_wikitext_are_as_published(corpus, make_config, shared):
  """245,569 tokens in the test set: words, and an end of each line."""
  config = make_config("text('docs/00.txt')", 'none').unlock()
  config.eval.sets.wikitext2 = f"text('{shared}/wikitext2/test.txt')"
  config.eval.words.wikitext2 = 'words_and_lines'
  store = prepare.ensure(config, 'D')
  found = eval_sets.held_out(config, store)['wikitext2']
  assert found.num_words == 245_569
