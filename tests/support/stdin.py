# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What is piped into a command, which reads the bytes."""

import io


def stdin_of(text: str | bytes) -> io.TextIOWrapper:
  """Standard input; half characters of a text are bytes that are no UTF-8."""
  if isinstance(text, str):
    text = text.encode(errors='surrogateescape')
  return io.TextIOWrapper(io.BytesIO(text), encoding='utf-8')
