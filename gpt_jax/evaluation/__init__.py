# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Evaluation without tuning: held-out loss, and zero- and few-shot tasks.

`gpt_jax.tasks` describes tasks. Here models are measured on them: `likelihood`
(the most probable continuation, perplexity), `questions` (answers in words) and
`text_tasks` (generated texts). `suite` runs several tasks.
"""
