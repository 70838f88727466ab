# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Documents and pairs of texts: sources, cleaning, the held-out split."""
