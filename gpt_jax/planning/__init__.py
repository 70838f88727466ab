# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Plans of runs: TPU slices that are not here, compiled programs, costs."""
