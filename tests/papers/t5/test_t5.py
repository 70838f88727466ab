# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""T5's objectives against its corruption of given masks, and their numbers."""

import json
import types

import numpy as np
import pytest

from gpt_jax.core.objectives import choices
from gpt_jax.core.rows.rows import cut
from gpt_jax.core.tokenizers import special
from gpt_jax.papers.t5 import t5
from gpt_jax.papers.t5.t5 import Side
from tests.support import golden_io, tiny
from tests.support.objectives import keys

FOLDER = golden_io.ROOT / 't5_spans'
EOS, PAD, FIRST, VOCAB = 1, 0, 32_099, 32_100
SENTINELS = np.arange(FIRST, FIRST - 100, -1)
NAMES = {f'<extra_id_{i}>': int(s) for i, s in enumerate(SENTINELS)}
MASKS = [
  name
  for name, x in golden_io.meta(FOLDER)['cases'].items()
  if 'noise_mask' in x['inputs'] and name != 'objectives'
]
ALL = (
  'span',
  'replace_spans',
  'drop_tokens',
  'bert_style',
  'mass_style',
  'deshuffle',
  'continuation',
)


def tokenizer():
  """T5's, as far as an objective asks."""
  return types.SimpleNamespace(
    vocab_size=VOCAB, special=special.of({}, EOS, {**NAMES, '<pad>': PAD})
  )


def text(rows, length, seed=0):
  """Rows of a stream; no token is special."""
  draw = np.random.default_rng(seed).integers
  return cut(draw(2, 32_000, size=(rows, length + 1), dtype=np.int32))


def make(call, context, rows, first=0):
  """The batch of some rows, for an encoder that reads `context` tokens."""
  model = tiny.model(num_encoder_layers=1, context_length=context)
  objective = choices.build(call, model, tokenizer())
  return objective.make_batch(rows, keys(len(rows.tokens), first))


def ended(side):
  """The ids of the only row, its end included."""
  ids, real = side.ended(side.tokens.shape[1] + 9, eos_id=EOS, pad_id=PAD)
  return ids[0, real[0]]


@pytest.mark.parametrize('name', MASKS)
def test_a_given_mask(name):
  given = golden_io.case(FOLDER, name)
  tokens, noise = (given.inputs[k][None] for k in ('input_ids', 'noise_mask'))
  real = np.ones_like(noise)
  inputs = t5.with_sentinels(tokens, noise, real, SENTINELS)
  targets = t5.with_sentinels(tokens, ~noise, real, SENTINELS)
  np.testing.assert_array_equal(ended(inputs), given.outputs['inputs'])
  np.testing.assert_array_equal(ended(targets), given.outputs['targets'])
  if 'kept_breaks' in given.inputs:
    breaks = [given.inputs[k][None] for k in ('kept_breaks', 'noise_breaks')]
    # As many breaks as there are gaps between the tokens.
    breaks = [np.pad(b, ((0, 0), (0, 1))) for b in breaks]
    sizes = [np.array([b.shape[1]]) for b in breaks]
    found = t5.alternating(*breaks, *sizes)
    np.testing.assert_array_equal(found, noise)


def test_lengths():
  given = golden_io.case(FOLDER, 'lengths')
  of = given.inputs
  for context, rate, mean, tokens, targets in zip(
    of['inputs_length'],
    of['noise_density'],
    of['mean_span'],
    given.outputs['tokens_length'],
    given.outputs['targets_length'],
    strict=True,
  ):
    needs = t5.Span(float(rate), float(mean)).needs
    assert needs.text_length(int(context)) == tokens
    assert needs.target_length(int(context)) == targets


def test_the_lengths_of_the_usual_rows():
  needs = choices.needs('span')
  found = {
    n: (needs.text_length(n), needs.target_length(n), needs.sides(needs.text_length(n)))
    for n in (512, 256, 128, 64)
  }
  assert found == {
    512: (568, 114, (512, 114)),
    256: (284, 58, (256, 58)),
    128: (141, 29, (128, 29)),
    64: (70, 14, (64, 14)),
  }


def test_seven_objectives_of_one_text():
  """Those of the paper's table, without ends."""
  given = golden_io.case(FOLDER, 'objectives')
  ids, noise, spans, order = (
    given.inputs[k][None] for k in ('input_ids', 'noise_mask', 'span_mask', 'order')
  )
  real = np.ones_like(noise)
  made = t5.Text(ids, real, np.zeros((2, 1, 11)), SENTINELS, VOCAB)
  both = {
    'replace': made.replaced(noise),
    'spans': made.replaced(spans),
    'drop': (Side(ids, ~noise), Side(ids, noise)),
    'mass': (t5.masked(ids, noise, real, 103), made.whole),
    # The draws that put the tokens in this order.
    'deshuffle': (t5.shuffled(ids, real, np.argsort(order) / 11), made.whole),
    # 1 + floor(0.35 x 10) tokens.
    'prefix': (
      Side(ids, t5.prefix(real, np.array([0.35]))),
      Side(ids, ~t5.prefix(real, np.array([0.35]))),
    ),
  }
  for name, two in both.items():
    for side, what in zip(two, ('inputs', 'targets'), strict=True):
      wanted = given.outputs[f'{name}_{what}']
      np.testing.assert_array_equal(ended(side)[:-1], wanted)


@pytest.mark.parametrize('kind', ['replace', 'random'])
def test_the_papers_sentence(kind):
  """Thank you for inviting me to your party last week . in words."""
  words = json.loads((FOLDER / 'words.json').read_text())
  source, target = (x.split() for x in words[f'{kind} spans'])
  sentence = words['text'].split()
  ids = np.arange(len(sentence))[None]
  noise = np.array([w not in source for w in sentence])[None]
  names = {90: '<X>', 91: '<Y>', 92: '<Z>'}
  made = t5.Text(ids, np.ones_like(noise), np.zeros((2, 1, 11)), np.array([*names]), 99)
  for side, wanted in zip(made.replaced(noise), (source, target), strict=True):
    found = [names.get(i) or sentence[i] for i in ended(side)[:-1]]
    assert found == wanted


def test_statistics_of_a_million_tokens():
  """15.0% in spans of mean 3.00; exact lengths; nothing is lost."""
  rows = text(1761, 568)
  batch = make('span', 512, rows)
  sources, targets = batch['sources'], batch['targets']
  assert rows.tokens.size > 10**6
  assert sources.shape[1] == 512 and targets.shape[1] == 114
  assert batch['source_mask'].all() and (batch['weights'] == 1).all()
  assert (sources[:, -1] == EOS).all() and (targets[:, -1] == EOS).all()
  noise = targets[:, :-1] < 32_000
  assert round(noise.sum() / rows.tokens.size, 3) == 0.150
  starts = ~noise
  assert abs(noise.sum() / starts.sum() - 3.0) < 0.05
  expected = np.arange(FIRST, FIRST - 28, -1)
  for side in (sources, targets):
    marks = side[side >= 32_000].reshape(len(side), -1)
    np.testing.assert_array_equal(marks, np.tile(expected, (len(side), 1)))
  # The decoder reads its targets, one behind.
  np.testing.assert_array_equal(batch['inputs'][:, 1:], targets[:, :-1])
  assert (batch['inputs'][:, 0] == PAD).all()
  for source, target, tokens in zip(sources, targets, rows.tokens, strict=True):
    assert source[0] < 32_000  # begins with what is kept, ends with noise
    cuts = np.flatnonzero(target >= 32_000)
    parts = np.split(target[:-1], cuts)[1:]
    at = np.flatnonzero(source >= 32_000)
    kept = np.split(source[:-1], at)
    whole = [kept[0]]
    for part, after in zip(parts, kept[1:], strict=True):
      whole += [part[1:], after[1:]]
    np.testing.assert_array_equal(np.concatenate(whole), tokens)
  lengths = np.diff(np.flatnonzero(starts.ravel()))
  assert lengths.min() >= 2  # a sentinel and a token, at least
  # Spans of one token are as likely as of partitions: (85 - 2 over 26) / ...
  ones = np.mean(np.append(lengths, 2) == 2)
  assert abs(ones - 27 / 84) < 0.01


@pytest.mark.parametrize('call', ALL)
def test_rows_that_are_padded_in_part(call):
  """A text's end, a token alone, and a row that only fills up a batch."""
  context = 24
  length = choices.needs(call).text_length(context)
  rows = text(5, length)
  real = np.arange(length)[None] < np.array([[length], [9], [2], [1], [0]])
  batch = make(call, context, rows._replace(real=real))
  assert batch['sources'].shape[1] <= context
  weights = batch['weights'].sum(axis=1)
  assert weights[4] == 0 and not batch['source_mask'][4].any()
  assert (weights[:3] > 1).all()
  for name, used in (('sources', batch['source_mask']), ('targets', batch['weights'] > 0)):
    # Padding stands at the end, after eos.
    assert (np.diff(used.astype(int), axis=1) <= 0).all()
    assert (batch[name][~used] == PAD).all()
    ends = np.maximum(used.sum(axis=1) - 1, 0)
    found = batch[name][np.arange(5), ends]
    assert (found[used.any(axis=1)] == EOS).all()


def test_what_the_others_make():
  """Of 512 tokens: how much is noise, and that it is where it is said."""
  rows = text(40, 511)
  masked = make('mass_style', 512, rows)
  noise = masked['sources'][:, :-1] == FIRST
  assert (noise.sum(axis=1) == 77).all()  # round(0.15 x 511)
  np.testing.assert_array_equal(masked['targets'][:, :-1], rows.tokens)
  kept = masked['sources'][:, :-1] == rows.tokens
  assert (kept ^ noise).all()
  bert = make('bert_style', 512, rows)
  changed = bert['sources'][:, :-1] != rows.tokens
  random = changed & (bert['sources'][:, :-1] != FIRST)
  assert abs(random.sum() / changed.sum() - 0.1) < 0.015
  shuffled = make('deshuffle', 512, rows)
  np.testing.assert_array_equal(np.sort(shuffled['sources'][:, :-1]), np.sort(rows.tokens))
  assert (shuffled['sources'][:, :-1] != rows.tokens).mean() > 0.95
  dropped = text(40, choices.needs('drop_tokens').text_length(512))
  batch = make('drop_tokens', 512, dropped)
  assert batch['source_mask'].all() and batch['weights'].all()
  both = np.concatenate([batch['sources'][:, :-1], batch['targets'][:, :-1]], 1)
  np.testing.assert_array_equal(np.sort(both), np.sort(dropped.tokens))
  parted = text(40, 512)
  batch = make('continuation', 512, parted)
  sizes = batch['source_mask'].sum(axis=1) - 1
  for i, size in enumerate(sizes):
    np.testing.assert_array_equal(
      np.concatenate([batch['sources'][i, :size], batch['targets'][i]])[:512], parted.tokens[i]
    )
  assert sizes.min() < 60 and sizes.max() > 450


@pytest.mark.parametrize('call', ALL)
def test_a_text_fills_the_context(call):
  needs = choices.needs(call)
  length = needs.text_length(64)
  batch = make(call, 64, text(1, length))
  found = batch['sources'].shape[1], batch['targets'].shape[1]
  assert found == needs.sides(length)
  assert found[0] == 64
