# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rows of the core's tables, by the field that names them."""

ROWS = {'data.source of pairs': {'text_to_text': 'gpt_jax.tasks.glue:text_to_text'}}
