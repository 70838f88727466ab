# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Stages of rows and of lengths: closed forms against counting every step."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt_jax.core.optim import batch_ramp, schedules
from gpt_jax.core.optim.schedules import Amount, Shape, Stage
from gpt_jax.core.spec import UsageError

ROW_TOKENS = 7


def build(rows, row_tokens=ROW_TOKENS, lengths=None, num_steps=None):
  return batch_ramp.build(rows, lengths, row_tokens=row_tokens, num_steps=num_steps)


def counted(num_steps, stages, lengths=((0, 'steps', ROW_TOKENS),)):
  """Rows and length of each step, from lists of (boundary, unit, value)."""
  found, tokens, plans, at = [], 0, (stages, lengths), [0, 0]
  for step in range(num_steps):
    for i, plan in enumerate(plans):
      while at[i] + 1 < len(plan):
        boundary, unit, _ = plan[at[i] + 1]
        if (step if unit == 'steps' else tokens) < boundary:
          break
        at[i] += 1
    rows, length = (plan[j][2] for plan, j in zip(plans, at, strict=True))
    found.append((rows, length))
    tokens += rows * length
  return found


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
  ramp, rows = build(text), [rows for rows, _ in counted(121, stages)]
  assert [ramp.rows(s) for s in range(121)] == rows
  # One length: the number of a row in the run is its place in the order.
  before = sum(rows[:step])
  assert ramp.batch(step) == (before, rows[step], ROW_TOKENS, before)
  assert ramp.tokens(step) == sum(rows[:step]) * ROW_TOKENS
  # Each batch begins where the one before ended.
  for s in range(120):
    offset, count, *_ = ramp.batch(s)
    assert ramp.offset(s + 1) == offset + count
  # The stages of what a resumed run has left.
  left = ramp.between(step, 121)
  assert {s.rows for s in left} == {*rows[step:]}


@settings(max_examples=60)
@given(plans(), st.data(), st.integers(0, 120))
def test_stages_of_lengths(plan, data, step):
  """Together with stages of rows, whatever the units of either."""
  unit = st.sampled_from(['steps', 'tokens'])
  length = st.integers(1, ROW_TOKENS)
  begins = data.draw(st.lists(st.integers(40, 900), unique=True, max_size=3))
  lengths = [(0, 'steps', data.draw(length))]
  for begin in sorted(begins):
    lengths.append((begin, data.draw(unit), data.draw(length)))
  text = ', '.join(f'{b}_{u}:{x}' for b, u, x in lengths[1:])
  text = f'stages({lengths[0][2]}{", " if text else ""}{text})'
  shapes = counted(1000, plan[0], lengths)
  try:
    ramp = build(plan[1], lengths=text)
  except UsageError as e:
    # Two boundaries in different units may fall on one step, or be swapped.
    assert 'must begin after the one before it' in str(e)
    return
  assert [ramp.shape(s)[:2] for s in range(1000)] == shapes
  tokens = sum(rows * length for rows, length in shapes[:step])
  assert ramp.tokens(step) == tokens
  assert ramp.step_at_tokens(tokens) == step
  offset, count, length, index = ramp.batch(step)
  assert (offset, count) == (sum(r for r, _ in shapes[:step]), shapes[step][0])
  # In the order of rows of this length: no further from where the run stands
  # than a row of it, and behind all that was taken of it before.
  assert tokens <= index * length < tokens + length
  own = [ramp.batch(s) for s in range(1000) if shapes[s][1] == length]
  for before, after in itertools.pairwise(own):
    assert before[3] + before[1] <= after[3]
  by_shape = {}
  for shape in itertools.starmap(Shape, shapes[step:130]):
    by_shape[shape] = by_shape.get(shape, 0) + shape[0] * shape[1]
  assert ramp.tokens_by_shape(step, 130) == by_shape


def test_bert():
  """Devlin et al. (2018), appendix A.2: 90% of the steps at 128 tokens."""
  ramp = build(256, 512, lengths='stages(128, 90%:512)', num_steps=1_000_000)
  shapes = [ramp.shape(s)[:2] for s in (0, 899_999, 900_000, 999_999)]
  assert shapes == [(256, 128), (256, 128), (256, 512), (256, 512)]
  assert ramp.tokens(1_000_000) == 256 * (900_000 * 128 + 100_000 * 512)
  # 900,000 * 256 rows of 128 tokens are a fourth as many of 512.
  assert ramp.batch(900_001) == (900_001 * 256, 256, 512, 225_000 * 256 + 256)
  assert ramp.longest == 512


@pytest.mark.parametrize(
  'percent, num_steps, step',
  [('90%', 10, 9), ('90%', 11, 10), ('12.5%', '1k_steps', 125), ('1%', 7, 1)],
)
def test_a_part_of_the_steps_is_rounded_up(percent, num_steps, step):
  for options in (
    {'rows': f'ramp(3, {percent}:5)'},
    {'rows': 3, 'lengths': f'stages(0:4, {percent}:5)'},
  ):
    ramp = build(num_steps=num_steps, **options)
    assert [s.start for s in ramp.stages] == [0, step]
  ramp = build(f"linear_ramp(2, 4, over='{percent}', stages=2)", num_steps=num_steps)
  assert ramp.stages[-1].start == step


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
    512,
    512,
    1024,
    1024,
    2048,
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
  assert ramp.stages == (Stage(0, 5, ROW_TOKENS, 0, 0),)
  assert [ramp.batch(s) for s in (0, 3)] == [(0, 5, ROW_TOKENS, 0), (15, 5, ROW_TOKENS, 15)]


@pytest.mark.parametrize('over', ['800_steps', '40k_tokens'])
def test_the_stages_of_a_linear_ramp_begin_on_the_line(over):
  ramp = build(f"linear_ramp(3, 50, over='{over}', stages=6)")
  # 3 * (50 / 3)^(i / 5) = 5.3, 9.2, 16.2, 28.5, in multiples of 3.
  assert [s.rows for s in ramp.stages] == [3, 6, 9, 15, 27, 50]
  length = schedules.parse('x', over)
  for stage in ramp.stages:
    begin = Amount(length.count * (stage.rows - 3) // 47, length.unit)
    assert ramp.step_at(begin) == stage.start


@given(st.integers(1, 40), st.integers(1, 50), st.integers(0, 39), st.integers(2, 20))
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
    (True, 'batch.size=True: must be a whole number of rows'),
    (2.5, 'batch.size=2.5: must be a whole number of rows'),
    (None, 'batch.size=None: must be a whole number of rows'),
    ('512', "batch.size='512': must be a whole number of rows"),
    ('rmap(0:1)', "unknown 'rmap'; one of linear_ramp, ramp"),
    ('ramp()', 'the first stage must begin at 0'),
    ('ramp(5_steps:1)', 'the first stage must begin at 0'),
    ('ramp(0:0)', '0:0: must be at least 1'),
    ("ramp(0:'x')", "0:'x': must be a whole number"),
    ('ramp(0:3, 50k:4)', "boundary='50k': give a whole number of steps"),
    ('ramp(0:3, 5k:4)', "boundary='5k': give a whole number of steps"),
    ('ramp(0:3, 7)', 'stages=7 has no start'),
    ('ramp(0:3, 0_steps:4)', 'begins at 0 steps, which is step 0'),
    ('ramp(0:3, 9_steps:4, 9_steps:5)', 'begins at 9 steps, which is step 9'),
    ('ramp(3, 90%:4)', 'schedule.num_steps=None: give a whole number'),
    ('ramp(3, 100%:4)', "boundary='100%': give a part of the steps below"),
    # 22 tokens are more than the 21 of the first step: step 2 in both.
    ('ramp(0:3, 2_steps:4, 22_tokens:5)', 'is step 2; it must begin after'),
    ("linear_ramp(4, 4, '9_steps', 2)", 'from start=4 to stop=4'),
    ("linear_ramp(4, 8, '9_steps', 1)", 'in stages=1'),
    ("linear_ramp(4, 8, '9_step', 2)", "over='9_step': give a whole number"),
    ("linear_ramp(4, 8, '0_steps', 2)", 'begins at 0 steps'),
  ],
)
def test_bad_ramps(rows, why):
  with pytest.raises(UsageError) as error:
    build(rows)
  assert str(error.value).startswith(('batch.size', 'schedule.num_steps'))
  assert why in str(error.value)


@pytest.mark.parametrize(
  'lengths, why',
  [
    ('stages(8)', 'rows of 8 tokens do not fit model.context_length=7'),
    ('stages()', 'the first stage must begin at 0'),
    ('stages(5_steps:3)', 'the first stage must begin at 0'),
    ('stages(0)', '0:0: must be at least 1'),
    ('stages(3, 4)', 'stages=4 has no start; give START:VALUE'),
    ('stages("3")', "stages='3' must be written key:value"),
    ('ramp(3)', "unknown 'ramp'; one of stages"),
    ('stages(3, 50%:4, 5_steps:5)', 'rows of 5 tokens begins at 5 steps'),
    (7, 'is not a text'),
  ],
)
def test_bad_stages_of_lengths(lengths, why):
  with pytest.raises(UsageError, match=r'^batch\.length') as error:
    build(3, lengths=lengths, num_steps=12)
  assert why in str(error.value)


@pytest.mark.parametrize(
  ('bare', 'with_unit'),
  [
    ('ramp(0:4, 20:8)', 'ramp(0:4, 20_steps:8)'),
    (
      'linear_ramp(start=4, stop=16, over=30, stages=3)',
      "linear_ramp(start=4, stop=16, over='30_steps', stages=3)",
    ),
  ],
)
def test_a_number_without_a_unit_is_of_steps(bare, with_unit):
  assert build(bare) == build(with_unit)
  assert build(4, lengths='stages(3, 20:7)') == build(4, lengths='stages(3, 20_steps:7)')


def test_a_part_of_tokens_is_refused():
  with pytest.raises(UsageError, match=r'num_steps in steps$'):
    build(3, lengths='stages(2, 90%:7)', num_steps='3k_tokens')


@pytest.mark.parametrize(
  'value, expected',
  [
    (0, (0, 'steps')),
    (2000, (2000, 'steps')),
    ('2000', (2000, 'steps')),
    ('1_000', (1000, 'steps')),
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
  assert schedules.parse('x', value) == expected


@pytest.mark.parametrize(
  'value',
  [-1, True, 2.0, None, '-5', '5.0', '5k', 'k_steps', '5K_steps', '-5_steps', '5_epochs']
  + ['0.5_steps', '1.2345k_steps', ' 5_steps', '5 _steps', '_5_steps'],
)
def test_what_is_no_amount(value):
  with pytest.raises(UsageError, match=r'^a\.b=.*: give a whole number of'):
    schedules.parse('a.b', value)
