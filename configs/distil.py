# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""A student half as deep as any decoder or encoder that scores a vocabulary.

  gpt-jax train --config configs/distil.py:FOLDER --workdir W \
    --config.data.source="text('corpus/*.txt')"

FOLDER is a Hugging Face folder with its tokenizer, such as one of bert,
roberta, gpt2 or llama, or a workdir of train (then with its token store:
--config.data.store=FOLDER/data). The student is initialized with every other
layer of the teacher, of 12 with DistilBERT's 0, 2, 4, 7, 9 and 11. Losses, on
masked or on next tokens, learning rate and warmup are DistilBERT's. Fewer
layers, here 3:

  --config.model.num_layers=3 --config.objective.name="distilled( \
    text='causal', layers=(0, 6, 11))"

The folder must exist whenever the command runs. Without one this is half of
gpt2.py:small, to inspect and to plan. Not run to the end.
"""

import numpy as np
from etils import epy
from ml_collections import ConfigDict

from configs import base, gpt2

with epy.lazy_imports():
  from gpt_jax.core.nn import build
  from gpt_jax.opening import models


def get_config(arg: str = '') -> ConfigDict:
  """A student with half the layers of the model in the folder `arg`."""
  config = (base if arg else gpt2).get_config().unlock()
  if arg:
    source = models.open_model(arg, 'teach', 'configs/distil.py')
    assert source.model is not None, 'see teacher.found'
    config.model.update(models.computed(source.model, config))
    config.tokenizer.name = source.tokenizer_name
    config.objective.teacher = arg
  model = config.model
  config.models.teacher = dict(num_layers=model.num_layers)
  layers = halved(model.num_layers)
  model.num_layers = len(layers)
  causal = not arg or build.ModelChoices.of(model).causal
  text = 'causal' if causal else 'masked'
  if text == 'masked':
    config.data.rows = 'full_sentences'
    config.data.sentences = 'terminal'
  # Layers that share their parameters are not copied one by one.
  copied = layers if model.share == 'none' else ()
  config.objective.name = f'distilled(text={text!r}, layers={copied})'
  config.batch.size = 64
  config.schedule.num_steps = 20_000
  config.schedule.name = 'linear(peak=5e-4, warmup=1000, final=0.0)'
  config.optim.name = 'adamw(b1=0.9, b2=0.98, eps=1e-6, weight_decay=0.01)'
  config.log.sample_prompt = ''
  return config.lock()


def halved(num_layers: int) -> tuple[int, ...]:
  """Half of the layers, evenly from the first to the last."""
  places = np.linspace(0, num_layers - 1, -(-num_layers // 2))
  return tuple(np.rint(places).astype(int).tolist())
