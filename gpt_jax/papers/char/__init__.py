# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The 64-layer character model (Al-Rfou et al., 2018)."""
