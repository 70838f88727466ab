# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Switch Transformer (Fedus et al., 2021: Switch Transformers: Scaling to
Trillion Parameter Models with Simple and Efficient Sparsity): GPT-style
decoders, and the paper's encoder-decoders.

  gpt-jax train --config configs/switch.py:tiny --workdir W
  gpt-jax train --config configs/switch.py:tiny-dense --workdir W2
  gpt-jax train --config configs/switch.py:t5-base-128 --workdir W3
  gpt-jax inspect --config configs/switch.py:c

`tiny` is for a CPU. `tiny-dense` is its twin without experts: only `model.ffn`
differs, so FLOPs per token are the same except for the router. `base-8` to
`base-128` are GPT-2 small with experts in every second layer; the paper's
models of these names are T5 base with experts. Only the tiny ones were run.

The encoder-decoders have 7,415,217,408 / 26,309,291,008 / 394,543,476,736 /
1,571,308,972,448 parameters, in table 9 7B (elsewhere 7.4B), 26B, 395B, 1571B,
with a vocabulary of 32,128, shared input and output tables, and relative
positions shared by the layers of each stack. Two sizes differ from table 9:
- t5-large has GEGLU with d_ff 2816 there, which gives 27,120,888,832. The 26B
  result from ReLU and d_ff 4096, as in T5 large and the released checkpoint.
- xxl has 64 experts there, which give 201,263,656,960 in every second layer
  (and 391.6B in every layer). The 395B result from the 128 of the released
  checkpoint.
They are trained like T5: spans of C4 (in `corpora/c4`), Adafactor, a rate of
1/sqrt(max(step, 10k)), and a load-balancing loss of both stacks.

Not implemented: dropout of 0.4 inside the experts, and 0.1 elsewhere, in
fine-tuning. The decoders have AdamW with GPT-3's peak. Group sizes are ours:
the paper's group is the tokens of one core; here an expert gets at least 32
tokens of each group on average, in either stack. The decoders' corpus defaults
to the Python standard library.
"""

from ml_collections import ConfigDict

from configs import base, gpt2, t5

DIFFERS = (
  'GPT-2, or T5 as in the paper, with experts in place of every second '
  'feed-forward layer; each token is routed to one expert'
)
# Table 9: layers of each stack, heads of size 64, d_model, d_ff, activation of
# dense layers and experts, number of experts, and N: every Nth layer has them.
T5 = {
  't5-base-128': (12, 12, 768, 2048, 'geglu', 128, 2),
  't5-large': (24, 16, 1024, 4096, 'relu', 128, 2),
  'xxl': (24, 64, 4096, 10_240, 'geglu', 128, 2),
  'c': (15, 32, 2080, 6144, 'relu', 2048, 1),
}
# The others: number of experts.
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
  """A layer of experts, with groups of enough rows for its experts."""
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
  # Section 2.4; the table is also the output, so it is initialized as GPT-2's.
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
    # All tokens of a batch are one group, so that rows need not be balanced.
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
  # From 568 tokens of text the encoder reads 512 and the decoder writes 114.
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
