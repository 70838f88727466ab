# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""ELECTRA (Clark et al., 2020: ELECTRA: Pre-training Text Encoders as
Discriminators Rather Than Generators), sections 2, 3 and tables 6, 7.

  gpt-jax train --config configs/electra.py:small --workdir W

A generator fills in [MASK]s; the model predicts which tokens were replaced.
Parameters of both, shared ones once: 14,196,219 / 119,386,427 / 354,655,291, of
which the discriminator, the model to fine-tune, has 13,549,057 / 109,483,009 /
335,142,913 with its head. The published generator of small is as wide as its
discriminator; the paper's, and ours, has a quarter of the width.

Its comparisons (section 3.4, tables 5 and 8), as overrides:

  ELECTRA 15%      --config.objective.name="electra(targets='electra_15')"
  Replace MLM      --config.objective.name="electra(targets='replace_mlm',
                   weight=1.0)"
                   --config.model.output="tied(bias=True, transform='gelu')"
  All-tokens MLM   the same with targets='all_tokens_mlm'
  BERT             bert.py; in small's size
                   bert.py:base --config.model.d_model=256
                   --config.model.num_heads=4
                   --config.model.input="tokens(token_types=2, norm=True,
                                                d_embed=128)"

Separate embeddings, or DeBERTaV3's sums: sharing='nes', sharing='gdes'.

First the generator alone, then the model from its weights (section 3.3, where
it was no better), with models of the same size; for small:

  Two stages       --config.objective.name="electra(generator_steps=500000)"
                   --config.models.generator.d_model=256
                   --config.models.generator.num_heads=4
                   (base, large: also --config.models.generator.input=
                   "tokens(token_types=2, norm=True)")

Details missing in the paper follow the released code: all chosen tokens become
[MASK]; decoupled weight decay, epsilon 1e-6 in Adam, clipping at 1, truncated
normal weights. Its rows always contain adjacent texts, ours are BERT's. The
data are BERT's; large used XLNet's. BooksCorpus and Wikipedia are read from
`corpora/`; your own text: --config.data.source="text('*.txt')". Not run.

`cpu` is a version for two cores and half an hour: see configs/bert.py.

  gpt-jax train --config configs/electra.py:cpu --workdir W \
    --config.data.source="passages(\"jsonl('books.jsonl.gz')\")"
"""

from ml_collections import ConfigDict

from configs import base, bert

DIFFERS = (
  'BERT that predicts for every token whether a smaller BERT, with shared '
  'embeddings, has replaced the original'
)
# Table 6: layers, d_model, heads, embedding width; d_model and heads of the
# generator; rows, steps, learning rate, masked fraction.
SIZES = {
  'small': (12, 256, 4, 128, 64, 1, 128, 1_000_000, '5e-4', 0.15),
  'base': (12, 768, 12, 768, 256, 4, 256, 766_000, '2e-4', 0.15),
  'large': (24, 1024, 16, 1024, 256, 4, 2048, 400_000, '2e-4', 0.25),
  'cpu': (4, 192, 6, 192, 64, 2, 64, 3940, '3e-3', 0.15),
}


def get_config(arg: str = 'small') -> ConfigDict:
  """ELECTRA in the size `arg`."""
  sizes = base.size(__file__, arg, SIZES)
  num_layers, d_model, num_heads, d_embed, width, heads = sizes[:6]
  rows, num_steps, peak, rate = sizes[6:]
  config = bert.get_config().unlock()
  config.model.num_layers = num_layers
  config.model.d_model = d_model
  config.model.num_heads = num_heads
  if d_embed != d_model:
    config.model.input = _input(d_embed)
  # The generator scores the vocabulary, the discriminator does not.
  scores, config.model.output = config.model.output, 'tied'
  config.models.generator = dict(
    d_model=width, num_heads=heads, input=_input(d_embed), output=scores
  )
  # Section 2, and lambda of 50 (appendix A).
  config.objective.name = f'electra(rate={rate}, weight=50.0)'
  config.batch.size = rows
  # Table 6: small has rows of 128 tokens; the released model still has 512
  # positions.
  config.batch.length = 'stages(128)' if arg == 'small' else None
  config.schedule.num_steps = num_steps
  config.schedule.name = f'linear(peak={peak}, warmup=10000, final=0.0)'
  if arg == 'cpu':
    config.model.vocab_size = 4096
    config.tokenizer.name = 'wordpiece(vocab_size=4096)'
    bert.small(config, num_steps=num_steps)
  return config.lock()


def _input(d_embed: int) -> str:
  """BERT's embeddings, with a width other than the layers'."""
  return f'tokens(token_types=2, norm=True, d_embed={d_embed})'
