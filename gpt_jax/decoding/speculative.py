# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Speculative decoding: a smaller model proposes tokens, the model judges them.

The sampled tokens have the model's own distribution, however good the proposals
are (Leviathan et al., 2023: Fast Inference from Transformers via Speculative
Decoding, Algorithm 1). N is the number of proposals; p and q are the
distributions of model and draft, after a row's sampler.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.core.nn import caches as caches_lib
from gpt_jax.core.nn.build import ModelChoices
from gpt_jax.core.nn.row import Row
from gpt_jax.core.nn.stack import Caches
from gpt_jax.core.nn.transformer import Transformer
from gpt_jax.core.spec import UsageError
from gpt_jax.decoding import programs, sampler
from gpt_jax.decoding.constraints import Constraints
from gpt_jax.decoding.logprobs import Logprobs
from gpt_jax.decoding.programs import BatchArrays, Decoder
from gpt_jax.decoding.sampler import Samplers

# The random streams of a position: to propose its token, to judge the proposal,
# and to replace it. What follows a refused proposal is proposed again with the
# same numbers, on which nothing that was kept depends.
_PROPOSE, _JUDGE, _REPLACE = range(3)


def propose(logits_BV: jax.Array, samplers: Samplers, index_B: jax.Array) -> jax.Array:
  """Draws from q, whose logits these are: ids [B]."""
  return sampler.categorical(logits_BV, samplers, 3 * index_B + _PROPOSE)


def judge(
  proposed_BN: jax.Array,
  logits_BNV: jax.Array,
  proposals_BNV: jax.Array,
  samplers: Samplers,
  index_B: jax.Array,
) -> tuple[jax.Array, jax.Array]:
  """Accepts proposals x while u <= p(x) / q(x), u uniform; samples one token.

  The token is sampled from norm(max(0, p - q)) in place of a refused proposal,
  or from p after the last accepted one.

  Args:
    logits_BNV: of p, [B, N + 1, V].
    proposals_BNV: logits of q, [B, N, V].
    index_B: of the first proposal among the draws of its row.

  Returns:
    The number of accepted proposals and the token, both [B].
  """
  N = proposed_BN.shape[1]
  p_BNV = jax.nn.softmax(logits_BNV, axis=-1)
  # Nothing is subtracted after the last proposal.
  q_BNV = jax.nn.softmax(proposals_BNV, axis=-1)
  q_BNV = jnp.pad(q_BNV, ((0, 0), (0, 1), (0, 0)))
  x_BN1 = proposed_BN[:, :, None]
  p_BN = jnp.take_along_axis(p_BNV[:, :N], x_BN1, axis=2)[:, :, 0]
  q_BN = jnp.take_along_axis(q_BNV[:, :N], x_BN1, axis=2)[:, :, 0]
  u_BN = jnp.stack(
    [
      jax.vmap(jax.random.uniform)(sampler.keys(samplers, 3 * (index_B + i) + _JUDGE))
      for i in range(N)
    ],
    axis=1,
  )
  # Not <=: u may be zero, and a token that p excludes is never accepted.
  accepted_B = leading(u_BN * q_BN < p_BN)
  p_BV, q_BV = at(p_BNV, accepted_B), at(q_BNV, accepted_B)
  rest_BV = jnp.maximum(p_BV - q_BV, 0)
  # If p and q are equal up to rounding, nothing may be left.
  some_B1 = jnp.sum(rest_BV, axis=1, keepdims=True) > 0
  rest_BV = jnp.where(some_B1, rest_BV, p_BV)
  index_B = 3 * (index_B + accepted_B) + _REPLACE
  return accepted_B, sampler.categorical(jnp.log(rest_BV), samplers, index_B)


def leading(accepted_BN: jax.Array) -> jax.Array:
  """How many are true before the first false, [B]."""
  return jnp.sum(jnp.cumprod(accepted_BN, axis=1), axis=1)


def at(x_BN: jax.Array, index_B: jax.Array) -> jax.Array:
  """x[b, index[b]]: [B, N, ...] to [B, ...]."""
  return x_BN[jnp.arange(len(index_B)), index_B]


class Draft(NamedTuple):
  """A smaller model that proposes.

  Attributes:
    model: a decoder with the vocabulary of the model it proposes to.
    num_tokens: N, how many it proposes at a time.
  """

  model: Transformer
  params: Any
  num_tokens: int


class Proposals(NamedTuple):
  """How many tokens were proposed, within the texts' limits, and accepted."""

  proposed: int = 0
  accepted: int = 0

  def more(self, proposed: int, accepted: int) -> 'Proposals':
    """With those of another round."""
    return Proposals(self.proposed + proposed, self.accepted + accepted)

  def __str__(self) -> str:
    share = self.accepted / max(self.proposed, 1)
    return (
      f'the draft proposed {self.proposed:,} tokens, of which '
      f'{self.accepted:,} ({share:.1%}) were accepted'
    )


class Drawn(NamedTuple):
  """The result of a round.

  Attributes:
    ids_BN: [B, N + 1]: accepted tokens, then one of the model's own; the rest
      is undefined.
    accepted_B: how many proposals were accepted, 0 to N.
    caches: the model's, then the draft's.
    seen_BV: with all of these tokens but the last; see `requests.DecodingStep`.
    scores_BN: log-probabilities of `ids_BN`; see `programs.scores`.
  """

  ids_BN: jax.Array
  accepted_B: jax.Array
  caches: Caches
  seen_BV: jax.Array | None
  scores_BN: Logprobs | None


def for_decoding(draft: Draft) -> Draft:
  """The draft with its parameters as `programs.for_decoding` gives them."""
  model, params = programs.for_decoding(draft.model, draft.params)
  return draft._replace(model=model, params=params)


def check(model: Transformer, draft: Transformer, constraints: Constraints) -> None:
  """Checks that a draft can propose to a model."""
  for one in (model, draft):
    causal = ModelChoices.of(one).causal
    if one.num_encoder_layers or not causal:
      raise UsageError(
        f'--draft: an {"encoder-decoder" if causal else "encoder"} neither '
        'proposes tokens nor takes them; leave --draft out, or give decoders'
      )
    if ModelChoices.of(one).recurrent:
      raise UsageError(
        f'--draft: the layers of model.attention={one.attention!r} cannot go '
        'back to before a rejected token; leave --draft out'
      )
  if constraints.of_text:
    raise UsageError(
      '--draft: the model has rules for runs of tokens (bad_words_ids or '
      'no_repeat_ngram_size in its generation_config.json), which proposals '
      'do not follow; leave --draft out'
    )
  if model.vocab_size != draft.vocab_size:
    raise UsageError(
      f"--draft: has a vocabulary of {draft.vocab_size:,} and the model's is "
      f'{model.vocab_size:,}; give a draft with the same tokenizer'
    )
  if model.context_length > draft.context_length:
    raise UsageError(
      f'--draft: has a context of {draft.context_length:,} tokens and the '
      f"model's is {model.context_length:,}; give one that reads as far"
    )


def draw(
  decoder: Decoder,
  draft: Draft,
  caches: Caches,
  last: np.ndarray,
  position_B: np.ndarray,
  seen_BV: Any,
  rows: BatchArrays,
  *,
  greedy: bool,
) -> Drawn:
  """One round: N proposals for each row, judged in one pass of the model.

  Refused proposals stay in the caches, at positions later than every query,
  until they are overwritten.

  Args:
    decoder: `ready`; its rules hold for the draft, too.
    draft: with parameters `for_decoding`.
    caches: the model's, then the draft's, of the positions before `last`; the
      draft's may lack the newest of them.
    last: int32 [B, 2], the two newest tokens.
    position_B: of the newest token.
    seen_BV: bool, the tokens before the newest; see `requests.DecodingStep`.
    rows: their samplers and limits.
    greedy: whether every row takes the most probable token.
  """
  size, never_V = decoder.model.num_layers, decoder.never_V
  mine, its = caches[:size], caches[size:]
  token_BL, seen, tokens, proposals = last, seen_BV, [last[:, 1]], []
  for i in range(draft.num_tokens):
    # It first reads two tokens: after a round whose proposals were all accepted
    # it has not read the last one.
    drawn_B, logits_BV, its, seen = _propose(
      draft.params,
      its,
      token_BL,
      position_B + i,
      seen,
      never_V,
      rows,
      model=draft.model,
      greedy=greedy,
      constraints=decoder.constraints,
    )
    token_BL = drawn_B[:, None]
    tokens.append(drawn_B)
    proposals.append(logits_BV)
  ids_BN, accepted_B, mine, seen_BV, scores_BN = _judge(
    decoder.params,
    mine,
    tuple(tokens),
    tuple(proposals),
    position_B,
    seen_BV,
    never_V,
    rows,
    model=decoder.model,
    greedy=greedy,
    constraints=decoder.constraints,
  )
  return Drawn(ids_BN, accepted_B, mine + its, seen_BV, scores_BN)


@functools.partial(
  jax.jit, static_argnames=('model', 'greedy', 'constraints'), donate_argnames='caches'
)
def _propose(
  params, caches, token_BL, position_B, seen_BV, never_V, rows, *, model, greedy, constraints
):
  """Reads tokens up to `position_B` and proposes the next.

  Returns:
    The token [B], the logits it was drawn from (None if greedy), the caches,
    and `seen_BV` with the newest token.
  """
  L = token_BL.shape[1]
  positions_BL = _places(position_B, 1 - L, 1, model)
  out = model.apply({'params': params}, Row(token_BL, positions_BL), caches)
  logits_BV = model.apply({'params': params}, out.hidden_BLD[:, -1], method='logits')
  logits_BV = sampler.suppress(logits_BV, never_V)
  if seen_BV is not None:
    rows_B = jnp.arange(len(token_BL))
    seen_BV = seen_BV.at[rows_B, token_BL[:, -1]].set(True)
    logits_BV = sampler.penalize(logits_BV, seen_BV, rows.samplers)
  logits_BV = programs.constrained(logits_BV, position_B + 1, None, rows, constraints)
  caches = caches_lib.constrain(out.caches)
  if greedy:
    return jnp.argmax(logits_BV, axis=-1), None, caches, seen_BV
  logits_BV = sampler.allowed(logits_BV, rows.samplers)
  index_B = position_B - rows.start_B + 1
  drawn_B = propose(logits_BV, rows.samplers, index_B)
  return drawn_B, logits_BV, caches, seen_BV


@functools.partial(
  jax.jit, static_argnames=('model', 'greedy', 'constraints'), donate_argnames='caches'
)
def _judge(
  params,
  caches,
  tokens,
  proposals,
  position_B,
  seen_BV,
  never_V,
  rows,
  *,
  model,
  greedy,
  constraints,
):
  """Reads the newest token and the proposals, and draws: see `Drawn`."""
  tokens_BN = jnp.stack(tokens, axis=1).astype(jnp.int32)
  N = len(proposals)
  positions_BN = _places(position_B, 0, N + 1, model)
  out = model.apply({'params': params}, Row(tokens_BN, positions_BN), caches)
  model_BNV = model.apply({'params': params}, out.hidden_BLD, method='logits')
  logits_BNV = sampler.suppress(model_BNV, never_V)
  seen_BNV = None
  if seen_BV is not None:
    seen_BNV = _before(seen_BV, tokens_BN)
    penalize = jax.vmap(sampler.penalize, in_axes=(1, 1, None), out_axes=1)
    logits_BNV = penalize(logits_BNV, seen_BNV, rows.samplers)
  length_BN = position_B[:, None] + 1 + jnp.arange(N + 1)[None]
  constrained = jax.vmap(programs.constrained, in_axes=(1, 1, None, None, None), out_axes=1)
  logits_BNV = constrained(logits_BNV, length_BN, None, rows, constraints)
  broken_B = jnp.any(sampler.broken(logits_BNV), axis=1)
  if greedy:
    best_BN = jnp.argmax(logits_BNV, axis=-1).astype(jnp.int32)
    accepted_B = leading(best_BN[:, :-1] == tokens_BN[:, 1:])
    own_B = at(best_BN, accepted_B)
  else:
    allowed = jax.vmap(sampler.allowed, in_axes=(1, None), out_axes=1)
    logits_BNV = allowed(logits_BNV, rows.samplers)
    accepted_B, own_B = judge(
      tokens_BN[:, 1:],
      logits_BNV,
      jnp.stack(proposals, axis=1),
      rows.samplers,
      position_B - rows.start_B + 1,
    )
  # The proposals, shifted left, and the model's own token after those accepted.
  places_1N = jnp.arange(N + 1)[None]
  ids_BN = jnp.where(
    places_1N == accepted_B[:, None], own_B[:, None], jnp.roll(tokens_BN, -1, axis=1)
  )
  ids_BN = jnp.where(broken_B[:, None], sampler.NO_TOKEN, ids_BN)
  if seen_BNV is not None:
    seen_BV = at(seen_BNV, accepted_B)
  scores_BN = programs.scores(model_BNV, ids_BN, seen_BV, rows)
  caches = caches_lib.constrain(out.caches)
  return ids_BN, accepted_B, caches, seen_BV, scores_BN


def _places(position_B: jax.Array, start: int, stop: int, model: Transformer) -> jax.Array:
  """Positions from `start` to `stop` relative to some, [B, stop - start].

  Positions past the context are clamped to its last slot, which no query reads.
  """
  places_BN = position_B[:, None] + jnp.arange(start, stop)[None]
  return jnp.minimum(places_BN, model.context_length - 1)


def _before(seen_BV: jax.Array, tokens_BN: jax.Array) -> jax.Array:
  """The tokens seen up to each of `tokens_BN`: bool [B, N, V]."""
  ids_V = jnp.arange(seen_BV.shape[1])
  new_BNV = tokens_BN[:, :, None] == ids_V[None, None]
  return seen_BV[:, None] | (jnp.cumsum(new_BNV, axis=1) > 0)
