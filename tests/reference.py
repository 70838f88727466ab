# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The papers' equations in float64 NumPy, one loop for each index.

Written to be compared with, hence without any of gpt_jax's own functions.
"""

import numpy as np
from scipy import special


def softmax(x):
  """exp(x_i) / sum_j exp(x_j) over the last axis."""
  e = np.exp(x - np.max(x, axis=-1, keepdims=True))
  return e / np.sum(e, axis=-1, keepdims=True)


def layer_norm(x, scale, bias, epsilon=1e-5):
  """Ba et al. (2016), equation 4."""
  mean = np.mean(x, axis=-1, keepdims=True)
  variance = np.var(x, axis=-1, keepdims=True)
  return (x - mean) / np.sqrt(variance + epsilon) * scale + bias


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


ACTIVATIONS = {'relu': relu, 'gelu': gelu, 'gelu_tanh': gelu_tanh}


def attend(q, k, v, sees):
  """Vaswani et al. (2017), equation 1, for each row, head and query.

  Args:
    q: [B, L, H, K].
    k: [B, M, G, K].
    v: [B, M, G, K].
    sees: function of row, query and key index.
  """
  B, L, H, K = q.shape
  M, G = k.shape[1:3]
  out = np.zeros((B, L, H, K))
  for b, i, h in np.ndindex(B, L, H):
    g = h // (H // G)
    keys = [j for j in range(M) if sees(b, i, j)]
    scores = np.array([q[b, i, h] @ k[b, j, g] for j in keys]) / np.sqrt(K)
    for p, j in zip(softmax(scores), keys, strict=True):
      out[b, i, h] += p * v[b, j, g]
  return out


def dense(p, x):
  """Returns x W + b."""
  return x @ p['kernel'] + p['bias']


def self_attention(p, x, *, heads, kv_heads, window=None):
  """Causal attention of x to itself, over the last `window` tokens."""
  B, L, _ = x.shape
  y = attend(
    dense(p['query'], x).reshape(B, L, heads, -1),
    dense(p['key'], x).reshape(B, L, kv_heads, -1),
    dense(p['value'], x).reshape(B, L, kv_heads, -1),
    lambda b, i, j: j <= i and (window is None or j > i - window),
  )
  return dense(p['out'], y.reshape(B, L, -1))


def feed_forward(p, x, activation=gelu_tanh):
  """act(x W + b) W + b."""
  return dense(p['out'], activation(dense(p['in'], x)))


def block(p, x, *, kind, **attention):
  """GPT-1 ('post') and GPT-2 ('pre') place the norms differently."""

  def norm(name, x):
    return layer_norm(x, p[name]['scale'], p[name]['bias'])

  if kind == 'post':
    x = norm(
      'attention_norm', x + self_attention(p['attention'], x, **attention)
    )
    return norm('ffn_norm', x + feed_forward(p['ffn'], x))
  x = x + self_attention(p['attention'], norm('attention_norm', x), **attention)
  return x + feed_forward(p['ffn'], norm('ffn_norm', x))


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
  for i in range(num_layers):
    repeat, place = divmod(i, len(windows))
    x = block(
      to_float64(p['stack']['periods'][f'block_{place}'], repeat),
      x,
      kind=kind,
      heads=heads,
      kv_heads=kv_heads,
      window=windows[place],
    )
  if kind == 'pre':
    norm = p['final_norm']
    x = layer_norm(x, norm['scale'], norm['bias'])
  return x


def cross_entropy(hidden, table, targets, weights):
  """sum_t -w_t log softmax(table h_t)[target_t], one token after another."""
  total = 0.0
  for index in np.ndindex(*targets.shape):
    logits = table @ hidden[index]
    total += weights[index] * (
      special.logsumexp(logits) - logits[targets[index]]
    )
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
