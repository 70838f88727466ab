# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""XLNet (Yang et al., 2019: XLNet: Generalized Autoregressive Pretraining for
Language Understanding), sections 2.3 to 2.6, 3.1 and A.4.

  gpt-jax train --config configs/xlnet.py:large --workdir W

Parameters: 116,750,336 / 360,300,800, of which 32,000 are output biases.
Layers, widths and heads are BERT's; W_kR of each layer, 25M in large, is
additional.

Rows are those of the released code, [reused, A, SEP, B, SEP, CLS] of 512
tokens, every other one read backwards, and one in six tokens is predicted: 85
of 512. The released code carries the memory from row to row; here rows are
independent, so that a resume needs only the step. To train the memory within
rows:

  --config.objective.name="permuted(segments=2)" --config.data.rows=stream
  --config.model.context_length=1024

Base has large's learning rate, the one that the paper gives; the paper's own
base is for its ablation (table 6), with K of 6 or 7:
--config.objective.name="permuted(context=7)". Left out are <eop> for the end of
a paragraph, and dropout of distances and after the last layer. Of its five
corpora BooksCorpus and Wikipedia are read from `corpora/`, in BERT's shares;
your own text: --config.data.source="text('*.txt')". Not run.

`cpu` is a version for two cores and ten minutes: fewer steps than
configs/bert.py, since each takes longer with two streams.

  gpt-jax train --config configs/xlnet.py:cpu --workdir W \
    --config.data.source="passages(\"jsonl('books.jsonl.gz')\")"
"""

from ml_collections import ConfigDict

from configs import base, bert

DIFFERS = (
  'BERT that predicts its tokens in a random order, by a second stream of '
  "attention; Transformer-XL's distances and memory, relative segments; cased "
  'SentencePiece'
)
# Section 3.1 and A.4: BERT's sizes. Layers, d_model, heads.
SIZES = {
  'base': (12, 768, 12),
  'large': (24, 1024, 16),
  'cpu': (4, 192, 6),
}


def get_config(arg: str = 'base') -> ConfigDict:
  """XLNet in the size `arg`."""
  num_layers, d_model, num_heads = base.size(__file__, arg, SIZES)
  config = bert.get_config().unlock()
  config.model.num_layers = num_layers
  config.model.d_model = d_model
  config.model.num_heads = num_heads
  # Section 2.3: g^0 is one trained vector; 2.4: the relative positions and the
  # memory of Transformer-XL; 2.5: relative segments.
  config.model.input = 'tokens(queries=True)'
  config.model.position = 'xlnet(memory=384)'
  # As in the released code: no biases in attention, one per output logit.
  config.model.bias = 'where(ffn=True)'
  config.model.output = 'tied(bias=True)'
  config.model.init_weights = 'normal(stddev=0.02)'
  # Sections 2.3 and 2.5: K = 6, spans of 1 to 5; orders of 256 tokens.
  config.objective.name = 'permuted(context=6, longest=5, block=256)'
  config.data.rows = 'halves'
  # Section 3.1: SentencePiece, 32,000 cased pieces.
  config.model.vocab_size = 32_000
  config.tokenizer.name = (
    'sentencepiece(vocab_size=32000, character_coverage=0.99995, '
    "special=['<pad>', '[CLS]', '[SEP]'])"
  )
  # A.4, table 8: 8,192 rows, 500,000 steps; Adam at 4e-4, epsilon 1e-6, 40,000
  # warmup steps, linear decay, weight decay 0.01.
  config.batch.length = None
  config.batch.size = 8192
  config.schedule.num_steps = 500_000
  config.schedule.name = 'linear(peak=4e-4, warmup=40000, final=0.0)'
  config.optim.name = 'adamw(b1=0.9, b2=0.999, eps=1e-6, weight_decay=0.01)'
  if arg == 'cpu':
    config.model.vocab_size = 4096
    config.tokenizer.name = config.tokenizer.name.replace('32000', '4096')
    bert.small(config, num_steps=600)
    config.checkpoint.every_steps = 300
    config.eval.every_steps = 300
  return config.lock()
