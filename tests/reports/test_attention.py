# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The masks of a config, in a picture."""

import numpy as np
import pytest

from gpt_jax.__main__ import main
from gpt_jax.core import config as config_lib
from gpt_jax.core.config import loading
from gpt_jax.core.nn.build import ModelChoices
from gpt_jax.core.spec import UsageError
from gpt_jax.reports import attention, runs
from tests.support import tiny

L = 13
# Query i sees key j: written from the papers.
RULES = {'full': lambda i, j: j <= i, 'local(window=3)': lambda i, j: i - 3 < j <= i}


def written(rule, length=L):
  return np.array([[rule(i, j) for j in range(length)] for i in range(length)])


def masks(**changes):
  config = config_lib.resolve(
    tiny.config(**{'model.context_length': L, 'model.num_layers': 4, **changes})
  )
  return {item.name: item.mask for item in attention.seen(config)}


def test_patterns_of_a_decoder():
  found = masks(**{'model.attention': ', '.join(RULES)})
  assert [*found] == [f'decoder {text.partition("(")[0]}' for text in RULES]
  for mask, rule in zip(found.values(), RULES.values(), strict=True):
    np.testing.assert_array_equal(mask, written(rule))


def test_what_differs_between_rows_is_an_example():
  """A prefix of five tokens; documents that begin at 0, 3 and 9."""
  changes = {'objective.name': 'prefix', 'model.attention': 'full, local(3)'}
  full, local = masks(**changes).values()
  np.testing.assert_array_equal(full, written(lambda i, j: j <= i or j < 5))
  np.testing.assert_array_equal(local, written(lambda i, j: i - j < 3 and (j <= i or j < 5)))
  (left,) = masks(**{'objective.name': "prefix(sees='left')"}).values()
  np.testing.assert_array_equal(left, written(RULES['full']))
  config = config_lib.resolve_model(loading.read('configs/transformer.py:cpu'))
  found = {item.name: item.mask for item in attention.seen(config, length=L)}
  document = np.searchsorted([3, 9], np.arange(L), 'right')
  same = document[:, None] == document
  decoder = found.pop('decoder full, packed documents')
  np.testing.assert_array_equal(decoder, same & written(RULES['full']))
  assert len(found) == 2  # of the encoder, and to it
  for mask in found.values():
    np.testing.assert_array_equal(mask, same)


def test_blocks_of_bigbird():
  """Blocks of 16 of configs/bigbird.py:cpu, in rows of 512."""
  config = config_lib.resolve_model(loading.read('configs/bigbird.py:cpu'))
  (item,) = attention.seen(config)
  blocks = item.mask.reshape(32, 16, 32, 16)
  assert (blocks.all((1, 3)) == blocks.any((1, 3))).all()  # whole blocks
  blocks = blocks.any((1, 3))
  assert blocks[[0, -1]].all() and blocks[:, [0, -1]].all()
  near = abs(np.subtract.outer(np.arange(32), np.arange(32))) <= 1
  assert blocks[near].all()
  drawn = (blocks & ~near)[1:-1, 1:-1]
  assert (drawn.sum(1) == 3).all()
  (pattern,) = ModelChoices.of(config.model).attention
  np.testing.assert_array_equal(item.mask.sum(1), pattern.num_visible(512))
  assert 'random blocks of the first head' in item.title


def test_extra_tokens_of_bigbird():
  change = '--config.model.attention=bigbird(block=16, random=1, extra=7)'
  config = loading.load_config('configs/bigbird.py:cpu', [change])
  (item,) = attention.seen(config_lib.resolve_model(config))
  assert item.mask.shape == (519, 519)
  assert item.mask[:7].all() and item.mask[:, :7].all()
  assert 'after 7 extra tokens' in item.name


@pytest.mark.parametrize(
  'config, names, shapes',
  [
    (
      't5',
      ['decoder full', 'decoder cross-attention', 'encoder bidirectional'],
      [(29, 29), (29, 128), (128, 128)],
    ),
    ('transformer_xl', ['decoder full, after a memory of 32'], [(32, 64)]),
  ],
)
def test_stacks_and_memories(config, names, shapes):
  config = config_lib.resolve_model(loading.read(f'configs/{config}.py:cpu'))
  found = attention.seen(config)
  assert [item.name for item in found] == names
  assert [item.mask.shape for item in found] == shapes


def test_orders_of_unilm_and_xlnet():
  """The four masks of UniLM; XLNet's streams."""
  config = config_lib.resolve_model(loading.read('configs/unilm.py:cpu'))
  both, left, right, pairs = (item.mask for item in attention.seen(config, length=L))
  assert both.all()
  np.testing.assert_array_equal(left, written(lambda i, j: j <= i))
  np.testing.assert_array_equal(right, written(lambda i, j: j >= i))
  np.testing.assert_array_equal(pairs, written(lambda i, j: j <= i or j < 5))
  config = config_lib.resolve_model(loading.read('configs/xlnet.py:cpu'))
  content, query = (item.mask for item in attention.seen(config))
  assert content.diagonal().all()
  predicted = np.flatnonzero(~content.all(0))
  # What predicts a token sees all that the token sees, but not the token.
  assert query.shape == (len(predicted), 256)
  expected = content[predicted].copy()
  expected[np.arange(len(predicted)), predicted] = False
  assert (query <= expected).all()
  assert not query[np.arange(len(predicted)), predicted].any()


def test_the_picture_has_the_masks(tmp_path, monkeypatch, capsys):
  """A panel for each, with its name and the keys that a query sees."""
  drawn = []
  save = runs.save_figure
  monkeypatch.setattr(
    runs, 'save_figure', lambda figure, out: drawn.append(figure) or save(figure, out)
  )
  out = tmp_path / 'seen.png'
  argv = [
    'inspect',
    '--config=configs/smoke.py',
    f'--attention={out}',
    '--config.model.attention=full, local(window=3)',
    f'--config.model.context_length={L}',
  ]
  assert main(argv) == 0
  assert capsys.readouterr().out.strip() == str(out)
  assert out.read_bytes().startswith(b'\x89PNG')
  full, local = drawn[0].axes
  for axes, rule in ((full, 'full'), (local, 'local(window=3)')):
    np.testing.assert_array_equal(axes.images[0].get_array(), written(RULES[rule]))
  # 1 + 2 + 11 * 3 = 36 of 13 * 13.
  assert local.get_title() == 'decoder local\n2.8 of 13 keys a query, 21.3%'


def test_recurrent_layers_have_no_masks(tmp_path):
  config = config_lib.resolve_model(loading.read('configs/ulmfit.py:cpu'))
  with pytest.raises(UsageError, match='no layer attends'):
    attention.attention_chart(config, str(tmp_path / 'seen.png'))
