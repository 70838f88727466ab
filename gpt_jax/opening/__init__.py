# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Reading models of other runs and imports: starts, teachers, answers."""
