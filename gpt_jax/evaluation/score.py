# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Log-probabilities of continuations given a context.

Rows of similar length are scored together, longest first. Lengths are padded to
powers of two, so that few programs are compiled, and short rows come in larger
batches. Rows are split over the devices like training batches.
"""

import functools
import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax import sharding
from gpt_jax.data.progress import Report
from gpt_jax.data.tokenizers.tokenizer import Tokenizer
from gpt_jax.decoding import sample
from gpt_jax.evaluation.journal import Journal
from gpt_jax.nn.transformer import Transformer
from gpt_jax.spec import UsageError
from gpt_jax.training.parts import Parts
from gpt_jax.training.trained import Trained

# Logits held at once: 128 MiB of float32.
_CHUNK_LOGITS = 1 << 25
_SHORTEST = 16
_MOST_ROWS = 1024
_MOST_TOKENS = 1 << 14  # of a batch, on each device


class Request(NamedTuple):
  """A text to score after a context.

  Attributes:
    context: may be empty.
    continuation: must not be empty.
    where: 'file:line', for errors.
  """

  context: str
  continuation: str
  where: str


class Score(NamedTuple):
  """The score of a continuation.

  Attributes:
    log_prob: of all its tokens, in nats.
    num_tokens: number of its tokens.
    greedy: 1 if each token is the most probable at its position, else 0.
    cut: number of leading context tokens that did not fit.
  """

  log_prob: float
  num_tokens: int
  greedy: int
  cut: int


class Row(NamedTuple):
  """Token ids, of which the last `num_scored` are scored."""

  ids: np.ndarray
  num_scored: int
  cut: int = 0


def row(
  tokenizer: Tokenizer, request: Request, context_length: int
) -> Row | None:
  """Encodes a request.

  Context and continuation are encoded as one text. A token that spans the
  boundary belongs to the continuation. First comes what the model was trained
  to see before a text, such as the end-of-document token: see `Special`.

  Returns:
    The row; None if the continuation alone exceeds the context.

  Raises:
    UsageError: the continuation is empty.
  """
  whole = tokenizer.encode(request.context + request.continuation)
  before = tokenizer.encode(request.context)
  shared = min(len(whole), len(before))
  differs = np.flatnonzero(whole[:shared] != before[:shared])
  start = int(differs[0]) if len(differs) else shared
  num_scored = len(whole) - start
  if not num_scored:
    raise UsageError(f'{request.where}: has no text to score')
  if num_scored > context_length:
    return None
  before = tokenizer.special.before(first_scored=start == 0)
  ids = np.concatenate([before, whole]).astype(np.int32)
  cut = max(len(ids) - (context_length + 1), 0)
  return Row(ids[cut:], num_scored, cut)


class Scorer:
  """Scores rows with a trained model."""

  def __init__(self, parts: Parts, params: Any, tokenizer: Tokenizer):
    """Takes the parameters, which may be replaced later.

    Programs are compiled on first use.
    """
    self.tokenizer = tokenizer
    self.context_length: int = parts.config.model.context_length
    self._parts, self.params = parts, params
    self._score = jax.jit(
      functools.partial(score_rows, model=parts.model),
      static_argnames='width',
      out_shardings=sharding.replicated(parts.mesh),
    )

  def requests(
    self, requests: Sequence[Request], journal: Journal, report: Report
  ) -> list[Score | None]:
    """Scores texts in order; None for one that exceeds the context."""
    rows = [row(self.tokenizer, r, self.context_length) for r in requests]
    fitting = [r for r in rows if r is not None]
    scores = iter(self.rows(fitting, journal, report))
    return [None if r is None else next(scores) for r in rows]

  def rows(
    self, rows: Sequence[Row], journal: Journal, report: Report
  ) -> list[Score]:
    """Scores rows in order.

    Args:
      rows: each of at most `context_length + 1` ids.
      journal: provides scores from an earlier process, and records new ones.
      report: called with the number of rows done and in total.
    """
    found = journal.start(_digest(rows))
    missing = [i for i in range(len(rows)) if i not in found]
    done = len(rows) - len(missing)
    for indices in self._batches(rows, missing):
      scores = self._batch([rows[i] for i in indices])
      new = dict(zip(indices, scores, strict=True))
      journal.add(new)
      found.update(new)
      done += len(indices)
      report('scoring', done, len(rows))
    return [
      Score(found[i][0], r.num_scored, int(found[i][1]), r.cut)
      for i, r in enumerate(rows)
    ]

  def answers(
    self,
    prompts: Sequence[str],
    max_tokens: int,
    journal: Journal,
    report: Report,
  ) -> list[str]:
    """Greedy continuations up to the end of a line, in order.

    Args:
      prompts: of at most `context_length - max_tokens - 1` tokens.
      max_tokens: in a continuation.
      journal: as for `rows`.
      report: as for `rows`.
    """
    start = self.tokenizer.special.before(first_scored=True)
    encode = self.tokenizer.encode
    ids = [[*start, *map(int, encode(prompt))] for prompt in prompts]
    rows = [Row(np.array(i, np.int32), max_tokens) for i in ids]
    found = journal.start(_digest(rows))
    missing = [i for i in range(len(ids)) if i not in found]
    size = self._parts.eval_rows
    decoder = sample.in_place(self._parts.model, self.params)
    for start in range(0, len(missing), size):
      indices = missing[start : start + size]
      new = self._continued(decoder, [ids[i] for i in indices], max_tokens)
      answers = dict(zip(indices, new, strict=True))
      journal.add(answers)
      found.update(answers)
      report('answering', len(found), len(ids))
    return [found[i] for i in range(len(ids))]

  def _continued(
    self,
    decoder: tuple[Transformer, Any],
    prompts: list[list[int]],
    max_tokens: int,
  ) -> list[str]:
    decode = self.tokenizer.decode
    with sharding.use(self._parts.mesh, self._parts.rules):
      new = sample.generate(
        *decoder,
        prompts,
        max_tokens=max_tokens,
        sampler=sample.Sampler(temperature=0),
        seed=0,
        stop_ids=self.tokenizer.special.stop_ids,
        stop_when=lambda ids: '\n' in decode(ids).lstrip(),
      )
    return [decode(ids).strip().partition('\n')[0] for ids in new]

  def _batches(
    self, rows: Sequence[Row], indices: list[int]
  ) -> Iterator[list[int]]:
    """Groups rows into batches of one padded length each, longest first."""
    by_length: dict[int, list[int]] = {}
    for i in indices:
      by_length.setdefault(self._padded(len(rows[i].ids) - 1), []).append(i)
    for length in sorted(by_length, reverse=True):
      # The number of logits depends on the number of scored tokens.
      group = sorted(by_length[length], key=lambda i: -rows[i].num_scored)
      size = self._num_rows(length)
      for start in range(0, len(group), size):
        yield group[start : start + size]

  def _padded(self, length: int) -> int:
    power = 1 << (max(length, _SHORTEST) - 1).bit_length()
    return min(power, self.context_length)

  def _num_rows(self, length: int) -> int:
    """Rows of a full batch: the tokens of an evaluation batch, with a limit."""
    parts, shards = self._parts, self._parts.num_shards
    tokens = min(parts.eval_rows * self.context_length, _MOST_TOKENS * shards)
    rows = min(tokens // length, _MOST_ROWS)
    return max(rows // shards, 1) * shards

  def _batch(self, rows: Sequence[Row]) -> list[tuple[float, bool]]:
    length = self._padded(max(len(r.ids) for r in rows) - 1)
    # The last batch is padded to a power of two, and not to a full one.
    least = 1 << (len(rows) - 1).bit_length()
    shards = self._parts.num_shards
    num_rows = min(self._num_rows(length), -(-least // shards) * shards)
    width = self._padded(max(r.num_scored for r in rows))
    batch = {
      'inputs': np.zeros((num_rows, length), np.int32),
      'targets': np.zeros((num_rows, width), np.int32),
      'starts': np.zeros(num_rows, np.int32),
      'counts': np.zeros(num_rows, np.int32),
    }
    for i, r in enumerate(rows):
      batch['inputs'][i, : len(r.ids) - 1] = r.ids[:-1]
      batch['targets'][i, : r.num_scored] = r.ids[-r.num_scored :]
      batch['starts'][i] = len(r.ids) - 1 - r.num_scored
      batch['counts'][i] = r.num_scored
    mine = self._parts.host_rows(num_rows)
    placed = self._parts.put({k: v[mine] for k, v in batch.items()}, num_rows)
    with sharding.use(self._parts.mesh, self._parts.rules):
      sums, greedy = self._score(self.params, placed, width=width)
    sums, greedy = np.asarray(sums, np.float64), np.asarray(greedy)
    return [(float(sums[i]), bool(greedy[i])) for i in range(len(rows))]


def scorer(trained: Trained) -> Scorer:
  """Makes a scorer for a run loaded from its workdir."""
  return Scorer(trained.parts, trained.state.eval_params, trained.tokenizer)


def score_rows(
  params: Any, batch: dict[str, jax.Array], *, model: Transformer, width: int
) -> tuple[jax.Array, jax.Array]:
  """Scores a batch.

  Args:
    params: of the model.
    batch: `inputs` [B, L]; `targets` [B, width], the scored ids from the left;
      `starts` [B], the position that predicts the first of them; `counts` [B],
      their number.
    model: a causal decoder.
    width: maximum number of ids scored per row.

  Returns:
    Log-probabilities [B], float32, and whether all tokens were the most
    probable ones, [B].
  """
  variables = {'params': params}
  out: Any = model.apply(variables, batch['inputs'], mutable=['router'])
  hidden_BLD = out[0].hidden_BLD
  num_rows, length, _ = hidden_BLD.shape
  offset_W = jnp.arange(width)
  at_BW = jnp.minimum(batch['starts'][:, None] + offset_W[None], length - 1)
  hidden_BWD = jnp.take_along_axis(hidden_BLD, at_BW[..., None], axis=1)
  counted_BW = offset_W[None] < batch['counts'][:, None]

  def score(part):
    hidden_BCD, targets_BC, counted_BC = part
    logits_BCV: Any = model.apply(variables, hidden_BCD, method='logits')
    log_probs_BCV = jax.nn.log_softmax(logits_BCV, axis=-1)
    picked_BC = jnp.take_along_axis(
      log_probs_BCV, targets_BC[..., None], axis=-1
    )[..., 0]
    best_BC = jnp.argmax(logits_BCV, axis=-1) == targets_BC
    return (
      jnp.sum(jnp.where(counted_BC, picked_BC, 0.0), axis=-1),
      jnp.all(best_BC | ~counted_BC, axis=-1),
    )

  parts = 1
  while (
    num_rows * width // parts * model.vocab_size > _CHUNK_LOGITS
    and width % (2 * parts) == 0
  ):
    parts *= 2

  def split(x):
    x = x.reshape(num_rows, parts, width // parts, *x.shape[2:])
    return jnp.moveaxis(x, 1, 0)

  sums, greedy = jax.lax.map(
    score, tuple(map(split, (hidden_BWD, batch['targets'], counted_BW)))
  )
  return jnp.sum(sums, axis=0), jnp.all(greedy, axis=0)


def _digest(rows: Sequence[Row]) -> str:
  digest = hashlib.sha256()
  for r in rows:
    digest.update(np.array([len(r.ids), r.num_scored]).tobytes())
    digest.update(r.ids.tobytes())
  return digest.hexdigest()
