# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The commands of `gpt-jax`, one file each: flags, printing, exit codes."""
