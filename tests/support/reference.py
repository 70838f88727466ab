# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The papers' equations in float64 NumPy, one loop for each index.

Written to be compared with, hence without any of gpt_jax's own functions.
"""

import ast
import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from gpt_jax.ejecting import program
from gpt_jax.plain import recipe
from tests.support import tiny

# What differs from the recipe of GPT-2 small: heads are as wide as their parameters.
SIZES = {'HEAD_SIZE': -1, 'NUM_HEADS': tiny.H, 'NUM_KV_HEADS': tiny.G, 'SCORE_SCALE': tiny.K**-0.5}


def of(parts=types.MappingProxyType({}), **constants):
  """The functions of `plain` for one recipe, to be called by `run`.

  Args:
    parts: alias -> the function that it stands for, where it is not GPT-2's.
    **constants: of `plain.recipe`, where they are neither GPT-2's nor `SIZES`.
  """
  return _of(tuple(parts.items()), tuple(constants.items()))


@functools.cache
def _of(parts, constants):
  values = {'DTYPE': np.float64, **SIZES, **dict(constants)}
  assert values.keys() <= vars(recipe).keys()
  space, aliases = {**vars(recipe), **values}, {}
  for name in program.MODULES:
    text = (program.FOLDER / f'{name}.py').read_text(encoding='utf-8')
    tree = ast.parse(text.replace('float32', 'float64'))
    for node in tree.body:
      if isinstance(node, ast.ImportFrom) and node.module.startswith('gpt_jax'):
        aliases = {x.asname: x.name for x in node.names if x.asname} | aliases
      else:
        exec(compile(ast.Module([node], []), f'{name}.py', 'exec'), space)
  assert dict(parts).keys() <= {*aliases, 'gate_activation', 'shape_of'}
  for alias, name in (aliases | dict(parts)).items():
    space[alias] = eval(name, space)
  return types.SimpleNamespace(**space)


def run(function, *args):
  """What a function gives for arguments in float64."""
  with jax.enable_x64(True), jax.numpy_rank_promotion('allow'):
    return jax.device_get(jax.jit(function)(*widened(args)))


def widened(tree):
  """Arrays of floats in float64; other leaves as they are."""

  def wide(x):
    is_float = jnp.issubdtype(getattr(x, 'dtype', type(x)), jnp.floating)
    return np.asarray(x, np.float64) if is_float else x

  return jax.tree.map(wide, tree)


def seen(length, window=None):
  """Which keys each query sees: itself and those before it, of the last `window` tokens."""
  distance = np.arange(length)[:, None] - np.arange(length)
  return (distance >= 0) & (distance < (window or length))


def whole(p, heads=tiny.H, kv_heads=tiny.G):
  """Attention with keys and values for each head of queries: copies of those it shares."""

  def repeat(x):
    y = x.reshape(*x.shape[:-1], kv_heads, -1)
    return jnp.repeat(y, heads // kv_heads, axis=-2).reshape(*x.shape[:-1], -1)

  return p | {name: jax.tree.map(repeat, p[name]) for name in ('key', 'value')}


def loss_of(hidden, table, targets, weights, z_loss=0.0):
  """The loss of plain JAX, by a model without layers: what is minimized, and the cross-entropy."""
  plain = of(TIED=False, POSITION_TABLE=False, FINAL_NORM=False, PADDED=True, Z_LOSS=z_loss)
  states = hidden.reshape(-1, hidden.shape[-1])
  params = {'embed': {'embedding': states}, 'head': {'embedding': table}, 'layers': []}
  inputs = np.arange(targets.size).reshape(targets.shape)
  return plain.causal_loss_with_z(
    params, {'inputs': inputs, 'targets': targets, 'weights': weights}
  )


def softmax(x):
  """exp(x_i) / sum_j exp(x_j) over the last axis."""
  e = np.exp(x - np.max(x, axis=-1, keepdims=True))
  return e / np.sum(e, axis=-1, keepdims=True)


def layer_norm(x, scale, bias, epsilon=1e-5):
  """Ba et al. (2016), equation 4."""
  mean = np.mean(x, axis=-1, keepdims=True)
  variance = np.var(x, axis=-1, keepdims=True)
  return (x - mean) / np.sqrt(variance + epsilon) * scale + bias


def rms_norm(x, scale, bias=0.0, epsilon=1e-6):
  """Zhang and Sennrich (2019), equation 4; there is no bias to give."""
  assert not np.any(bias)
  return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + epsilon) * scale


def relu(x):
  """max(0, x)."""
  return np.where(x > 0, x, 0)


def gelu(x):
  """Hendrycks and Gimpel (2016): x P(X <= x)."""
  return x * special.ndtr(x)


def gelu_tanh(x):
  """Their approximation, section 2."""
  inner = np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)
  return 0.5 * x * (1 + np.tanh(inner))


def sigmoid(x):
  """1 / (1 + e^-x)."""
  return 1 / (1 + np.exp(-x))


ACTIVATIONS = {
  'relu': relu,
  'gelu': gelu,
  'gelu_tanh': gelu_tanh,
  'silu': lambda x: x * sigmoid(x),
  'tanh': np.tanh,
}
# Shazeer (2020), equations 5 and 6.
GATES = {
  'glu': sigmoid,
  'bilinear': lambda x: x,
  'reglu': relu,
  'geglu': gelu,
  'geglu_tanh': gelu_tanh,
  'swiglu': lambda x: x * sigmoid(x),
}


def sinusoid(position, d_model, *, layout):
  """Vaswani et al. (2017), section 3.5, one feature after the other.

  `halves` puts the sines before the cosines instead of between them. Of an odd
  number the last is a sine.
  """
  angles = [position / 10_000 ** (i // 2 * 2 / d_model) for i in range(d_model)]
  out = [(np.sin, np.cos)[i % 2](angle) for i, angle in enumerate(angles)]
  if layout == 'halves':
    out = [*out[::2], *out[1::2]]
  return np.array(out)


def sees(pattern, i, j):
  """Whether query i sees key j; a pattern is a name and its numbers."""
  name, *numbers = pattern
  if name == 'bidirectional':
    return True
  if j > i:
    return False
  if name == 'local':
    return i - j < numbers[0]
  assert name == 'full'
  return True


def kept(rate, seed, row, head, query, key):
  """Whether dropout keeps a probability, by a hash in integers mod 2^32.

  Appleby (2011), the last step of MurmurHash3, of one number after the other.
  """
  h = 0
  for n in (seed, row, head, key, query):
    h = ((h ^ n) + 0x9E3779B9) % 2**32
    h = (h ^ h >> 16) * 0x85EBCA6B % 2**32
    h = (h ^ h >> 13) * 0xC2B2AE35 % 2**32
    h ^= h >> 16
  return h // 2**8 >= round(rate * 2**24)


def attend(q, k, v, sees, *, scale=None, bias=None, softcap=None, weight=None):
  """Vaswani et al. (2017), equation 1, for each row, head and query.

  Args:
    q: [B, L, H, K].
    k: [B, M, G, K].
    v: [B, M, G, K], of as many features as the result.
    sees: function of row, query and key index.
    scale: of the scores; None: 1 / sqrt(K).
    bias: function of row, head, query and key index, added to the scores.
    softcap: scores become softcap * tanh(scores / softcap); None: they do not.
    weight: function of row, head, query and key index, by which probabilities
      are multiplied.

  Returns:
    [B, L, H, K], zero for a query that sees nothing.
  """
  B, L, H, K = q.shape
  M, G = k.shape[1:3]
  scale = K**-0.5 if scale is None else scale
  out = np.zeros((B, L, H, v.shape[-1]))
  for b, i, h in np.ndindex(B, L, H):
    g = h // (H // G)
    keys = [j for j in range(M) if sees(b, i, j)]
    if not keys:
      continue
    scores = np.array([q[b, i, h] @ k[b, j, g] for j in keys]) * scale
    if bias is not None:
      scores += [bias(b, h, i, j) for j in keys]
    if softcap is not None:
      scores = softcap * np.tanh(scores / softcap)
    for p, j in zip(softmax(scores), keys, strict=True):
      times = 1 if weight is None else weight(b, h, i, j)
      out[b, i, h] += p * times * v[b, j, g]
  return out


def dense(p, x):
  """Returns x W + b."""
  return x @ p['kernel'] + p.get('bias', 0)


def qk(p, name, x, heads, norm):
  """Queries or keys; a norm of K features is each head's, else all heads'."""
  y = dense(p[name], x)
  apart = y.reshape(*x.shape[:2], heads, -1)
  if f'{name}_norm' not in p:
    return apart
  if len(p[f'{name}_norm']['scale']) == apart.shape[-1]:
    return normalize(p, f'{name}_norm', apart, norm)
  return normalize(p, f'{name}_norm', y, norm).reshape(apart.shape)


def self_attention(
  p, x, *, heads, kv_heads, window=None, pattern=None, mask=None, norm=layer_norm, **scores
):
  """Attention of x to itself, causal unless the pattern says otherwise.

  Args:
    p: parameters.
    x: [B, L, D].
    heads: number of heads.
    kv_heads: number of key/value heads.
    window: how many tokens are seen; None: all.
    pattern: see `sees`; None: what `window` says.
    mask: bool [B, L], False for padding.
    norm: of queries and keys, where they have one.
    **scores: for `attend`.
  """
  B, L, _ = x.shape
  pattern = pattern or (('local', window) if window else ('full',))
  y = attend(
    qk(p, 'query', x, heads, norm),
    qk(p, 'key', x, kv_heads, norm),
    dense(p['value'], x).reshape(B, L, kv_heads, -1),
    lambda b, i, j: sees(pattern, i, j) and (mask is None or mask[b, j]),
    **scores,
  )
  return dense(p['out'], y.reshape(B, L, -1))


def cross_attention(p, x, memory, mask, *, heads, kv_heads, **scores):
  """Attention of x [B, L, D] to what `mask` [B, M] leaves of memory."""
  (B, L, _), M = x.shape, memory.shape[1]
  y = attend(
    dense(p['query'], x).reshape(B, L, heads, -1),
    dense(p['key'], memory).reshape(B, M, kv_heads, -1),
    dense(p['value'], memory).reshape(B, M, kv_heads, -1),
    lambda b, i, j: mask[b, j],
    **scores,
  )
  return dense(p['out'], y.reshape(B, L, -1))


def feed_forward(p, x, activation=gelu_tanh):
  """act(x W + b) W + b; with a gate, (act(x W_gate) * x W) W."""
  if 'gate' in p:
    h = activation(dense(p['gate'], x)) * dense(p['in'], x)
  else:
    h = activation(dense(p['in'], x))
  return dense(p['out'], h)


def normalize(p, name, x, norm=layer_norm):
  """Normalises by the parameters of that name."""
  return norm(x, p[name]['scale'], p[name].get('bias', 0))


def block(
  p, x, *, kind, norm=layer_norm, activation=gelu_tanh, memory=None, memory_mask=None, **attention
):
  """One layer; `kind` says where the norms stand.

  'post' is GPT-1's, 'pre' GPT-2's, 'parallel' PaLM's (section 2); of 'pre' the
  norms may stand before each sublayer, after it, or both. With `cross` among
  the parameters the layer reads `memory` too.
  """
  heads = {name: attention[name] for name in ('heads', 'kv_heads')}
  heads['scale'] = attention.get('scale')
  sublayers = {'attention': lambda x: self_attention(p['attention'], x, **attention)}
  if 'cross' in p:
    sublayers['cross'] = lambda x: cross_attention(p['cross'], x, memory, memory_mask, **heads)
  sublayers['ffn'] = lambda x: feed_forward(p['ffn'], x, activation)
  if kind == 'parallel':
    h = normalize(p, 'attention_norm', x, norm)
    other = normalize(p, 'ffn_norm', x, norm) if 'ffn_norm' in p else h
    return x + sublayers['attention'](h) + sublayers['ffn'](other)
  for name, sublayer in sublayers.items():
    if kind == 'pre':
      before, after = f'{name}_norm', f'{name}_output_norm'
      h = sublayer(normalize(p, before, x, norm) if before in p else x)
      x = x + (normalize(p, after, h, norm) if after in p else h)
    else:
      x = normalize(p, f'{name}_norm', x + sublayer(x), norm)
  return x


def stack(p, x, layers, **shared):
  """The output of each layer.

  Args:
    p: parameters of a stack: each has a leading axis of periods.
    x: [B, L, D].
    layers: for each layer, what `block` is told about it alone.
    **shared: what it is told about all.
  """
  out = []
  for i, own in enumerate(layers):
    repeat, place = divmod(i, len(p['periods']))
    one = to_float64(p['periods'][f'block_{place}'], repeat)
    x = block(one, x, **own, **shared)
    out.append(x)
  return out


def to_float64(tree, index=...):
  """Nested dicts of arrays, in float64, or the entry `index` of each."""
  if isinstance(tree, dict):
    return {name: to_float64(sub, index) for name, sub in tree.items()}
  return np.asarray(tree, np.float64)[index]


def hidden(params, tokens, *, kind, num_layers, heads, kv_heads, windows):
  """GPT-1's equation 2 (and GPT-2's final norm): the last hidden states.

  `windows` is one entry for each layer of a period, None where it sees all.
  """
  p = to_float64(params)
  x = p['embed']['embedding'][tokens]
  x = x + p['positions']['embedding'][: tokens.shape[1]]
  layers = [{'window': windows[i % len(windows)]} for i in range(num_layers)]
  x = stack(p['decoder'], x, layers, kind=kind, heads=heads, kv_heads=kv_heads)[-1]
  return normalize(p, 'final_norm', x) if 'final_norm' in p else x


def cross_entropy(hidden, table, targets, weights):
  """sum_t -w_t log softmax(table h_t)[target_t], one token after another."""
  total = 0.0
  for index in np.ndindex(*targets.shape):
    logits = table @ hidden[index]
    total += weights[index] * (special.logsumexp(logits) - logits[targets[index]])
  return total


def cross_entropy_gradients(hidden, table, targets, weights):
  """From d loss / d logits = w (softmax - onehot) back to both factors."""
  d_hidden, d_table = np.zeros_like(hidden), np.zeros_like(table)
  for index in np.ndindex(*targets.shape):
    d_logits = softmax(table @ hidden[index])
    d_logits[targets[index]] -= 1
    d_logits *= weights[index]
    d_hidden[index] = d_logits @ table
    d_table += np.outer(d_logits, hidden[index])
  return d_hidden, d_table
