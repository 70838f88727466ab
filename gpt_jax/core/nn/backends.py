# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Who computes attention: `model.attention_backend`, and its reference.

`reference` is plain XLA and serves every call. The others, and `auto`, are in
`fast_backends`.
"""

import contextlib
import contextvars
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gpt_jax.core.nn import layout
from gpt_jax.core.nn.attend import Request, attend_across, attend_with_memory, attend_within
from gpt_jax.core.spec import UsageError

# What a request may need from a backend, and where its need comes from.
WHY = {
  'split': 'mesh.rules.length splits rows over devices',
  'unordered': 'tokens are not in the order of their rows',
  'bias': 'model.position adds a bias for each pair of tokens',
  'by_distance': 'model.position adds a bias by distance',
  'products': 'model.position adds products with vectors of distances',
  'dropout': 'model.dropout drops attention probabilities',
  'blocks': 'model.attention holds {pattern}, which lists blocks',
  'prefix': 'rows have a prefix',
  'mask': 'rows have a mask of their own',
  'two_sizes': 'model.value_size={values} is not model.head_size={keys}',
  'softcap': 'model.attention_scale has a softcap',
  'masked': 'rows have padding or packed documents',
  'order': 'rows have an order of their own',
  'memory': 'a memory precedes the rows',
  'places': 'a second stream has places of its own',
  'across': "a decoder attends to the encoder's output",
}
ALL = frozenset(WHY)


# Those for which a model with another backend takes the reference.
RARE = frozenset(('memory', 'places', 'across'))


class Backend(NamedTuple):
  """One way to compute attention within rows.

  Attributes:
    name: as in the config.
    run: computes a request: [B, L, H, K].
    can: the features of `ALL` that it supports. A bias by distance, or of
      products, is given to those without `by_distance` or `products` as one
      for each pair.
    sizes: why it cannot serve a request's rows, heads or dtype, or None.
    platform: that it needs; None: any.
    choice: the backend that serves a request, and why no faster one; None: this
      one serves it.
    zigzag: whether rows that are split over devices should be in the order of
      `zigzag.zigzag`: it skips blocks of keys that no query sees, and gives
      each device all heads of its tokens, so that in order the load is uneven.
  """

  name: str
  run: Callable[[Request], jax.Array]
  can: frozenset[str] = ALL
  sizes: Callable[[Request], str | None] = lambda request: None
  platform: str | None = None
  choice: 'Callable[[Request], tuple[Backend, str]] | None' = None
  zigzag: Callable[[Request], bool] = lambda request: False


def features(request: Request) -> frozenset[str]:
  """The features of `WHY` that a request needs."""
  pattern, seen, bias = request.pattern, request.visibility, request.bias
  needed = {
    'split': layout.num_parts('length') > 1,
    'unordered': seen.places_1L is not None,
    getattr(bias, 'feature', 'bias'): bias is not None,
    'dropout': request.dropout is not None,
    'blocks': pattern.blocks is not None,
    'prefix': seen.prefix_B is not None,
    'mask': seen.visible_BLM is not None,
    'two_sizes': request.k_BLGK.shape[-1] != request.v_BLGK.shape[-1],
    'softcap': request.softcap > 0,
    'masked': any(x is not None for x in seen[:2]),
    'order': seen.order is not None,
    'memory': request.num_before > 0,
    'places': request.places_BL is not None,
    'across': request.keys is not None,
  }
  return frozenset(name for name, yes in needed.items() if yes)


def refusal(backend: Backend, request: Request) -> str | None:
  """Why the backend cannot serve a request on the current devices, or None.

  The request may be abstract, from a config before its run.
  """
  here = layout.platform()
  if backend.platform not in (None, here):
    return f'it needs a {backend.platform.upper()}, and the devices are {here}'
  can = backend.can
  if 'bias' in can:
    can |= {'by_distance', 'products'}
  return lacks(can, request) or backend.sizes(request)


def lacks(can: frozenset[str], request: Request) -> str | None:
  """The first feature that a request needs beside `can`, as a sentence."""
  if can >= ALL:
    return None
  missing = features(request) - can
  why = next((why for name, why in WHY.items() if name in missing), None)
  return why and why.format(
    pattern=request.pattern.name, keys=request.k_BLGK.shape[-1], values=request.v_BLGK.shape[-1]
  )


def attend_rows(request: Request, *, backend: Backend, layer: tuple[str, ...] = ()) -> jax.Array:
  """The attention of a request, computed by `backend`: [B, L, H, K].

  The output of queries that are padding differs between backends, and is
  unused. `layer` is the path of the module that asks.
  """
  if (asked := _ASKED.get()) is not None:
    asked.append(Asked(layer, jax.tree.map(_shape, request)))
    width = request.v_BLGK.shape[-1]
    return jnp.zeros((*request.q_BLHK.shape[:3], width), request.v_BLGK.dtype)
  check(backend, request)
  return run(backend, request)


class Asked(NamedTuple):
  """What a layer, by its path in the model, asks of its backend, as shapes."""

  layer: tuple[str, ...]
  request: Request

  @property
  def kind(self) -> str:
    """The stack and the kind of the layer: `decoder local`."""
    across = self.request.keys is not None
    name = 'cross-attention' if across else self.request.pattern.name
    # An encoder with the decoder's layers runs apart.
    stack = 'encoder' if self.layer[0] == 'periods' else self.layer[0]
    return f'{stack} {name}'


_ASKED: contextvars.ContextVar[list[Asked] | None] = contextvars.ContextVar('asked', default=None)


@contextlib.contextmanager
def asked():
  """Lists what layers ask in this context; nothing is computed."""
  token = _ASKED.set(requests := [])
  try:
    yield requests
  finally:
    _ASKED.reset(token)


def only_asks() -> bool:
  """Whether layers only say what they ask: see `asked`."""
  return _ASKED.get() is not None


def _shape(x: Any) -> Any:
  if isinstance(x, jax.Array):
    return jax.ShapeDtypeStruct(x.shape, x.dtype)
  return x


def run(backend: Backend, request: Request) -> jax.Array:
  """The result of `backend`, which gets a bias that it can take."""
  form = getattr(request.bias, 'feature', None)
  if form and form not in backend.can:
    request = request._replace(bias=request.bias.whole(request))
  return backend.run(request)


def check(backend: Backend, request: Request) -> None:
  """Raises UsageError if the backend cannot serve the request."""
  packed = request.visibility.segments_BL is not None
  if packed and request.pattern.blocks is not None:
    raise UsageError(
      f'model.attention={request.pattern.name}: its blocks span a whole row, '
      'which cannot hold packed documents; take another data.rows'
    )
  why = refusal(backend, request)
  if why:
    raise UsageError(
      f'model.attention_backend={backend.name}: {why}; change that, or take auto or reference'
    )


def reference() -> Backend:
  """Plain XLA, on any device; supports every layer."""

  def run(request: Request) -> jax.Array:
    if request.keys is not None:
      return attend_across(request)
    if request.num_before or request.places_BL is not None:
      return attend_with_memory(request)
    if request.pattern.blocks is not None:
      return request.pattern.blocks.dense(request)
    return attend_within(request)

  return Backend('reference', run, ALL - {'by_distance', 'products'})


def backend_for(request: Request, backend: Backend) -> Backend:
  """A model's backend, or the reference where it lacks one of `RARE`."""
  if backend.can >= RARE or not RARE & features(request) - backend.can:
    return backend
  return reference()


def takes_distances(backend: Backend, request: Request) -> bool:
  """Whether it computes a request's bias from the distances itself."""
  if backend.choice:
    backend, _ = backend.choice(request)
  return 'by_distance' in backend.can and not refusal(backend, request)


def not_split(request: Request) -> str | None:
  """Why rows, tokens or heads do not divide over their mesh axes, or None."""
  sizes = dict(zip(('batch', 'length', 'heads'), request.q_BLHK.shape, strict=False))
  for logical, size in sizes.items():
    parts = layout.num_parts(logical)
    if size % parts:
      return f'{size} ({logical}) does not divide over the {parts} devices of mesh.rules.{logical}'
  return None
