# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The optimisers by name, as optax transformations after clipping.

None holds a schedule. The training step hands `update` the learning rate of the
run's step, as the extra argument `rate`, and `scale_by_rate` multiplies by it.
A schedule of optax would count the updates, which are fewer than the steps once
one was skipped.
"""

from collections.abc import Callable
from typing import Any

from etils import epy

from gpt_jax.core.ranges import Count, Epsilon, Fraction, NotNegative, Positive, Weight, Whole
from gpt_jax.core.spec import Table, UsageError

with epy.lazy_imports():
  import jax
  import optax

# A tree like the parameters, with the logical axes of each, a `PartitionSpec`.
Axes = Any
# From the parameters' axes to the optimizer. Its `update` takes the learning
# rate as the extra argument `rate`, a float or float32 [].
Build = Callable[[Axes], 'optax.GradientTransformation']


# The parameters that weight decay acts on.


# Weights decay; biases and norm scales do not (GPT-1, section 4.1).
DECAYED = ('embedding', 'kernel')


def is_matrix(path: Any) -> bool:
  """True for a kernel or a table, by the last name of its path."""
  return any(word in path[-1].key for word in DECAYED)


def decay_mask(params: Any) -> Any:
  """True for each parameter that weight decay acts on."""
  return jax.tree_util.tree_map_with_path(lambda path, _: is_matrix(path), params)


# Stacked tensors: operations on whole tensors, applied to each layer's slice.
#
# Scanned layers keep their parameters in one array with a leading axis
# `layers`; experts add an axis `expert`. The norm of the whole array is no
# layer's norm, so operations that papers define on a tensor apply to each
# slice.


# Leading logical axes along which an array stacks separate tensors.
STACKED = ('layers', 'expert')


def num_stacked(names: 'jax.sharding.PartitionSpec') -> int:
  """The number of leading axes of a parameter that stack tensors."""
  count = 0
  while count < len(names) and names[count] in STACKED:
    count += 1
  return count


def per_layer(inner: 'optax.GradientTransformation', axes: Any) -> 'optax.GradientTransformation':
  """Applies `inner` to each layer's and each expert's tensor alone.

  Args:
    inner: treats each leaf independently of the others.
    axes: the logical axes of each parameter, a `PartitionSpec`.

  Returns:
    A transformation whose state is a tree like the parameters, with a state of
    `inner` for each, stacked as the parameter is.
  """

  def slices(function: Callable, names: 'jax.sharding.PartitionSpec') -> Callable:
    for _ in range(num_stacked(names)):
      function = jax.vmap(function)
    return function

  def init(params):
    return jax.tree.map(lambda p, names: slices(inner.init, names)(p), params, axes)

  def update(updates, state, params=None):
    leaves, tree = jax.tree.flatten(updates)
    parts = (tree.flatten_up_to(part) for part in (state, params, axes))
    pairs = [
      slices(inner.update, names)(u, s, p) for u, s, p, names in zip(leaves, *parts, strict=True)
    ]
    new_updates, new_state = zip(*pairs, strict=True)
    return tree.unflatten(new_updates), tree.unflatten(new_state)

  return optax.GradientTransformation(init, update)


# The learning rate.


def scale_by_rate() -> 'optax.GradientTransformationExtraArgs':
  """Multiplies updates by minus the learning rate of the run's step."""

  def update(updates, state, params=None, **extra):
    del params
    return jax.tree.map(lambda x: x * -extra['rate'], updates), state

  return optax.GradientTransformationExtraArgs(optax.init_empty_state, update)


def elementwise(make: Callable[..., 'optax.GradientTransformation'], **settings: Any) -> Build:
  """An optimizer of optax that treats each number alone, as a `Build`.

  Args:
    make: called with the rate 1 and the settings; its updates are proportional
      to the rate.
    **settings: of `make`.
  """

  def build(axes: Axes) -> 'optax.GradientTransformationExtraArgs':
    del axes
    of_one = optax.with_extra_args_support(make(1.0, **settings))

    def update(updates, state, params=None, **extra):
      updates, state = of_one.update(updates, state, params, **extra)
      return jax.tree.map(lambda x: x * extra['rate'], updates), state

    return optax.GradientTransformationExtraArgs(of_one.init, update)

  return build


# Adam and its descendants: Adamax, AdamW, LAMB.


def adam(b1: Fraction = 0.9, b2: Fraction = 0.999, eps: Epsilon = 1e-8, l2: Weight = 0.0) -> Build:
  """Adam (Kingma and Ba, algorithm 1).

  Args:
    b1: decay of the mean of the gradients.
    b2: decay of the mean of their squares.
    eps: added to the denominator.
    l2: L2 regularisation, l2 / 2 |theta|^2 in the loss: l2 * theta is added to
      the (clipped) gradient of each weight, not of biases and norm scales.
      GPT-1's is decoupled, hence `adamw`.
  """
  return _with_l2(l2, elementwise(optax.adam, b1=b1, b2=b2, eps=eps))


def _with_l2(l2: float, build: Build) -> Build:
  """Adds l2 * theta to the gradient of each weight."""
  if not l2:
    return build
  return lambda axes: optax.chain(optax.add_decayed_weights(l2, decay_mask), build(axes))


def adagrad(initial: Weight = 0.1, eps: Epsilon = 1e-7) -> Build:
  """Adagrad (Duchi et al., 2011): rates fall with the sum of squares.

  s <- s + g^2; the step is along g / sqrt(s + eps).

  Args:
    initial: s at the start (TensorFlow's; ELMo: 1).
  """
  return elementwise(optax.adagrad, initial_accumulator_value=initial, eps=eps)


def adamax(b1: Fraction = 0.9, b2: Fraction = 0.999, eps: Epsilon = 1e-8) -> Build:
  """Adamax (Kingma and Ba, algorithm 2): Adam with the infinity norm.

  u <- max(b2 u, |g| + eps), without weight decay. The paper has no eps, and
  divides by 0 before the first gradient; ours is placed as in PyTorch.
  """
  return elementwise(optax.adamax, b1=b1, b2=b2, eps=eps)


def adamw(
  b1: Fraction = 0.9, b2: Fraction = 0.999, eps: Epsilon = 1e-8, weight_decay: Weight = 0.01
) -> Build:
  """AdamW (Loshchilov and Hutter, algorithm 2): decoupled decay.

  Also GPT-1's Adam: its "modified version of L2 regularization" (section 4.1)
  cites the same paper.
  """
  decay = {'weight_decay': weight_decay, 'mask': decay_mask}
  return elementwise(optax.adamw, b1=b1, b2=b2, eps=eps, **decay)


def lamb(
  b1: Fraction = 0.9, b2: Fraction = 0.999, eps: Epsilon = 1e-6, weight_decay: Weight = 0.01
) -> Build:
  """LAMB (You et al. 2020, algorithm 2), phi(z) = z.

  AdamW's update of each tensor is scaled to the norm of the tensor. If either
  norm is 0, it is not scaled.
  """
  return lambda axes: optax.chain(
    optax.scale_by_adam(b1=b1, b2=b2, eps=eps),
    optax.add_decayed_weights(weight_decay, decay_mask),
    per_layer(optax.scale_by_trust_ratio(), axes),
    scale_by_rate(),
  )


# Adafactor (Shazeer and Stern 2018), and PaLM's form of it.


# Epsilon 2 of the paper: the least root mean square by which a parameter's
# update is scaled, so that one of zeros moves.
MIN_SCALE = 1e-3


def adafactor(
  b1: Fraction = 0.0,
  decay: Positive = 0.8,
  factored: bool = True,
  min_size: Count = 128,
  clip: NotNegative = 1.0,
  parameter_scale: bool = True,
  weight_decay: Weight = 0.0,
  weight_decay_power: Whole = 1,
) -> Build:
  """Adafactor (Shazeer and Stern, algorithms 4 and 5).

  The defaults are the paper's; PaLM's (section 5) is `adafactor(b1=0.9,
  factored=False, clip=0.0, weight_decay=1.0, weight_decay_power=2)`.

  Args:
    b1: decay of the mean of the updates, after all scaling; 0 keeps none.
    decay: beta2 of step k is 1 - k^-decay.
    factored: store only the row and column means of each matrix's second
      moment.
    min_size: a matrix is factored if both sides have at least this size.
    clip: d, the bound of the root mean square of a tensor's update before the
      rate; 0: none.
    parameter_scale: multiply the rate by max(1e-3, root mean square of the
      parameter).
    weight_decay: a step subtracts weight_decay * rate^weight_decay_power of
      each weight. Unlike here, PaLM does not say that norm scales are exempt.
    weight_decay_power: see `weight_decay`.
  """

  def build(axes: Axes) -> 'optax.GradientTransformation':
    of_tensor = [
      optax.scale_by_factored_rms(factored, decay_rate=decay, min_dim_size_to_factor=min_size)
    ]
    if clip:
      of_tensor.append(optax.clip_by_block_rms(clip))
    if parameter_scale:
      of_tensor.append(optax.scale_by_param_block_rms(MIN_SCALE))
    parts = [per_layer(optax.chain(*of_tensor), axes), scale_by_rate()]
    if b1:
      parts.append(optax.ema(b1, debias=False))
    if weight_decay:
      decay_all = optax.GradientTransformationExtraArgs(optax.init_empty_state, decay_weights)
      parts.append(optax.masked(decay_all, decay_mask))
    return optax.chain(*parts)

  def decay_weights(updates, state, params=None, **extra):
    factor = -weight_decay * extra['rate'] ** weight_decay_power
    return jax.tree.map(lambda u, p: u + factor * p, updates, params), state

  return build


def lion(b1: Fraction = 0.9, b2: Fraction = 0.99, weight_decay: Weight = 0.1) -> Build:
  """Lion (Chen et al. 2023, algorithm 2): the sign of a momentum."""
  decay = {'weight_decay': weight_decay, 'mask': decay_mask}
  return elementwise(optax.lion, b1=b1, b2=b2, **decay)


def sgd(momentum: Fraction = 0.0, nesterov: bool = False, l2: Weight = 0.0) -> Build:
  """Gradient descent, with momentum or Nesterov's (Sutskever et al. 2013).

  v <- momentum * v + g; the step is along v, or along g + momentum * v with
  `nesterov`.

  Args:
    l2: L2 regularisation, as in `adam`.
  """
  if nesterov and not momentum:
    raise UsageError('optim.name: sgd(nesterov=True) needs a momentum')
  plain = elementwise(optax.sgd, momentum=momentum or None, nesterov=nesterov)
  return _with_l2(l2, plain)


def none() -> Build:
  """No updates and no state: for models that are not trained."""
  return elementwise(lambda rate: optax.set_to_zero())


OPTIMIZERS = Table(
  {
    'adafactor': adafactor,
    'adagrad': adagrad,
    'adam': adam,
    'adamax': adamax,
    'adamw': adamw,
    'lamb': lamb,
    'lion': lion,
    'muon': 'gpt_jax.core.optim.muon:muon',
    'none': none,
    'sgd': sgd,
  }
)
