# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""From a text file to a checkpoint: pre-training of GPT, LLaMA, Switch."""
