# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tasks: their files, examples, labels, metrics, and forms as text."""
