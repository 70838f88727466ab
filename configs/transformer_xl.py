# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""Transformer-XL (Dai et al., 2019: Transformer-XL: Attentive Language Models
beyond a Fixed-Length Context), sections 3 and 4.

  gpt-jax train --config configs/transformer_xl.py:wt103 --workdir W
  gpt-jax evaluate --workdir W --memory 640 --segment 64 --clamp 400 \
    --same_length

Parameters: 151,107,538 / 285,170,506 / 41,055,436 / 277,231,820. The paper
prints 151M, 257M, 41M and 277M; the second disagrees with its released sizes.

The paper carries the memory over from one training step to the next, whose rows
continue those of the step before. Here a row holds several segments, each with
the memory of the states before it, so that a step depends only on its number:
the tokens per step are the same, in fewer and longer rows, whose first segment
has no memory. The evaluation reads the held-out text in order, with a memory of
any length; the released scripts use

  wt103        --memory 640 --segment 64 --clamp 400 --same_length
  wt103-large  --memory 1600 --segment 128 --clamp 1000 --same_length
  enwik8-12    --memory 2100 --segment 80 --clamp 820 --same_length
  enwik8-24    --memory 3800 --segment 128 --same_length

Sizes, rates and dropout are those of the released code; heads, batch, warmup
and dropout of enwik8-24 are from memory. The released code also has dropout
within the feed-forward layer and after the last layer, ours does not. WikiText
is read as published, `wiki.train.tokens` and `wiki.valid.tokens`, or from
--config.data.source="text('...')" and --config.data.holdout="text('...')"; a
line end is a token, as there, and the end of a document another. enwik8 is
predicted byte by byte. The paper's 204 symbols are its bytes without line ends,
which its preprocessing drops; ours are line ends, the end of a document, and
the most frequent bytes, with one symbol for all others. Not run.

`cpu` is the enwik8 model for two cores and ten minutes, in segments of 32
bytes:

  gpt-jax train --config configs/transformer_xl.py:cpu --workdir W \
    --config.data.source="jsonl('books.jsonl.gz')"
  gpt-jax evaluate --workdir W --memory 0,32,128

After seven minutes of CPU time on 12 MB of books the perplexity per byte on
other books is 4.91 without memory and 4.45 with it: docs/evaluation.md.
"""

from ml_collections import ConfigDict

from configs import base

DIFFERS = (
  'the decoder of 2017 with a memory of the states of earlier segments, '
  'relative positions in each layer, and an adaptive softmax over words'
)
# Layers, d_model, heads, head size, d_ff.
SIZES = {
  'wt103': (16, 410, 10, 41, 2100),
  'wt103-large': (18, 1024, 16, 64, 4096),
  'enwik8-12': (12, 512, 8, 64, 2048),
  'enwik8-24': (24, 1024, 8, 128, 3072),
  'cpu': (3, 128, 4, 32, 512),
}
# Tokens of a segment and of its memory, segments of a row, rows: 9,000, 49,152,
# 11,264, 50,176 and 2,048 tokens a step. Dropout, that of attention; steps,
# warm-up.
_TRAINING = {
  'wt103': (150, 6, 10, 0.1, 0.0, 200_000, 0),
  'wt103-large': (384, 8, 16, 0.2, 0.2, 4_000_000, 16_000),
  'enwik8-12': (512, 11, 2, 0.1, 0.0, 400_000, 0),
  'enwik8-24': (784, 4, 16, 0.15, 0.15, 400_000, 4000),
  'cpu': (32, 8, 8, 0.0, 0.0, 2400, 30),
}


def get_config(arg: str = 'wt103') -> ConfigDict:
  """Transformer-XL in the size `arg`."""
  num_layers, d_model, num_heads, head_size, d_ff = base.size(__file__, arg, SIZES)
  segment, segments, rows, dropout, attention, steps, warmup = _TRAINING[arg]
  config = base.get_config().unlock()
  config.model.num_layers = num_layers
  config.model.d_model = d_model
  config.model.num_heads = num_heads
  config.model.head_size = head_size
  config.model.d_ff = d_ff
  # Sections 3.2 and 3.3; all layers share u and v.
  config.model.position = f"transformer_xl(memory={segment}, segment={segment}, biases='shared')"
  config.model.context_length = segment * segments
  config.model.block = 'post'
  config.model.bias = 'where(ffn=True)'
  config.model.ffn = 'relu'
  if dropout:
    config.model.dropout = f'rates(embedding={dropout}, residual={dropout}, attention={attention})'
  if not arg.startswith('wt103'):
    config.model.vocab_size = 204
    config.tokenizer.name = 'frequent_bytes(vocab_size=204)'
    config.model.input = "tokens(scale='sqrt')"
    config.model.output = 'tied(bias=True)'
    config.data.source = "text('enwik8')"
    # 90 of 100 million bytes for training, 5 each for validation and test.
    config.data.holdout = 'tail(fraction=0.1)'
  else:
    config.model.vocab_size = 267_735
    config.tokenizer.name = 'words(vocab_size=267_735)'
    div_val, own = (4, '(0,)') if arg == 'wt103-large' else (1, '()')
    config.model.input = (
      f'adaptive(cutoffs=(20_000, 40_000, 200_000), d_embed={d_model}, '
      f"div_val={div_val}, scale='sqrt')"
    )
    config.model.output = f'adaptive(own={own})'
    config.data.source = "text('wiki.train.tokens')"
    config.data.holdout = "text('wiki.valid.tokens')"
  config.batch.size = rows
  config.schedule.num_steps = steps
  config.schedule.name = f'cosine(peak=2.5e-4, warmup={warmup}, final=0.0)'
  config.optim.name = 'adam(b1=0.9, b2=0.999, eps=1e-8)'
  config.optim.clip_norm = 0.25
  config.eval.rows = 16
  config.log.sample_prompt = ''
  if arg == 'cpu':
    config.data.source = 'stdlib'
    config.data.holdout = 'documents(fraction=0.02)'
    config.model.dtype = 'float32'
    config.model.loop = 'unroll'
    config.schedule.name = f'cosine(peak=3e-3, warmup={warmup}, final=0.05)'
    config.optim.clip_norm = 1.0
    config.optim.name = 'muon(weight_decay=0.01)'
    config.checkpoint.every_steps = 400
    config.eval.every_steps = 800
    config.eval.num_batches = 32
  return config.lock()
