# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Muon: orthogonalised momentum for the hidden layers' matrices."""

import math
from typing import Any, Literal

from etils import epy

from gpt_jax.core.optim.optimizer import Axes, Build, adamw, num_stacked, scale_by_rate
from gpt_jax.core.ranges import Count, Epsilon, Fraction, NotNegative, Weight

with epy.lazy_imports():
  import jax
  import optax
  from optax import contrib

# The polynomials a x + b x^3 + c x^5 of the singular values: Jordan's takes them to
# 1 +- 0.3. Those of the Polar Express (Amsel et al. 2025, algorithm 1) converge.
_JORDAN = 3.4445, -4.7750, 2.0315
_POLAR_EXPRESS = (
  (8.28721201814563, -23.595886519098837, 17.300387312530933),
  (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
  (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
  (3.3184196573706015, -2.488488024314874, 0.51004894012372),
  (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
  (1.891301407787398, -1.2679958271945868, 0.37680408948524835),
  (1.8750014808534479, -1.2500016453999487, 0.3750001645474248),
  (1.875, -1.25, 0.375),
)


def polar_express(num_steps: int) -> tuple[tuple[float, float, float], ...]:
  """The polynomials of algorithm 1 for a matrix of norm 1, with its factors of safety.

  They are 1.01 for each but the last of the table, and for the matrix itself.
  """
  factors = (1.01**2, *[1.01] * 6, *[1.0] * num_steps)
  table = (*_POLAR_EXPRESS, *[_POLAR_EXPRESS[-1]] * num_steps)  # further ones are the last
  pairs = zip(table[:num_steps], factors, strict=False)
  return tuple((a / f, b / f**3, c / f**5) for (a, b, c), f in pairs)


def muon(
  momentum: Fraction = 0.95,
  nesterov: bool = True,
  num_steps: Count = 5,
  rms: NotNegative = 0.2,
  weight_decay: Weight = 0.1,
  b1: Fraction = 0.9,
  b2: Fraction = 0.95,
  eps: Epsilon = 1e-8,
  coefficients: Literal['jordan', 'polar_express'] = 'jordan',
) -> Build:
  """Muon (Jordan et al. 2024; Liu et al. 2025, algorithm 1) beside AdamW.

  Newton-Schulz orthogonalises the update of each kernel, separately for each
  layer and each expert. Tables, biases and norm scales use AdamW, at the same
  rate.

  Args:
    momentum: of the gradients of kernels.
    nesterov: look one step ahead. optax corrects the bias of both terms, as
      Nadam does, which differs from Jordan's code in the first steps.
    num_steps: iterations of Newton-Schulz.
    rms: an update is scaled by rms * sqrt(max(rows, columns)), to match the
      root mean square of AdamW's (Liu et al., section 2.2: 0.2); 0: by
      sqrt(max(1, columns / rows)), kernels being [in, out] (Jordan).
    weight_decay: of kernels and tables, times the rate.
    b1: of AdamW.
    b2: of AdamW.
    eps: of AdamW.
    coefficients: of Newton-Schulz: Jordan's, the same in each iteration, or the
      Polar Express's (Amsel et al. 2025, algorithm 1), which come closer.
  """

  def build(axes: Axes) -> 'optax.GradientTransformation':
    def label(path: Any, x: 'jax.Array', names: 'jax.sharding.PartitionSpec') -> str:
      matrix = x.ndim - num_stacked(names) == 2
      return 'muon' if matrix and 'kernel' in path[-1].key else 'adamw'

    def labels(params: Any) -> Any:
      return jax.tree_util.tree_map_with_path(label, params, axes)

    last_two = contrib.MuonDimensionNumbers(-2, -1)  # the others stack
    kernels = optax.chain(
      contrib.scale_by_muon(
        polar_express(num_steps) if coefficients == 'polar_express' else _JORDAN,
        num_steps,
        momentum,
        nesterov=nesterov,
        weight_dimension_numbers=lambda x: jax.tree.map(lambda _: last_two, x),
      ),
      optax.stateless(lambda updates, _: jax.tree.map(scale, updates)),
      optax.add_decayed_weights(weight_decay),
      scale_by_rate(),
    )
    rest = adamw(b1, b2, eps, weight_decay)(axes)
    return optax.partition({'muon': kernels, 'adamw': rest}, labels)

  def scale(update: 'jax.Array') -> 'jax.Array':
    rows, columns = update.shape[-2:]
    if rms:
      return update * (rms * math.sqrt(max(rows, columns)))
    return update * math.sqrt(max(1, columns / rows))

  return build
