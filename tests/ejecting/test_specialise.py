# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Functions specialised to constants: what is left of them, as text."""

from gpt_jax.ejecting import specialise


def lines(*texts):
  return ''.join(f'{text}\n' for text in texts)


def test_branches_are_taken_with_their_comments():
  given = lines(
    'def f(x):',
    '  if WIDE and x:',
    '    # Wide.',
    '    y = 2 * x',
    '  else:',
    '    y = x',
    '  if not WIDE:',
    '    # Narrow.',
    '    y += 1',
    '  else:',
    '    # Neither.',
    '    y += 2',
    '  return y if SIZE > 3 else -y',
  )
  assert specialise.folded(given, {'WIDE': True, 'SIZE': 5}) == lines(
    'def f(x):',
    '  if x:',
    '    # Wide.',
    '    y = 2 * x',
    '  else:',
    '    y = x',
    '  # Neither.',
    '  y += 2',
    '  return y',
  )
  assert specialise.folded(given, {'WIDE': False, 'SIZE': 3}) == lines(
    'def f(x):', '  y = x', '  # Narrow.', '  y += 1', '  return -y'
  )


def test_a_branch_that_is_not_taken_goes_with_the_comment_above():
  given = lines('def f(x):', '  # If at all.', '  if A:', '    x += 1', '  return x')
  assert specialise.folded(given, {'A': 0}) == lines('def f(x):', '  return x')


def test_dropout_of_nothing_is_its_input():
  given = lines('def f(x, key):', '  return dropout(x + 1, RATE, key)')
  assert specialise.folded(given, {'RATE': 0.0}) == lines('def f(x, key):', '  return x + 1')
  assert specialise.folded(given, {'RATE': 0.1}) == given


def test_unused_parameters_go_with_their_arguments():
  program = {
    'inner': lines('def inner(x, key, y):', '  return x + y'),
    'outer': lines(
      'def outer(x, key):',
      '  keys = split(key, 3)',
      '  return inner(x, keys[0], 1) * inner(x, keys[1], 2)',
    ),
    'main': lines('def main():', '  return outer(1, make())'),
  }
  assert specialise.without_unused(program) == {
    'inner': lines('def inner(x, y):', '  return x + y'),
    'outer': lines('def outer(x):', '  return inner(x, 1) * inner(x, 2)'),
    'main': lines('def main():', '  return outer(1)'),
  }


def test_what_is_passed_on_as_a_value_keeps_its_parameters():
  program = {'f': lines('def f(x, y):', '  return x'), 'main': lines('def main():', '  g(f)')}
  assert specialise.without_unused(program) == program


def test_counters_and_identities_go():
  program = {
    'same': lines('def same(x, positions):', '  """Nothing."""', '  return x'),
    'main': lines(
      'def main(layers):',
      '  total, spare = 0, 1',
      '  for i, layer in enumerate(layers):',
      '    total += same(layer, 2)',
      '  p = {1: total}',
      '  return p',
    ),
  }
  assert specialise.without_unused(program)['main'] == lines(
    'def main(layers):',
    '  total = 0',
    '  for layer in layers:',
    '    total += layer',
    '  return {1: total}',
  )


def test_names_are_replaced_and_texts_are_not():
  given = lines('def f(x):', "  return norm(x, 'norm')  # norm")
  assert specialise.renamed(given, {'norm': 'rms_norm'}) == lines(
    'def f(x):', "  return rms_norm(x, 'norm')  # norm"
  )


def test_dictionaries_that_are_filled_become_one():
  given = {
    'main': lines(
      'def main():',
      "  p: Params = {'a': 1, 'b': 2}",
      "  p['c'] = 3",
      "  p |= {'d': 4}",
      '  return p',
    )
  }
  assert specialise.without_unused(given)['main'] == lines(
    'def main():', "  return {'a': 1, 'b': 2, 'c': 3, 'd': 4}"
  )
