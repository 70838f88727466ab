# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Batch ramps: closed forms against counting step by step."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt_jax.optim import amount, batch_ramp
from gpt_jax.optim.amount import Amount
from gpt_jax.spec import UsageError

ROW_TOKENS = 7


def build(rows, row_tokens=ROW_TOKENS):
  return batch_ramp.build(rows, row_tokens=row_tokens)


def counted(stages, num_steps):
  """Rows of each step, from [(boundary, unit, rows), ...] by simulation."""
  rows, tokens, i = [], 0, 0
  for step in range(num_steps):
    while i + 1 < len(stages):
      boundary, unit, _ = stages[i + 1]
      if (step if unit == 'steps' else tokens) < boundary:
        break
      i += 1
    rows.append(stages[i][2])
    tokens += stages[i][2] * ROW_TOKENS
  return rows


@st.composite
def plans(draw):
  """[(boundary, unit, rows), ...] and the text of it, of about 100 steps."""
  stages, step, tokens = [(0, 'steps', draw(st.integers(1, 9)))], 0, 0
  for _ in range(draw(st.integers(0, 3))):
    more = draw(st.integers(1, 25))
    step, tokens = step + more, tokens + more * stages[-1][2] * ROW_TOKENS
    unit = draw(st.sampled_from(['steps', 'tokens']))
    boundary = step
    if unit == 'tokens':
      # Anywhere within the step before.
      boundary = tokens - draw(st.integers(0, stages[-1][2] * ROW_TOKENS - 1))
    stages.append((boundary, unit, draw(st.integers(1, 9))))
  parts = [f'0:{stages[0][2]}']
  parts += [f'{begin}_{unit}:{rows}' for begin, unit, rows in stages[1:]]
  return stages, f'ramp({", ".join(parts)})'


@settings(max_examples=60)
@given(plans(), st.integers(0, 120))
def test_closed_forms_are_what_counting_finds(plan, step):
  stages, text = plan
  ramp, rows = build(text), counted(stages, 121)
  assert [ramp.rows(s) for s in range(121)] == rows
  assert ramp.batch(step) == (sum(rows[:step]), rows[step])
  assert ramp.tokens(step) == sum(rows[:step]) * ROW_TOKENS
  # Each batch begins where the one before ended.
  for s in range(120):
    offset, count = ramp.batch(s)
    assert ramp.offset(s + 1) == offset + count
  # The stages of what a resumed run has left.
  left = ramp.between(step, 121)
  assert {s.rows for s in left} == {*rows[step:]}


@settings(max_examples=60)
@given(plans(), st.integers(0, 9000))
def test_step_at_tokens_is_the_first_that_finds_them(plan, tokens):
  ramp = build(plan[1])
  step = ramp.step_at_tokens(tokens)
  assert ramp.tokens(step) >= tokens
  assert step == 0 or ramp.tokens(step - 1) < tokens
  assert ramp.step_at_tokens(ramp.tokens(step)) == step


def test_palm():
  ramp = build('ramp(0:512, 50k_steps:1024, 115k_steps:2048)', 2048)
  assert [ramp.rows(s) for s in (0, 49_999, 50_000, 114_999, 115_000)] == [
    *(512, 512, 1024, 1024, 2048)
  ]
  # Section 5: about 780e9 tokens at step 255k.
  expected = 2048 * (50_000 * 512 + 65_000 * 1024 + 140_000 * 2048)
  assert ramp.tokens(255_000) == expected
  assert ramp.step_at(Amount(expected, 'tokens')) == 255_000
  assert ramp.step_at(Amount(expected + 1, 'tokens')) == 255_001
  # Far beyond what float64 can count.
  far = 10**18 + 1
  assert ramp.step_at_tokens(ramp.tokens(far)) == far


def test_a_number_of_rows_is_one_stage():
  ramp = build(5)
  assert ramp.stages == ((0, 5, 0),)
  assert [ramp.batch(s) for s in (0, 3)] == [(0, 5), (15, 5)]


@pytest.mark.parametrize('over', ['800_steps', '40k_tokens'])
def test_the_stages_of_a_linear_ramp_begin_on_the_line(over):
  ramp = build(f"linear_ramp(3, 50, over='{over}', stages=6)")
  # 3 * (50 / 3)^(i / 5) = 5.3, 9.2, 16.2, 28.5, in multiples of 3.
  assert [s.rows for s in ramp.stages] == [3, 6, 9, 15, 27, 50]
  length = amount.parse('x', over)
  for stage in ramp.stages:
    begin = Amount(length.count * (stage.rows - 3) // 47, length.unit)
    assert ramp.step_at(begin) == stage.start


@given(
  st.integers(1, 40), st.integers(1, 50), st.integers(0, 39), st.integers(2, 20)
)
def test_linear_ramps_grow_by_multiples(start, factor, rest, stages):
  stop = start * factor + rest % start
  text = f"linear_ramp({start}, {stop}, over='9k_steps', stages={stages})"
  if stop <= start or stages > factor:
    with pytest.raises(UsageError, match=r'batch\.size: linear_ramp'):
      build(text)
    return
  rows = [s.rows for s in build(text).stages]
  assert (rows[0], rows[-1], len(rows)) == (start, stop, stages)
  assert all(a < b for a, b in itertools.pairwise(rows))
  assert all(r % start == 0 for r in rows[:-1])


@pytest.mark.parametrize(
  'rows, why',
  [
    (0, 'batch.size=0: must be at least 1'),
    (True, 'batch.size=True: give a number of rows, or stages'),
    (2.5, 'batch.size=2.5: give a number of rows, or stages'),
    (None, 'batch.size=None: give a number of rows, or stages'),
    ('512', "batch.size='512': a name was expected"),
    ('rmap(0:1)', "unknown 'rmap'; one of linear_ramp, ramp"),
    ('ramp()', 'the first stage begins at 0'),
    ('ramp(5_steps:1)', 'the first stage begins at 0'),
    ('ramp(0:0)', '0:0: must be at least 1'),
    ("ramp(0:'x')", "0:'x': must be a whole number"),
    ('ramp(0:3, 50k:4)', "boundary='50k': give a whole number of steps"),
    ('ramp(0:3, 5:4)', "boundary='5': give a whole number of steps"),
    ('ramp(0:3, 7)', 'stages=7 is not key:value'),
    ('ramp(0:3, 0_steps:4)', 'begins at 0 steps, which is step 0'),
    ('ramp(0:3, 9_steps:4, 9_steps:5)', 'begins at 9 steps, which is step 9'),
    # 22 tokens are more than the 21 of the first step: step 2 in both.
    ('ramp(0:3, 2_steps:4, 22_tokens:5)', 'is step 2; the one before it'),
    ("linear_ramp(4, 4, '9_steps', 2)", 'from start=4 to stop=4'),
    ("linear_ramp(4, 8, '9_steps', 1)", 'in stages=1'),
    ("linear_ramp(4, 8, '9_step', 2)", "over='9_step': give a whole number"),
    ("linear_ramp(4, 8, '0_steps', 2)", 'begins at 0 steps'),
  ],
)
def test_bad_ramps(rows, why):
  with pytest.raises(UsageError) as error:
    build(rows)
  assert str(error.value).startswith('batch.size')
  assert why in str(error.value)


@pytest.mark.parametrize(
  'value, expected',
  [
    (0, (0, 'steps')),
    (2000, (2000, 'steps')),
    ('17_steps', (17, 'steps')),
    ('1_000_steps', (1000, 'steps')),
    ('50k_steps', (50_000, 'steps')),
    ('2.048k_tokens', (2048, 'tokens')),
    ('375M_tokens', (375 * 10**6, 'tokens')),
    ('4.5G_tokens', (4_500_000_000, 'tokens')),
    ('4.5B_tokens', (4_500_000_000, 'tokens')),
    ('1.4T_tokens', (1_400_000_000_000, 'tokens')),
  ],
)
def test_amounts(value, expected):
  assert amount.parse('x', value) == expected


@pytest.mark.parametrize(
  'value',
  [
    -1,
    True,
    2.0,
    None,
    '5',
    '5k',
    'k_steps',
    '5K_steps',
    '-5_steps',
    '5_epochs',
  ]
  + ['0.5_steps', '1.2345k_steps', ' 5_steps', '5 _steps', '_5_steps'],
)
def test_what_is_no_amount(value):
  with pytest.raises(UsageError, match=r'^a\.b=.*: give a whole number of'):
    amount.parse('a.b', value)
