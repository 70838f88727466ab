# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Counts parameters and FLOPs, from shapes and from the traced program."""
