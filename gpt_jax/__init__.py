# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""gpt_jax: pre-training language models with JAX and Flax on TPUs."""
