# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Parts of the tables that several families have."""

from gpt_jax.hf.base import Tensor, choice, linear, norm, same
from gpt_jax.nn.transformer import Transformer

# Of LLaMA and its descendants.
LAYER = 'model.layers.{layer}'


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


def qk_norms() -> list[Tensor]:
  """The norms of queries and keys of LLaMA's descendants."""
  return [
    *norm('layer/attention/query_norm', f'{LAYER}.self_attn.q_norm', False),
    *norm('layer/attention/key_norm', f'{LAYER}.self_attn.k_norm', False),
  ]


def gated(*, bias: bool) -> list[Tensor]:
  """The feed-forward layer of LLaMA and its descendants."""
  mlp = f'{LAYER}.mlp'
  return [
    *linear('layer/ffn/gate', f'{mlp}.gate_proj', bias),
    *linear('layer/ffn/in', f'{mlp}.up_proj', bias),
    *linear('layer/ffn/out', f'{mlp}.down_proj', bias),
  ]
