# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The Transformer (Vaswani et al., 2017): pairs of texts."""
