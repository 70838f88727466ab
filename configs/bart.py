# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""BART (Lewis et al., 2019: BART: Denoising Sequence-to-Sequence Pre-training
for Natural Language Generation, Translation, and Comprehension), sections 2
and 5.

  gpt-jax train --config configs/bart.py:large --workdir W

Parameters: 139,420,416 / 406,291,456, with positions for 1,024 tokens;
pre-training rows have 512 (released code).

Its corruptions (section 2.2, table 1), as overrides:

  token masking         --config.objective.name="denoise('mask(0.15)')"
  token deletion        --config.objective.name="denoise('delete(0.15)')"
  text infilling        --config.objective.name="denoise('infill(0.3, 3)')"
  document rotation     --config.objective.name="denoise('rotate')"
  sentence permutation  --config.objective.name="denoise('permute')"

The released command uses spans of 3.5 words on average instead of the paper's
3, and a random token for a tenth of the [MASK]s: infill(0.3, 3.5, 0.1). Its
spans may run into one another, ours do not (gpt_jax/papers/bart/denoise.py).
Details missing in the paper follow the released code: peak 4e-4, 10,000 warmup
steps, clipping at 0.1; Adam is RoBERTa's. Dropout stays on in the last tenth of
training, where the paper turns it off. The paper does not say how base was
trained: it has large's recipe. The 160 GB of text are RoBERTa's, read from
`corpora/`; your own text: --config.data.source="text('*.txt')". Not run.

`translation` is section 3.4: large, with an additional encoder for the source
language in front, which has its own table and whose output replaces the
embeddings. The first of two stages initializes the new encoder at random and
trains it together with the positions and the query, key and value projections
of the original encoder's first layer; the second trains everything. BART is
read from `bart-large`, a Hugging Face folder or a workdir. The new encoder may
have its own vocabulary, learned from the sources:

  --config.tokenizer.name="sides(
      \"hf_tokenizer('bart-large/tokenizer.json')\",
      source='wordpiece(vocab_size=32000, lowercase=False)')"

and "saved('W1')" in the second stage. With BART's vocabulary for both:

  gpt-jax train --config configs/bart.py:translation --workdir W1 \
    --config.tokenizer.name="hf_tokenizer('bart-large/tokenizer.json')"
  gpt-jax train --config configs/bart.py:translation --workdir W2 \
    --config.tokenizer.name="hf_tokenizer('bart-large/tokenizer.json')" \
    --config.optim.start=W1 --config.optim.drawn= --config.optim.trained= \
    --config.schedule.num_steps=2000

The paper states neither length nor learning rate; both are ours, and clipping
and Adam are those of the released code for summarization. Not run.

`cpu` is a version for two cores, with the FLOPs of roberta.py:cpu: see
configs/bert.py.

  gpt-jax train --config configs/bart.py:cpu --workdir W \
    --config.data.source="passages(\"jsonl('books.jsonl.gz')\")"
"""

from ml_collections import ConfigDict

from configs import base, roberta

DIFFERS = (
  'RoBERTa plus a decoder: the Transformer of 2017, except for learned '
  'positions, GELU and a norm of the embeddings; it restores a text whose '
  'sentences were shuffled and whose spans were masked'
)
# Section 2.1: layers of each stack, and d_model; heads of 64.
SIZES = {
  'base': (6, 768),
  'large': (12, 1024),
  'translation': (12, 1024),
  'cpu': (2, 192),
}
# Section 3.4: what the first stage trains.
FIRST = (
  'source/*',
  'positions/*',
  'encoder_positions/*',
  *(f'encoder/periods/0/*/{name}/*' for name in ('query', 'key', 'value')),
)


def get_config(arg: str = 'base') -> ConfigDict:
  """BART in the size `arg`."""
  num_layers, d_model = base.size(__file__, arg, SIZES)
  config = roberta.get_config('cpu' if arg == 'cpu' else 'base').unlock()
  # Section 2.1: "the standard sequence-to-sequence Transformer", with GELU.
  config.model.num_encoder_layers = num_layers
  config.model.num_layers = num_layers
  config.model.d_model = d_model
  config.model.attention = 'full'
  # Released code: norms after the embeddings of both stacks, no token types,
  # two rows of positions before the first.
  config.model.input = 'tokens(norm=True)'
  config.model.output = 'tied'
  # Section 5.1: 30% of the tokens in spans, all sentences permuted.
  config.objective.name = "denoise('permute, infill(0.3, 3)')"
  if arg == 'cpu':
    config.schedule.num_steps = 965
    return config.lock()
  config.model.num_heads = d_model // 64
  config.model.context_length = 1024
  config.batch.length = 'stages(512)'
  # Section 5.1.
  config.batch.size = 8000
  config.schedule.num_steps = 500_000
  # Released code.
  config.schedule.name = 'linear(peak=4e-4, warmup=10000, final=0.0)'
  config.optim.clip_norm = 0.1
  if arg == 'translation':
    translation(config)
  return config.lock()


def translation(config: ConfigDict) -> None:
  """Section 3.4, the first stage; sources and targets are line by line."""
  config.model.num_source_layers = 6  # section 5.4
  config.optim.start = 'bart-large'
  config.optim.drawn = 'source/*'
  config.optim.trained = ', '.join(FIRST)
  config.objective.name = 'seq2seq(label_smoothing=0.1)'
  wmt, dev = 'corpora/wmt16_ro_en', 'corpora/newsdev2016'
  config.data.source = f"parallel_text('{wmt}/*.ro*', '{wmt}/*.en*')"
  config.data.sources = {}
  config.data.holdout = f"parallel_text('{dev}/*.ro*', '{dev}/*.en*')"
  config.data.sentences = 'none'
  config.data.rows = 'parallel'
  config.batch.size = 64
  config.optim.name = 'adamw(b1=0.9, b2=0.999, eps=1e-8, weight_decay=0.01)'
  config.schedule.num_steps = 20_000
  config.schedule.name = 'linear(peak=3e-5, warmup=500, final=0.0)'
