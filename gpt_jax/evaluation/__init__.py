# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Evaluation without tuning: held-out loss, and zero- and few-shot tasks.

`gpt_jax.tasks` describes tasks. Here models are measured on them: `likelihood`
(choose the most probable continuation), `text_tasks` (generate texts) and
`language_model` (perplexity). `suite` runs several tasks.
"""
