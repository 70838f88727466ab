# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Problems solved step by step: prompts, votes, and what seeds decide."""

import functools
import json

import pytest

from gpt_jax.core.tokenizers.simple import Bytes
from gpt_jax.decoding.settings import Sampler
from gpt_jax.evaluation.score import GREEDY, Journal, Scorer
from tests.support import tiny
from tests.support.tasks import Believer, measure, write

# Wei et al., 2022, figure 1.
ROGER = (
  'Roger has 5 tennis balls. He buys 2 more cans of tennis balls. Each can has '
  '3 tennis balls. How many tennis balls does he have now?'
)
STEPS = 'Roger started with 5 balls. 2 cans of 3 tennis balls each is 6 tennis balls. 5 + 6 = 11.'
APPLES = (
  'The cafeteria had 23 apples. If they used 20 to make lunch and bought 6 '
  'more, how many apples do they have?'
)
PLAIN = f"""\
Q: {ROGER}
A: The answer is 11.
Q: {APPLES}
A:"""
WORKED = f"""\
Q: {ROGER}
A: {STEPS} The answer is 11.
Q: {APPLES}
A:"""


class Solver(Believer):
  """Writes the texts that it is given, in turn."""

  def __init__(self, *texts):
    super().__init__()
    self.texts, self.how = texts, []

  def answers(self, prompts, max_tokens, journal, report, **how):
    self.seen += prompts
    self.how.append(how)
    return [self.texts[i % len(self.texts)] for i in range(len(prompts))]


@pytest.fixture
def files(tmp_path):
  roger = {'question': ROGER, 'answer': '11', 'steps': STEPS}
  write(tmp_path / 'train.jsonl', roger)
  write(tmp_path / 'published.jsonl', roger | {'answer': f'{STEPS}\n#### 11'})
  write(tmp_path / 'test.jsonl', {'question': APPLES, 'answer': '#### 9'})
  return tmp_path


@pytest.mark.parametrize(
  ('shown', 'prompt'),
  [
    ("'train.jsonl'", PLAIN),
    ("'train.jsonl', reasoning='steps'", WORKED),
    ("'published.jsonl'", WORKED),
    ("'published.jsonl', reasoning=''", PLAIN),
  ],
)
def test_the_prompts_of_the_paper(files, shown, prompt):
  scorer = Solver('23 - 20 = 3. 3 + 6 = 9. The answer is 9.')
  call = f"gsm8k('test.jsonl', shown={shown}, name='g')"
  found = measure(files, call, (1,), scorer)
  assert scorer.seen == [prompt]
  assert scorer.how == [{'stop': 'Q:', 'sampler': GREEDY, 'seeds': [0]}]
  assert found['eval/g/1_shots/exact_match'] == 1
  assert found['eval/g/1_shots/no_answer'] == 0


def test_the_majority_answers(files):
  """9 of two samples, 50 of one; a text without a number does not vote."""
  texts = '23 + 27 = 50', 'The answer is 9.', 'The answer is nine', '9.0'
  scorer = Solver(*texts)
  call = "gsm8k('test.jsonl', num_samples=4, top_k=5, name='g')"
  outputs = f'{files}/step-3-'
  found = measure(files, call, scorer=scorer, seed=7, outputs=outputs)
  assert found['eval/g/exact_match'] == 1
  assert found['eval/g/sample_match'] == 0.5
  (how,) = scorer.how
  assert how['sampler'] == Sampler(0.7, 5) and len({*how['seeds']}) == 4
  (line,) = (files / 'step-3-g.jsonl').read_text().splitlines()
  assert json.loads(line)['texts'] == [*texts]


def test_a_text_without_a_number_is_wrong(files):
  found = measure(files, "gsm8k('test.jsonl', name='g')", scorer=Solver('Nine'))
  assert (found['eval/g/exact_match'], found['eval/g/no_answer']) == (0, 1)
  assert found['eval/g/examples'] == 1


@functools.cache
def scorer():
  size, length = Bytes().vocab_size, 31
  config = tiny.config(**{'model.vocab_size': size, 'model.context_length': length})
  run = tiny.build(config, (1, 1, 1))
  return Scorer(run, tiny.params(run.model), Bytes(), rows=2)


def sampled(seeds, stop='Q:'):
  return scorer().answers(
    ['ab'] * len(seeds),
    11,
    Journal(None, ''),
    lambda *_: None,
    stop=stop,
    sampler=Sampler(2.0),
    seeds=seeds,
  )


@pytest.mark.slow
def test_samples_follow_from_their_seeds_and_end_before_a_text():
  one, two, again = sampled([3, 5, 3])
  assert one == again != two
  assert sampled([5]) == [two]
  stop = one[3:5]
  assert sampled([3], stop) == [one.partition(stop)[0].rstrip()]
