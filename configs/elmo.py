# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""The bidirectional language model of ELMo (Peters et al., 2018: Deep
Contextualized Word Representations, section 3).

  gpt-jax train --config configs/elmo.py:base --workdir W
  gpt-jax evaluate --workdir W

Parameters: 93,600,864, as in the released model, and 407,050,623 of the softmax
over 793,471 words.

A word is read as its characters by convolutions, highways and a projection to
512. Each direction has its own two LSTMs of 4,096 cells projected to 512, with
a residual connection around the second; model.d_model counts both. Vectors of
words and softmax are shared by the directions. In training the softmax is over
8,192 sampled words, and its loss is no perplexity; evaluation is over all.

Sizes, rates and dropout are those of the released code, from memory: batches of
3 x 128 segments of 20 tokens. It carries the states over to the next step; here
a row has eight segments, and begins with a state of 0, as in ulmfit.py. It cuts
sentences apart with <S> and </S>; here a line end is a word. It draws dropout
for each token, here there is one draw for a row. In the text of this corpus a
word that is not in the list is read as <unk>: the token store has no other.

Text is read as published: the 1 Billion Word benchmark (Chelba et al., 2014).
Not run.

`cpu` is for two cores and ten minutes, on tiny Shakespeare: see
configs/shakespeare_char.py. Not run to the end.
"""

from ml_collections import ConfigDict

from configs import base

DIFFERS = (
  'two separate stacks of LSTMs, one in each direction, with projections; a '
  'word is read as its characters'
)
# Words, width and cells of each direction, sampled words.
SIZES = {
  'base': (793_471, 512, 4096, 8192),
  'cpu': (4096, 64, 192, 512),
}
_SHUFFLED = 'monolingual.tokenized.shuffled/*'


def get_config(arg: str = 'base') -> ConfigDict:
  """The language model in the size `arg`."""
  vocab_size, width, cells, negatives = base.size(__file__, arg, SIZES)
  rate = 0.1
  config = base.get_config().unlock()
  config.model.num_layers = 2
  config.model.d_model = 2 * width
  config.model.num_heads = 1
  config.model.context_length = 160
  config.model.vocab_size = vocab_size
  config.model.input = 'characters()'
  layer = (
    f"lstm({cells}, projection={width}, directions='separate', biases=1, "
    f'cell_clip=3.0, projection_clip=3.0, input_dropout={rate}'
  )
  config.model.attention = f'{layer}), {layer}, dropout={rate}, residual=True)'
  config.model.block = 'plain'
  config.model.position = 'none'
  config.model.output = 'untied(bias=True)'
  config.model.init_weights = 'transformer'
  config.objective.name = f'bilm(segment=20, negatives={negatives})'
  config.data.source = f"text('training-{_SHUFFLED}')"
  config.data.holdout = f"text('heldout-{_SHUFFLED}')"
  config.tokenizer.name = f'words(vocab_size={vocab_size})'
  config.optim.name = 'adagrad(initial=1.0)'
  config.optim.clip_norm = 10.0
  config.batch.size = 48  # 3 x 128 x 20 = 48 x 160 tokens
  config.schedule.num_steps = 1_000_000  # 10 epochs of 769M tokens
  config.schedule.name = 'constant(peak=0.2)'
  config.eval.rows = 48
  config.log.sample_prompt = ''
  if arg == 'cpu':
    config.model.dtype = 'float32'
    config.model.input = (
      'characters(((1, 16), (2, 32), (3, 64), (4, 64)), num_highways=1, length=20)'
    )
    config.data.source = "text('data/tinyshakespeare/input.txt')"
    config.data.holdout = 'tail(fraction=0.1)'
    config.batch.size = 16
    config.optim.name = 'adam()'
    config.optim.clip_norm = 1.0
    config.schedule.num_steps = 1000
    config.schedule.name = 'cosine(peak=3e-3, warmup=50, final=0.05)'
    config.checkpoint.every_steps = 250
    config.eval.rows = 16
    config.eval.every_steps = 250
    config.eval.num_batches = 10
  return config.lock()
