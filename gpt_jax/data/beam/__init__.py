# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Preparing on Apache Beam, with the bytes that one machine makes."""
