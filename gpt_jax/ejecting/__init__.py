# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A config as one file of Python: `gpt-jax eject`."""
