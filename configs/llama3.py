# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""LLaMA 3 (Grattafiori et al., 2024: The Llama 3 Herd of Models), in the three
sizes of its table 3.

  gpt-jax train --config configs/llama3.py:8b --workdir W

Parameters: 8,030,261,248 / 70,553,706,496 / 405,853,388,800. The table rounds
the vocabulary to 128,000; the released tokenizer has 256 more special tokens.

The recipe is that of 405B, section 3.4: "We use similar recipes to pre-train
the 8B and 70B models", with the peak rates of table 3. Their number of tokens
is the release's "over 15T". AdamW's betas, decay and clipping are not in the
paper: they are LLaMA's. The initialization was not published: it is GPT-3's.
The later stages, longer contexts and annealing, are left out. Sections are
cited from memory: check what matters to you against the paper.

Documents do not attend to each other, as in section 3.2; here a row holds whole
documents and is padded. The corpora are read from `corpora/`, the tokenizer
from `tokenizer.json`; your own text: --config.data.source="text('*.txt')". Not
run.
"""

from ml_collections import ConfigDict

from configs import base, llama

DIFFERS = (
  'LLaMA with 8 key/value heads, RoPE with base 500,000, rows of 8,192 tokens '
  'whose documents do not attend to each other, and byte-level BPE of 128,256 '
  'tokens'
)
# Table 3: layers, d_model, d_ff, heads, peak rate; tokens.
SIZES = {
  '8b': (32, 4096, 14_336, 32, 3e-4, '15T_tokens'),
  '70b': (80, 8192, 28_672, 64, 1.5e-4, '15T_tokens'),
  '405b': (126, 16_384, 53_248, 128, 8e-5, '15.6T_tokens'),
}


def get_config(arg: str = '8b') -> ConfigDict:
  """LLaMA 3 in the size `arg`."""
  num_layers, d_model, d_ff, num_heads, peak, tokens = base.size(__file__, arg, SIZES)
  config = llama.get_config().unlock()
  # Section 3.2: grouped queries, separate documents, 128K tokens, and a base of
  # 500,000 for longer contexts. The epsilon is from the released code.
  config.tokenizer.name = "hf_tokenizer('tokenizer.json', eos='<|end_of_text|>')"
  config.data.rows = 'documents'
  config.model.vocab_size = 128_256
  config.model.num_kv_heads = 8
  config.model.position = 'rope(theta=500000)'
  config.model.norm = 'rmsnorm(epsilon=1e-5)'
  config.model.context_length = 8192
  config.model.num_layers = num_layers
  config.model.d_model = d_model
  config.model.d_ff = d_ff
  config.model.num_heads = num_heads
  # Section 3.4.1: 8,000 warmup steps, a cosine to a hundredth; batches of
  # 4M tokens in rows of 4,096, after 252M tokens 8M in rows of 8,192, after
  # 2.87T tokens 16M.
  config.schedule.num_steps = tokens
  config.schedule.name = f'cosine(peak={peak}, warmup=8000, final=0.01)'
  config.batch.size = 'ramp(0:1024, 2870B_tokens:2048)'
  config.batch.length = 'stages(4096, 252M_tokens:8192)'
  # Section 3.1.2, percent of the tokens.
  base.corpora(config, general=50, mathematics_and_reasoning=25, code=17, multilingual=8)
  parts = config.data.source.removesuffix(')')
  config.data.source = f"{parts}, shares='tokens')"
  return config.lock()
