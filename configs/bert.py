# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""BERT (Devlin et al., 2018: BERT: Pre-training of Deep Bidirectional
Transformers for Language Understanding), sections 3, 3.1 and A.2.

  gpt-jax train --config configs/bert.py:large --workdir W

Parameters with both pre-training heads: 110,106,428 / 336,226,108, of which the
bodies with their poolers have 109,482,240 and 335,141,888. With the 28,996
pieces of the cased vocabulary base has 108,932,934:
--config.model.vocab_size=28996. The paper prints 110M and 340M, and 30,000
pieces; the released vocabulary has 30,522. The paper also counts 256 rows of
512 tokens as 128,000 tokens: they are 131,072.

Its sizes (table 6), as overrides:

  3 layers               bert.py:base --config.model.num_layers=3    46,315,580
  6 layers               bert.py:base --config.model.num_layers=6    67,579,196
  6 layers of 3 heads    the same with --config.model.num_heads=3    67,579,196
  12 layers 1024 wide    bert.py:large --config.model.num_layers=12 185,071,420

and its objectives (table 5; section A.1, C.2):

  no next sentence       --config.objective.name=masked
                         --config.data.rows=full_sentences
  100% [MASK]            --config.objective.name="masked(mask=1.0, random=0.0,
                                                         pair='next')"

Details missing in the paper follow the released code: decoupled weight decay,
epsilon 1e-6 in Adam and 1e-12 in norms, clipping at 1, truncated normal
weights. Its Adam has no bias correction, ours has. It stores ten copies of the
rows with different masks; here every row gets a new mask each time. BooksCorpus
and Wikipedia are read from `corpora/`; your own text:
--config.data.source="text('*.txt')". Not run.

`cpu` is a version for two cores and half an hour, like gpt1.py:cpu: narrower,
with a third of the layers, and with Muon for the kernels.

  gpt-jax train --config configs/bert.py:cpu --workdir W \
    --config.data.source="passages(\"jsonl('books.jsonl.gz')\")"
"""

from ml_collections import ConfigDict

from configs import base

DIFFERS = (
  'GPT-1 with bidirectional attention, token types, and a norm after the '
  'embeddings and before the output; it predicts masked tokens, and whether '
  'the second sentence follows the first; WordPiece'
)
# Section 3: layers, d_model, heads.
SIZES = {
  'base': (12, 768, 12),
  'large': (24, 1024, 16),
  'cpu': (4, 192, 6),
}


def get_config(arg: str = 'base') -> ConfigDict:
  """BERT in the size `arg`."""
  num_layers, d_model, num_heads = base.size(__file__, arg, SIZES)
  config = base.get_config().unlock()
  config.model.num_layers = num_layers
  config.model.d_model = d_model
  config.model.num_heads = num_heads
  # Section 3: "a multi-layer bidirectional Transformer encoder"; embeddings
  # are the sum of token, segment and position (section 3.1, figure 2).
  config.model.attention = 'bidirectional'
  config.model.input = 'tokens(token_types=2, norm=True)'
  config.model.position = 'learned'
  config.model.context_length = 512
  config.model.block = 'post'
  config.model.norm = 'layernorm(epsilon=1e-12)'
  config.model.ffn = 'gelu'
  config.model.output = "tied(bias=True, transform='gelu')"
  config.model.init_weights = 'truncated_normal(stddev=0.02)'
  config.model.vocab_size = 30_522
  config.tokenizer.name = 'wordpiece(vocab_size=30522)'
  # Section 3.1: 15% of the tokens, of them 80% [MASK], 10% random, 10% as they
  # are; B follows A in half of the rows. A.2: with fewer tokens in 10%.
  config.objective.name = "masked(rate=0.15, mask=0.8, random=0.1, pair='next')"
  config.data.rows = "pairs('next', short=0.1)"
  config.data.sentences = 'terminal'
  # Section 3.1: words, in millions.
  base.corpora(config, books=800, wikipedia=2500)
  # A.2: 256 rows, 1,000,000 steps; Adam of 1e-4, L2 of 0.01, 10,000 steps of
  # warm-up, linear decay; dropout of 0.1 in all layers; 128 tokens for 90% of
  # the steps.
  config.batch.size = 256
  config.batch.length = 'stages(128, 90%:512)'
  config.schedule.num_steps = 1_000_000
  config.schedule.name = 'linear(peak=1e-4, warmup=10000, final=0.0)'
  config.optim.name = 'adamw(b1=0.9, b2=0.999, eps=1e-6, weight_decay=0.01)'
  config.optim.clip_norm = 1.0
  config.model.dropout = 'rates(embedding=0.1, residual=0.1, attention=0.1)'
  config.log.sample_prompt = ''
  if arg == 'cpu':
    config.model.vocab_size = 4096
    config.tokenizer.name = 'wordpiece(vocab_size=4096)'
    small(config, num_steps=4500)
  return config.lock()


def small(config: ConfigDict, *, num_steps: int) -> None:
  """Two cores and half an hour: see configs/gpt1.py."""
  config.data.source = 'stdlib'
  config.data.sources = {}
  config.model.context_length = 256
  config.batch.length = 'stages(64, 90%:256)'
  config.batch.size = 64
  # On two cores a tenth faster than all rows at once, which would fit.
  config.batch.micro_rows = 16
  # No row is seen twice.
  config.model.dropout = 'none'
  config.model.dtype = 'float32'
  config.model.loop = 'unroll'
  config.optim.name = 'muon(weight_decay=0.01)'
  config.schedule.num_steps = num_steps
  config.schedule.name = 'linear(peak=3e-3, warmup=200, final=0.0)'
  config.checkpoint.every_steps = 500
  config.eval.every_steps = 500
  config.eval.rows = 16
  config.eval.num_batches = 25
