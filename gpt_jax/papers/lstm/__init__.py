# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The LSTM forerunners: CoVe, ULMFiT, ELMo, CVT."""
