# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""UniLM (Dong et al., 2019: Unified Language Model Pre-training for Natural
Language Understanding and Generation), sections 2.1 to 2.4.

  gpt-jax train --config configs/unilm.py:large --workdir W

Parameters with both pre-training heads: 334,661,958 (large), as BERT with the
28,996 pieces of the cased vocabulary, printed as 340M; base, which was also
released, has 108,932,934. The two token types are those of BERT, from which the
paper starts; a unidirectional row has one type throughout, 0 from left to right
and 1 from right to left. Separate types for the four objectives ("different
segment embeddings for different LM objectives", numbered as in the released
code) are six, 334,666,054 parameters:

  --config.model.input="tokens(token_types=6, norm=True)"

The paper starts from BERT-large's weights, with a peak of 3e-5; this config
starts from scratch, for which BERT's peak is 1e-4. Its schedule has about
770,000 steps; "7 hours for 10,000 steps" is a rate. Weight decay, clipping and
other details missing in the paper are BERT's. BooksCorpus and Wikipedia are
read from `corpora/`; your own text: --config.data.source="text('*.txt')". Not
run.

Its fine-tuning for generation (section 2.4; numbers of the released code for
Gigaword) starts from a pre-training run in `W1` and predicts 70% of the target
tokens, for 30 epochs, here as a number of steps.

  gpt-jax train --config configs/unilm.py:large --workdir W2 \
    --config.optim.start=W1 --config.tokenizer.name="saved('W1')" \
    --config.objective.name="unified_target(0.7, label_smoothing=0.1)" \
    --config.data.rows="parallel(start='cls')" --config.data.sentences=none \
    --config.data.source="parallel_text('train.article', 'train.title')" \
    --config.batch.size=64 --config.schedule.num_steps=100000 \
    --config.schedule.name="linear(peak=3e-5, warmup=10000, final=0.0)"
  gpt-jax generate --workdir W2 --sources in.article --out out.jsonl --beam 5

`cpu` is a version for two cores and half an hour: see configs/bert.py.

  gpt-jax train --config configs/unilm.py:cpu --workdir W \
    --config.data.source="passages(\"jsonl('books.jsonl.gz')\")"
"""

from ml_collections import ConfigDict

from configs import base, bert

DIFFERS = (
  'BERT trained under four attention masks in turn: bidirectional, left to '
  'right, right to left and sequence to sequence; masked n-grams; cased '
  'WordPiece'
)
# Section 2.4 and the released code: BERT's sizes of the same names.
SIZES = {'base': 'base', 'large': 'large', 'cpu': 'cpu'}


def get_config(arg: str = 'base') -> ConfigDict:
  """UniLM in the size `arg`."""
  config = bert.get_config(base.size(__file__, arg, SIZES)).unlock()
  # Section 2.3: four attention masks in 1/3, 1/6, 1/6 and 1/3 of each batch;
  # 15% of the tokens are chosen, of them 80% [MASK], 10% random, 10% unchanged;
  # 80% of the time one token, else a bigram or a trigram.
  config.objective.name = 'unified(rate=0.15, mask=0.8, random=0.1)'
  config.data.rows = "pairs('unified', short=0.1)"
  if arg == 'cpu':
    config.batch.size = 66
    config.batch.micro_rows = 22  # a third: see bert.small
    config.schedule.num_steps = 4350
    return config.lock()
  # Section 2.4: the cased vocabulary of 28,996 pieces, 512 tokens, 330 rows,
  # Adam at 3e-5, 40,000 warmup steps, linear decay, dropout 0.1, weight decay
  # 0.01.
  config.model.vocab_size = 28_996
  config.tokenizer.name = 'wordpiece(vocab_size=28996, lowercase=False)'
  config.batch.length = None
  config.batch.size = 330
  config.schedule.num_steps = 770_000
  config.schedule.name = 'linear(peak=3e-5, warmup=40000, final=0.0)'
  return config.lock()
