# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""From a language model to an assistant: SFT and what follows it."""
