# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Call-strings: what is read, what is called, what each mistake says."""

import ast
import keyword
import math
import pathlib
import re
import tomllib
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt_jax.core import ranges, spec
from gpt_jax.core.ranges import Count, Fraction, Positive, Seed
from gpt_jax.core.spec import Call, Pair, UsageError


def local(window: int):
  """A choice that needs an argument."""
  return ('local', window)


def rope(theta: float = 1e4, *, name: str = 'x', on: bool = True):
  """A choice of which all arguments have defaults."""
  return ('rope', theta, name, on)


def ranged(
  size: Count = 3,
  rate: Positive = 1e-3,
  keep: Fraction = 0.5,
  seed: Seed = 0,
  length: int | str = 0,
):
  """A choice that declares the ranges of its arguments."""
  return (size, rate, keep, seed, length)


def mixture(*parts: Pair, seed: int = 0):
  """A choice that takes pairs."""
  return ('mixture', [tuple(part) for part in parts], seed)


TABLE = Annotated[Any, ranges.OneOf(('one', 2))]
CHOICES = {'local': local, 'rope': rope, 'full': lambda: 'full'}


@pytest.mark.parametrize(
  'text, calls',
  [
    ('full', [Call('full', (), {})]),
    (' full ', [Call('full', (), {})]),
    ('full()', [Call('full', (), {})]),
    ('full,', [Call('full', (), {})]),
    ('f(3, -2.5e-1)', [Call('f', (3, -0.25), {})]),
    ("f('a, b', k=None)", [Call('f', ('a, b',), {'k': None})]),
    ('f(x=[1, 2])', [Call('f', (), {'x': [1, 2]})]),
    ('f({1: 2}, [{3: 4}])', [Call('f', ({1: 2}, [{3: 4}]), {})]),
    ("f('a:b', '(c:1')", [Call('f', ('a:b', '(c:1'), {})]),
    (
      'ramp(0:512, 50k_steps : 1024)',
      [Call('ramp', (Pair('0', 512), Pair('50k_steps', 1024)), {})],
    ),
    (
      "mix(web:.6,'my, (b:':[1, {2: 3}], c4/en-1.0:-4, seed=3), full",
      [
        Call(
          'mix',
          (Pair('web', 0.6), Pair('my, (b:', [1, {2: 3}]), Pair('c4/en-1.0', -4)),
          {'seed': 3},
        ),
        Call('full', (), {}),
      ],
    ),
    (
      'full, local(window=256), full',
      [Call('full', (), {}), Call('local', (), {'window': 256}), Call('full', (), {})],
    ),
  ],
)
def test_parse(text, calls):
  assert spec.parse('a.b', text) == calls


@pytest.mark.parametrize(
  'text, why',
  [
    ('', 'is empty'),
    ('  ', 'is empty'),
    ('()', 'is empty'),
    ('local(', 'cannot be read'),
    ('a b', 'cannot be read'),
    ('a\0b', 'has a NUL character'),
    ("f('a\\0b')", 'an argument has a NUL character'),
    ("f(a:'\\0')", 'an argument has a NUL character'),
    ('f(a\ud800)', 'is not valid UTF-8 at character 3'),
    ('f(a=1, b=2, a=1)', 'a is given twice'),
    ('f({[]: 1})', 'not a plain value'),
    ('f({1: {[]}})', 'not a plain value'),
    (f'f({"-" * 90_000}1)', 'is nested too deeply'),
    (f'f({"[" * 3000}{"]" * 3000})', 'cannot be read'),
    ('f(' + '9' * 5000 + ')', 'cannot be read'),
    ('f' * 100_001, 'has more than 100,000 characters'),
    ('f(**{})', '** is not supported'),
    ('f(x=full)', 'not a plain value'),
    ('f(g())', 'not a plain value'),
    ('f(1 + 1)', 'not a plain value'),
    ('f(a:b)', 'not a plain value'),
    ('f(a:1:2)', 'cannot be read'),
    ('f(a:)', 'cannot be read'),
    ('f(:1)', 'cannot be read'),
    ('f(x=a:1)', 'cannot be read'),
    ('a:1', 'cannot be read'),
    ('3', 'a name was expected'),
    ("'full'", 'a name was expected'),
    ('a.b', 'a name was expected'),
    ('a.b(1)', 'a name was expected'),
    ('f(1)(2)', 'a name was expected'),
    ('full, 3', 'a name was expected'),
    (7, 'is not a text'),
    (None, 'is not a text'),
  ],
)
def test_what_cannot_be_parsed(text, why):
  with pytest.raises(UsageError, match=re.escape(why)) as error:
    spec.parse('model.ffn', text)
  message = str(error.value)
  assert message.startswith(f'model.ffn={repr(text)[:300]}')
  assert len(message) < 500


def test_nothing_in_a_call_string_is_run():
  with pytest.raises(UsageError, match='not a plain value'):
    spec.parse('a', "f(__import__('os').getcwd())")


@pytest.mark.parametrize(
  'text, result',
  [
    ('full', 'full'),
    ('local(5)', ('local', 5)),
    ('local(window=5)', ('local', 5)),
    ('rope', ('rope', 1e4, 'x', True)),
    ('rope(3)', ('rope', 3, 'x', True)),  # an int does for a float
    ("rope(name='y', on=False)", ('rope', 1e4, 'y', False)),
  ],
)
def test_build(text, result):
  assert spec.build('a.b', text, CHOICES) == result


@pytest.mark.parametrize(
  'text, message',
  [
    ('lokal', "a.b='lokal': unknown 'lokal'; one of full, local, rope"),
    ('full, full', "a.b='full, full': names 2 choices; give one"),
    ('local', "a.b='local': missing a required argument: 'window'; local takes (window: int)"),
    (
      'local(size=3)',
      "a.b='local(size=3)': missing a required argument: 'window'; local takes (window: int)",
    ),
    ('full(3)', "a.b='full(3)': too many positional arguments; full takes ()"),
    (
      'rope(base=1.0)',
      "a.b='rope(base=1.0)': got an unexpected keyword argument 'base'; rope "
      "takes (theta: float = 10000.0, name: str = 'x', on: bool = True)",
    ),
    ('local(2.5)', "a.b='local(2.5)': window=2.5 must be a whole number"),
    ('local(True)', "a.b='local(True)': window=True must be a whole number"),
    ("rope('3')", "a.b=\"rope('3')\": theta='3' must be a number"),
    ('rope(True)', "a.b='rope(True)': theta=True must be a number"),
    ('rope(name=3)', "a.b='rope(name=3)': name=3 must be a text"),
    ('rope(on=1)', "a.b='rope(on=1)': on=1 must be True or False"),
  ],
)
def test_what_cannot_be_built(text, message):
  with pytest.raises(UsageError) as error:
    spec.build('a.b', text, CHOICES)
  assert str(error.value) == message


@pytest.mark.parametrize(
  'text, result',
  [
    ('ranged', (3, 1e-3, 0.5, 0, 0)),
    ('ranged(1, 1e-38)', None),
    ('ranged(2147483647, 3.4e38)', (2147483647, 3.4e38, 0.5, 0, 0)),
    ("ranged(1, 2, 0, 4294967295, '5_steps')", (1, 2, 0, 2**32 - 1, '5_steps')),
  ],
)
def test_arguments_within_their_ranges(text, result):
  if result is None:  # float32's smallest number is 1.2e-38
    with pytest.raises(UsageError, match=r'must be 0, or at least 1\.2e-38'):
      spec.build('a.b', text, {'ranged': ranged})
  else:
    assert spec.build('a.b', text, {'ranged': ranged}) == result


@pytest.mark.parametrize(
  'arguments, why',
  [
    ('size=0', 'size=0 must be at least 1'),
    ('size=2147483648', 'size=2147483648 must be at most 2,147,483,647'),
    ('size=1.0', 'size=1.0 must be a whole number'),
    ('size=True', 'size=True must be a whole number'),
    ('size=0x' + 'f' * 5000, 'size=a number of 20,000 bits must be at most'),
    ('rate=0', 'rate=0 must be above 0'),
    ('rate=-0.0', 'rate=-0.0 must be above 0'),
    ('rate=-1e-3', 'rate=-0.001 must be above 0'),
    ('rate=1e999', 'rate=inf must be a finite number'),
    ('rate=-1e999', 'rate=-inf must be a finite number'),
    ('rate=1e39', 'rate=1e+39 must be at most the largest float32'),
    ('rate=1' + '0' * 400, 'must be at most the largest float32'),
    ('keep=1', 'keep=1 must be below 1'),
    ('keep=-1e-9', 'keep=-1e-09 must be at least 0'),
    ('keep=True', 'keep=True must be a number'),
    ('keep=1j', 'keep=1j must be a number'),
    ('seed=4294967296', 'seed=4294967296 must be at most 4,294,967,295'),
    ('length=2.5', 'length=2.5 must be a whole number or a text'),
    ('length=None', 'length=None must be a whole number or a text'),
  ],
)
def test_arguments_out_of_their_ranges(arguments, why):
  with pytest.raises(UsageError) as error:
    spec.build('a.b', f'ranged({arguments})', {'ranged': ranged})
  assert str(error.value).startswith("a.b='ranged(") and why in str(error.value)


@pytest.mark.parametrize('kind', [Literal['one', 2], TABLE])
def test_choices_of_an_argument(kind):
  def choice(size: kind | None = None):
    return size

  for text, result in (("'one'", 'one'), ('2', 2), ('None', None)):
    assert spec.build('a.b', f'choice({text})', {'choice': choice}) == result
  for text in ("'two'", '3', '2.0', 'True', '[]'):
    with pytest.raises(UsageError) as error:
      spec.build('a.b', f'choice({text})', {'choice': choice})
    why = f'size={text} is unknown; one of one, 2'
    assert str(error.value).endswith(why)


def test_not_a_number_is_in_no_range():
  """No call-string can write it, but a config's field may hold it."""
  for kind in (ranges.Real, Positive, Fraction, ranges.Seconds):
    assert ranges.declared(kind).problem(math.nan) == 'must be a finite number'


def test_plain_annotations_have_a_range():
  with pytest.raises(UsageError, match='window=2147483648 must be at most'):
    spec.build('a.b', 'local(2147483648)', CHOICES)
  with pytest.raises(UsageError, match='theta=inf must be a finite number'):
    spec.build('a.b', 'rope(1e999)', CHOICES)


def test_what_a_choice_takes_is_said_without_ranges():
  with pytest.raises(UsageError, match=r'takes \(size: int = 3, rate: float'):
    spec.build('a.b', 'ranged(x=3)', {'ranged': ranged})


def test_build_all():
  built = spec.build_all('a.b', 'full, local(7), full', CHOICES)
  assert built == ['full', ('local', 7), 'full']
  with pytest.raises(UsageError, match="unknown 'none'"):
    spec.build_all('a.b', 'full, none', CHOICES)


def test_pairs_reach_the_entry_that_asks_for_them():
  choices = {**CHOICES, 'mixture': mixture}
  text = 'mixture(web:0.6, web:0.3, seed=5)'
  found = spec.build('a.b', text, choices)
  assert found == ('mixture', [('web', 0.6), ('web', 0.3)], 5)
  with pytest.raises(UsageError, match="parts='web' must be written key:value"):
    spec.build('a.b', "mixture('web')", choices)
  with pytest.raises(UsageError, match="theta='web:3' must be a number"):
    spec.build('a.b', 'rope(web:3)', choices)


names = st.from_regex(r'[a-zA-Z_][a-zA-Z0-9_]{0,7}', fullmatch=True).filter(
  lambda name: not keyword.iskeyword(name)
)
# Without NUL, which no text of ours may have.
texts = st.text(st.characters(codec='utf-8', min_codepoint=1))
values = st.one_of(
  st.integers(), st.floats(allow_nan=False, allow_infinity=False), texts, st.booleans(), st.none()
)
calls = st.builds(
  Call,
  names,
  st.lists(values | st.builds(Pair, texts, values), max_size=3).map(tuple),
  st.dictionaries(names, values, max_size=3),
)


def written(call):
  arguments = [f'{a.key!r}: {a.value!r}' if isinstance(a, Pair) else repr(a) for a in call.args]
  arguments += [f'{name}={value!r}' for name, value in call.kwargs.items()]
  return f'{call.name}({", ".join(arguments)})'


@settings(max_examples=50)
@given(st.lists(calls, min_size=1, max_size=4))
def test_what_is_written_is_read(wanted):
  assert spec.parse('a', ', '.join(map(written, wanted))) == wanted


def test_what_is_said_to_install():
  """Every message has the command of `install`, of extras that there are."""
  root = pathlib.Path(__file__).parents[2]
  project = tomllib.loads((root / 'pyproject.toml').read_text())
  extras = {*project['project']['optional-dependencies']}
  said = []
  for path in (root / 'gpt_jax').rglob('*.py'):
    text = path.read_text()
    # An ejected file runs where gpt_jax is not.
    if path.name != 'spec.py' and path.parent.name != 'ejecting':
      assert 'pip install' not in text, path
    for call in ast.walk(ast.parse(text)):
      if isinstance(call, ast.Call):
        called = ast.unparse(call.func).rpartition('.')[2]
        # `optional` takes the module and what needs it before the extras.
        first = {'install': 0, 'optional': 2}.get(called)
        if first is not None:
          names = call.args[first:]
          said += [n.value for n in names if isinstance(n, ast.Constant)]
  assert {'gcs', 'hf', 'serve', 'tfds'} <= {*said} <= extras
  assert spec.install('eval', 'hf') == (
    "pip install -c constraints.txt -e '.[eval,hf]' in the clone of gpt_jax"
  )
  assert (root / 'constraints.txt').is_file()


def test_counts_in_words():
  assert [spec.counted(n, 'host') for n in (0, 1, 2048)] == ['0 hosts', '1 host', '2,048 hosts']
