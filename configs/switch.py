# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Switch Transformer (Fedus et al., 2021: Switch Transformers: Scaling to
Trillion Parameter Models with Simple and Efficient Sparsity): GPT-style
decoders, and the paper's encoder-decoders.

  gpt-jax train --config configs/switch.py:tiny --workdir W
  gpt-jax train --config configs/switch.py:tiny-dense --workdir W2
  gpt-jax train --config configs/switch.py:t5-base-128 --workdir W3
  gpt-jax inspect --config configs/switch.py:c

`tiny` is for a CPU. `tiny-dense` is its twin without experts: the same but for
`model.ffn`, and so the same FLOPs a token but for the router. `base-8` to
`base-128` are GPT-2 small with experts in every second layer, as the paper's
of these names are T5 base with them. None but the tiny ones was run.

The encoder-decoders count 7,415,217,408 / 26,309,291,008 / 394,543,476,736 /
1,571,308,972,448 parameters, in table 9 7B (elsewhere 7.4B), 26B, 395B, 1571B:
one vocabulary of 32,128, input and output tables shared, relative positions of
each stack shared by its layers. Two sizes are not as table 9 has them:
- t5-large there has GEGLU with d_ff 2816, which gives 27,120,888,832. 26B are
  the ReLU and d_ff 4096 of T5 large, and of the released checkpoint.
- xxl there has 64 experts, which give 201,263,656,960 in every second layer
  (and 391.6B in every layer). 395B are the 128 of the released checkpoint.
They are trained as T5 is: spans of C4 (in `corpora/c4`), Adafactor, a rate of
1/sqrt(max(step, 10k)), and a load-balancing loss of both stacks.

Not expressed yet: dropout of 0.4 inside the experts, and 0.1 elsewhere, while
fine-tuning. The decoders have AdamW with GPT-3's peak. Groups are ours: the
paper's is what one core holds, here an expert gets at least 32 tokens of each
on average, in either stack. The decoders' corpus defaults to the Python
standard library.
"""

from ml_collections import ConfigDict

from configs import base, gpt2, t5

DIFFERS = (
  'GPT-2 or, as in the paper, T5, with experts in the place of every second '
  'feed-forward layer, of which each token takes one'
)
# Table 9: layers of each stack, heads of size 64, d_model, d_ff, the dense
# layer and each expert, experts, one layer in N has them.
T5 = {
  't5-base-128': (12, 12, 768, 2048, 'geglu', 128, 2),
  't5-large': (24, 16, 1024, 4096, 'relu', 128, 2),
  'xxl': (24, 64, 4096, 10_240, 'geglu', 128, 2),
  'c': (15, 32, 2080, 6144, 'relu', 2048, 1),
}
# The others: experts.
SIZES = {
  'tiny': 8,
  'tiny-dense': 0,
  'base-8': 8,
  'base-16': 16,
  'base-32': 32,
  'base-64': 64,
  'base-128': 128,
  **T5,
}


def get_config(arg: str = 'tiny') -> ConfigDict:
  """A model of the size `arg`."""
  num_experts = base.size(__file__, arg, SIZES)
  if arg in T5:
    return _encoder_decoder(*T5[arg])
  return _tiny(num_experts) if arg.startswith('tiny') else _decoder(num_experts)


def experts(ffn: str, num_experts: int, length: int) -> str:
  """A layer of experts, in groups of rows with enough tokens for each."""
  rows = 1
  while rows * length < 32 * num_experts:
    rows *= 2
  group_size = rows * length if rows > 1 else 0
  return (
    f"switch(num_experts={num_experts}, expert='{ffn}', capacity_factor=1.25, "
    f'group_size={group_size})'
  )


def _decoder(num_experts: int) -> ConfigDict:
  config = gpt2.get_config('small').unlock()
  layer = experts('gelu_tanh', num_experts, config.model.context_length)
  config.model.ffn = f'gelu_tanh, {layer}'
  # Section 2.4; the table also scores, so it starts as GPT-2's.
  config.model.init_weights = 'switch(scale=0.1, embedding=0.02)'
  # Section 4.1: 2^20 tokens per batch, 550k steps.
  config.batch.size = 2**20 // config.model.context_length
  config.schedule.num_steps = 550_000
  return config.lock()


def _tiny(num_experts: int) -> ConfigDict:
  config = base.get_config().unlock()
  config.model.num_layers = 4
  config.model.d_model = 64
  config.model.num_heads = 4
  config.model.vocab_size = 1024
  config.model.context_length = 128
  if num_experts:
    # One group of all tokens of a batch, so that rows need not be balanced.
    config.model.ffn = (
      f"gelu_tanh, switch(num_experts={num_experts}, expert='gelu_tanh', "
      'capacity_factor=1.25, group_size=2048)'
    )
  config.model.init_weights = 'switch(scale=0.1, embedding=0.02)'
  config.model.dtype = 'float32'
  config.model.loop = 'unroll'
  config.tokenizer.name = 'sentencepiece(vocab_size=1024)'
  config.schedule.num_steps = 3000
  config.schedule.name = 'cosine(peak=3e-3, warmup=100, final=0.1)'
  config.batch.size = 16
  config.checkpoint.every_steps = 500
  config.eval.every_steps = 500
  config.eval.rows = 16
  return config.lock()


def _encoder_decoder(
  num_layers: int,
  num_heads: int,
  d_model: int,
  d_ff: int,
  ffn: str,
  num_experts: int,
  every: int,
) -> ConfigDict:
  config = base.get_config().unlock()
  config.model.num_layers = num_layers
  config.model.num_encoder_layers = num_layers
  config.model.num_heads = num_heads
  config.model.head_size = 64
  config.model.d_model = d_model
  config.model.d_ff = d_ff
  t5.model(config)
  # Of 568 tokens of text the encoder reads 512 and the decoder writes 114.
  config.model.encoder_ffn, config.model.ffn = (
    ', '.join([ffn] * (every - 1) + [experts(ffn, num_experts, length)])
    for length in (config.model.context_length, 114)
  )
  # Section 2.4; T5's tables are N(0, 1).
  config.model.init_weights = 'switch(scale=0.1, embedding=1.0)'
  # Section 2.1; 4.1: 2^20 tokens per batch, 550k steps; T5's recipe.
  config.objective.name = 'span(rate=0.15, length=3.0)'
  base.corpora(config, c4=100)
  config.batch.size = 2**20 // config.model.context_length
  config.schedule.num_steps = 550_000
  t5.recipe(config)
  return config.lock()
