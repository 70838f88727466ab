# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The Transformer and its parts; the only place where Flax Linen is used."""
