# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rewards by a user's function: what it gets, and what is refused."""

import re

import numpy as np
import pytest

from gpt_jax.core.spec import UsageError
from gpt_jax.tuning import reward_functions
from gpt_jax.tuning.rollouts import RolloutPrompt

START = """
import decimal, fractions, sys
import numpy as np
def bad(prompts, completions):
"""
# What a function does with two completions, and what is said of it.
BAD = {
  "return [0.5, float('nan')]": 'gives completion 1 of 2 the reward nan',
  'return [1]': 'returns 1 numbers for 2 completions',
  'return None': 'returns NoneType for 2 completions',
  'return 0.5': 'returns float for 2 completions',
  'return {0.25: 1, 0.5: 1}': 'returns dict for 2 completions',
  'return {0.25, 0.5}': 'returns set for 2 completions',
  "return ['x', 1]": "gives completion 0 of 2 the reward 'x'",
  'return [1, 1 + 0j]': 'gives completion 1 of 2 the reward (1+0j)',
  'return [1e300, 0]': 'reward 1e+300; return real numbers that are finite in',
  'return [0, -3.5e38]': 'gives completion 1 of 2 the reward -3.5e+38',
  'return [10**400, 0]': 'gives completion 0 of 2 the reward 1000000',
  'return [10**5000, 0]': 'the reward a number of 16,610 bits',
  'return [fractions.Fraction(10**5000), 0]': 'the reward a Fraction with',
  'return np.array([1e39, 0])': 'the reward np.float64(1e+39)',
  "return [np.str_('1'), 0]": "the reward np.str_('1')",
  'return [np.complex64(1), 0]': 'the reward np.complex64(1+0j)',
  "return [np.timedelta64(1, 's'), 0]": "the reward np.timedelta64(1,'s')",
  'return [None, 0]': 'gives completion 0 of 2 the reward None',
  'completions.clear(); return []': 'returns 0 numbers for 2 completions',
  'return 1 / 0': 'raised ZeroDivisionError: division by zero; mend it',
  'return (1 / 0 for _ in completions)': 'raised ZeroDivisionError: divis',
  'sys.exit(0)': 'raised SystemExit: 0; mend it',
  'exit()': 'raised SystemExit: None; mend it',
}


def loaded(folder, text, prompts=(), name='bad'):
  path = folder / 'r.py'
  path.write_text(text)
  return reward_functions.load(f'{path}:{name}', prompts, '')


@pytest.mark.parametrize('body', BAD)
def test_bad_rewards_are_refused(body, tmp_path):
  reward = loaded(tmp_path, f'{START}  {body}\n')
  with pytest.raises(UsageError, match=re.escape(BAD[body])):
    reward(['a', 'b'], ['c', 'd'], {})


@pytest.mark.parametrize(
  'returned',
  [
    '[True, 0.25]',
    '(x for x in (1, 0.25))',
    'np.array([1, 0.25])',
    '[np.float16(1), np.float64(0.25)]',
    '[np.bool_(True), fractions.Fraction(1, 4)]',
  ],
)
def test_real_numbers_are_rewards(returned, tmp_path):
  reward = loaded(tmp_path, f'{START}  return {returned}\n')
  scores = reward(['a', 'b'], ['c', 'd'], {})
  assert scores.dtype == np.float32
  np.testing.assert_array_equal(scores, [1, 0.25])


def test_a_function_may_change_its_arguments(tmp_path):
  """Without changing the run's prompts, or those of another completion."""
  text = """
def bad(prompts, completions, tags):
  for prompt, completion, tag in zip(prompts, completions, tags):
    prompt += completion
    tag.append(0)
  scores = [len(x) + len(t) for x, t in zip(prompts, tags)]
  completions.clear()
  return scores
"""
  prompt, tags = [{'role': 'user', 'content': 'x'}], ['t']
  prompts = [RolloutPrompt('f:1', prompt, [1], {'tags': tags})]
  reward = loaded(tmp_path, text, prompts)
  said = [[{'role': 'assistant', 'content': 'y'}] for _ in range(2)]
  for _ in range(2):
    scores = reward([prompt] * 2, said, {'tags': [tags] * 2})
    assert scores.tolist() == [4, 4]
  assert (len(prompt), len(said), tags) == (1, 2, ['t'])


@pytest.mark.parametrize(
  ('text', 'message'),
  [
    ('import sys; sys.exit(0)', 'r.py does not load (SystemExit: 0); mend it'),
    ('quit()', 'r.py does not load (SystemExit: None); mend it'),
    ('x = (', 'r.py does not load (SyntaxError:'),
    ('from builtins import max as bad', 'the arguments of bad are not known'),
    ('bad = 3', 'r.py has no function bad; name one of'),
    ('def bad(prompts, completions, answer): ...', "f:2: has no column 'answ"),
    ('def bad(prompts, completions): ...', "f:3: has a column 'completions',"),
  ],
)
def test_bad_functions_are_refused(text, message, tmp_path):
  columns = {'answer': 1}, {} if 'answer' in text else {'answer': 2}
  prompts = [RolloutPrompt(f'f:{i}', 'a', [1], x) for i, x in enumerate(columns, 1)]
  prompts.append(RolloutPrompt('f:3', 'a', [1], {'completions': 'b', 'answer': 3}))
  with pytest.raises(UsageError, match=re.escape(message)):
    loaded(tmp_path, text, prompts)
