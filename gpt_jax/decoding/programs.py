# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The programs that decoding compiles, one for each size of a batch.

Few sizes occur: rows are padded to `num_rows`, prompts to `width`, caches to
`bucket`.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from gpt_jax.core.nn import caches as caches_lib
from gpt_jax.core.nn import params as params_lib
from gpt_jax.core.nn.build import ModelChoices
from gpt_jax.core.nn.kv_cache import KVCache
from gpt_jax.core.nn.params import unstack
from gpt_jax.core.nn.row import Row
from gpt_jax.core.nn.stack import UNSTACKED, Caches
from gpt_jax.core.nn.transformer import Transformer
from gpt_jax.core.tokenizers.tokenizer import Tokenizer
from gpt_jax.decoding import constraints as constraints_lib
from gpt_jax.decoding import logprobs, sampler
from gpt_jax.decoding.constraints import ANY, Constraints
from gpt_jax.decoding.in_row import InRow

# Prompts are read in blocks of this many tokens: a longer prompt takes more
# calls of the same program.
BLOCK = 256
# Shorter prompts are padded to this length.
SHORTEST = 16


class Decoder(NamedTuple):
  """A model, and which tokens it may generate.

  Attributes:
    params: of the model, as trained or from `for_decoding`.
    in_row: how it answers a source in the source's own row, see
      `decoding.in_row`. None: it continues texts, or is an encoder-decoder.
    never_V: bool, ids that are never generated: see `constraints.never_drawn`.
    constraints: which tokens may come next: see `sampler.constrain`.
  """

  model: Transformer
  params: Any
  in_row: InRow | None = None
  never_V: Any = None
  constraints: Constraints = ANY

  @classmethod
  def of(
    cls, model: Transformer, params: Any, tokenizer: Tokenizer, in_row: InRow | None = None
  ) -> 'Decoder':
    """A decoder with the rules of its tokenizer's files."""
    special = tokenizer.special
    stop_ids = tuple(sorted(special.stop_ids))
    return cls(
      model,
      params,
      in_row,
      constraints_lib.never_drawn(tokenizer, model.vocab_size),
      constraints_lib.of(special)._replace(stop_ids=stop_ids),
    )

  def ready(self) -> 'Decoder':
    """The decoder with its parameters `for_decoding`."""
    model, params = for_decoding(self.model, self.params)
    return self._replace(model=model, params=params)


class BatchArrays(NamedTuple):
  """The rows of a batch, as arrays.

  Attributes:
    samplers: `Samplers`; None in a beam search.
    scored_B: bool, which rows ask for log-probabilities; None in a beam search.
    start_B: length of each prompt: the position of the first sampled token.
    num_memory_B: length of each source of an encoder-decoder.
    most_B: the most tokens to sample.
    num_source_B: see `Request`.
  """

  samplers: Any
  scored_B: Any
  start_B: np.ndarray
  num_memory_B: np.ndarray
  most_B: np.ndarray
  num_source_B: np.ndarray


class Prefilled(NamedTuple):
  """The state of prompts that are being read.

  Attributes:
    last_BD: the last hidden states.
    hidden_BLD: all hidden states of the newest block; None before the first.
  """

  last_BD: jax.Array
  caches: Caches
  hidden_BLD: jax.Array | None = None


def for_decoding(
  model: Transformer, params: Any, weights: str = 'float'
) -> tuple[Transformer, Any]:
  """The model and its parameters, unstacked for fast decoding steps.

  A step would slice a stack of layers and copy its caches. Idempotent.

  Args:
    model: as it was trained.
    weights: 'float' keeps the numbers, transposed on a single CPU device;
      'int8' quantizes them (both in `nn.params`).
  """
  if weights not in ('float', 'int8'):
    raise ValueError(f'weights={weights!r}: is neither float nor int8')
  if model.loop == UNSTACKED:
    return model, params

  if weights == 'float' and _on_one_cpu(params):
    params = _unstack_and_transpose(params)
  else:
    split = jax.jit(unstack, out_shardings=_unstacked_shardings(params))
    params = split(params)
  if weights == 'int8':
    params = jax.jit(params_lib.quantize)(params)
  return model.clone(loop=UNSTACKED, remat='none'), params


@jax.jit
def _unstack_and_transpose(params: Any) -> Any:
  return params_lib.transpose(unstack(params))


def _on_one_cpu(params: Any) -> bool:
  arrays = [x for x in jax.tree.leaves(params) if isinstance(x, jax.Array)]
  placed = {device for x in arrays for device in x.devices()}
  # NumPy arrays go to the first device.
  placed = placed or {jax.devices()[0]}
  return [device.platform for device in placed] == ['cpu']


def _unstacked_shardings(params: Any) -> Any:
  """Each slice of a stack is sharded as the stack is; None without a mesh."""
  placed = [getattr(x, 'sharding', None) for x in jax.tree.leaves(params)]
  if not all(isinstance(x, NamedSharding) for x in placed):
    return None
  shardings = unstack(
    params, lambda x, i: NamedSharding(x.sharding.mesh, PartitionSpec(*x.sharding.spec[1:]))
  )
  return jax.tree.map(lambda x: getattr(x, 'sharding', x), shardings)


def bucket(length: int, longest: int) -> int:
  """Slots of a cache for `length` tokens.

  Powers of two from 64 on, and beyond 512 also the middle between two; at most
  `longest`. Each size is a program for each number of rows.
  """
  size = 1 << max(6, (length - 1).bit_length())
  if size > 512 and length <= size * 3 // 4:
    size = size * 3 // 4
  return min(size, longest)


def buckets(longest: int) -> list[int]:
  """All values of `bucket`."""
  sizes, length = [], 0
  while length < longest:
    length = bucket(length + 1, longest)
    sizes.append(length)
  return sizes


def width(length: int, longest: int) -> int:
  """Length that a prompt is padded to: a power of two, or whole blocks."""
  size = max(1 << max(length - 1, 0).bit_length(), SHORTEST)
  if size > BLOCK:
    size = -(-length // BLOCK) * BLOCK
  return min(size, longest)


def lengths(longest: int) -> list[int]:
  """A length of each `width` up to a block, and of each `bucket` beyond."""
  widths = [SHORTEST]
  while widths[-1] < min(BLOCK, longest):
    widths.append(width(widths[-1] + 1, longest))
  return [*widths, *(size for size in buckets(longest) if size > widths[-1])]


def seen(length: int, slots: int) -> int:
  """Slots of a cache to attend to after `length` tokens were read.

  One to four blocks, then four sizes for each doubling; at most `slots`.
  """
  step = BLOCK << max((length - 1) // BLOCK, 1).bit_length() >> 3
  step = max(step, BLOCK)
  return min(-(-length // step) * step, slots)


def num_rows(rows: int, most: int) -> int:
  """Rows that a batch is padded to: a power of two, at most `most`."""
  return min(1 << (rows - 1).bit_length(), most)


def pad(rows: Sequence[Sequence[int]], longest: int) -> tuple[np.ndarray, np.ndarray]:
  """Ids [B, L], padded with zeros to a `width`, and their lengths [B]."""
  lengths_B = np.array([len(row) for row in rows])
  assert lengths_B.min() > 0 and lengths_B.max() <= longest
  ids_BL = np.zeros((len(rows), width(int(lengths_B.max()), longest)), np.int32)
  for padded_L, row in zip(ids_BL, rows, strict=True):
    padded_L[: len(row)] = row
  return ids_BL, lengths_B


@functools.partial(jax.jit, static_argnames='model')
def encode(params, tokens_BM, mask_BM, *, model):
  """Runs the encoder of an encoder-decoder."""
  row = Row(tokens_BM, real_BL=mask_BM)
  return model.apply({'params': params}, row, method='encode')


@functools.partial(
  jax.jit, static_argnames=('model', 'num_seen', 'in_row'), donate_argnames=('caches', 'last_BD')
)
def read_block(
  params,
  caches,
  tokens_BL,
  start,
  lengths_B,
  last_BD,
  memory_BMD,
  mask_BM,
  *,
  model,
  num_seen,
  in_row,
):
  """Reads a block of prompts; keeps the last hidden state of rows that end.

  Args:
    caches: with room for the tokens; donated.
    start: its position in the prompts.
    lengths_B: of the whole prompts.
    last_BD: last hidden states of the rows that ended before; donated.
    memory_BMD: the encoder's output, whose keys and values go into the caches;
      None if they are there, or if there is no encoder.
    mask_BM: bool, False for padding of `memory_BMD`.
    num_seen: how many of the first slots the tokens attend to.
    in_row: see `Decoder`; its prompts are one block.
  """
  B, L = tokens_BL.shape
  positions_BL = jnp.broadcast_to(start + jnp.arange(L)[None], (B, L))
  source = Row(None, real_BL=mask_BM)
  row = Row(tokens_BL, positions_BL, extra={'source': source, 'encoded': memory_BMD})
  if ModelChoices.of(model).recurrent:
    # Caches hide padding by its place; a state has to be kept from it.
    row = row._replace(real_BL=positions_BL < lengths_B[:, None])
  if in_row is not None:
    row = in_row.of_prompts(row, lengths_B, num_seen)
  caches = caches_lib.seeing(caches, num_seen)
  out = model.apply({'params': params}, row, caches)
  at_B = lengths_B - 1 - start
  inside_B = (at_B >= 0) & (at_B < L)
  index = jnp.clip(at_B, 0, L - 1)[:, None, None]
  found_BD = jnp.take_along_axis(out.hidden_BLD, index, axis=1)[:, 0]
  last_BD = jnp.where(inside_B[:, None], found_BD, last_BD)
  caches = caches_lib.seeing(out.caches, None)
  return Prefilled(last_BD, caches_lib.constrain(caches), out.hidden_BLD)


@functools.partial(jax.jit, static_argnames='model')
def first_logits(params, last_XD, index_B, *, model):
  """Logits of each row's first token [B, V], from `last_XD[index_B]`."""
  logits_XV = model.apply({'params': params}, last_XD, method='logits')
  return logits_XV[index_B]


@functools.partial(jax.jit, static_argnames=('model', 'in_row'), donate_argnames='caches')
def decode_step(params, caches, token_B, position_B, num_memory_B, *, model, in_row):
  """Reads one token of each row: logits of the next [B, V], and the caches.

  Args:
    caches: of the positions before; donated.
    token_B: the newest tokens.
    position_B: their positions.
    num_memory_B: length of each source of an encoder-decoder.
    in_row: see `Decoder`.
  """
  return next_logits(params, caches, token_B, position_B, num_memory_B, model=model, in_row=in_row)


# A program of its own: it has as much to compile as a small model, and depends
# on the number of rows alone, not on the length of the caches.
@functools.partial(jax.jit, static_argnames='constraints')
def draw(model_BV, length_B, token_B, seen_BV, never_V, ids_BT, rows, *, constraints):
  """Draws the next token of each row.

  Args:
    model_BV: the model's logits.
    length_B: tokens of each row so far.
    token_B: the newest token of each row, which `seen_BV` lacks; an id beyond
      the table if it does not.
    seen_BV: see `requests.DecodingStep`.
    never_V: see `constraints.never_drawn`.
    ids_BT: the tokens of each row, see `sampler.constrain`.

  Returns:
    The sampled tokens [B], `seen_BV` with `token_B`, and the sampled tokens'
    `Logprobs`: see `scores`.
  """
  logits_BV = sampler.suppress(model_BV, never_V)
  if seen_BV is not None:
    rows_B = jnp.arange(len(token_B))
    seen_BV = seen_BV.at[rows_B, token_B].set(True, mode='drop')
    logits_BV = sampler.penalize(logits_BV, seen_BV, rows.samplers)
  logits_BV = constrained(logits_BV, length_B, ids_BT, rows, constraints)
  index_B = length_B - rows.start_B
  drawn_B = sampler.draw(logits_BV, rows.samplers, index_B)
  return drawn_B, seen_BV, scores(model_BV, drawn_B, seen_BV, rows)


def scores(
  logits_XV: jax.Array, ids_X: jax.Array, seen_BV: Any, rows: BatchArrays
) -> logprobs.Logprobs | None:
  """Log-probabilities of sampled tokens, zeros if no row asks for them.

  None if a step has no `seen_BV`: programs are compiled for batches of plain
  rows, and for all others.
  """
  if seen_BV is None:
    return None

  def nothing() -> logprobs.Logprobs:
    shapes = jax.eval_shape(logprobs.score, logits_XV, ids_X)
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)

  return jax.lax.cond(jnp.any(rows.scored_B), lambda: logprobs.score(logits_XV, ids_X), nothing)


def constrained(
  logits_BV: jax.Array, length_B: Any, ids_BT: Any, rows: BatchArrays, constraints: Constraints
) -> jax.Array:
  """The logits, -inf for tokens that may not stand at position `length_B`."""
  return sampler.constrain(
    logits_BV,
    constraints,
    length_R=length_B,
    start_R=rows.start_B,
    most_R=rows.most_B,
    ids_RT=ids_BT,
    source_R=rows.num_source_B,
  )


def next_logits(
  params: Any,
  caches: Caches,
  token_R: jax.Array,
  position_R: jax.Array,
  num_memory_B: jax.Array,
  *,
  model: Transformer,
  in_row: InRow | None,
) -> tuple[jax.Array, Caches]:
  """Reads one token of each row: logits of the next [R, V], and the caches.

  Args:
    caches: of the positions before.
    token_R: the newest tokens.
    position_R: their positions.
    num_memory_B: length of each source of an encoder-decoder; several rows may
      share one.
  """
  mask_BM, cache = None, caches[0]
  if num_slots := caches_lib.num_memory(caches):
    mask_BM = jnp.arange(num_slots)[None] < num_memory_B[:, None]
  row = Row(token_R[:, None], position_R[:, None])
  if in_row is not None:
    assert isinstance(cache, KVCache)
    row = in_row.step(token_R, position_R, cache.num_slots)
  row = row._replace(extra={'source': Row(None, real_BL=mask_BM)})
  variables = {'params': params}
  out: Any = model.apply(variables, row, caches)
  last_RD = out.hidden_BLD[:, -1]
  logits_RV: Any = model.apply(variables, last_RD, method='logits')
  return logits_RV, caches_lib.constrain(out.caches)
