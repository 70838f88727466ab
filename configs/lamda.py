# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""LaMDA (Thoppilan et al., 2022: LaMDA: Language Models for Dialog
Applications), sections 3 and 6.

  gpt-jax train --config configs/lamda.py --workdir W
  gpt-jax finetune --config configs/lamda.py:finetune --init W --workdir L

Parameters: 137,715,798,016, of which 137,453,649,920 are not embeddings: the
paper's "137B non-embedding parameters". Context and optimizer were not
published: both are GPT-3's, as are norms, biases and the peak rate (of 175B).

The corpora are read from `corpora/`; your own text:
--config.data.source="text('*.txt')". Not run.

`finetune` is section 6: one model learns to respond and to rate responses, from
rows of both kinds in `train.jsonl` and `dev.jsonl`, with the loss on the target
alone:

  {"prompt": "What's up? RESPONSE", "target": " not much."}
  {"prompt": "What's up? RESPONSE not much. SENSIBLE", "target": " 1"}

The attributes are SENSIBLE, SPECIFIC, INTERESTING and UNSAFE; its 1 is bad. The
settings of `finetune` are GPT-1's.
"""

from ml_collections import ConfigDict

from configs import base, gpt3
from configs.finetune import base as tuned

DIFFERS = (
  "GPT-3 with T5's relative position buckets, gated GELU, heads twice as wide "
  'in total as the model, and full attention in all layers'
)
# Layers, d_model, d_ff, heads, head size.
SIZES = {'137b': (64, 8192, 65_536, 128, 128)}


def get_config(arg: str = '137b') -> ConfigDict:
  """LaMDA in the size `arg`, or its fine-tuning."""
  if arg == 'finetune':
    config = tuned.get_config().unlock()
    config.finetune.task = "target('train.jsonl', 'dev.jsonl')"
    return config.lock()
  num_layers, d_model, d_ff, num_heads, head_size = base.size(__file__, arg, SIZES)
  config = gpt3.get_config('175b').unlock()
  # Section 3: BPE by SentencePiece, 32k tokens; 64 layers, d_model 8192, d_ff
  # 65536, h 128, d_k = d_v = 128, relative attention as in T5, gated GELU.
  config.tokenizer.name = "sentencepiece(vocab_size=32000, model='bpe', split_digits=False)"
  config.model.vocab_size = 32_000
  config.model.num_layers = num_layers
  config.model.d_model = d_model
  config.model.d_ff = d_ff
  config.model.num_heads = num_heads
  config.model.head_size = head_size
  config.model.attention = 'full'
  config.model.position = 't5_bias'
  config.model.ffn = 'geglu'
  # 256k = 128 * 2048 tokens in a batch. 57.7 days on 1024 TPU v3 at 56.5% of
  # 123 TFLOP/s are 3.5e23 FLOPs; divided by 6 * 137e9 that is 432e9 tokens,
  # less than one pass over the corpus of 1.56T words.
  config.batch.size = 128
  config.schedule.num_steps = '432B_tokens'
  config.schedule.name = "cosine(peak=6e-05, warmup='375M_tokens', final=0.1)"
  # Appendix E.
  base.corpora(
    config,
    forums=50,
    c4=12.5,
    code=12.5,
    wikipedia=12.5,
    english_web=6.25,
    other_web=6.25,
  )
  return config.lock()
