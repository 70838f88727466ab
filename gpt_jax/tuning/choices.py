# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rows of the core's tables, by the field that names them."""

ROWS = {
  'finetune.features': {
    'concat': 'gpt_jax.tuning.objectives.heads:concat',
    'ends': 'gpt_jax.tuning.objectives.heads:ends',
    'layer': 'gpt_jax.tuning.objectives.heads:layer',
    'weighted_sum': 'gpt_jax.tuning.objectives.heads:weighted_sum',
  },
  'finetune.lora': {
    'lora': 'gpt_jax.tuning.objectives.lora:Lora',
    'none': 'gpt_jax.tuning.objectives.lora:none',
  },
  'finetune.mixing': {
    'alternating': 'gpt_jax.tuning.task_order:Alternating',
    'capped': 'gpt_jax.tuning.task_order:Capped',
    'proportional': 'gpt_jax.tuning.task_order:Proportional',
  },
  'finetune.objective': {
    'choice': 'gpt_jax.tuning.objectives.task:Choice',
    'classification': 'gpt_jax.tuning.objectives.task:Classification',
    'regression': 'gpt_jax.tuning.objectives.task:Regression',
    'spans': 'gpt_jax.tuning.objectives.task:Spans',
    'tags': 'gpt_jax.tuning.objectives.task:Tags',
    'cross_view': 'gpt_jax.tuning.objectives.cross_view:CrossView',
    'dialogue': 'gpt_jax.tuning.objectives.dialogue:Dialogue',
    'tasks': 'gpt_jax.tuning.objectives.task:Tasks',
    'reward': 'gpt_jax.tuning.objectives.preference:RewardModel',
    'dpo': 'gpt_jax.tuning.objectives.preference:Dpo',
    'ppo': 'gpt_jax.tuning.objectives.policy:Ppo',
    'grpo': 'gpt_jax.tuning.objectives.policy:Grpo',
  },
  # The methods of post-training, beside the tasks of `tasks.registry`.
  'finetune.task': {
    'sft': 'gpt_jax.tuning.sft:Sft',
    'reward': 'gpt_jax.tuning.preferences:Reward',
    'dpo': 'gpt_jax.tuning.preferences:DirectPreference',
    'grpo': 'gpt_jax.tuning.policy:GrpoMethod',
    'ppo': 'gpt_jax.tuning.policy:PpoMethod',
  },
  'finetune.views': {
    'cross_view': 'gpt_jax.tuning.objectives.cross_view:CrossViewSettings',
    'none': 'gpt_jax.tuning.objectives.cross_view:none',
  },
  'section': {'finetune': 'gpt_jax.tuning.fields:FINETUNE'},
  'tuning': {'finetune': 'gpt_jax.tuning.objectives.adapters:tuned'},
}
