# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Preparing on Apache Beam: corpora that outgrow one machine."""
