# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""CoVe (McCann et al., 2017: Learned in Translation: Contextualized Word
Vectors): a translator whose encoder gives vectors of words in context.

  gpt-jax train --config configs/cove.py:base --workdir W
  gpt-jax finetune --config configs/finetune/cove.py --init W --workdir T

The encoder is CoVe(w) = biLSTM(GloVe(w)), section 3: 3,609,600 parameters, two
layers of 300 cells each way. The file of GloVe's vectors, of which the first
400,000 words are read, is a user's; its table is not trained. The decoder is
two LSTM layers and global attention, docs/translation.md.

Different from the paper: the decoder has 300 cells, its input lacks the
attention's output of the token before, and it starts at a state of 0; Adam for
SGD with a rate that is halved. Dropout, and MT-large as the corpus, are from
memory. Text is read as it is split at white space: tokenize it like GloVe's
words. Not run.

`cpu` is for two cores and a small corpus such as Multi30k, with one table for
both languages, initialized and trained.
"""

from ml_collections import ConfigDict

from configs import base

DIFFERS = (
  'LSTM layers in place of self-attention: two of both directions in the '
  'encoder, two with global attention to it in the decoder; GloVe vectors'
)
# Words of targets and of sources (0: one table for both), width, steps.
SIZES = {
  'base': (50_000, 400_000, 300, 100_000),
  'cpu': (12_000, 0, 100, 3000),
}


def get_config(arg: str = 'base') -> ConfigDict:
  """The translator in the size `arg`."""
  targets, sources, width, steps = base.size(__file__, arg, SIZES)
  config = base.get_config().unlock()
  config.model.num_encoder_layers = 2
  config.model.num_layers = 2
  config.model.d_model = width
  config.model.num_heads = 1
  config.model.context_length = 128
  config.model.vocab_size = targets
  config.model.source_vocab_size = sources
  # The inputs and outputs of all layers.
  first, second = 'input_dropout=0.2, dropout=0.2', 'dropout=0.2'
  config.model.encoder_attention = (
    f"lstm({width}, directions='both', {first}), lstm({width}, directions='both', {second})"
  )
  config.model.attention = f'lstm({width}, {first}), lstm({width}, attends=True, {second})'
  config.model.block = 'plain'
  config.model.position = 'none'
  config.model.output = 'untied'
  config.model.init_weights = 'uniform(embedding=0.1)'
  config.objective.name = 'seq2seq'
  config.data.rows = 'parallel'
  config.optim.name = 'adam()'
  config.batch.size = 32
  config.schedule.num_steps = steps
  config.schedule.name = f'cosine(peak=1e-3, warmup={steps // 50}, final=0.05)'
  config.eval.rows = 16
  if arg == 'cpu':
    config.model.dtype = 'float32'
    config.tokenizer.name = f'words(vocab_size={targets}, count=2)'
    config.batch.size = 8
    config.schedule.name = 'cosine(peak=3e-3, warmup=100, final=0.05)'
    config.checkpoint.every_steps = 500
    config.eval.every_steps = 500
    return config.lock()
  glove = 'glove.840B.300d.txt'
  config.tokenizer.name = (
    f'sides("words(vocab_size={targets})", '
    f'source="words_file(\'{glove}\', size={width}, vocab_size={sources})")'
  )
  config.optim.vectors = glove
  config.optim.trained = 'encoder/*, decoder/*, embed/*, head/*'
  wmt, dev = 'corpora/wmt17_en_de', 'corpora/newstest2016'
  config.data.source = f"parallel_text('{wmt}/*.en*', '{wmt}/*.de*')"
  config.data.holdout = f"parallel_text('{dev}/*.en*', '{dev}/*.de*')"
  return config.lock()
