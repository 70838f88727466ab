# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""LaMDA's fine-tuning (Thoppilan et al., 2022: LaMDA: Language Models for
Dialog Applications), section 6.

  gpt-jax finetune --config configs/finetune/lamda.py --init W --workdir W2

One model learns to respond and to rate responses, from rows of both kinds in
`train.jsonl` and `dev.jsonl`, with the loss on the target alone:

  {"prompt": "What's up? RESPONSE", "target": " not much."}
  {"prompt": "What's up? RESPONSE not much. SENSIBLE", "target": " 1"}

The attributes are SENSIBLE, SPECIFIC, INTERESTING and UNSAFE; its 1 is bad.
The paper does not give the settings: those here are GPT-1's.
"""

from ml_collections import ConfigDict

from configs.finetune import base


def get_config(arg: str = '') -> ConfigDict:
  """The generator and its discriminators."""
  config = base.get_config(arg).unlock()
  config.finetune.task = "target('train.jsonl', 'dev.jsonl')"
  return config.lock()
