# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""T5's multi-task fine-tuning (Raffel et al., 2019, sections 2.3, 2.4 and
3.5.2): five tasks of GLUE as text to text, in one model that pre-training has
left in W.

  gpt-jax train --config configs/t5_glue.py:cpu --workdir W2 \
    --config.optim.start=W --config.tokenizer.name="saved('W')"
  gpt-jax evaluate --workdir W2 --tasks cola,sst2,mrpc,rte,stsb --tasks_dir glue

`glue/` holds GLUE's folders as published, CoLA, SST-2, ... Tasks count by their
size, SST-2 as if it had 30,000 examples (examples-proportional mixing with a
limit, section 3.5.2). The sizes are those of configs/t5.py.
"""

from ml_collections import ConfigDict

from configs import t5

TASKS = {
  **{'cola': 'CoLA', 'sst2': 'SST-2', 'mrpc': 'MRPC'},
  **{'rte': 'RTE', 'stsb': 'STS-B'},
}
DIFFERS = 'T5 that goes on with five tasks as text, not with spans'


def get_config(arg: str = 'small') -> ConfigDict:
  """T5 in the size `arg`, on GLUE."""
  config = t5.get_config(arg).unlock()
  config.data.sources = {
    name: f"text_to_text('{name}', 'glue/{folder}')"
    for name, folder in TASKS.items()
  }
  counts = ', '.join(f'{name}:1' for name in TASKS)
  config.data.source = f"mixture({counts}, shares='examples', limit=30000)"
  config.data.rows = 'parallel'
  config.objective.name = "seq2seq(start='pad')"
  if arg == 'cpu':
    config.batch.size = 32
    config.schedule.num_steps = 1500
    config.schedule.name = 'linear(peak=1e-3, warmup=100, final=0.0)'
    return config.lock()
  # Section 3.1.3: 2^18 steps at a constant 0.001.
  config.schedule.num_steps = 2**18
  config.schedule.name = 'constant(peak=1e-3)'
  return config.lock()
