# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""GPT-1 (Radford et al., 2018: Improving Language Understanding by Generative
Pre-Training), section 4.1.

  gpt-jax train --config configs/gpt1.py --workdir W

Parameters: 116,534,784. BooksCorpus is not distributed: the corpus defaults to
the Python standard library with a vocabulary of the paper's size trained on
it. With GPT-1's own vocabulary files and your text:

  --config.tokenizer.name="gpt1_bpe('encoder_bpe_40000.json',
                                    'vocab_40000.bpe')"
  --config.data.source="text('books/*.txt')"

Not run to the end.

`cpu` is a version for two cores and 35 minutes: narrower, with a third of the
layers, and with Muon for the kernels. The paper's ablation
(docs/fine-tuning.md) is made with it:

  gpt-jax train --config configs/gpt1.py:cpu --workdir W \
    --config.data.source="passages(\"jsonl('books.jsonl.gz')\")"
"""

from ml_collections import ConfigDict

from configs import base

DIFFERS = (
  'the decoder of the Transformer, with norms after each sublayer, learned '
  'positions, GELU and dropout of 0.1'
)


SIZES = {'117m': None, 'cpu': None}


def get_config(arg: str = '117m') -> ConfigDict:
  """The paper's size, or a small one."""
  base.size(__file__, arg, SIZES)
  config = _paper()
  return (_small(config) if arg == 'cpu' else config).lock()


def _paper() -> ConfigDict:
  config = base.get_config().unlock()
  # "a 12-layer decoder-only transformer with masked self-attention heads (768
  # dimensional states and 12 attention heads) [...] 3072 dimensional inner
  # states"; layer norm after each sub-block; BPE with 40,000 merges.
  config.model.num_layers = 12
  config.model.d_model = 768
  config.model.num_heads = 12
  config.model.d_ff = 3072
  config.model.block = 'post'
  config.model.vocab_size = 40_478
  config.tokenizer.name = "sentencepiece(vocab_size=40478, model='bpe')"
  config.model.init_weights = 'normal(stddev=0.02)'
  config.model.dropout = 'rates(embedding=0.1, residual=0.1, attention=0.1)'
  # Adam, 2.5e-4 after 2000 updates from zero, cosine to 0; 100 epochs of
  # batches of 64 rows of 512 tokens. BooksCorpus has about 1e9 tokens, hence
  # about 30,500 batches an epoch.
  config.optim.name = 'adamw(b1=0.9, b2=0.999, eps=1e-8, weight_decay=0.01)'
  config.optim.clip_norm = 1.0  # as in the released code
  config.schedule.name = 'cosine(peak=2.5e-4, warmup=2000, final=0.0)'
  config.schedule.num_steps = 3_050_000
  config.batch.size = 64
  config.model.context_length = 512
  return config


def _small(config: ConfigDict) -> ConfigDict:
  config.model.num_layers = 4
  config.model.d_model = 192
  config.model.num_heads = 6
  config.model.d_ff = 768
  config.model.context_length = 256
  config.model.vocab_size = 4096
  config.tokenizer.name = 'sentencepiece(vocab_size=4096)'
  # No row is seen twice.
  config.model.dropout = 'none'
  config.model.dtype = 'float32'
  config.model.loop = 'unroll'
  config.batch.size = 16
  # At a width of 128: 2.00 bits per byte after 1,000 steps, 2.08 with Adam.
  config.optim.name = 'muon(weight_decay=0.01)'
  config.schedule.num_steps = 5600
  config.schedule.name = 'cosine(peak=3e-3, warmup=200, final=0.0)'
  config.checkpoint.every_steps = 500
  config.eval.every_steps = 500
  config.eval.rows = 16
  config.eval.num_batches = 25
  return config
