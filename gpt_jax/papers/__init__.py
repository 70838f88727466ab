# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A folder for each paper that needs more than a config; see its README."""
