# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""BART (Lewis et al., 2019) and MASS (Song et al., 2019)."""
