# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The papers' algorithms for one tensor, as they print them, in float64.

Each takes the tensor, its gradients in turn, `rate` as a function of the step
from 0, and `decays`: whether weight decay acts on the tensor.
"""

import numpy as np


def adam(theta, gradients, rate, decays, *, b1, b2, eps, l2=0.0):
  """Kingma and Ba, algorithm 1, on the loss plus l2 / 2 |theta|^2."""
  m, v = np.zeros_like(theta), np.zeros_like(theta)
  for t, g in enumerate(gradients, start=1):
    g = g + l2 * decays * theta
    m = b1 * m + (1 - b1) * g
    v = b2 * v + (1 - b2) * g**2
    m_hat, v_hat = m / (1 - b1**t), v / (1 - b2**t)
    theta = theta - rate(t - 1) * m_hat / (np.sqrt(v_hat) + eps)
  return theta


def adagrad(theta, gradients, rate, decays, *, initial, eps):
  """Duchi et al., figure 1, with the sum's start of TensorFlow."""
  s = np.full_like(theta, initial)
  for t, g in enumerate(gradients, start=1):
    s = s + g**2
    theta = theta - rate(t - 1) * g / np.sqrt(s + eps)
  return theta


def adamax(theta, gradients, rate, decays, *, b1, b2, eps):
  """Kingma and Ba, algorithm 2, with PyTorch's eps."""
  m, u = np.zeros_like(theta), np.zeros_like(theta)
  for t, g in enumerate(gradients, start=1):
    m = b1 * m + (1 - b1) * g
    u = np.maximum(b2 * u, np.abs(g) + eps)
    theta = theta - rate(t - 1) / (1 - b1**t) * m / u
  return theta


def adamw(theta, gradients, rate, decays, *, b1, b2, eps, weight_decay):
  """Loshchilov and Hutter, algorithm 2."""
  m, v = np.zeros_like(theta), np.zeros_like(theta)
  for t, g in enumerate(gradients, start=1):
    m = b1 * m + (1 - b1) * g
    v = b2 * v + (1 - b2) * g**2
    m_hat, v_hat = m / (1 - b1**t), v / (1 - b2**t)
    step = m_hat / (np.sqrt(v_hat) + eps) + weight_decay * decays * theta
    theta = theta - rate(t - 1) * step
  return theta


def lamb(theta, gradients, rate, decays, *, b1, b2, eps, weight_decay):
  """You et al., algorithm 2, with phi(z) = z."""
  m, v = np.zeros_like(theta), np.zeros_like(theta)
  for t, g in enumerate(gradients, start=1):
    m = b1 * m + (1 - b1) * g
    v = b2 * v + (1 - b2) * g**2
    r = (m / (1 - b1**t)) / (np.sqrt(v / (1 - b2**t)) + eps)
    u = r + weight_decay * decays * theta
    ratio = np.linalg.norm(theta) / np.linalg.norm(u)
    theta = theta - rate(t - 1) * ratio * u
  return theta


def lion(theta, gradients, rate, decays, *, b1, b2, weight_decay):
  """Chen et al., algorithm 2."""
  m = np.zeros_like(theta)
  for t, g in enumerate(gradients):
    update = np.sign(b1 * m + (1 - b1) * g)
    m = b2 * m + (1 - b2) * g
    theta = theta - rate(t) * (update + weight_decay * decays * theta)
  return theta


def sgd(theta, gradients, rate, decays, *, momentum=0.0, nesterov=False, l2=0.0):
  """Momentum, and Nesterov's in the form that starts from the point reached."""
  v = np.zeros_like(theta)
  for t, g in enumerate(gradients):
    g = g + l2 * decays * theta
    v = momentum * v + g
    theta = theta - rate(t) * (g + momentum * v if nesterov else v)
  return theta


def adafactor(
  theta,
  gradients,
  rate,
  decays,
  *,
  b1=0.0,
  decay=0.8,
  factored=True,
  min_size=128,
  clip=1.0,
  parameter_scale=True,
  weight_decay=0.0,
  weight_decay_power=1,
):
  """Shazeer and Stern, algorithms 4 (matrices) and 5, and PaLM's section 5."""

  def rms(x):
    return np.sqrt(np.mean(x**2))

  factored = factored and theta.ndim == 2 and min(theta.shape) >= min_size
  v = np.zeros_like(theta)
  row, column = np.zeros(theta.shape[:1]), np.zeros(theta.shape[1:])
  m = np.zeros_like(theta)
  for t, g in enumerate(gradients, start=1):
    b2 = 1 - t**-decay
    square = g**2 + 1e-30
    if factored:
      row = b2 * row + (1 - b2) * square.sum(axis=1)
      column = b2 * column + (1 - b2) * square.sum(axis=0)
      v = np.outer(row, column) / row.sum()
    else:
      v = b2 * v + (1 - b2) * square
    u = g / np.sqrt(v)
    if clip:
      u = u / max(1, rms(u) / clip)
    alpha = rate(t - 1)
    if parameter_scale:
      alpha = max(1e-3, rms(theta)) * rate(t - 1)
    m = b1 * m + (1 - b1) * alpha * u
    fraction = weight_decay * rate(t - 1) ** weight_decay_power
    theta = theta - m - fraction * decays * theta
  return theta


def polar_express(num_steps):
  """The best odd quintics one after another towards 1 on [0.001, 1], by Remez's exchange.

  Amsel et al., algorithm 2, with the cushion of their table; safe as algorithm 1.
  """
  low, found = 1e-3, []
  for _ in range(num_steps):
    high = 2 - low if found else 1.0
    left = max(low, 0.02407327424182761 * high)
    x = np.linspace(left, high, 4)
    for _ in range(50):  # until the errors at four points are one, with signs by turns
      powers = np.stack([x, x**3, x**5, [1, -1, 1, -1]], axis=1)
      a, b, c, _ = np.linalg.solve(powers, np.ones(4))
      root = np.sqrt(9 * b**2 - 20 * a * c)
      x[1:3] = np.sqrt((-3 * b + np.array([-root, root])) / (10 * c))
    ends = np.array([low, high])
    at = a * ends + b * ends**3 + c * ends**5
    centred = np.array([a, b, c]) * 2 / at.sum()
    low = 2 * at[0] / at.sum()
    found.append(centred)
  return [p / 1.01 ** np.array([1, 3, 5]) for p in found]


def newton_schulz(x, num_steps, coefficients='jordan'):
  """Towards U V^T of x = U S V^T; the Polar Express as its algorithm 1 reads."""
  if x.shape[0] > x.shape[1]:
    return newton_schulz(x.T, num_steps, coefficients).T
  x = x / np.linalg.norm(x)
  polynomials = [(3.4445, -4.7750, 2.0315)] * num_steps
  if coefficients == 'polar_express':
    x = x / 1.01
    polynomials = polar_express(num_steps)
  for a, b, c in polynomials:
    gram = x @ x.T
    x = a * x + (b * gram + c * gram @ gram) @ x
  return x


def muon(theta, gradients, rate, decays, *, momentum, nesterov, rms, weight_decay, **iteration):
  """Liu et al., algorithm 1, whose B is Jordan's momentum; decays always."""
  buffer = np.zeros_like(theta)
  rows, columns = theta.shape
  scale = np.sqrt(max(1, columns / rows))
  if rms:
    scale = rms * np.sqrt(max(rows, columns))
  for t, g in enumerate(gradients, start=1):
    buffer = momentum * buffer + g
    x = buffer
    if nesterov:
      # Each term with its bias corrected, as Nadam has it.
      x = momentum * buffer / (1 - momentum ** (t + 1)) + g / (1 - momentum**t)
    step = scale * newton_schulz(x, 5, **iteration) + weight_decay * theta
    theta = theta - rate(t - 1) * step
  return theta
