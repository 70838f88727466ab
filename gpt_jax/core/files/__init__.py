# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Files and buckets: lines, tables, records, TensorFlow datasets."""
