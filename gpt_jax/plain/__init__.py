# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The lineage in plain JAX: the reference for the fast code, and what `gpt-jax eject` prints.

Functions over dictionaries of arrays, as the papers write them. Where papers differ, a name is
imported `as` its part: `layer_norm as norm` is GPT-2's, and `gpt_jax/ejecting/parts.py` says which
function each config takes instead. Settings are the constants of `recipe`.
"""
