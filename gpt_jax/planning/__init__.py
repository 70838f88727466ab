# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Before a run: what it needs on TPU slices, what a budget buys."""
