# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""LaMDA's answers: candidates, judged by the model that wrote them.

Thoppilan et al., 2022: LaMDA: Language Models for Dialog Applications. One
model generates, after '<context> RESPONSE', and discriminates, by the rating
that it gives after '<context> RESPONSE <response> SENSIBLE' and other
attributes (section 6.1). Candidates that are probably unsafe are dropped, the
others ranked by quality. Before it answers, the model may ask tools (section
6.2), by a response 'TS, <query>'.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from gpt_jax.core.files.records import Record
from gpt_jax.core.spec import UsageError
from gpt_jax.evaluation.score import Journal, Scorer, ScoreRequest

SENTINEL, TOOLS = ' RESPONSE', ' TOOLS'
# A response that begins so is for the tools.
TO_TOOLS = 'TS,'
# The most queries before an answer (section 6.2).
MOST_QUERIES = 4


class Ratings(NamedTuple):
  """The probabilities of the rating 1; of `unsafe`, 1 is bad."""

  sensible: float
  specific: float
  interesting: float
  unsafe: float

  @property
  def quality(self) -> float:
    """3 P(sensible) + P(specific) + P(interesting), section 6.1."""
    return 3 * self.sensible + self.specific + self.interesting


def rank(candidates: Sequence[Ratings], safety: float) -> list[int]:
  """The numbers of the candidates that are safe, the best first.

  Args:
    safety: the least probability of being safe.
  """
  safe = [i for i, x in enumerate(candidates) if 1 - x.unsafe >= safety]
  return sorted(safe, key=lambda i: -candidates[i].quality)


def rate(scorer: Scorer, context: str, responses: Sequence[str]) -> list[Ratings]:
  """Rates responses to a context.

  P(1) is a softmax over the two rating tokens alone.
  """
  requests = [
    ScoreRequest(f'{context}{SENTINEL} {response} {attribute.upper()}', f' {rating}', 'a candidate')
    for response in responses
    for attribute in Ratings._fields
    for rating in (0, 1)
  ]
  scores = scorer.requests(requests, Journal(None, ''), lambda *_: None)
  ratings = []
  for zero, one in zip(scores[::2], scores[1::2], strict=True):
    assert zero is not None and one is not None
    if zero.cut or one.cut:
      raise UsageError(
        f'--prompt: with an answer and its rating it exceeds the context of '
        f'{scorer.context_length} tokens; shorten it'
      )
    # Tokens before the rating itself are the same, and cancel.
    ratings.append(1 / (1 + math.exp(min(zero.log_prob - one.log_prob, 700))))
  each = len(Ratings._fields)
  return [Ratings(*ratings[i : i + each]) for i in range(0, len(ratings), each)]


# Tools.


class Turn(NamedTuple):
  """An answer, and what it took.

  Attributes:
    queries: each query to the tools, with what they returned.
  """

  answer: str
  queries: list[tuple[str, list[str]]]


def respond(
  generate: Callable[[str], str], context: str, tools: Sequence[Callable[[str], list[str]]]
) -> Turn:
  """Generates responses until one is for the user.

  What the tools return is appended to the context:
  '<context> RESPONSE TS, <query> TOOLS <result>; <result>'; see `unmarked` for
  texts that have such words themselves. After `MOST_QUERIES` the response is
  taken as it is.

  Args:
    generate: the best response to a context.
  """
  queries: list[tuple[str, list[str]]] = []
  while True:
    response = generate(context)
    asks = response.startswith(TO_TOOLS)
    if not tools or not asks or len(queries) == MOST_QUERIES:
      return Turn(response, queries)
    query = response.removeprefix(TO_TOOLS).strip()
    results = [result for tool in tools for result in tool(query)]
    queries.append((query, results))
    said, returned = map(unmarked, (response, '; '.join(results)))
    context += f'{SENTINEL} {said}{TOOLS} {returned}'


# The words that part a context into turns, results and ratings.
_WORDS = (SENTINEL, TOOLS, *(f' {x.upper()}' for x in Ratings._fields))
_MARKS = re.compile(rf'\b(?:{"|".join(x.strip() for x in _WORDS)})\w*')


def unmarked(text: str) -> str:
  """A text that is no turn, result or rating: their words in lower case."""
  return _MARKS.sub(lambda found: found[0].lower(), text)


# Metrics of labelled responses.

_QUALITY = ('sensible', 'specific', 'interesting')


def metrics(records: Sequence[Record]) -> dict[str, float]:
  """Shares of labelled responses, sections 4.1 and 4.2.

  Each record has true or false for `sensible`, `specific`, `interesting` and
  `safe`; `claims`: it makes claims about the world; `supported`: by
  authoritative sources; `cites`: URLs of them; `known`: the claims are well
  known. The last four count only as the definitions say:

    groundedness       supported / claims
    informativeness    supported / all responses
    citation accuracy  citing / claims that are not well known

  A figure without responses to count is left out.
  """
  rows = [_labels(record) for record in records]
  claims = [row for row in rows if row['claims']]
  unknown = [row for row in claims if not row['known']]
  supported = sum(row['supported'] for row in claims)
  counts: dict[str, tuple[int, int]] = {
    name: (sum(row[name] for row in rows), len(rows)) for name in (*_QUALITY, 'safe')
  }
  counts['groundedness'] = supported, len(claims)
  counts['informativeness'] = supported, len(rows)
  cited = sum(row['cites'] for row in unknown)
  counts['citation_accuracy'] = cited, len(unknown)
  out = {name: x / n for name, (x, n) in counts.items() if n}
  out['ssi'] = sum(out[name] for name in _QUALITY) / len(_QUALITY)
  return out | {'responses': len(rows)}


_LABELS = (*_QUALITY, 'safe', 'claims', 'supported', 'cites', 'known')


def _labels(record: Record) -> Mapping[str, bool]:
  labels = {name: record[name] for name in _LABELS}
  for name, value in labels.items():
    if not isinstance(value, bool):
      raise UsageError(f'{record.where}: {name}={value!r} is neither true nor false; mend the line')
  return labels
