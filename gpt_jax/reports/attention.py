# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Draws which keys each query of a config sees, in each kind of layer.

Nothing here knows a pattern. A picture is the output of the attention itself,
the reference that all backends must equal: with queries and keys of zeros each
query weighs the keys that it sees alike, and with a value for each key, 1 in a
place of its own, the output has these weights. The requests are those that
`device_check` makes of a config; what differs between rows, such as where
documents end, is an example.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.core import config as config_lib
from gpt_jax.core.config import Config
from gpt_jax.core.nn.attend import Request
from gpt_jax.core.nn.backends import reference
from gpt_jax.core.nn.build import ModelChoices
from gpt_jax.core.nn.masks import Order, Tokens
from gpt_jax.core.nn.row import Visibility
from gpt_jax.core.objectives import choices as objectives
from gpt_jax.core.rows.rows import Keys, Rows
from gpt_jax.core.spec import UsageError
from gpt_jax.core.training import device_check
from gpt_jax.papers.unilm import unified, unified_order
from gpt_jax.papers.xlnet import permuted
from gpt_jax.reports import runs

# The longest rows that are drawn, whose masks have 16 million entries.
MOST = 4096
# An example of what differs between rows: where, as parts of a row, the second
# and third document begin, a prefix or the first of two texts ends.
_DOCUMENTS, _PREFIX = (0.3, 0.7), 0.4
_DOTS = 512  # about the width of a panel


class Seen(NamedTuple):
  """What the queries of a kind of layer see.

  Attributes:
    name: of the layers, and what differs between rows.
    mask: bool [L, M].
    note: what is drawn of several heads or layers; '': they are alike.
  """

  name: str
  mask: np.ndarray
  note: str = ''

  @property
  def title(self) -> str:
    """The name, and how many keys a query sees."""
    L, M = self.mask.shape
    mean = self.mask.sum() / L
    counts = f'{mean:,.1f} of {M:,} keys a query, {mean / M:.1%}'
    return '\n'.join(filter(None, (self.name, counts, self.note)))


def seen(config: Config, length: int | None = None) -> list[Seen]:
  """The masks of each kind of attention of a resolved config.

  Args:
    length: of the rows in tokens; None: the config's longest, up to `MOST`.
  """
  length = min(length or config_lib.ramp(config).longest, MOST)
  found: dict[tuple[str, bytes], Seen] = {}
  for part in ('', *config.models):
    extra = ModelChoices.of(config_lib.of_part(config, part).model).num_extra
    asked = device_check.attention_requests(config, part, 1, length)
    for layer, _, request in asked:
      for name, example in _examples(config, part, layer, request):
        blocks, note = request.pattern.blocks, ''
        if extra:
          name += f', after {extra:,} extra tokens'
        if blocks and blocks.random and not blocks.first:
          note = 'random blocks of the first head and layer'
        item = Seen(f'{part} {name}'.strip(), mask_of(example), note)
        found[item.name, item.mask.tobytes()] = item
  return [*found.values()]


def mask_of(request: Request) -> np.ndarray:
  """Which keys each query of the first row sees, bool [L, M].

  Args:
    request: abstract but for its visibility, keys and places.
  """
  L, M = request.q_BLHK.shape[1], request.k_BLGK.shape[1]
  output = reference().run(
    request._replace(
      q_BLHK=jnp.zeros((1, L, 1, 1)),
      k_BLGK=jnp.zeros((1, M, 1, 1)),
      v_BLGK=jnp.eye(M)[None, :, None],
      scale=1.0,
      bias=None,
      dropout=None,
      layer=jnp.int32(0),
    )
  )
  return np.asarray(output[0, :, 0] > 0)


def _examples(
  config: Config, part: str, layer: str, request: Request
) -> Iterator[tuple[str, Request]]:
  """Requests for an example of a row, each with its name."""
  L, M = request.q_BLHK.shape[1], request.k_BLGK.shape[1]
  asked = request.visibility
  documents = _documents(L) if asked.segments_BL is not None else None
  given = Visibility(segments_BL=documents)
  name = layer
  if documents is not None:
    name += ', packed documents'
  if request.keys is not None:
    of_keys = _documents(M) if documents is not None else None
    keys = Tokens(jnp.arange(M)[None], segments=of_keys)
    yield name, request._replace(visibility=given, keys=keys)
    return
  if M > L:
    name += f', after a memory of {M - L:,}'
  if asked.prefix_B is not None:
    prefix_B = jnp.array([int(_PREFIX * L)])
    given = given._replace(prefix_B=prefix_B)
    name += ', a prefix'
  needs = objectives.needs(config.objective.name)
  if asked.order is not None:
    second_BL = jnp.arange(L)[None] >= int(_PREFIX * L)
    for number, kind in enumerate(unified_order.NAMES):
      if needs.pair == 'unified' or number == unified_order.SEQ2SEQ:
        order = unified.order(jnp.array([number]), second_BL)
        yield (f'{name}, {kind}', request._replace(visibility=given._replace(order=order)))
    return
  if not part and needs.num_predicted(L):
    yield from _streams(config, name, request)
    return
  yield name, request._replace(visibility=given)


def _documents(length: int) -> jax.Array:
  """The documents of a packed row, [1, L]."""
  starts = np.array([int(part * length) for part in _DOCUMENTS])
  return jnp.asarray(np.searchsorted(starts, np.arange(length), 'right')[None])


def _streams(config: Config, name: str, request: Request) -> Iterator[tuple[str, Request]]:
  """XLNet's two streams, in the order of a row's tokens that is drawn first."""
  L = request.q_BLHK.shape[1]
  objective = config_lib.objective(config)
  assert isinstance(objective, permuted.Permuted)
  first = np.zeros(1, np.int64)
  ones = np.ones((1, L), bool)
  drawn = objective.permutation(
    Rows(np.zeros((1, L), np.int32), ones), Keys(config.seed, first, first, first), ones
  )
  at_BP, ranks_BL = drawn['masked_positions'], drawn['ranks']
  order = permuted.order(jnp.asarray(ranks_BL), jnp.take_along_axis(ranks_BL, at_BP, axis=1))
  content = Visibility(order=Order(order.bounds_BL[:, :L], order.ranks_BM))
  yield f'{name}, content stream', request._replace(visibility=content)
  predicted = Visibility(order=Order(order.bounds_BL[:, L:], order.ranks_BM))
  P = at_BP.shape[1]
  yield (
    f'{name}, query stream of {P:,} predicted tokens',
    request._replace(
      q_BLHK=jnp.zeros((1, P, 1, 1)), visibility=predicted, places_BL=jnp.asarray(at_BP)
    ),
  )


def attention_chart(config: Config, out: str) -> str:
  """A panel for each kind of layer, dark where a query sees a key.

  Args:
    out: the PNG.

  Returns:
    `out`.
  """
  found = seen(config)
  if not found:
    raise UsageError(
      f'model.attention={config.model.attention!r}: no layer attends, so there '
      'are no masks to draw; take a config with attention'
    )
  columns = math.ceil(math.sqrt(len(found)))
  rows = math.ceil(len(found) / columns)
  figure, grid = runs.load_pyplot().subplots(
    rows,
    columns,
    squeeze=False,
    figsize=(4.6 * columns, 0.4 + 4.9 * rows),
    dpi=120,
    layout='constrained',
  )
  for axes in grid.flat[len(found) :]:
    axes.axis('off')
  for axes, item in zip(grid.flat, found, strict=False):
    # Masks of more places than the panel has dots are averaged.
    sharp = max(item.mask.shape) <= _DOTS
    axes.imshow(
      item.mask,
      'Blues',
      vmin=0,
      vmax=1.3,
      aspect='auto',
      interpolation='nearest' if sharp else 'antialiased',
    )
    title = '\n'.join(map(runs.label, item.title.split('\n')))
    axes.set_title(title, fontsize=8)
    axes.set_xlabel('keys')
    axes.set_ylabel('queries')
  return runs.save_figure(figure, out)
