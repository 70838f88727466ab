# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""The deep model of characters of Al-Rfou et al. (2018: Character-Level
Language Modeling with Deeper Self-Attention), section 3.

  gpt-jax train --config configs/char.py:t64 --workdir W
  gpt-jax evaluate --workdir W --tasks "text('test.txt', stride=1)"

Parameters: 44,251,136 / 235,438,080, of which the classifiers of the auxiliary
losses have 3,014,656 and 16,646,144; the paper prints 44M and 235M. The second
command measures bits per character as the paper does, each character with the
511 before it: one forward pass per character, while validation takes whole
rows.

Its auxiliary losses, as overrides:

  none               --config.objective.name=causal
  one position       --config.objective.name="auxiliary(positions='last',
                                                        targets=1)"
  the last layer     --config.objective.name="auxiliary(layers='last')"
  the next alone     --config.objective.name="auxiliary(targets=1)"

The sizes, two heads, the weight of 0.5, the optimizer and the dropout are from
memory of the paper. Its dropout is within the feed-forward layer, ours after
it. text8 is read from `text8`: 27 characters, of the 256 of the classifiers;
your own text: --config.data.source="text('*.txt')". enwik8 by bytes:
--config.tokenizer.name="frequent_bytes(vocab_size=256)". Not run.

`cpu` is for two cores and ten minutes, on tiny Shakespeare: see
configs/shakespeare_char.py.
"""

from ml_collections import ConfigDict

from configs import base

DIFFERS = (
  'the decoder of 2017 on characters, with positions added before every '
  'layer; each layer predicts the next two characters during a part of the '
  'run'
)
# Layers, d_model, d_ff, context.
SIZES = {
  't12': (12, 512, 2048, 512),
  't64': (64, 512, 2048, 512),
  'cpu': (12, 64, 256, 64),
}


def get_config(arg: str = 't12') -> ConfigDict:
  """The character model in the size `arg`."""
  num_layers, d_model, d_ff, context = base.size(__file__, arg, SIZES)
  config = base.get_config().unlock()
  config.model.num_layers = num_layers
  config.model.d_model = d_model
  config.model.d_ff = d_ff
  config.model.num_heads = 2
  config.model.context_length = context
  config.model.vocab_size = 256
  config.model.position = 'learned_by_layer'
  config.model.block = 'post'
  config.model.ffn = 'relu'
  config.model.output = 'untied'
  config.model.dropout = 'rates(residual=0.55, attention=0.55)'
  config.objective.name = "auxiliary(positions='all', layers='all', targets=2)"
  config.tokenizer.name = 'characters'
  config.data.source = "text('text8')"
  # 90 of 100 million characters for training, 5 each for validation and test.
  config.data.holdout = 'tail(fraction=0.1)'
  config.batch.size = 16
  config.schedule.num_steps = 4_000_000
  config.schedule.name = 'constant(peak=3e-3)'
  config.optim.name = 'sgd(momentum=0.99)'
  config.log.sample_prompt = ''
  if arg == 'cpu':
    config.model.dropout = 'none'
    config.model.dtype = 'float32'
    config.data.source = "text('data/tinyshakespeare/input.txt')"
    config.schedule.num_steps = 1500
    config.schedule.name = 'cosine(peak=1e-3, warmup=200, final=0.05)'
    config.optim.name = 'adamw(b1=0.9, b2=0.99, eps=1e-8, weight_decay=0.1)'
    config.checkpoint.every_steps = 500
    config.eval.every_steps = 500
    config.eval.num_batches = 25
  return config.lock()
