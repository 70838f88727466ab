# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""GPT-2 (Radford et al., 2019: Language Models are Unsupervised Multitask
Learners), in the four sizes of its table 2.

  gpt-jax train --config configs/gpt2.py:medium --workdir W

Parameters: 124,439,808 / 354,823,168 / 774,030,080 / 1,557,611,200.

Neither WebText nor the training recipe was published: the corpus defaults to
the Python standard library, with a vocabulary of the paper's size trained on
it, and the learning rates are GPT-3's for the nearest size. With GPT-2's own
vocabulary files and your text:

  --config.tokenizer.name="gpt2_bpe('encoder.json', 'vocab.bpe')"
  --config.data.source="jsonl('webtext/*.jsonl.gz', field='text')"

Not run to the end.
"""

from ml_collections import ConfigDict

from configs import base

DIFFERS = (
  'GPT-1 with norms before each sublayer and after the last, residual weights '
  'scaled down at initialization, and byte-level BPE; context of 1,024'
)
# layers, d_model, heads (table 2; heads of size 64); peak rate (GPT-3,
# table 2.1: 125M, 350M, 760M, 1.3B).
SIZES = {
  'small': (12, 768, 12, 6.0e-4),
  'medium': (24, 1024, 16, 3.0e-4),
  'large': (36, 1280, 20, 2.5e-4),
  'xl': (48, 1600, 25, 2.0e-4),
}


def get_config(arg: str = 'small') -> ConfigDict:
  """GPT-2 in the size `arg`."""
  num_layers, d_model, num_heads, peak = base.size(__file__, arg, SIZES)
  config = base.get_config().unlock()
  config.model.num_layers = num_layers
  config.model.d_model = d_model
  config.model.num_heads = num_heads
  # Section 2.3: 50,257 tokens, context 1024, batch 512; a norm before each
  # sub-block and after the last; residual weights scaled by 1/sqrt(N).
  config.model.vocab_size = 50_257
  config.model.context_length = 1024
  config.batch.size = 512
  config.model.block = 'pre'
  config.model.init_weights = 'gpt2(stddev=0.02)'
  config.tokenizer.name = "sentencepiece(vocab_size=50257, model='bpe')"
  config.schedule.num_steps = 600_000
  config.schedule.name = f'cosine(peak={peak}, warmup=2000, final=0.1)'
  return config.lock()
