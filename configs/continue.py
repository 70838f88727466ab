# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""Continued pre-training: any model, trained further on your texts.

  gpt-jax train --config configs/continue.py:FOLDER --workdir W \
    --config.data.source="text('corpus/*.txt')"

FOLDER is a Hugging Face folder with its tokenizer, or a workdir, trained or
imported. The run starts from its parameters, with its tokenizer and its
objective, and with a new optimizer and learning rate. FOLDER must exist
whenever the command runs. Without one this is gpt2.py:small, to inspect and to
plan.

1,000 steps of 32 rows. The peak of the learning rate is a sixth of GPT-3's for
its smallest model: the higher it is, the better a model learns the new text,
and the more it forgets (Gupta et al., 2023, arXiv 2308.04014). Not tuned, and
not run to the end.
"""

from etils import epy
from ml_collections import ConfigDict

from configs import base, gpt2

with epy.lazy_imports():
  from gpt_jax.opening import models, starting


def get_config(arg: str = '') -> ConfigDict:
  """The model in the folder `arg`, to train further."""
  config = (base if arg else gpt2).get_config().unlock()
  if arg:
    field = 'configs/continue.py'
    source = models.open_model(arg, 'start', field)
    assert source.model is not None, 'of a folder'
    config.model.update(models.computed(source.model, config))
    config.update_from_flattened_dict(starting.pretraining(source, field))
    config.optim.start = arg
  config.batch.size = 32
  config.schedule.num_steps = 1000
  config.schedule.name = 'cosine(peak=1e-4, warmup=50, final=0.1)'
  config.checkpoint.every_steps = 250
  config.eval.every_steps = 250
  config.eval.rows = 32
  config.log.sample_prompt = ''
  return config.lock()
