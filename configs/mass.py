# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""MASS (Song et al., 2019: MASS: Masked Sequence to Sequence Pre-training for
Language Generation), sections 3.2 and 4.1.

  gpt-jax train --config configs/mass.py:base --workdir W

Parameters: 238,066,272, of which the table of 60,000 tokens, shared by both
sides and the output, has 61,440,000. A contiguous half of a sentence is hidden;
the encoder reads the rest, the decoder writes the half. Its ablation of that
fraction (figure 5), as overrides:

  --config.objective.name="mass(0.1)", ..., "mass(0.9)"; "mass(1.0, mask=1.0,
  random=0.0)" is a language model without a source

Then translation or summarization: --config.objective.name="seq2seq(0.1)"
--config.data.rows=parallel, from these weights.

Sizes, optimizer, 1,000 tokens per device (eight devices are assumed) and the
embedding norm are the released code's. It adds a language vector to each token,
ours does not: the words tell the languages apart. The number of BPE codes is
from memory; the number of steps and the warmup are ours, as the paper states
neither. Its rows are single sentences, ours as many as fit into 100 tokens.
News Crawl of both languages is read from `corpora/`; your own text:
--config.data.source="text('*.txt')". Not run.

`cpu` is a version for two cores and half an hour: see configs/bert.py.

  gpt-jax train --config configs/mass.py:cpu --workdir W \
    --config.data.source="passages(\"jsonl('books.jsonl.gz')\")"
"""

from ml_collections import ConfigDict

from configs import base, bert

DIFFERS = (
  'the Transformer of 2017 with learned positions, GELU and a norm of the '
  'embeddings; its decoder writes the half of a sentence that its encoder '
  'does not see'
)
# Section 4.1: layers of each side, d_model, heads.
SIZES = {
  'base': (6, 1024, 8),
  'cpu': (2, 192, 6),
}


def get_config(arg: str = 'base') -> ConfigDict:
  """MASS in the size `arg`."""
  num_layers, d_model, num_heads = base.size(__file__, arg, SIZES)
  config = base.get_config().unlock()
  # Section 4.1: 6 layers on each side, width 1024, feed-forward width 4096.
  config.model.num_layers = config.model.num_encoder_layers = num_layers
  config.model.d_model = d_model
  config.model.num_heads = num_heads
  # From the released code (XLM's).
  config.model.input = 'tokens(norm=True)'
  config.model.position = 'learned'
  config.model.context_length = 100
  config.model.block = 'post'
  config.model.norm = 'layernorm(epsilon=1e-12)'
  config.model.ffn = 'gelu'
  config.model.output = 'tied(bias=True)'
  config.model.dropout = 'rates(embedding=0.1, residual=0.1, attention=0.1)'
  config.model.vocab_size = 60_000
  config.tokenizer.name = 'byte_bpe(vocab_size=60000)'
  # Section 3.2: half of the tokens, of which 80% are [MASK], 10% random and
  # 10% as they are.
  config.objective.name = 'mass(0.5, mask=0.8, random=0.1)'
  config.data.rows = 'doc_sentences'
  config.data.sentences = 'terminal'
  base.corpora(config, news_en=50, news_de=50)
  config.batch.size = 80
  config.schedule.num_steps = 500_000
  config.schedule.name = 'rsqrt(peak=1e-4, hold=4000, warmup=4000)'
  config.optim.name = 'adam(b1=0.9, b2=0.98, eps=1e-8)'
  config.log.sample_prompt = ''
  if arg == 'cpu':
    config.model.vocab_size = 4096
    config.tokenizer.name = 'byte_bpe(vocab_size=4096)'
    bert.small(config, num_steps=4500)
  return config.lock()
