# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""BigBird (Zaheer et al., 2020: Big Bird: Transformers for Longer Sequences),
sections 2 and 4, and the released code (google-research/bigbird).

  gpt-jax train --config configs/bigbird.py:base --workdir W

Parameters with both pre-training heads: 128,112,824 / 360,228,024, of which the
bodies with their poolers have 127,468,800 and 359,123,968. The released
checkpoints also contain both heads, but were trained on masked words alone:

  --config.objective.name="masked(unit='word')"
  --config.data.rows=full_sentences

which has 127,520,694 and 359,176,374. They started from RoBERTa's weights, ours
start from scratch.

Each block of 64 tokens attends to the first and the last block, to itself and
the blocks before and after it, and to three random ones: 512 of 4,096 keys
(gpt_jax/papers/bigbird/bigbird.py). Random blocks are drawn from the whole
row; the released code draws them from its first 1,024 tokens. The
constructions of section 2:

  internal (ITC)   the default: the first and the last block are global
  extended (ETC)   --config.model.attention="bigbird(block=64, random=0,
                                                     extra=256)"
                   128,309,432 parameters, with the additional vectors

The tokenizer is BPE with the size of the released SentencePiece model. Four
corpora of long documents are read from `corpora/`, in equal shares; your own
text: --config.data.source="text('*.txt')". Not run.

`cpu` is a version for two cores and ten minutes: rows of 512 tokens in blocks
of 16, and rotary positions (RoPE): so few steps do not teach a vector for each
of 512 positions, and a model without positions only predicts frequent words.

  gpt-jax train --config configs/bigbird.py:cpu --workdir W \
    --config.data.source="passages(\"jsonl('books.jsonl.gz')\")"
"""

from ml_collections import ConfigDict

from configs import base, bert

DIFFERS = (
  'BERT on rows of 4,096 tokens; each token attends to 512 of them: global '
  'blocks, a window and random blocks; tanh GELU; BPE of 50,358 tokens'
)
# Section 4: BERT's, with the same names.
SIZES = bert.SIZES


def get_config(arg: str = 'base') -> ConfigDict:
  """BigBird in the size `arg`."""
  base.size(__file__, arg, SIZES)
  config = bert.get_config(arg).unlock()
  # Section 2 and the released sizes: a window of three blocks, two global and
  # three random ones.
  config.model.attention = 'bigbird(block=64, window=3, random=3)'
  config.model.context_length = 4096
  config.model.ffn = 'gelu_tanh'
  config.model.output = "tied(bias=True, transform='gelu_tanh')"
  config.objective.name = "masked(rate=0.15, mask=0.8, random=0.1, unit='word', pair='next')"
  # All rows are long.
  config.batch.length = None
  if arg == 'cpu':
    config.model.attention = 'bigbird(block=16, window=3, random=3)'
    config.model.position = 'rope(theta=1e4)'
    config.model.context_length = 512
    config.batch.size = 16
    config.schedule.num_steps = 400
    config.schedule.name = 'linear(peak=3e-3, warmup=100, final=0.0)'
    config.checkpoint.every_steps = 200
    config.eval.every_steps = 200
    config.eval.num_batches = 10
    return config.lock()
  config.model.vocab_size = 50_358
  config.tokenizer.name = 'byte_bpe(vocab_size=50358)'
  # Section 4: books, news, stories, Wikipedia.
  base.corpora(config, books=1, cc_news=1, stories=1, wikipedia=1)
  # The released pre-training: 256 rows, a rate of 1e-4 after 10,000 steps.
  config.batch.size = 256
  config.schedule.num_steps = 100_000
  config.schedule.name = 'linear(peak=1e-4, warmup=10000, final=0.0)'
  config.optim.name = 'adamw(b1=0.9, b2=0.999, eps=1e-6, weight_decay=0.01)'
  return config.lock()
