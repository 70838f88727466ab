# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""ALBERT (Lan et al., 2019: ALBERT: A Lite BERT for Self-supervised Learning
of Language Representations), section 3.1 and table 1.

  gpt-jax train --config configs/albert.py:xxlarge --workdir W

Parameters with both pre-training heads: 11,813,810 / 17,847,474 /
59,021,490 / 223,158,450; the paper prints the last as 233M in one table and as
223M in another. Sharing does not change FLOPs. Heads have size 64; the released
xlarge has 16 of 128, with the same number of parameters.

Its comparisons, as overrides of base (tables 3 and 4; bodies with their
poolers; the pre-training heads add 130,226 at d_embed=128):

  none shared        --config.model.share=none        89,650,176
  attention shared   --config.model.share=attention   63,647,232
  FFN shared         --config.model.share=ffn         37,686,528
  all shared                                          11,683,584
  E                  --config.model.input="tokens(token_types=2, norm=True,
                     d_embed=64)"  9,681,408; 256: 15,687,936; 768: 31,705,344
                     none shared: 87,648,000; 93,654,528; 109,671,936
  E 768              attention shared 83,668,992; FFN shared 57,708,288

as overrides of large (tables 11 and 12):

  depth              --config.model.num_layers=1, 3, 6, 12, 24, 48: 17,683,968
  width              --config.model.num_layers=3 --config.model.d_model=6144
                     --config.model.num_heads=96: 495,518,208, printed as 497M

and its sentence tasks (table 5): --config.objective.name="masked(unit='word',
ngram=3)" has none; pair='next' adds BERT's.

Details missing in the paper follow the released code: 3,125 warmup steps,
linear decay, weight decay 0.01, clipping at 1, BERT's truncated normal weights.
Version 2 uses the tanh form of GELU except in xxlarge, and no dropout:
--config.model.ffn=gelu_tanh --config.model.output="tied(bias=True,
transform='gelu_tanh')" --config.model.dropout=none. In the released code, rows
with a single sentence take their second text from another document even when
the order is predicted. BooksCorpus and Wikipedia are read from `corpora/`; your
own text: --config.data.source="text('*.txt')". Not run.

`cpu` is a version for two cores and half an hour: see configs/bert.py.

  gpt-jax train --config configs/albert.py:cpu --workdir W \
    --config.data.source="passages(\"jsonl('books.jsonl.gz')\")"
"""

from ml_collections import ConfigDict

from configs import base, bert

DIFFERS = (
  'BERT with one set of parameters shared by all layers and embeddings of '
  'width 128; it predicts masked n-grams of whole words and the order of two '
  'segments; LAMB; SentencePiece'
)
# Table 1: layers, d_model, heads ("H/64", section 3).
SIZES = {
  'base': (12, 768, 12),
  'large': (24, 1024, 16),
  'xlarge': (24, 2048, 32),
  'xxlarge': (12, 4096, 64),
  'cpu': (4, 256, 4),
}


def get_config(arg: str = 'base') -> ConfigDict:
  """ALBERT in the size `arg`."""
  num_layers, d_model, num_heads = base.size(__file__, arg, SIZES)
  config = bert.get_config().unlock()
  config.model.num_layers = num_layers
  config.model.d_model = d_model
  config.model.num_heads = num_heads
  # Section 3.1: embeddings of V x E and E x H with E = 128, all parameters of
  # the layers shared.
  config.model.input = 'tokens(token_types=2, norm=True, d_embed=128)'
  config.model.share = 'all'
  # The order of two segments; n-grams of up to three words, section 4.1.
  config.objective.name = "masked(rate=0.15, unit='word', ngram=3, pair='order')"
  config.data.rows = "pairs('order', short=0.1)"
  # Section 4.1: "a vocabulary size of 30,000, tokenized using SentencePiece",
  # 512 tokens, fewer in 10% of the rows; LAMB of 0.00176, 4096 rows, 125,000
  # steps.
  config.model.vocab_size = 30_000
  config.tokenizer.name = (
    "sentencepiece(vocab_size=30000, normalization='nfkc_cf', "
    "special=['<pad>', '[CLS]', '[SEP]', '[MASK]'])"
  )
  config.batch.length = None
  config.batch.size = 4096
  config.schedule.num_steps = 125_000
  config.schedule.name = 'linear(peak=1.76e-3, warmup=3125, final=0.0)'
  config.optim.name = 'lamb(b1=0.9, b2=0.999, eps=1e-6, weight_decay=0.01)'
  if arg == 'cpu':
    config.model.vocab_size = 8192
    config.tokenizer.name = config.tokenizer.name.replace('30000', '8192')
    bert.small(config, num_steps=2500)
  return config.lock()
