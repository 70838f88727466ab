# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Types."""

from typing import Any

Params = Any  # dictionaries of arrays
Batch = dict[str, Any]  # arrays [rows, ...] by name
Store = dict[str, Any]  # the manifest of a token store, and its arrays
