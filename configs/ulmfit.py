# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""The language model of ULMFiT (Howard and Ruder, 2018: Universal Language
Model Fine-tuning for Text Classification), an AWD-LSTM (Merity et al., 2017:
Regularizing and Optimizing LSTM Language Models, sections 2 to 5).

  gpt-jax train --config configs/ulmfit.py:wt2 --workdir W
  gpt-jax evaluate --workdir W

Parameters: 33,556,078 (`wt2`) and 24,221,600 (`ptb`), as the released code
prints for 33,278 and 10,000 words; 115,834,862 (`wt103`).

The paper carries the state over from one training step to the next, whose rows
continue those of the step before. Here a row holds four segments, each with the
state at the end of the one before, so that a step depends only on its number:
the tokens per step are the same, in fewer and longer rows, which begin with a
state of 0. All segments of a step have the same dropped words and weights. The
biases of the LSTMs start at 0, torch's at random.

As in the paper, weights are averaged from the first evaluation that is worse
than the best of those more than five before it (an evaluation is an epoch), and
averages are what is evaluated.

Sizes, rates and dropout are those of the released code; batch and dropout of
`ptb`, the vocabulary of `wt103` and the numbers of epochs (750, 500, 14) are
from memory. Text is read as published, `wiki.train.tokens` and
`wiki.valid.tokens`, or `ptb.train.txt` and `ptb.valid.txt`. Not run.

`cpu` is for two cores and ten minutes, on tiny Shakespeare: see
configs/shakespeare_char.py.
"""

from ml_collections import ConfigDict

from configs import base

DIFFERS = (
  'three LSTM layers instead of a Transformer, on tied word embeddings of 400; '
  'dropout of words, states and recurrent weights; back-propagation in segments'
)
# Words, d_model, cells.
SIZES = {
  'wt2': (33_278, 400, 1150),
  'ptb': (10_000, 400, 1150),
  'wt103': (238_462, 400, 1150),
  'cpu': (128, 64, 192),
}
# Dropout of inputs and between layers; rows of 280 tokens, 5,600 tokens a step
# (`ptb`: 1,400); steps, and those of an epoch.
_TRAINING = {
  'wt2': (0.65, 0.3, 20, 280_000, 373),
  'ptb': (0.4, 0.25, 5, 330_000, 664),
  'wt103': (0.65, 0.3, 20, 260_000, 18_423),
  'cpu': (0.0, 0.0, 16, 1500, 500),
}


def get_config(arg: str = 'wt2') -> ConfigDict:
  """The language model in the size `arg`."""
  vocab_size, width, cells = base.size(__file__, arg, SIZES)
  of_input, hidden, rows, steps, epoch = _TRAINING[arg]
  output, weights, words = (0.0, 0.0, 0.0) if arg == 'cpu' else (0.4, 0.5, 0.1)
  config = base.get_config().unlock()
  config.model.num_layers = 3
  config.model.d_model = width
  config.model.num_heads = 1
  config.model.context_length = 280
  config.model.vocab_size = vocab_size
  drop = f'weight_drop={weights}'
  config.model.attention = (
    f'lstm({cells}, input_dropout={of_input}, dropout={hidden}, {drop}), '
    f'lstm({cells}, dropout={hidden}, {drop}), '
    f'lstm({width}, dropout={output}, {drop})'
  )
  config.model.block = 'plain'
  config.model.position = 'none'
  config.model.output = 'tied(bias=True)'
  config.model.dropout = f'rates(words={words})'
  config.model.init_weights = 'uniform(embedding=0.1)'
  config.objective.name = 'recurrent(segment=70, alpha=2.0, beta=1.0)'
  file = {'wt2': 'wiki.{}.tokens', 'wt103': 'wiki.{}.tokens'}
  text = file.get(arg, 'ptb.{}.txt')
  config.data.source = f"text('{text.format('train')}')"
  config.data.holdout = f"text('{text.format('valid')}')"
  config.tokenizer.name = f'words(vocab_size={vocab_size})'
  config.optim.name = 'sgd(l2=1.2e-6)'
  config.optim.clip_norm = 0.25
  config.optim.ema = 'mean(patience=5)'
  config.batch.size = rows
  config.schedule.num_steps = steps
  config.schedule.name = 'constant(peak=30)'
  config.eval.every_steps = epoch
  config.eval.rows = 16
  config.log.sample_prompt = ''
  if arg == 'cpu':
    config.model.dtype = 'float32'
    config.data.source = "text('data/tinyshakespeare/input.txt')"
    config.data.holdout = 'tail(fraction=0.1)'
    config.tokenizer.name = 'characters'
    config.objective.name = 'recurrent(segment=70, alpha=0.0, beta=0.0)'
    config.optim.name = 'adam()'
    config.optim.ema = 'none'
    config.optim.clip_norm = 1.0
    config.schedule.name = 'cosine(peak=1e-2, warmup=50, final=0.05)'
    config.checkpoint.every_steps = 500
    config.eval.num_batches = 25
    config.log.sample_prompt = 'ROMEO:'
  return config.lock()
