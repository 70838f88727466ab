# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""Cross-view training (Clark et al., 2018: Semi-Supervised Sequence Modeling
with Cross-View Training): a tagger of two layers of LSTMs in both directions,
which learns from labelled and unlabelled sentences in turn.

  gpt-jax finetune --config configs/cvt.py --init none --workdir W \
    --config.finetune.task="tags('train.conll', 'dev.conll', 'test.conll',
    unlabelled='text.txt')"

A .conll file has a word and its tag a line, and a blank line between sentences;
the text has a sentence a line. Without `unlabelled` the same model learns from
the labels alone.

The paper's F1 on CoNLL 2003 is 92.6, with the 1 Billion Word benchmark as the
unlabelled text and GloVe's vectors. Sizes, rates and dropout are those of its
released code, which differs here in three things: words have no characters, and
their vectors of 300 are widened to the model's width by a dense layer; dropout
is one draw for all tokens of a sentence; the number of steps is ours, as the
released code has no end. GloVe's vectors are read with
--config.optim.vectors=glove.840B.300d.txt and
--config.tokenizer.name="words_file('glove.840B.300d.txt', size=300)". Not run.

`cpu` is for one core and ten minutes, with Adam, as 1,500 steps are few for the
recipe above: docs/results/fine-tuning.md.
"""

from ml_collections import ConfigDict

from configs import base as tree
from configs.finetune import base

# Width of words, cells of the first and of the second layer, width of their
# projections, steps.
SIZES = {
  'base': (300, 1024, 512, 512, 200_000),
  'cpu': (64, 128, 128, 64, 1500),
}


def get_config(arg: str = 'base') -> ConfigDict:
  """A size; `base` is the paper's."""
  words, first, second, width, steps = tree.size(__file__, arg, SIZES)
  config = base.get_config().unlock()
  config.model.num_layers = 2
  config.model.d_model = 2 * width
  config.model.num_heads = 1
  config.model.context_length = 128
  config.model.input = f'tokens(d_embed={words})'
  config.model.attention = ', '.join(
    f"lstm({cells}, projection={width}, directions='both', dropout=0.5)"
    for cells in (first, second)
  )
  config.model.block = 'plain'
  config.model.position = 'none'
  config.model.dropout = 'rates(embedding=0.5)'
  config.model.init_weights = 'transformer'
  config.tokenizer.name = 'words(vocab_size=200000)'
  config.finetune.task = "conll2003('conll2003', unlabelled='text.txt')"
  config.finetune.views = 'cross_view(smoothing=0.1, dropout=0.2)'
  config.finetune.mixing = 'alternating'
  config.finetune.select = 'best'
  config.batch.size = 64
  config.optim.name = 'sgd(momentum=0.9)'
  config.optim.clip_norm = 1.0
  config.optim.ema = 'ema(decay=0.998)'
  config.schedule.num_steps = steps
  config.schedule.name = 'sqrt_decay(peak=0.5, decay=0.005, warmup=5000)'
  # Odd, so that both kinds of batches are logged.
  config.log.every_steps = 25
  config.eval.every_steps = 1000
  config.checkpoint.every_steps = 1000
  if arg == 'cpu':
    config.model.dtype = 'float32'
    config.model.context_length = 64
    config.tokenizer.name = 'words(vocab_size=20000, count=2)'
    config.batch.size = 32
    config.optim.ema = 'ema(decay=0.99)'
    config.optim.name = 'adam()'
    config.schedule.name = 'sqrt_decay(peak=2e-3, decay=0.005, warmup=100)'
    config.eval.every_steps = 150
    config.checkpoint.every_steps = 150
  return config.lock()
