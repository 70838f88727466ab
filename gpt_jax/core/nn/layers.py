# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Basic layers: initialisers, activations, dense layers, dropout, norms."""

import contextlib
import contextvars
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.ad_checkpoint import checkpoint_name

from gpt_jax.core.nn import layout, quantized
from gpt_jax.core.nn.attention_dropout import hashed
from gpt_jax.core.ranges import Epsilon, Fraction, Positive, Weight
from gpt_jax.core.spec import UsageError

Initializer = jax.nn.initializers.Initializer


class Initializers(NamedTuple):
  """The initialisers of parameters, by their role."""

  embedding: Initializer
  position: Initializer
  kernel: Initializer
  # The last projections of attention and of the feed-forward layer, whose
  # outputs are added to the residual stream.
  residual: Initializer
  # The projection to queries, and an untied output table; None: as `kernel`
  # and as `embedding`.
  query: Initializer | None = None
  output: Initializer | None = None
  # The kernels of a task's head; None: as `kernel`.
  head: Initializer | None = None


def normal(stddev: Weight = 0.02):
  """N(0, stddev) for every weight (GPT-1, section 4.1: 0.02)."""

  def build(num_layers: int) -> Initializers:
    del num_layers
    weights = nn.initializers.normal(stddev)
    return Initializers(weights, weights, weights, weights)

  return build


def truncated_normal(stddev: Weight = 0.02):
  """N(0, stddev) for every weight, resampled beyond 2 stddev (BERT's code).

  The resulting standard deviation is 0.88 stddev.
  """

  def build(num_layers: int) -> Initializers:
    del num_layers
    weights = nn.initializers.truncated_normal(stddev)
    return Initializers(weights, weights, weights, weights)

  return build


def gpt2(stddev: Weight = 0.02):
  """GPT-2, section 2.3: residual weights are scaled by 1/sqrt(N).

  N counts the residual layers, two per block: stddev / sqrt(2 * num_layers).
  """

  def build(num_layers: int) -> Initializers:
    weights = nn.initializers.normal(stddev)
    residual = nn.initializers.normal(stddev * (2 * num_layers) ** -0.5)
    return Initializers(weights, weights, weights, residual)

  return build


def palm():
  """PaLM, section 5: kernels N(0, 1/n_in), embeddings N(0, 1).

  A tied output needs `output="tied(scale='rsqrt')"` with it. PaLM has no tables
  of positions; here they are initialised as embeddings.
  """

  def build(num_layers: int) -> Initializers:
    del num_layers
    table = nn.initializers.normal(1.0)
    kernel = nn.initializers.variance_scaling(1.0, 'fan_in', 'normal')
    return Initializers(table, table, kernel, kernel)

  return build


def switch(scale: Positive = 0.1, embedding: Positive = 0.02):
  """Switch, section 2.4: truncated normal with stddev sqrt(scale / n_in).

  Args:
    scale: a tenth of the usual 1, for stability (table 3).
    embedding: stddev of the tables of tokens and positions. T5's is 1, with
      `output="tied(scale='rsqrt')"`.
  """

  def build(num_layers: int) -> Initializers:
    del num_layers
    table = nn.initializers.normal(embedding)
    kernel = nn.initializers.variance_scaling(scale, 'fan_in', 'truncated_normal')
    return Initializers(table, table, kernel, kernel)

  return build


def transformer():
  """The Transformer's released code: tables N(0, 1/d_model), kernels uniform.

  Kernels have the variance 2 / (n_in + n_out) (Glorot and Bengio, 2010,
  equation 16); a tied output goes with `input="tokens(scale='sqrt')"`.
  """

  def build(num_layers: int) -> Initializers:
    del num_layers
    # The fan-out of a table [V, D] is d_model.
    table = nn.initializers.variance_scaling(1.0, 'fan_out', 'normal')
    kernel = nn.initializers.variance_scaling(1.0, 'fan_avg', 'uniform')
    return Initializers(table, table, kernel, kernel)

  return build


def uniform(embedding: Weight = 0.1):
  """Tables by U(-embedding, embedding), kernels of LSTMs and heads as torch.

  Those of LSTMs are U(-1/sqrt(S), 1/sqrt(S)) of S cells, with 4 S columns,
  whatever the size of their inputs; those of heads have the number of inputs
  for S. The biases start at 0.
  """

  def build(num_layers: int) -> Initializers:
    del num_layers

    def within(bound_of: Callable[[Any], float]) -> Any:
      def draw(key, shape, dtype=jnp.float32):
        bound = bound_of(shape)
        return jax.random.uniform(key, shape, dtype, -bound, bound)

      return draw

    table = within(lambda shape: embedding)
    kernel = within(lambda shape: (shape[-1] / 4) ** -0.5)
    head = within(lambda shape: shape[0] ** -0.5)
    return Initializers(table, table, kernel, kernel, head=head)

  return build


Activation = Callable[[jax.Array], jax.Array]


def gelu_exact(x: jax.Array) -> jax.Array:
  """The exact GELU, x Phi(x), with the error function."""
  return jax.nn.gelu(x, approximate=False)


def gelu_tanh(x: jax.Array) -> jax.Array:
  """The tanh approximation of GELU (GPT-1, GPT-2, T5 v1.1)."""
  return jax.nn.gelu(x, approximate=True)


ACTIVATIONS: dict[str, Activation] = {
  'relu': jax.nn.relu,
  'gelu': gelu_exact,
  'gelu_tanh': gelu_tanh,
  'silu': jax.nn.silu,
  'tanh': jnp.tanh,
}


def recomputed(function: Callable[..., jax.Array], *args: Any) -> jax.Array:
  """`function` of vectors, element by element or along the last axis.

  For bfloat16 its backward pass computes again what it needs from the arguments:
  automatic differentiation would keep float32 intermediates, several times the
  size of the arguments, and reading them takes longer than the arithmetic. In
  float32, where nothing is smaller than they, it keeps them.
  """
  if all(x is None or x.dtype == jnp.float32 for x in args):
    return function(*args)
  # Layers are in a loop, or few: nothing merges the two computations.
  return jax.checkpoint(function, prevent_cse=False)(*args)


class Form(NamedTuple):
  """The hidden layer: act(x W_in), or, gated, act(x W_gate) * x W_in."""

  activation: Activation
  gated: bool

  def __call__(self, h: jax.Array, gate: jax.Array | None = None) -> jax.Array:
    """The hidden layer from x W_in, and of a gated form x W_gate."""
    if gate is None:
      return recomputed(self.activation, h)
    return recomputed(lambda h, gate: h * self.activation(gate), h, gate)


# Gated forms are from Shazeer (2020), GLU Variants Improve Transformer.
FORMS: dict[str, Form] = {
  **{name: Form(activation, False) for name, activation in ACTIVATIONS.items()},
  'glu': Form(jax.nn.sigmoid, True),
  'bilinear': Form(lambda x: x, True),
  'reglu': Form(jax.nn.relu, True),
  'geglu': Form(gelu_exact, True),
  'geglu_tanh': Form(gelu_tanh, True),
  'swiglu': Form(jax.nn.silu, True),
}


# XLA on CPU rearranges the right side of each product: of this many rows on,
# x W costs less than W^T x^T.
_MANY_ROWS = 512


def dot(x_ND: jax.Array, kernel_FD: jax.Array) -> jax.Array:
  """Multiplies x and a transposed kernel: [N, F]."""
  if len(x_ND) >= _MANY_ROWS:
    return jax.lax.dot_general(x_ND, kernel_FD, (((1,), (1,)), ((), ())))
  # Without the barriers XLA would swap the operands back.
  x_DN = jax.lax.optimization_barrier(x_ND.T)
  y_FN = jax.lax.optimization_barrier(kernel_FD @ x_DN)
  return y_FN.T


# The dense layer, and how a parameter gets its logical axes.


def parameter(
  module: nn.Module,
  name: str,
  init: Initializer,
  shape: tuple[int, ...],
  axes: tuple[str | None, ...],
  *,
  adapted: bool = True,
) -> jax.Array:
  """A parameter of `module` whose dimensions are named by `axes`.

  It is created in float32; `optim.precision` sets its stored format.

  Args:
    adapted: add the product of `low_rank`, if there is one. It has no input to
      drop.
  """
  if module.has_variable('params', name):
    # Flax would trace the initializer again, only to compare the shape.
    init = nn.initializers.zeros
  boxed: Any = nn.with_logical_partitioning(init, axes)
  value = module.param(name, boxed, shape, jnp.float32)
  if adapted and (pair := low_rank(module, name)):
    if module.has_variable('params', f'{name}_rate'):
      place = '/'.join(map(str, (*module.path, name)))
      raise UsageError(
        f'finetune.lora: dropout is on the inputs of dense layers, and {place} '
        'belongs to another one: leave it out of on, or give dropout=0.0'
      )
    value = value.astype(jnp.float32) + jnp.matmul(*pair, precision='highest')
  return value


def low_rank(module: nn.Module, name: str) -> tuple[jax.Array, jax.Array] | None:
  """The matrices A and B beside a kernel, to which A B is to be added.

  A model creates none: see `tuning.objectives.lora`.
  """
  if not module.has_variable('params', f'{name}_A'):
    return None
  a, b = (module.get_variable('params', f'{name}_{x}') for x in 'AB')
  return a, b


def adapter_input(module: nn.Module, x: jax.Array) -> jax.Array:
  """The input of a kernel's A, with dropout in training: [rows, ..., D].

  The rate lies beside A and B: see `tuning.objectives.lora`.
  """
  rate = 'kernel_rate'
  if not (module.has_variable('params', rate) and module.has_rng('dropout')):
    return x
  keep = 1 - jax.lax.stop_gradient(module.get_variable('params', rate))
  kept = draw_by_row(
    lambda key, shape: jax.random.bernoulli(key, keep, shape), module.make_rng('dropout'), x.shape
  )
  return jnp.where(kept, x / keep.astype(x.dtype), jnp.zeros_like(x))


class Matmul(Protocol):
  """What computes the products of dense layers in training: `model.matmul`."""

  def product(
    self,
    x: jax.Array,
    kernel_DF: jax.Array,
    tokens: jax.Array,
    axes: tuple[str | None, str] | None = None,
  ) -> jax.Array:
    """The product of x and a kernel: [..., F], in the dtype of x.

    Args:
      x: [..., D]; its leading dimensions are those of the tokens.
      kernel_DF: as it is stored.
      tokens: from `token_hash`; uint32 [...].
      axes: logical axes of the kernel, if it is still to be gathered.
    """
    ...

  def check_tokens(self, count: int) -> None:
    """Refuses more tokens of a device than it can sum."""


# The name of such a product, for policies of rematerialisation.
PRODUCT = 'int8'


class Dense(nn.Module):
  """y = x @ kernel + bias, over the last axis.

  The kernel is stored as a matrix even where its columns are heads times head
  size: XLA forms the gradient reduce-scatter for two-dimensional weights only.
  In decoding it may come from `params.quantize` or `params.transpose`.
  `matmul` is for training, where the model has random numbers.
  """

  features: int
  axes: tuple[str | None, str]
  initializer: Initializer
  bias: bool
  dtype: Any
  matmul: Matmul | None = None

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """[..., in] -> [..., features]."""
    # As one matrix: XLA on CPU would transpose a [B, L, D] input to contract
    # two axes at once for the kernel's gradient. But rows that are split over
    # devices cannot be flattened without communication.
    rows = x
    if layout.num_parts('length') == 1:
      rows = x.reshape(-1, x.shape[-1])
    if self.has_variable('params', 'transposed'):
      kernel_FD = self.get_variable('params', 'transposed')
      y = dot(rows, kernel_FD.astype(self.dtype))
    else:
      shape = (x.shape[-1], self.features)
      kernel = parameter(self, 'kernel', self.initializer, shape, self.axes, adapted=False)
      if kernel.dtype == jnp.int8:
        scale = self.get_variable('params', 'scale')
        y = quantized.dot(rows, kernel, scale).astype(self.dtype)
      elif self.matmul and self.has_rng('dropout'):
        tokens = token_hash(self.make_rng('dropout'), rows.shape[:-1])
        y = self.matmul.product(rows, kernel, tokens, self.axes)
        y = checkpoint_name(y, PRODUCT)
      else:
        y = jnp.dot(rows, layout.weight(kernel, self.axes, self.dtype))
      if pair := low_rank(self, 'kernel'):  # no gradient as large as the kernel
        a_DR = layout.weight(pair[0], (self.axes[0], None), self.dtype)
        b_RF = layout.weight(pair[1], (None, self.axes[1]), self.dtype)
        dropped = adapter_input(self, x).reshape(rows.shape)
        y += jnp.dot(jnp.dot(dropped, a_DR), b_RF)
    if self.bias:
      zeros, shape = nn.initializers.zeros, (self.features,)
      bias = parameter(self, 'bias', zeros, shape, self.axes[1:])
      y += bias.astype(self.dtype)[(None,) * (y.ndim - 1)]
    return y.reshape(*x.shape[:-1], self.features)


# Attention's projections to the queries, keys and values of its heads.


class Projections(nn.Module):
  """From vectors [B, L, D] to heads [B, L, H, K], or G of them.

  K of the values may be another than that of queries and keys (Vaswani et al.,
  2017, section 3.2.2: d_v and d_k).

  A module of `Position.terms` has these too, to project its own vectors in the
  same way and to read their sizes.
  """

  num_heads: int
  num_kv_heads: int
  head_size: int
  value_size: int
  bias: bool
  key_bias: bool
  inits: Initializers
  dtype: Any
  norm: Callable[..., nn.Module] | None  # of queries and keys
  qk_norm: str  # of `block.QkNorm`
  matmul: Matmul | None = None

  def setup(self):
    """Creates the dense layers, and the norms if there are any."""
    self.query = dense(self, self.num_heads, 'heads', kernel=self.inits.query)
    self.key = dense(self, self.num_kv_heads, 'kv_heads', bias=self.key_bias)
    self.value = dense(self, self.num_kv_heads, 'kv_heads', size=self.value_size)
    if self.qk_norm != 'none':
      assert self.norm is not None
      self.query_norm, self.key_norm = self.norm(), self.norm()

  def queries(self, x_BLD: jax.Array) -> jax.Array:
    """[B, L, H, K]."""
    return self._normalize('query_norm', self.heads(self.query(x_BLD)))

  def keys(self, x_BMD: jax.Array) -> jax.Array:
    """[B, M, G, K]."""
    return self._normalize('key_norm', self.heads(self.key(x_BMD)))

  def values(self, x_BMD: jax.Array) -> jax.Array:
    """[B, M, G, K]."""
    x = self.value(x_BMD)
    return x.reshape(*x.shape[:2], -1, self.value_size)

  def heads(self, x: jax.Array) -> jax.Array:
    """[B, L, H * K] to [B, L, H, K]."""
    return x.reshape(*x.shape[:2], -1, self.head_size)

  def _normalize(self, name: str, x_BLHK: jax.Array) -> jax.Array:
    """Normalises each head separately, or all heads of a token together."""
    if self.qk_norm == 'none':
      return x_BLHK
    x = x_BLHK
    if self.qk_norm == 'all_heads':
      x = x.reshape(*x.shape[:2], -1)
    return getattr(self, name)(x).reshape(x_BLHK.shape)


def dense(
  like: Projections,
  num_heads: int,
  axis: str,
  *,
  size: int | None = None,
  bias: bool | None = None,
  kernel: Initializer | None = None,
) -> Dense:
  """A dense layer to heads with the logical axis `axis`, owned by the caller.

  Arguments that are None are those of the projections `like`.
  """
  return Dense(
    num_heads * (size or like.head_size),
    ('embed', axis),
    kernel or like.inits.kernel,
    like.bias if bias is None else bias,
    like.dtype,
    like.matmul,
  )


class Rows(NamedTuple):
  """The rows of a micro-batch.

  Attributes:
    numbers_B: the number of each row in the batch.
    count: number of rows in the batch.
    filled: whether padding rows follow them.
    replica_axis: name of the axis of `jax.vmap` over the replicas, which have
      different rows of the micro-batch; None: there is one replica.
    measure: in which steps layers report their activations; None: in none.
  """

  numbers_B: jax.Array
  count: int
  filled: bool
  replica_axis: str | None = None
  measure: 'Measure | None' = None

  def real(self) -> jax.Array:
    """1 for a row, 0 for one of padding: float32 [B]."""
    return (self.numbers_B < self.count).astype(jnp.float32)


class Measure(NamedTuple):
  """What only every Nth step computes.

  Attributes:
    due: bool [], whether this step does.
    every: N.
  """

  due: jax.Array
  every: int

  def compute(self, function: Callable[[], Any]) -> Any:
    """The arrays that `function` returns; zeros in the other steps."""

    def skip() -> Any:
      return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(function))

    # `plan` reads in the name how often it is computed.
    with jax.named_scope(f'every_{self.every}_steps'):
      return jax.lax.cond(self.due, function, skip)


_HERE: contextvars.ContextVar[Rows | None] = contextvars.ContextVar('batch_rows', default=None)


@contextlib.contextmanager
def use_rows(rows: Rows | None):
  """Sets the rows of the model's input within this context."""
  token = _HERE.set(rows)
  try:
    yield
  finally:
    _HERE.reset(token)


def rows_here() -> Rows | None:
  """The rows of `use_rows`; None: there are none."""
  return _HERE.get()


def draw_by_row(
  function: Callable[[jax.Array, tuple[int, ...]], jax.Array],
  key: jax.Array,
  shape: tuple[int, ...],
) -> jax.Array:
  """Draws random numbers for each row, independently of its micro-batch.

  Args:
    function: from a key and a shape to numbers of that shape, possibly with
      further dimensions.
    key: the same for all micro-batches.
    shape: its first dimension is that of the rows, or of equally many groups
      in each, or of groups of equally many rows.
  """
  rows = _HERE.get()
  if rows is None:
    return function(key, shape)
  B = len(rows.numbers_B)
  own = (math.prod(shape) // B,)
  if shape[0] % B == 0:
    own = (shape[0] // B, *shape[1:])
  keys_B = jax.vmap(jax.random.fold_in, (None, 0))(key, rows.numbers_B)
  drawn = jax.vmap(lambda key: function(key, own))(keys_B)
  return drawn.reshape(*shape, *drawn.shape[1 + len(own) :])


def row_numbers(count: int) -> jax.Array:
  """The numbers of `count` rows in the batch, uint32 [count].

  Each row of a micro-batch may have become several: texts of a question's
  answers, segments of a text.
  """
  rows = _HERE.get()
  if rows is None:
    return jnp.arange(count, dtype=jnp.uint32)
  each, rest = divmod(count, len(rows.numbers_B))
  assert not rest, (count, rows.numbers_B.shape)
  first_B1 = rows.numbers_B[:, None] * each
  return (first_B1 + jnp.arange(each)[None]).reshape(-1).astype(jnp.uint32)


def real_rows(count: int) -> jax.Array:
  """1 for each of `row_numbers` that is a row, 0 for padding: float32 [count]."""
  rows = _HERE.get()
  if rows is None:
    return jnp.ones(count, jnp.float32)
  return jnp.repeat(rows.real(), count // len(rows.numbers_B))


def token_hash(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
  """A random hash of each token, uint32, independent of its micro-batch.

  Args:
    key: the same for all micro-batches.
    shape: equally many tokens of each row, one row after the other; or any
      number that is the same for all rows, such as of distances.
  """
  rows, count = _HERE.get(), math.prod(shape)
  if rows is None or count % len(rows.numbers_B):
    numbers = jnp.arange(count, dtype=jnp.uint32)
  else:
    numbers = row_numbers(count)
  return hash_of(key, numbers.reshape(shape))


def hash_of(key: jax.Array, numbers: jax.Array) -> jax.Array:
  """A random hash of each number: uint32, like `numbers`."""
  seed = jax.random.bits(key, (), jnp.uint32)
  return hashed(hashed(seed) ^ numbers.astype(jnp.uint32))


def mean_over_rows(x_U: jax.Array) -> jax.Array:
  """The mean over rows, or over groups of tokens: [U, ...] to [...].

  Of one replica; `over_replicas` gives the mean of all.
  """
  rows = _HERE.get()
  if rows is None or not rows.filled:
    return jnp.mean(x_U, axis=0)
  B, U = len(rows.numbers_B), len(x_U)
  real_B = rows.real()
  real_U = jnp.repeat(real_B, U // B) if U >= B else real_B[:: B // U]
  number = over_replicas(jnp.sum(real_U))
  return jnp.einsum('u,u...->...', real_U, x_U) / jnp.maximum(number, 1)


def over_replicas(x: jax.Array) -> jax.Array:
  """The mean over the replicas."""
  rows = _HERE.get()
  if rows is None or rows.replica_axis is None:
    return x
  return jax.lax.pmean(x, rows.replica_axis)


# Dropout: its places and rates, and its module.


class Rates(NamedTuple):
  """Dropout rates in training, by place; in GPT-1 (4.1) the first three are 0.1.

  Args:
    embedding: of the input vectors.
    residual: of what layers add.
    attention: of the weights of attention.
    words: of whole tokens of the vocabulary in the input, the same ones in all
      rows of a step (Merity et al. 2017, section 4.3).
  """

  embedding: Fraction = 0.0
  residual: Fraction = 0.0
  attention: Fraction = 0.0
  words: Fraction = 0.0


def no_dropout():
  return Rates()


class Dropout(nn.Module):
  """As Flax's, but each row draws its own mask: see `draw_by_row`.

  Attributes:
    rate: the fraction that is dropped.
    deterministic: turns dropout off.
  """

  rate: float
  deterministic: bool | None = None

  @nn.compact
  def __call__(self, x: jax.Array, deterministic: bool | None = None) -> jax.Array:
    """Zeroes values, and divides the kept ones by `keep`: [rows, ...]."""
    if self.rate == 0.0 or nn.merge_param('deterministic', self.deterministic, deterministic):
      return x
    kept = self.kept(x.shape)
    return jnp.where(kept, x / self.keep, jnp.zeros_like(x))

  @property
  def keep(self) -> float:
    """The fraction that is kept."""
    return 1.0 - self.rate

  def kept(self, shape: tuple[int, ...]) -> jax.Array:
    """Draws the mask of kept values: bool [rows, ...]."""
    return draw_by_row(
      lambda key, shape: jax.random.bernoulli(key, self.keep, shape),
      self.make_rng('dropout'),
      shape,
    )


def layer_norm(
  x: jax.Array, scale_D: jax.Array | None, bias_D: jax.Array | None, *, epsilon: float
) -> jax.Array:
  """(x - mean) / sqrt(variance + epsilon) * scale + bias (Ba et al., 2016)."""

  def apply(x: jax.Array, scale_D: Any, bias_D: Any) -> jax.Array:
    lead = (1,) * (x.ndim - 1) + (-1,)
    y: Any = standardize(x.astype(jnp.float32), epsilon)
    if scale_D is not None:
      y *= scale_D.reshape(lead)
    if bias_D is not None:
      y += bias_D.reshape(lead)
    return y.astype(x.dtype)

  return recomputed(apply, x, scale_D, bias_D)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def standardize(x: jax.Array, epsilon: float) -> jax.Array:
  """(x - mean) / sqrt(variance + epsilon) over the last axis.

  The variance is that of the centred values: E[x^2] - E[x]^2 would cancel.
  The gradient is written by hand, since it needs only the result: small models
  train 4% faster on a CPU than with automatic differentiation.
  """
  return _standardize(x, epsilon)[0]


def _standardize(x, epsilon):
  x -= jnp.mean(x, axis=-1, keepdims=True)
  variance = jnp.mean(jnp.square(x), axis=-1, keepdims=True)
  inverse = jax.lax.rsqrt(variance + epsilon)
  return x * inverse, (x * inverse, inverse)


def _standardize_gradient(epsilon, saved, dy):
  del epsilon
  y, inverse = saved
  mean = functools.partial(jnp.mean, axis=-1, keepdims=True)
  return (inverse * (dy - mean(dy) - y * mean(dy * y)),)


standardize.defvjp(_standardize, _standardize_gradient)


class LayerNorm(nn.Module):
  """Owns the scale and the bias of `layer_norm`."""

  epsilon: float
  scale: bool
  bias: bool

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """[..., D] -> [..., D]."""
    shape = x.shape[-1:]
    ones, zeros = nn.initializers.ones, nn.initializers.zeros
    scale_D = bias_D = None
    if self.scale:
      scale_D = parameter(self, 'scale', ones, shape, ('norm',))
    if self.bias:
      bias_D = parameter(self, 'bias', zeros, shape, ('norm',))
    return layer_norm(x, scale_D, bias_D, epsilon=self.epsilon)


def rms_norm(x: jax.Array, scale_D: jax.Array, *, epsilon: float) -> jax.Array:
  """RMSNorm, x / sqrt(mean(x^2) + epsilon) * scale (Zhang & Sennrich 2019)."""

  def apply(x: jax.Array, scale_D: jax.Array) -> jax.Array:
    x_f32 = x.astype(jnp.float32)
    mean = jnp.mean(jnp.square(x_f32), axis=-1, keepdims=True)
    y = x_f32 * jax.lax.rsqrt(mean + epsilon)
    return (y * scale_D.reshape((1,) * (x.ndim - 1) + (-1,))).astype(x.dtype)

  return recomputed(apply, x, scale_D)


class RMSNorm(nn.Module):
  """Owns the scale of `rms_norm`, or its difference from one."""

  epsilon: float
  plus_one: bool

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """[..., D] -> [..., D]."""
    init = nn.initializers.zeros if self.plus_one else nn.initializers.ones
    scale_D = parameter(self, 'scale', init, x.shape[-1:], ('norm',))
    if self.plus_one:
      scale_D = 1 + scale_D
    return rms_norm(x, scale_D, epsilon=self.epsilon)


def layernorm(
  epsilon: Epsilon = 1e-5, scale: bool = True, bias: bool = True
) -> Callable[..., nn.Module]:
  """LayerNorm.

  Args:
    epsilon: the default is that of GPT-1 and GPT-2.
    scale: whether each feature has a learned factor; False: all are 1.
    bias: whether each feature has a learned bias.
  """
  return functools.partial(LayerNorm, epsilon=epsilon, scale=scale, bias=bias)


def rmsnorm(epsilon: Epsilon = 1e-6, plus_one: bool = False) -> Callable[..., nn.Module]:
  """RMSNorm.

  Args:
    epsilon: the default is that of T5 and LLaMA.
    plus_one: features are multiplied by 1 + scale, which starts at 0 (Gemma).
  """
  return functools.partial(RMSNorm, epsilon=epsilon, plus_one=plus_one)


class Biases(NamedTuple):
  """Which dense layers have biases.

  Attributes:
    qkv: the projections to queries, keys and values.
    out: the projection after attention.
    ffn: the feed-forward layer.
    key: the projection to keys; None: as `qkv`.
  """

  qkv: bool
  out: bool
  ffn: bool
  key: bool | None = None


def all_biases():
  return Biases(True, True, True)


def no_biases():
  return Biases(False, False, False)


def where(qkv: bool = False, out: bool = False, ffn: bool = False, key: bool = True) -> Biases:
  """Biases in the named places only (GPT-Neo: out, ffn; GPT-J: ffn).

  key=False leaves keys out of qkv (DeBERTa).
  """
  return Biases(qkv, out, ffn, qkv and key)
