# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tasks scored by likelihood: choices of continuations, and whole texts.

The choices of `tasks.prompts` are scored after their context. The answer is the
one with the highest log-probability: in total, per token or per byte (GPT-3,
section 2.4: "the per-token likelihood for each example (to normalize for
length)"), or relative to a general context, P(completion | context) /
P(completion | answer context), as GPT-3 does for ARC, OpenBookQA and RACE.

`cut` counts examples whose context lost its first tokens because it was too
long, `left_out` those with a choice that exceeds the context by itself.
"""

import collections
import functools
import io
import logging
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
from etils import epy

from gpt_jax.core.files.progress import Report
from gpt_jax.core.ranges import Whole
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers import changes
from gpt_jax.evaluation import figures
from gpt_jax.evaluation.figures import Figures, Make, Setting, read_all
from gpt_jax.evaluation.score import Journal, Score, Scorer, ScoreRequest
from gpt_jax.tasks import detokenize, texts
from gpt_jax.tasks.files import OWN, Files
from gpt_jax.tasks.prompts import Prompt, Prompted

with epy.lazy_imports():
  from gpt_jax.evaluation import forward

log = logging.getLogger('gpt_jax')


# Computes results from examples and their scores.
Measure = Callable[[Sequence[Prompt], list[list[Score]]], Figures]


class Likelihood:
  """A task of examples with choices, in the folder of task files."""

  takes_sources = False
  # Stands between two examples.
  separator = '\n\n'

  def __init__(self, prompted: Prompted, folder: str):
    """Reads nothing yet."""
    self._prompted, self._folder = prompted, folder
    self.takes_shots = prompted.shown is not None

  def _examples(self) -> list[Prompt]:
    examples = functools.partial(self._prompted.examples, self._folder)
    return read_all('examples', examples)

  def texts(self) -> list[tuple[str, str]]:
    """Each example with its right continuation, for overlap checks."""
    return [(e.where, e.plain or e.lead + _solved(e)) for e in self._examples()]

  def check(self, shots: int) -> None:
    """See `figures.MeasuredTask`."""
    examples = self._examples()
    if shots:
      self._drawn(examples, Setting(shots))

  def measure(self, scorer: Scorer, setting: Setting, journal: Journal, report: Report) -> Figures:
    """See `figures.MeasuredTask`."""
    examples = self._examples()
    seen = setting.seen
    if setting.limit is not None:
      kept = _first(examples, setting.limit)
      examples = [examples[i] for i in kept]
      if seen is not None:
        seen = frozenset(n for n, i in enumerate(kept) if i in seen)
    prompts, num_shown = self._prompts(scorer, examples, setting)
    requests = []
    for example, prompt in zip(examples, prompts, strict=True):
      for choice in example.choices:
        requests.append(ScoreRequest(prompt + example.context, choice, example.where))
        if example.general is not None:
          requests.append(ScoreRequest(example.general, choice, example.where))
    scores = iter(scorer.requests(requests, journal, report))
    scored: dict[int, list[Score]] = {}  # by the example's number
    for number, example in enumerate(examples):
      each = len(example.choices) * (1 if example.general is None else 2)
      found = [next(scores) for _ in range(each)]
      whole = [score for score in found if score is not None]
      if len(whole) == len(found):
        scored[number] = whole
    _report_left_out(examples, scored, scorer.context_length)

    def measured(numbers: Sequence[int]) -> Figures:
      measure = _MEASURES[self._prompted.measure]
      found = measure([examples[n] for n in numbers], [scored[n] for n in numbers])
      return _with_main(found, self._prompted)

    shown = [num_shown[n] for n in scored]
    return {
      **measured([*scored]),
      **({'shots_shown': float(np.mean(shown))} if setting.shots else {}),
      'examples': len(scored),
      'left_out': len(examples) - len(scored),
      'cut': sum(any(s.cut for s in found) for found in scored.values()),
      **figures.clean([*scored], seen, measured),
    }

  def _drawn(
    self, examples: Sequence[Prompt], setting: Setting
  ) -> tuple[list[str], list[list[int]]]:
    """The pool of few-shot examples, and the indices drawn for each example."""
    assert self._prompted.shown is not None
    pool = functools.partial(self._prompted.shown, self._folder)
    shown = read_all('examples', pool)
    solved = [_solved(e) for e in shown]
    if self._prompted.same_text:
      pool = [(e.about, text) for e, text in zip(shown, solved, strict=True)]
      own = [(e.about, _solved(e)) for e in examples]
      return solved, of_text(pool, own, setting)
    asked = [(e.where, _solved(e)) for e in examples]
    return solved, draw(solved, asked, setting)

  def _prompts(
    self, scorer: Scorer, examples: Sequence[Prompt], setting: Setting
  ) -> tuple[list[str], list[int]]:
    """The prompt before each context, and the number of shots in it.

    As many shots are shown as fit into the context.
    """
    if not setting.shots:
      return [e.lead for e in examples], [0] * len(examples)
    solved, drawn = self._drawn(examples, setting)
    texts = [text + self.separator for text in solved]
    lengths = [len(ids) for ids in scorer.tokenizer.encode_batch(texts)]
    prompts, num_shown = [], []
    for example, indices in zip(examples, drawn, strict=True):
      own = max(
        len(scorer.tokenizer.encode(example.lead + example.context + choice))
        for choice in example.choices
      )
      room = scorer.context_length - own - 1
      prompt, count = '', 0
      for i in indices:
        room -= lengths[i]
        if room < 0:
          break
        prompt = texts[i] + prompt
        count += 1
      prompts.append(example.lead + prompt)
      num_shown.append(count)
    return prompts, num_shown


def _report_left_out(
  examples: Sequence[Prompt], scored: Collection[int], context_length: int
) -> None:
  """Warns of examples without a score."""
  too_long = [e.where for n, e in enumerate(examples) if n not in scored]
  if not scored:
    raise UsageError(
      f'{too_long[0]}: no example fits the context of {context_length} tokens; '
      'take a model with a longer one'
    )
  if too_long:
    log.warning(
      '%s: a choice exceeds the context of %d tokens; %d such examples are left out',
      too_long[0],
      context_length,
      len(too_long),
    )


def _first(examples: Sequence[Prompt], limit: int) -> list[int]:
  """The positions of the first `limit` examples of each group."""
  met: collections.Counter[str] = collections.Counter()
  out = []
  for position, example in enumerate(examples):
    met[example.group] += 1
    if met[example.group] <= limit:
      out.append(position)
  return out


def _solved(example: Prompt) -> str:
  return example.context + example.choices[example.label]


# Few-shot examples.


def draw(
  shown: Sequence[str], asked: Sequence[tuple[str, str]], setting: Setting
) -> list[list[int]]:
  """Draws few-shot examples independently for each measured example.

  None of them equals the measured one, from whatever file, so that its answer
  is never shown.

  Args:
    shown: texts of the pool; equal texts are the same example.
    asked: 'file:line' and text of each measured example.

  Returns:
    Indices into `shown` for each measured example.
  """
  copies = collections.Counter(shown)
  rng = np.random.default_rng(setting.seed)
  out = []
  for where, text in asked:
    others = len(shown) - copies[text]
    if others < setting.shots:
      raise UsageError(
        f'--shots={setting.shots}: there are only {others} examples to show '
        f'before {where}; give fewer'
      )
    # Draw as many extra examples as may equal this one.
    drawn = rng.choice(len(shown), setting.shots + copies[text], replace=False)
    out.append([int(i) for i in drawn if shown[i] != text][: setting.shots])
  return out


def of_text(
  shown: Sequence[tuple[str, str]], asked: Sequence[tuple[str, str]], setting: Setting
) -> list[list[int]]:
  """Takes the other examples about the same text.

  They are shown in this order: those that follow the measured one, then those
  before it, as if it were the last. There may be fewer than `setting.shots`.

  Args:
    shown: subject and text of each example of the pool, which includes the
      measured ones.
    asked: subject and text of each measured example.

  Returns:
    Indices into `shown` for each measured example, the nearest first.
  """
  members: dict[str, list[int]] = {}
  for i, (about, _) in enumerate(shown):
    members.setdefault(about, []).append(i)
  out = []
  for about, text in asked:
    mine = members[about]
    texts = [shown[i][1] for i in mine]
    at = texts.index(text)
    before = [i for i in mine[at + 1 :] + mine[:at] if shown[i][1] != text]
    out.append(before[::-1][: setting.shots])
  return out


# Results, from the scores of each example.


def accuracies(examples: Sequence[Prompt], scores: list[list[Score]]) -> Figures:
  """Accuracy by each scoring rule, with chance and majority baselines.

  Returns:
    `accuracy` (by log-probability), `accuracy_per_token`, `accuracy_per_byte`
    and `accuracy_per_character` (lm-eval's acc, acc_bytes and acc_norm);
    `accuracy_over_general` if there is a general context; `chance` and
    `majority`. Among equal choices the first counts, as in lm-eval.
  """
  ways: dict[str, list[bool]] = {}
  for example, found in zip(examples, scores, strict=True):
    general = found[1::2] if example.general is not None else None
    found = found[::2] if example.general is not None else found
    # The space before a choice only separates it.
    texts = [choice.removeprefix(' ') or choice for choice in example.choices]
    by = {
      'accuracy': [s.log_prob for s in found],
      'accuracy_per_token': [s.log_prob / s.num_tokens for s in found],
      'accuracy_per_byte': _normalised(found, [len(text.encode()) for text in texts]),
      'accuracy_per_character': _normalised(found, [*map(len, texts)]),
    }
    if general is not None:
      by['accuracy_over_general'] = [
        s.log_prob - g.log_prob for s, g in zip(found, general, strict=True)
      ]
    for name, values in by.items():
      right = int(np.argmax(values)) == example.label
      ways.setdefault(name, []).append(right)
  counts = np.bincount([e.label for e in examples])
  out: Figures = {}
  for name, right in ways.items():
    out |= figures.mean(name, right)
  return {
    **out,
    'chance': float(np.mean([1 / len(e.choices) for e in examples])),
    'majority': float(counts.max() / len(examples)),
  }


def paradigms(examples: Sequence[Prompt], scores: list[list[Score]]) -> Figures:
  """Accuracy on minimal pairs, per group and averaged over groups."""
  groups: dict[str, list[bool]] = {}
  for example, found in zip(examples, scores, strict=True):
    best = _best([s.log_prob for s in found])
    groups.setdefault(example.group, []).append(best == example.label)
  out = figures.mean_of_groups('accuracy', [*groups.values()])
  out['chance'] = 0.5
  for name, right in groups.items():
    out |= figures.mean(f'accuracy/{name}', right)
  return out


def last_words(examples: Sequence[Prompt], scores: list[list[Score]]) -> Figures:
  """Accuracy of greedy decoding on the right continuation; its perplexity.

  `majority` is the accuracy of always guessing the most common last word.
  """
  found = [score for (score,) in scores]
  words = collections.Counter(e.choices[e.label].strip() for e in examples)
  return {
    **figures.mean('accuracy', [bool(s.greedy) for s in found]),
    **figures.perplexity('perplexity', [-s.log_prob for s in found]),
    'majority': max(words.values()) / len(examples),
  }


def threshold(examples: Sequence[Prompt], scores: list[list[Score]]) -> Figures:
  """Two classes of texts, by the mean log-probability of their tokens.

  A text above a threshold is of class 1. The threshold of every other text is
  fitted to the rest, and vice versa.

  Returns:
    `matthews`, with the jackknife's error, and `accuracy`; `matthews_fitted`,
    by the best threshold for these texts; that `threshold`, in nats per token.
  """
  values = np.array([s.log_prob / s.num_tokens for (s,) in scores])
  labels = np.array([e.label for e in examples])
  said = np.zeros_like(labels)
  for half in (slice(0, None, 2), slice(1, None, 2)):
    rest = np.ones(len(labels), bool)
    rest[half] = False
    said[half] = values[half] > best_threshold(values[rest], labels[rest])[0]
  counts = np.zeros((2, 2))  # [label, prediction]
  np.add.at(counts, (labels, said), 1)
  fitted, highest = best_threshold(values, labels)
  return {
    'matthews': float(_matthews(counts)),
    'matthews_stderr': _matthews_error(counts),
    **figures.mean('accuracy', (said == labels).tolist()),
    'matthews_fitted': highest,
    # Infinite if all texts are of one class.
    **({'threshold': fitted} if math.isfinite(fitted) else {}),
    'chance': 0.0,
    'majority': float(np.bincount(labels).max() / len(labels)),
  }


def best_threshold(values: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
  """The threshold with the highest Matthews' correlation, and that.

  It lies midway between two values, or is infinite. Of equal thresholds the
  lowest counts.

  Args:
    values: [N].
    labels: 0 or 1, of texts below and above it, [N].
  """
  order = np.argsort(values, kind='stable')
  values, labels = values[order], labels[order]
  below = np.array([np.cumsum(labels == 0), np.cumsum(labels == 1)])
  below = np.pad(below, ((0, 0), (1, 0)))  # [label, texts below the threshold]
  above = below[:, -1:] - below
  found = _matthews(np.stack([below, above], axis=1))
  edges = np.array([-np.inf, *values, np.inf])
  apart = edges[1:] > edges[:-1]
  best = int(np.argmax(np.where(apart, found, -np.inf)))
  low, high = edges[best : best + 2].tolist()
  return (low + high) / 2, float(found[best])


def _matthews(counts: np.ndarray) -> np.ndarray:
  """Matthews' correlation of counts [label, prediction, ...]; 0 if none."""
  (tn, fp), (fn, tp) = counts.astype(float)
  scale = np.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
  return (tp * tn - fp * fn) / np.where(scale > 0, scale, 1)


def _matthews_error(counts: np.ndarray) -> float:
  """The jackknife's error: each example is left out once."""
  n = counts.sum()
  without, weights = [], []
  for cell in zip(*np.nonzero(counts), strict=True):
    fewer = counts.copy()
    fewer[cell] -= 1
    without.append(_matthews(fewer))
    weights.append(counts[cell])
  mean = np.average(without, weights=weights)
  squares = np.average(np.square(without - mean), weights=weights) * n
  return float(np.sqrt((n - 1) / n * squares))


def _with_main(found: Figures, prompted: Prompted) -> Figures:
  """The figures with the main one first, and `relative` to chance and best."""
  main = prompted.main or next(iter(found))
  error = f'{main}_stderr'
  out: Figures = {main: found[main], error: found[error], **found}
  if prompted.best is not None:
    scale = prompted.best - found['chance']
    out['relative'] = (found[main] - found['chance']) / scale
    out['relative_stderr'] = found[error] / scale
  return out


def _normalised(scores: Sequence[Score], lengths: list[int]) -> list[float]:
  """Log-probabilities by length."""
  return [s.log_prob / n for s, n in zip(scores, lengths, strict=True)]


def _best(values: Sequence[float]) -> int:
  """Index of the largest value; -1 on a tie.

  In a pair the first is always right, which must not decide ties.
  """
  array = np.asarray(values)
  (best,) = np.nonzero(array == array.max())
  return int(best[0]) if len(best) == 1 else -1


_MEASURES: dict[str, Measure] = {
  'accuracies': accuracies,
  'paradigms': paradigms,
  'last_words': last_words,
  'threshold': threshold,
}


def of(prompted: Callable[..., Prompted]) -> Callable[..., Make]:
  """Makes likelihood tasks from a function of `tasks.registry.PROMPTED`."""

  @functools.wraps(prompted)
  def make(*args, **kwargs) -> Make:
    return functools.partial(Likelihood, prompted(*args, **kwargs))

  return make


# Perplexity of a text per token, per byte, character and original word.
#
# The text is one stream, read in sliding windows of the model's context. Each
# window scores the `stride` tokens that earlier ones did not, so that every
# token after the first window sees at least context - stride tokens. A stride
# of the whole context is the cheapest and gives the worst perplexity, since the
# first tokens of each window see little.


class ScoredText(NamedTuple):
  """A text in which every token is scored once."""

  files: Files  # to find it in
  path: str  # of the text
  stride: int = 0  # tokens scored per window; 0: half of the model's context
  # Of the artefacts of tokenization to remove, see `tasks.detokenize`; None:
  # the text is read as it is.
  style: detokenize.Style | None = None
  last_bytes: int = 0  # of the file; 0: all of it
  takes_shots = False
  takes_sources = False

  def texts(self) -> list[tuple[str, str]]:
    """Its lines, for overlap checks."""
    lines = self._read().split('\n')
    return [(f'{self.path}:{n}', x.rstrip('\r')) for n, x in enumerate(lines, start=1)]

  def check(self, shots: int) -> None:
    """See `figures.MeasuredTask`."""
    assert not shots
    self._read()

  def measure(self, scorer: Scorer, setting: Setting, journal: Journal, report: Report) -> Figures:
    """Loss in nats per token, and perplexities.

    Words are separated by white space, and each line end counts as a word, as
    papers count WikiText (245,569 words in WikiText-2's test split). Words,
    bytes and characters are those of the file: without its artefacts the text
    has fewer tokens, and the same probability (GPT-2, section 3.1).

    Standard errors are those of the loss, a ratio over windows, which count as
    independent; tokens per byte and per word count as fixed.
    """
    assert not setting.shots
    stride = self.stride or max(scorer.context_length // 2, 1)
    if stride > scorer.context_length:
      raise UsageError(
        f'--tasks: stride={stride} exceeds the context of {scorer.context_length} tokens'
      )
    # `limit` counts lines, as other tasks' examples.
    text = ''.join(io.StringIO(self._read(), '\n').readlines()[: setting.limit])
    shown, kept = text, None
    if self.style is not None:
      shown, kept = detokenize.detokenize(self.style, text)
    ids = scorer.tokenizer.encode(shown)
    if change := changes.change(scorer.tokenizer, shown):
      log.warning('%s: the tokenizer %s', self.path, change)
    before = scorer.tokenizer.special.before(first_scored=True)
    rows = [*windows(np.concatenate([before, ids]).astype(np.int32), scorer.context_length, stride)]
    scores = scorer.rows(rows, journal, report)
    loss = figures.ratio('loss', [-s.log_prob for s in scores], [s.num_tokens for s in scores])
    num_words = len(text.split()) + text.count('\n')
    num_bytes = len(text.encode())

    def nats_per(units: float) -> tuple[float, float]:
      """Loss per unit, and its error."""
      scale = len(ids) / units
      return loss['loss'] * scale, loss['loss_stderr'] * scale

    bits, bits_error = nats_per(num_bytes * math.log(2))
    return {
      **loss,
      **figures.exponential('perplexity', *nats_per(len(ids))),
      'bits_per_byte': bits,
      'bits_per_byte_stderr': bits_error,
      'bits_per_character': bits * num_bytes / len(text),
      **figures.exponential('byte_perplexity', *nats_per(num_bytes)),
      **figures.exponential('word_perplexity', *nats_per(num_words)),
      'tokens': len(ids),
      'bytes': num_bytes,
      'words': num_words,
      'stride': stride,
      'context': scorer.context_length,
      **({} if kept is None else {'kept_words': len(kept)}),
    }

  def _read(self) -> str:
    text = self.files.text(self.path)
    if self.last_bytes:
      # Without the rest of a character that is cut.
      text = text.encode()[-self.last_bytes :].decode(errors='ignore')
    if not text.strip():
      raise UsageError(f'{self.path}: holds no text; name another file')
    return text


def windows(ids: np.ndarray, context_length: int, stride: int) -> 'Iterator[forward.ScoredRow]':
  """Yields rows that score ids[1:] once each; the first fills a context."""
  stop = min(context_length, len(ids) - 1)
  yield forward.ScoredRow(ids[: stop + 1], stop)
  while stop < len(ids) - 1:
    before, stop = stop, min(stop + stride, len(ids) - 1)
    yield forward.ScoredRow(ids[stop - context_length : stop + 1], stop - before)


def published(name: str) -> Callable[..., Make]:
  """A text of `tasks.texts.PUBLISHED`."""
  row = texts.PUBLISHED[name]

  def read(path: str, stride: int, *, style: detokenize.Style | None) -> Make:
    last_bytes = row.last_bytes if path in row.splits else 0
    return lambda folder: ScoredText(
      row.files._replace(folder=folder), path, stride, style, last_bytes
    )

  def plain(path: str = 'test', stride: Whole = 0) -> Make:
    return read(path, stride, style=None)

  def tokenized(path: str = 'test', stride: Whole = 0, detokenize: bool = False) -> Make:
    return read(path, stride, style=row.style if detokenize else None)

  make = tokenized if row.style else plain
  make.__doc__ = row.about
  return make


def text(
  path: str, stride: Whole = 0, detokenizer: Literal['none', 'wikitext', 'ptb'] = 'none'
) -> Make:
  """A custom text file, as one stream.

  Args:
    stride: tokens scored per window; 0: half of the model's context.
    detokenizer: see `tasks.detokenize`.
  """
  style = None if detokenizer == 'none' else detokenizer
  return lambda folder: ScoredText(OWN._replace(folder=folder), path, stride, style)
