# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""DeBERTa (He et al., 2020: DeBERTa: Decoding-enhanced BERT with Disentangled
Attention), section 3.

  gpt-jax train --config configs/deberta.py:large --workdir W

Parameters: 139,637,337 / 406,789,209, including 512 absolute positions of the
enhanced mask decoder: 139,244,121 / 406,264,921 without it.

Its ablation, as overrides of the position:

  - EMD          --config.model.position="deberta(mask_decoder=0)"
  - C2P          --config.model.position="deberta(mask_decoder=2, c2p=False)"
  - P2C          --config.model.position="deberta(mask_decoder=2, p2c=False)"
  - EMD, C2P     --config.model.position="deberta(c2p=False)"
  - EMD, P2C     --config.model.position="deberta(p2c=False)"
  EMD once       --config.model.position="deberta(mask_decoder=1)"

As released, the mask decoder is the last layer, applied twice. Shares of the
corpora, batch, rate, warmup and optimizer are from memory. The released code
also applies dropout to the distance vectors, ours does not. The texts are read
from `corpora/`; your own: --config.data.source="text('*.txt')". Not run.

`v3_base` is version 3 (He et al., 2021: DeBERTaV3): detection of the tokens
replaced by a generator of half the depth; distances in 256 buckets, projected
like content; 128,100 SentencePiece tokens. Its numbers are from memory, too.
The discriminator has 184,422,913 parameters with its head. Its table is the
generator's plus a learned difference (section 3.2). The paper's comparisons:
sharing='es', one table as in ELECTRA, or 'nes', two.

`cpu` is DeBERTa for two cores and ten minutes: see configs/bert.py. The cost of
distances grows with the row length, so nine tenths of the steps have short
rows, as for BERT.

  gpt-jax train --config configs/deberta.py:cpu --workdir W \
    --config.data.source="passages(\"jsonl('books.jsonl.gz')\")"
"""

from ml_collections import ConfigDict

from configs import base, roberta

DIFFERS = (
  'RoBERTa whose attention scores use separate vectors for content and '
  'distance; absolute positions enter only at the last layer, which is run '
  'twice'
)
# Layers, d_model and heads are BERT's: what roberta.py calls them.
SIZES = {'base': 'base', 'large': 'large', 'v3_base': 'base', 'cpu': 'cpu'}


def get_config(arg: str = 'base') -> ConfigDict:
  """DeBERTa in the size `arg`."""
  config = roberta.get_config(base.size(__file__, arg, SIZES)).unlock()
  # Sections 3.1 and 3.2: no positions at the input, k of 512; no token types.
  config.model.input = 'tokens(norm=True)'
  config.model.position = 'deberta(max_distance=512, mask_decoder=2)'
  # The released code: keys have no bias, an epsilon of 1e-7.
  config.model.bias = 'where(qkv=True, out=True, ffn=True, key=False)'
  config.model.norm = 'layernorm(epsilon=1e-7)'
  if arg == 'cpu':
    config.model.position = 'deberta(max_distance=256, mask_decoder=2)'
    config.batch.length = 'stages(64, 90%:256)'
    config.schedule.num_steps = 380
    config.checkpoint.every_steps = 150
    config.eval.every_steps = 150
    return config.lock()
  # 78 GB before deduplication.
  base.corpora(config, wikipedia=12, books=6, openwebtext=38, stories=31)
  config.batch.size = 2048
  config.optim.name = 'adamw(b1=0.9, b2=0.999, eps=1e-6, weight_decay=0.01)'
  config.optim.clip_norm = 1.0
  config.schedule.num_steps = 1_000_000
  config.schedule.name = 'linear(peak=2e-4, warmup=10000, final=0.0)'
  if arg == 'v3_base':
    version_3(config)
  return config.lock()


def version_3(config: ConfigDict) -> None:
  """Replaced-token detection, and the layers of version 2."""
  config.model.position = 'deberta(max_distance=512, buckets=256, shared=True, norm=True)'
  config.model.bias = 'all'
  config.model.vocab_size = 128_100
  config.tokenizer.name = (
    "sentencepiece(vocab_size=128100, special=['[PAD]', '[CLS]', '[SEP]', '[MASK]'])"
  )
  # The generator scores the vocabulary, the discriminator does not.
  scores, config.model.output = config.model.output, 'tied'
  config.models.generator = dict(num_layers=config.model.num_layers // 2, output=scores)
  config.objective.name = "electra(rate=0.15, weight=50.0, sharing='gdes')"
  config.batch.size = 8192
  config.optim.name = 'adamw(b1=0.9, b2=0.98, eps=1e-6, weight_decay=0.01)'
  config.schedule.num_steps = 500_000
  config.schedule.name = 'linear(peak=6e-4, warmup=10000, final=0.0)'
