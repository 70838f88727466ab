# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The first stage of BART's translation recipe, section 3.4."""

import functools

import jax
import numpy as np
import pytest

from configs import bart
from gpt_jax.core import config as config_lib
from gpt_jax.core.checkpoints.checkpointer import Checkpointer
from gpt_jax.core.files.document import Document
from gpt_jax.core.nn.params import name_of
from gpt_jax.core.tokenizers import tokenizer as tokenizer_lib
from gpt_jax.core.training import origins, step
from gpt_jax.core.training import parts as parts_lib
from gpt_jax.core.training.device_check import mesh_of
from tests.support import tiny

BYTES = tokenizer_lib.build('bytes', [])
M, L, SOURCES = 7, 11, 26
TRAINED = 'source/', 'positions/', 'encoder_positions/'
# In the attention of the encoder's first layer, too.
FIRST = 'query', 'key', 'value'


def build(size, **fields):
  """In a small size, on one device."""
  config = bart.get_config(size).unlock()
  model = dict(num_layers=1, num_encoder_layers=2, d_model=16, num_heads=2)
  model |= dict(d_ff=24, context_length=13, vocab_size=BYTES.vocab_size)
  model |= dict(dtype='float32', dropout='none', loop='unroll')
  fields |= {f'model.{name}': value for name, value in model.items()}
  fields |= {'batch.length': 'stages(13)', 'batch.size': 8}
  config.update_from_flattened_dict(fields)
  config = config_lib.resolve(config)
  return parts_lib.build(config, mesh_of(config, jax.devices()[:1]))


def flat(params):
  leaves = jax.tree_util.tree_leaves_with_path(params)
  return {name_of(path): np.asarray(x) for path, x in leaves}


@pytest.mark.long
@pytest.mark.slow
def test_what_is_not_new_stays_but_what_the_paper_names(tmp_path):
  old = build('large')
  state = parts_lib.initial_state(old)
  state = state._replace(params=tiny.random_like(state.params, seed=1))
  saver = Checkpointer(str(tmp_path), keep=1)
  saver.save(state)
  saver.close()
  (tmp_path / 'config.json').write_text(config_lib.to_json(old.config))
  BYTES.save(str(tmp_path / 'tokenizer'))
  parts = build(
    'translation',
    **{'optim.start': str(tmp_path), 'schedule.name': 'constant(peak=1e-2)'},
    **{'model.num_source_layers': 1, 'model.source_vocab_size': SOURCES},
  )
  # The targets' tokenizer is the old one, that of the sources is new.
  letters = Document('a#source', ''.join(map(chr, range(97, 96 + SOURCES))))
  name = "sides('bytes', source='characters')"
  first = origins.first_state(parts, tokenizer_lib.build(name, [letters]))
  batch = {
    'sources': tiny.tokens(2, M),
    'source_mask': np.arange(M)[None] < [[M], [4]],
    'inputs': tiny.tokens(2, L, seed=1),
    'targets': tiny.tokens(2, L, seed=2),
    'weights': np.ones((2, L), np.float32),
  }
  given = dict(objective=parts.objective, optimizer=parts.optimizer, schedule=parts.schedule)
  given |= dict(seed=0, clip_norm=0.1, num_micro=1)
  run = jax.jit(functools.partial(step.train_step, **given))
  drawn, after = flat(first.params), flat(run(first, batch)[0].params)
  assert drawn['source/embed/embedding'].shape == (SOURCES, 16)
  before = flat(state.params)
  assert {n for n in after if n.startswith('source/')} == {*after} - {*before}
  for name, found in after.items():
    changed = found != drawn[name]
    # Of a key's bias the softmax has no gradient.
    if name.startswith(TRAINED) and 'key/bias' not in name:
      assert changed.any(), name
    elif name in before:
      names = name.split('/')
      projects = names[0] == 'encoder' and names[4] in FIRST
      assert changed[:1].any() == projects, name
      assert not changed[1:].any(), name
      np.testing.assert_array_equal(drawn[name], before[name])
