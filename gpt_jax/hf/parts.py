# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Parts of the tables that several families have."""

from gpt_jax.hf.base import Tensor, choice, linear, same
from gpt_jax.nn.transformer import Transformer


def rates(*, embedding: float, residual: float, attention: float) -> str:
  """`model.dropout`."""
  return (
    f'rates(embedding={embedding}, residual={residual}, attention={attention})'
  )


def tables(model: Transformer, embed: str, *heads: str) -> list[Tensor]:
  """The token embeddings, and the output's table; tied ones are one tensor."""
  if choice(model, 'output').name == 'tied':
    return [same('embed/embedding', embed, *heads)]
  return [same('embed/embedding', embed), same('head/embedding', *heads)]


def qkv(
  path: str,
  name: str,
  *,
  bias: bool,
  names: tuple[str, str, str] = ('q_proj', 'k_proj', 'v_proj'),
) -> list[Tensor]:
  """Queries, keys and values in matrices of their own: see `fused_qkv`."""
  parts = zip(('query', 'key', 'value'), names, strict=True)
  return [
    tensor
    for ours, theirs in parts
    for tensor in linear(f'{path}/{ours}', f'{name}.{theirs}', bias)
  ]
