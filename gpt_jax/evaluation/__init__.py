# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Evaluation without tuning: held-out loss, and zero- and few-shot tasks.

What a task is made of stands in `gpt_jax.tasks`; here is how a model is
measured by it: `likelihood` (which continuation is likeliest), `text_tasks`
(what it writes), `language_model` (perplexity). `suite` runs several.
"""
