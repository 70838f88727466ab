# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""BERT (Devlin et al., 2018), RoBERTa and ALBERT."""
