# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Whatever a config, an override or a call-string says: it does, or one line
says why not.
"""

import inspect
import math
import pathlib
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs import base
from gpt_jax import __main__
from gpt_jax.core import config as config_lib
from gpt_jax.core import malloc
from gpt_jax.core.config import loading
from gpt_jax.core.nn.choices import FFNS, PATTERNS
from gpt_jax.core.optim.batch_ramp import LENGTHS, RAMPS
from gpt_jax.core.spec import UsageError
from tests.support import tiny

SMOKE = f'--config={pathlib.Path(__file__).parents[3]}/configs/smoke.py'
FIELDS = [*config_lib.flatten(base.get_config())]
CHOICES = {
  **{f: x for f, x in config_lib.CALL_STRINGS.items() if f in FIELDS},
  'model.attention': PATTERNS,
  'model.ffn': FFNS,
  'batch.size': RAMPS,
  'batch.length': LENGTHS,
}

# As they are written in a call-string. Sizes of some thousands are left out:
# they make sense, and models of them take long to look at.
LITERALS = st.sampled_from(
  [
    '0',
    '-0',
    '1',
    '2',
    '3',
    '-1',
    '7',
    '1.0',
    '0.5',
    '1e-3',
    '-0.0',
    '-5',
    '1e999',
    '-1e999',
    '1e39',
    '1e-50',
    '1j',
    '2**3',
    '1+1',
    '...',
    'x',
    '2147483647',
    '2147483648',
    '4294967296',
    '9223372036854775808',
    '1' + '0' * 400,
    '9' * 5000,
    '0x' + 'f' * 5000,
    '-' * 3000 + '1',
    'True',
    'False',
    'None',
    "''",
    "'none'",
    "'rsqrt'",
    "'relu'",
    "'5'",
    "'5_steps'",
    "'9T_tokens'",
    "'1.5_tokens'",
    f"'{'9' * 500}_steps'",
    "'0_steps'",
    "'\\0'",
    "'\\ud800'",
    "'é'",
    "b'x'",
    f"'{'y' * 10_000}'",
    '[]',
    '()',
    '{}',
    '[[]]',
    '(1,)',
    '(2, 3)',
    '(3, 2)',
    "('a',)",
    '{1}',
    '{[]: 1}',
    '{1: {[]}}',
    '[' * 50 + ']' * 50,
    '[' * 300 + ']' * 300,
    '(20000,)',
    '(-1, 5)',
    "{'a': 1}",
    '[1e999]',
    '(True,)',
    'f()',
    '*[1]',
    '5_steps:3',
    '0:2',
    "'a':1",
    'a:1e999',
    '0:True',
    '0:2, 3_steps:1',
  ]
)
NUMBERS = st.sampled_from(
  [
    0,
    -1,
    1,
    2,
    3,
    5,
    2**31,
    2**63,
    2**70,
    -(2**70),
    10**400,
    0.0,
    -0.0,
    0.5,
    1e39,
    1e-50,
    math.nan,
    math.inf,
    -math.inf,
  ]
)
TEXTS = st.one_of(
  st.text(st.characters(codec=None), max_size=12),
  st.text('(),:=\'"[]{}*.-_ 01abn\0\n', max_size=16),
  st.sampled_from(['', ' ', '\0', '\ud800', 'none', '5_steps', 'x' * 10_000]),
)


@st.composite
def call_strings(draw, choices):
  """A choice with arguments of its own, mostly, and of any value."""
  calls = []
  for _ in range(draw(st.sampled_from([1, 1, 1, 2]))):
    name = draw(st.sampled_from(sorted(choices)))
    takes = [*inspect.signature(choices[name]).parameters, 'nothing']
    names = draw(st.lists(st.sampled_from(takes), max_size=3))
    given = [draw(LITERALS) for _ in range(draw(st.integers(0, 1)))]
    given += [f'{argument}={draw(LITERALS)}' for argument in names]
    calls.append(f'{name}({", ".join(given)})' if given else name)
  return ', '.join(calls)


def said(action, *arguments):
  """What `action` refuses, or '' if it does not."""
  try:
    action(*arguments)
  except UsageError as e:
    text = loading.one_line(e)
    assert text and len(text) < 1500
    text.encode('ascii', 'backslashreplace')
    return text
  return ''


@pytest.mark.parametrize('field', CHOICES)
def test_call_strings(field):
  @settings(max_examples=25)
  @given(call_strings(CHOICES[field]) | TEXTS)
  def check(text):
    message = said(config_lib.resolve_model, tiny.holding(**{field: text}))
    # What is refused is named, if not the field that it does not go with.
    assert not message or '.' in message.split('=')[0].split(':')[0]

  check()


@settings(max_examples=150)
@given(
  st.dictionaries(
    st.sampled_from(FIELDS),
    NUMBERS | TEXTS | st.sampled_from([None, True, [], {}, (1,), b'x']),
    min_size=1,
    max_size=3,
  )
)
def test_fields_of_any_value(changes):
  said(lambda: config_lib.resolve(tiny.holding(**changes)))


@settings(max_examples=60)
@given(
  st.lists(
    st.tuples(
      st.sampled_from([*FIELDS, 'batch.rows', 'model', 'model.x', 'x', '']),
      NUMBERS.filter(lambda n: abs(n) < 2**80 or n != n).map(str) | TEXTS,
    ),
    min_size=1,
    max_size=2,
  )
)
def test_overrides(overrides):
  argv = [f'--config.{field}={value}' for field, value in overrides]
  said(lambda: config_lib.resolve(loading.load_config(SMOKE.partition('=')[2], argv)))


@settings(max_examples=12)
@given(st.sampled_from(FIELDS), NUMBERS.map(str) | TEXTS)
def test_the_command(field, value):
  """The exit code is 0 or 2, and 2 comes with one line."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(malloc, 'keep_memory', lambda: None)
    lines, path = [], [*sys.path]
    patch.setattr(sys, 'path', path)
    patch.setattr(sys.stderr, 'write', lines.append)
    vocab = '--config.model.vocab_size=97'
    argv = ['inspect', SMOKE, vocab, f'--config.{field}={value}', '--json']
    code = __main__.main(argv)
  text = ''.join(lines)
  assert code in (0, 2)
  if code == 2:
    assert text.startswith('gpt-jax inspect: ') and text.count('\n') == 1
