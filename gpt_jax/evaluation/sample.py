# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The sample that a training run ends with."""

import os

import jax

from gpt_jax.core import sharding
from gpt_jax.core.files.buckets import write_atomically
from gpt_jax.core.optim.train_state import TrainState
from gpt_jax.core.runtime.log import log
from gpt_jax.core.tokenizers.tokenizer import load as load_tokenizer
from gpt_jax.core.training.parts import Parts
from gpt_jax.decoding import programs, texts
from gpt_jax.decoding.files import Prompt
from gpt_jax.decoding.settings import Sampler


def write(parts: Parts, state: TrainState, workdir: str) -> None:
  """Continues `log.sample_prompt`, into samples.txt and onto the log."""
  config = parts.config
  if jax.process_count() > 1:
    log.info('no sample is written where several hosts hold the parameters')
    return
  tokenizer = load_tokenizer(os.path.join(workdir, 'tokenizer'))
  options = texts.Options(
    max_tokens=config.log.sample_tokens,
    sampler=Sampler(temperature=0.8, top_k=50),
    seed=config.seed,
  )
  with sharding.use(parts.mesh, parts.rules):
    decoder = programs.Decoder.of(parts.model, state.eval_params, tokenizer)
    model = texts.TextGenerator(decoder, tokenizer, options, rows=1)
    prompt = Prompt('log.sample_prompt', config.log.sample_prompt)
    request, _ = model.request(prompt)
    ((_, (sample,)),) = model.complete([request])
    text = tokenizer.decode(request.ids) + sample.text
  write_atomically(os.path.join(workdir, 'samples.txt'), text + '\n')
  print(text)
