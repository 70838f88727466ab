# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""DistilBERT (Sanh et al., 2019)."""
