# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What fine-tuning and post-training share: objectives, heads, adapters."""
