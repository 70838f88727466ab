# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""T5's multi-task fine-tuning (Raffel et al., 2019, sections 2.3, 2.4 and
3.5.2): five GLUE tasks as text to text, in one model. It starts from the run of
configs/t5.py:cpu in W, and has its size.

  gpt-jax train --config configs/t5_glue.py --workdir W2 \
    --config.optim.start=W --config.tokenizer.name="saved('W')"
  gpt-jax evaluate --workdir W2 --tasks cola,sst2,mrpc,rte,stsb --tasks_dir glue

`glue/` has GLUE's folders as published, CoLA, SST-2, ... Tasks are sampled in
proportion to their size, SST-2 as if it had 30,000 examples
(examples-proportional mixing with a limit, section 3.5.2).
"""

from ml_collections import ConfigDict

from configs import base, t5

TASKS = {
  **{'cola': 'CoLA', 'sst2': 'SST-2', 'mrpc': 'MRPC'},
  **{'rte': 'RTE', 'stsb': 'STS-B'},
}


def get_config(arg: str = '') -> ConfigDict:
  """T5 on GLUE has one size."""
  base.no_size(__file__, arg)
  config = t5.get_config('cpu').unlock()
  config.data.sources = {
    name: f"text_to_text('{name}', 'glue/{folder}')" for name, folder in TASKS.items()
  }
  counts = ', '.join(f'{name}:1' for name in TASKS)
  config.data.source = f"mixture({counts}, shares='examples', limit=30000)"
  config.data.rows = 'parallel'
  config.objective.name = "seq2seq(start='pad')"
  # RTE's premises are long.
  config.model.context_length = 256
  config.batch.size = 16
  config.schedule.num_steps = 1500
  config.schedule.name = 'linear(peak=1e-3, warmup=100, final=0.0)'
  return config.lock()
