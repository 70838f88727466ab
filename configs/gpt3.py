# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""GPT-3 (Brown et al., 2020: Language Models are Few-Shot Learners), in the
eight sizes of its table 2.1.

  gpt-jax train --config configs/gpt3.py:6.7b --workdir W

Parameters: 125,226,240 / 355,871,744 / 760,300,032 / 1,517,123,584 /
2,651,553,280 / 6,658,404,352 / 12,936,488,380 / 174,604,259,328. Where table
2.1 contradicts itself, its entries are used as printed:
- 1.3b has 24 heads of 128, 3072 features at a width of 2048, which gives 1.52B;
  16 heads would give the printed 1.3B (1.32B).
- 13b has a width of 5140 and 40 heads of 128 (5120): 12.94B, printed as 13.0B.
- 350m has 356M, like GPT-2 medium with the longer context.

The paper does not state the width of its local attention: 256 is that of
GPT-Neo, its open replication. The batch grows "linearly from a small value
(32k tokens) to the full value over the first 4-12 billion tokens of training,
depending on the model size": here in 9 stages, over 4B tokens up to 760m, 12B
for 175b, and 8B between. Vocabulary as in gpt2.py. The corpora are read from
`corpora/`; your own text: --config.data.source="text('*.txt')". Not run.
"""

from ml_collections import ConfigDict

from configs import base, gpt2

DIFFERS = (
  'GPT-2 with local attention in every second layer; context of 2,048; Adam with beta2 of 0.95'
)
# Table 2.1: layers, d_model, heads, head size, peak rate; rows of 2048 tokens
# in a batch: of 0.5M = 256 * 2048, 1M, 2M, and 3.2M = 1568 * 2048 tokens;
# appendix B: how long the batch grows, see above.
SIZES = {
  '125m': (12, 768, 12, 64, 6.0e-4, 256, '4B'),
  '350m': (24, 1024, 16, 64, 3.0e-4, 256, '4B'),
  '760m': (24, 1536, 16, 96, 2.5e-4, 256, '4B'),
  '1.3b': (24, 2048, 24, 128, 2.0e-4, 512, '8B'),
  '2.7b': (32, 2560, 32, 80, 1.6e-4, 512, '8B'),
  '6.7b': (32, 4096, 32, 128, 1.2e-4, 1024, '8B'),
  '13b': (40, 5140, 40, 128, 1.0e-4, 1024, '8B'),
  '175b': (96, 12288, 96, 128, 0.6e-4, 1568, '12B'),
}


def get_config(arg: str = '125m') -> ConfigDict:
  """GPT-3 in the size `arg`."""
  num_layers, d_model, num_heads, head_size, peak, rows, growth = base.size(__file__, arg, SIZES)
  config = gpt2.get_config().unlock()
  # Section 2.1: "the same model and architecture as GPT-2 [...] with the
  # exception that we use alternating dense and locally banded sparse
  # attention patterns".
  config.model.attention = 'full, local(window=256)'
  config.model.num_layers = num_layers
  config.model.d_model = d_model
  config.model.num_heads = num_heads
  config.model.head_size = head_size
  config.model.context_length = 2048
  # Appendix B: 32k = 16 * 2048 tokens at first; Adam, clipping, 375M tokens of
  # warmup, a cosine to 10% over 260B tokens, 300B tokens in total.
  config.batch.size = f"linear_ramp(16, {rows}, over='{growth}_tokens', stages=9)"
  config.optim.name = 'adamw(b1=0.9, b2=0.95, eps=1e-8, weight_decay=0.1)'
  config.optim.clip_norm = 1.0
  config.schedule.num_steps = '300B_tokens'
  config.schedule.name = (
    f"cosine(peak={peak}, warmup='375M_tokens', final=0.1, decay='260B_tokens')"
  )
  # Table 2.2; its weights add up to 101%.
  base.corpora(config, common_crawl=60, webtext2=22, books1=8, books2=8, wikipedia=3)
  return config.lock()
