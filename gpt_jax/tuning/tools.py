# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tools that a model may ask, as LaMDA does (Thoppilan et al., 2022, 6.2).

A tool takes a query and returns texts: none if the query is not for it.
"""

import ast
import importlib
import math
import operator
import re
import warnings
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from gpt_jax.core import sharding
from gpt_jax.core.files import globs, lines
from gpt_jax.core.spec import NoFileError, UsageError
from gpt_jax.decoding.files import SourceEntry
from gpt_jax.decoding.settings import Sampler
from gpt_jax.decoding.texts import Options, TextGenerator
from gpt_jax.opening import models

# A query to the translator begins so.
TO_TRANSLATOR = 'translate:'

_OPERATORS: dict[type, Callable[..., Any]] = {
  ast.Add: operator.add,
  ast.Sub: operator.sub,
  ast.Mult: operator.mul,
  ast.Div: operator.truediv,
  ast.FloorDiv: operator.floordiv,
  ast.Mod: operator.mod,
  ast.USub: operator.neg,
  ast.UAdd: operator.pos,
}
# Of a query: its numbers and depth stay small.
_MOST_CHARACTERS = 200


# The commas between thousands.
_THOUSANDS = re.compile(r'(?<![\w.,])[1-9]\d{0,2}(?:,\d{3})+(?![\w,])')


def calculator(query: str) -> list[str]:
  """The value of an arithmetic expression; nothing if it is none.

  Numbers, brackets and + - * / // %; commas between thousands are ignored. The
  value is exact, and written with 15 digits: 0.1 + 0.2 is 0.3.
  """
  if len(query) > _MOST_CHARACTERS:
    return []
  plain = query.strip().removesuffix('=').strip()
  plain = _THOUSANDS.sub(lambda found: found[0].replace(',', ''), plain)
  if '_' in plain:  # Python reads 1_2 as 12
    return []
  try:
    with warnings.catch_warnings(action='ignore'):  # '1if x', not for the user
      value = _value(ast.parse(plain, mode='eval').body)
    nearest = float(value)
  except (SyntaxError, ValueError, ArithmeticError):
    return []
  # Whole numbers are exact, but for those that were not written as such.
  whole = plain.isascii() and not re.search('[.e]', plain, re.IGNORECASE)
  if value.denominator == 1 and (whole or abs(value) < 10**15):
    return [str(value.numerator)]
  return [f'{nearest:.15g}']


def _value(node: ast.expr) -> Fraction:
  match node:
    case ast.Constant(value=int() | float() as value):
      if not isinstance(value, bool) and math.isfinite(value):
        return Fraction(repr(value))
    case ast.UnaryOp(op=op, operand=x) if type(op) in _OPERATORS:
      return _OPERATORS[type(op)](_value(x))
    case ast.BinOp(left=x, op=op, right=y) if type(op) in _OPERATORS:
      return Fraction(_OPERATORS[type(op)](_value(x), _value(y)))
  raise ValueError(f'{type(node).__name__} is not arithmetic')


class Retriever:
  """Finds the paragraph of some texts that suits a query best, by BM25.

  Robertson and Zaragoza, 2009: The Probabilistic Relevance Framework, equation
  3.15, with k1 = 1.2 and b = 0.75; the weight of a word is log(1 + (N - n +
  0.5) / (n + 0.5)), for n of N paragraphs that have it.
  """

  def __init__(self, pattern: str, field: str = '--retrieve'):
    """Reads the files, whose paragraphs end with a blank line.

    Args:
      pattern: of the files; a folder: all of its .txt files.
      field: names the pattern in errors.
    """
    if globs.is_folder(pattern):
      pattern = f'{pattern.rstrip("/")}/*.txt'
    try:
      files = globs.find(pattern)
    except NoFileError as e:
      raise UsageError(f'{field}: {e}') from e
    for bad in files.bad:
      raise bad
    whole = [lines.whole(path) for path in files.values()]
    parts = [part.strip() for text in whole for part in text.split('\n\n')]
    self.paragraphs = [' '.join(part.split()) for part in parts if part]
    # Loading it takes a second.
    text: Any = importlib.import_module('sklearn.feature_extraction.text')
    self._words = text.CountVectorizer(token_pattern=r'\w+')
    try:
      counts = self._words.fit_transform(self.paragraphs).tocsc()
    except ValueError as e:
      raise UsageError(f'{field}={pattern}: holds no words; name files of texts') from e
    length_P = np.asarray(counts.sum(axis=1))[:, 0]
    length_P = 1.2 * (0.25 + 0.75 * length_P / length_P.mean())
    n_W = counts.getnnz(axis=0)
    weight_W = np.log(1 + (len(length_P) - n_W + 0.5) / (n_W + 0.5))
    counts = counts.tocoo()
    tf = counts.data * 2.2 / (counts.data + length_P[counts.row])
    counts.data = tf * weight_W[counts.col]
    self._scores_PW = counts.tocsr()

  def __call__(self, query: str) -> list[str]:
    """The best paragraph; none if no word of the query occurs."""
    query_W = self._words.transform([query]).toarray()[0]
    scores_P = self._scores_PW @ query_W
    best = int(np.argmax(scores_P))
    return [self.paragraphs[best]] if scores_P[best] > 0 else []


def translator(workdir: str) -> Callable[[str], list[str]]:
  """A translator of queries 'translate: ...', by a model that answers sources.

  Translations are greedy.
  """
  if not models.answers_sources(models.read_config(workdir, '--translator')):
    raise UsageError(
      f'--translator={workdir}: holds no model that answers a source, such as '
      'an encoder-decoder; give the workdir of one'
    )
  trained = models.load(workdir, 'write')
  generator = TextGenerator(
    trained.decoder(),
    trained.tokenizer,
    Options(sampler=Sampler(0)),
    rows=1,
    sources=models.source_format(trained.parts, trained.tokenizer),
  )

  def translate(query: str) -> list[str]:
    text = query.removeprefix(TO_TRANSLATOR).strip()
    if not query.startswith(TO_TRANSLATOR) or not text:
      return []
    with sharding.use(trained.parts.mesh, trained.parts.rules):
      requests = generator.requests([SourceEntry('--translator', text)])
      ((_, (found,)),) = generator.complete(requests)
    return [found.text.strip()]

  return translate
