# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What holds for every objective, and what is refused of all of them."""

import functools
import inspect
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from flax import linen as nn

from configs import bert, gpt1, mass, unilm
from gpt_jax.benchmarks import train
from gpt_jax.core import config as config_lib
from gpt_jax.core.objectives import choices
from gpt_jax.core.objectives.base import Objective
from gpt_jax.core.rows.rows import Rows
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers.simple import Bytes
from gpt_jax.core.tokenizers.special import sentinel
from gpt_jax.core.training.step import eval_step
from tests.support import tiny
from tests.support.objectives import keys

B, L, V = 6, 16, 61
BOS, EOS, PAD, MASK, CLS = 0, 1, 2, 3, 4
NUM_SPECIAL = 20  # with the sentinels, which come after the five above
DECODER = {'vocab_size': V, 'context_length': 2 * L, 'num_layers': 2}
ENCODER = {**DECODER, 'attention': 'bidirectional', 'input': 'tokens(token_types=2)'}
PLAIN = {**ENCODER, 'input': 'tokens'}
LSTM = {**DECODER, 'attention': f'lstm(7), lstm({tiny.D})', 'block': 'plain', 'position': 'none'}
BOTH = {**DECODER, 'num_encoder_layers': 1}


class Words:
  """A tokenizer of which odd ids begin a word."""

  vocab_size = V
  special = SimpleNamespace(
    bos_id=BOS,
    eos_id=EOS,
    pad_id=PAD,
    mask_id=MASK,
    cls_id=CLS,
    never_ids=(PAD,),
    names={sentinel(i): 5 + i for i in range(NUM_SPECIAL - 5)},
  )

  def word_starts(self, ids):
    return ids % 2 == 1

  def encode(self, text):
    return np.array([V - 1] * len(text), np.int32)

  def decode(self, ids):
    return '.'


class Case(NamedTuple):
  """An objective with a model that it trains."""

  call: str
  model: dict[str, Any] = DECODER
  rows: str = 'stream'
  part: str = ''
  random: bool = True  # a batch depends on its keys


TASK = 'num_labels=3, length=7'
CASES = [
  Case('causal', random=False),
  Case('causal(z_loss=0.1)', random=False),
  Case('recurrent(segment=5)', LSTM),
  Case("recurrent(direction='backward', segment=5)", LSTM),
  Case(
    'bilm(segment=5, negatives=7)',
    {
      **DECODER,
      'd_model': 10,
      'attention': "lstm(7, projection=5, directions='separate')",
      'block': 'plain',
      'position': 'none',
    },
    random=False,
  ),
  Case('auxiliary(targets=3)', random=False),
  Case('masked', PLAIN),
  Case("masked(unit='word', ngram=3)", PLAIN),
  Case("masked(pair='next')", ENCODER, 'pairs'),
  Case("masked(pair='order', static=3)", ENCODER, 'pairs'),
  Case('electra', PLAIN, part='generator'),
  Case("electra(targets='replace_mlm', sharing='nes')", PLAIN, part='generator'),
  Case("electra(sharing='gdes')", PLAIN, part='generator'),
  Case('distilled', PLAIN, part='teacher'),
  Case("distilled(text='causal')", part='teacher', random=False),
  Case('distilled(places="chosen")', PLAIN, part='teacher'),
  Case("distilled(text='causal', cosine=0.0, top_k=5)", DECODER, random=False),
  Case('prefix'),
  Case("prefix('span(length=1)', 'left')"),
  Case("prefix('seq2seq')", DECODER, 'parallel', random=False),
  Case('unified', ENCODER, 'pairs'),
  Case('unified_target(label_smoothing=0.1)', ENCODER, 'parallel'),
  Case(
    'permuted(longest=2)',
    PLAIN | {'position': 'xlnet', 'input': 'tokens(queries=True)', 'd_model': 18},
  ),
  Case('seq2seq(label_smoothing=0.1)', BOTH, 'parallel', random=False),
  Case('mass', BOTH),
  Case("denoise('mask(0.2), delete(0.2), rotate')", BOTH),
  Case('denoise', BOTH),
  *(
    Case(call, BOTH)
    for call in (
      'span(length=1)',
      'replace_spans',
      'drop_tokens',
      'bert_style',
      'mass_style',
      'mass_style',
      'deshuffle',
      'continuation',
    )
  ),
  Case(f'classification({TASK})'),
  Case("regression(length=7, read='first', auxiliary=0.0)", ENCODER),
  Case('choice(answers=2, length=7)'),
  Case('spans(length=7)', ENCODER),
  Case('tags(num_labels=3, length=7)', ENCODER),
  Case(
    'cross_view(num_labels=3, length=7)',
    {
      **ENCODER,
      'd_model': 14,
      'attention': "lstm(5, directions='both'), lstm(7, directions='both')",
      'block': 'plain',
      'position': 'none',
    },
  ),
  Case('target(length=7)'),
  Case('dialogue(length=7, packed=True)'),
  Case(f'tasks(a:"classification({TASK})", b:"regression(length=7)")'),
  Case('reward(completions=3, length=7)'),
  Case("dpo(length=7, loss_type='ipo')"),
  Case('ppo(length=7, ptx=2.0)'),
  Case('grpo(length=7, max_tokens=3, beta=0.1)'),
]
OF_ROWS = [case for case in CASES if choices.needs(case.call).rows]
OF_TASKS = [case for case in CASES if not choices.needs(case.call).rows]
each = functools.partial(pytest.mark.parametrize, 'case', ids=lambda c: c.call)


def test_every_objective_has_a_case():
  names = {case.call.split('(')[0] for case in CASES}
  assert names == {*choices.OBJECTIVES}


def bound(case, *, tokenizer=True):
  model = tiny.model(**case.model)
  parts = {case.part: model} if case.part else {}
  words: Any = Words() if tokenizer else None
  return choices.build(case.call, model, words, parts)


def rows_of(kind, count=B, length=L):
  """Rows whose last tokens may be padding; a pair's texts are of the row."""
  rng = np.random.default_rng(0)

  def side(length):
    tokens = rng.integers(NUM_SPECIAL, V, (count, length), np.int32)
    sizes = rng.integers(length - 5, length + 1, count)
    real = np.arange(length) < sizes[:, None]
    return Rows(np.where(real, tokens, PAD).astype(np.int32), real)

  rows, place = side(length), np.arange(length)
  if kind == 'stream':
    return rows._replace(before=np.full(count, EOS, np.int32))
  if kind == 'pairs':
    first = rng.integers(2, 6, count)[:, None]
    last = rows.real.sum(axis=1)[:, None] - 1
    return rows._replace(
      token_types=((place > first) & rows.real).astype(np.int32),
      special=(place == 0) | (place == first) | (place == last),
      pair=rng.integers(0, 2, count, np.int32),
    )

  def packed(one):
    places = np.broadcast_to(np.arange(one.tokens.shape[1]), one.tokens.shape)
    return one._replace(segments=one.real.astype(np.int32), positions=places.astype(np.int32))

  return packed(rows)._replace(source=packed(side(length - 3)))


def take(rows, part):
  if rows is None:
    return None
  return type(rows)(
    *(take(x, part) if isinstance(x, Rows) else x if x is None else x[part] for x in rows)
  )


@each(argvalues=OF_ROWS)
def test_a_row_follows_from_its_own_key(case):
  """The same again, alone, and on another host; another key, another row."""
  objective, rows = bound(case), rows_of(case.rows)
  whole = objective.make_batch(rows, keys(B))
  again = objective.make_batch(rows, keys(B))
  alone = objective.make_batch(take(rows, slice(2, 4)), keys(2, 2))
  for name, x in whole.items():
    assert len(x) == B, name
    np.testing.assert_array_equal(again[name], x, err_msg=name)
    np.testing.assert_array_equal(alone[name], x[2:4], err_msg=name)
  other = objective.make_batch(rows, keys(B, 12))
  same = [np.array_equal(other[name], x) for name, x in whole.items()]
  assert all(same) != case.random


@each(argvalues=OF_ROWS)
def test_shapes_are_known_without_text(case):
  """Those of a blank row, for which a program is compiled."""
  rows = rows_of(case.rows)
  blank = jax.tree.map(np.zeros_like, take(rows, slice(0, 1)))
  of_shapes = bound(case, tokenizer=False).make_batch(blank, keys(1))
  batch = bound(case).make_batch(rows, keys(B))
  assert {n: (x.dtype, x.shape[1:]) for n, x in of_shapes.items()} == {
    n: (x.dtype, x.shape[1:]) for n, x in batch.items()
  }


def params_of(objective):
  boxed = jax.eval_shape(objective.init, jax.random.key(0))
  return tiny.random_like(nn.meta.unbox(boxed), seed=1)


@each(argvalues=CASES)
def test_no_argument_hides_a_method(case):
  """An argument `start`, as a field, would hide a method of that name."""
  objective = bound(case)
  for name, value in vars(Objective).items():
    if inspect.isfunction(value):
      assert callable(getattr(objective, name)), name


def first_of_each(cases):
  """The cases; all but the first of each objective are slow."""
  names = [case.call.partition('(')[0] for case in cases]
  return [
    pytest.param(case, marks=[pytest.mark.slow] * (names.index(name) < i))
    for i, (case, name) in enumerate(zip(cases, names, strict=True))
  ]


@each(argvalues=first_of_each(OF_ROWS))
def test_losses_of_parts_add_up(case):
  """Held-out sums, and metrics, do not depend on how rows are batched."""
  objective = bound(case)
  params = params_of(objective)
  loss = jax.jit(functools.partial(eval_step, objective=objective))
  batch = objective.make_batch(rows_of(case.rows), keys(B))
  halves = [
    loss(params, {name: x[part] for name, x in batch.items()})
    for part in (slice(0, B // 2), slice(B // 2, B))
  ]
  summed = jax.tree.map(lambda *x: np.sum(x, axis=0), *halves)
  whole = loss(params, batch)
  assert np.isfinite(whole['loss'][0].sum)
  assert whole['loss'][0].weight > 0
  jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4), whole, summed)


@each(argvalues=OF_TASKS)
def test_a_task_has_an_example_and_outputs(case):
  """A row of the example, a loss, and [B, K] outputs; none of all tasks."""
  several = bound(case)
  for objective in [*several.tasks.values()] or [several]:
    params, batch = params_of(objective), objective.example
    assert batch is not None
    assert {len(x) for x in batch.values()} == {1}
    found = objective.loss(params, objective.weighed(batch), jax.random.key(0))
    assert np.isfinite(found.sum)
    if type(objective).outputs is Objective.outputs:
      continue  # judged by its loss and the metrics of that
    outputs = objective.outputs(params, batch)
    assert outputs.ndim == 2
    assert outputs.dtype == np.float32


SHARES = r'mask=0\.8 and random=0\.3.* sum must be at most 1'
STSB = 'regression(length=5, read="first", auxiliary=0.0)'


@pytest.mark.parametrize(
  ('call', 'message'),
  [
    ('causal(z_loss=-1.0)', r'z_loss=-1\.0 must be at least 0'),
    ("auxiliary(positions='last')", 'set targets=1'),
    *(
      (f'{name}(mask=0.8, random=0.3)', SHARES)
      for name in ('masked', 'mass', 'unified', 'unified_target')
    ),
    ("electra(targets='all')", 'one of electra, electra_15, replace'),
    ("electra(generator_steps=5, sharing='gdes')", 'leave one of the two out'),
    ("distilled(text='electra')", "unknown 'electra'; one of causal, masked"),
    ("distilled(places='all')", "places='all' is unknown; one of real, chosen"),
    ('distilled(soft=0.0, cosine=0.0)', 'soft=0 and cosine=0 take nothing'),
    ('distilled(layers=(0.5,))', r'layers=\(0\.5,\): must be whole numbers'),
    ('distilled(temperature=0.0)', 'temperature=0.0 must be above 0'),
    ("distilled(text='causal', top_k=3)", "top_k=3: reads the teacher's outputs from"),
    ("distilled(text='causal', top_k=3, cosine=0.0, layers=(0,))", 'leave layers out'),
    ('distilled(top_k=3, cosine=0.0)', "text='masked' masks other tokens each time"),
    ("prefix('masked')", "text='masked': unknown 'masked'; one of bert_style"),
    ("prefix('seq2seq', z_loss=1e-4)", 'leave one of them out'),
    ("seq2seq(start='bos')", "start='bos' is unknown; one of pad, eos"),
    ("denoise('shuffle')", "noise='shuffle': unknown 'shuffle'; one of"),
    ("denoise('mask')", r'mask takes \(rate'),
    ("denoise('infill(1.0)')", 'rate=1.0 must be below 1'),
    ("denoise('infill(0.3, 0)')", 'mean=0 must be at least 0.1'),
    ("denoise('')", 'is empty'),
    ("span(start='bos')", 'one of pad, eos'),
    ('classification(2, 7, auxiliary=-0.5)', 'must not be negative'),
    ('tasks()', 'give each task once'),
    ('dpo(length=7, beta=0.0)', 'beta=0.0 must be above 0'),
    ("dpo(length=7, loss_type='kto')", 'one of sigmoid, ipo, hinge'),
    (
      "dpo(length=7, loss_type='ipo', label_smoothing=0.1)",
      "label_smoothing=0.1: loss_type='ipo' has none",
    ),
    ("tasks(a:'tags(num_labels=3, length=5)')", "tasks: a='tags.*unknown"),
    (f"tasks(a:'regression(length=5)', b:{STSB!r})", 'some read the first token and some the last'),
  ],
)
def test_calls_that_are_refused(call, message):
  with pytest.raises(UsageError, match=message):
    choices.needs(call)


ADAPTIVE = {'output': 'adaptive', 'input': 'adaptive((5,), 17)'}
XLNET = {**PLAIN, 'input': 'tokens(queries=True)', 'position': 'xlnet'}


@pytest.mark.parametrize(
  ('call', 'model', 'message'),
  [
    ('recurrent', DECODER, "trains LSTMs; take 'lstm"),
    ('recurrent(segment=33)', LSTM, 'length=32, is shorter than a segment'),
    ('auxiliary', DECODER | ADAPTIVE, 'take tied or untied'),
    ('seq2seq', BOTH | ADAPTIVE, 'take tied or untied'),
    ('unified', PLAIN, 'give one of these'),
    ('unified', {**PLAIN, 'input': 'tokens(token_types=3)'}, 'one of these'),
    ('permuted(segments=2)', {**XLNET, 'input': 'tokens'}, 'predicts by a second stream'),
    ('permuted(segments=2)', {**XLNET, 'position': 'learned'}, 'knows places by distances alone'),
    ('permuted(segments=2)', XLNET, 'keeps a memory'),
    ('span', {**BOTH, 'context_length': 2}, 'context_length=2: too short'),
    ('span(length=1)', {**BOTH, 'context_length': 512}, r'no <extra_id_15>.* needs \d+ such'),
  ],
)
def test_models_that_are_refused(call, model, message):
  with pytest.raises(UsageError, match=message):
    bound(Case(call, model))


@pytest.mark.parametrize(
  ('file', 'changes', 'message'),
  [
    (bert, {'objective.name': 'unified'}, r'set data\.rows="pairs\(.unified'),
    (
      bert,
      {**{'objective.name': 'unified', 'data.rows': "pairs('unified')"}, 'model.attention': 'full'},
      "take 'bidirectional'",
    ),
    (unilm, {'objective.name': 'unified_target'}, 'set data.rows to parallel'),
    (mass, {'model.num_encoder_layers': 0}, 'trains encoder-decoders; give 1'),
    (mass, {'data.rows': 'stream'}, 'rows to full_sentences or doc_sent'),
    (
      gpt1,
      {'objective.name': 'prefix', 'data.rows': 'documents'},
      r"rows='documents'.*data.rows to stream",
    ),
    (gpt1, {'objective.name': 'prefix', 'model.attention': 'bidirectional'}, 'use causal patterns'),
  ],
)
def test_configs_that_are_refused(file, changes, message):
  config = file.get_config('cpu').unlock()
  config.update_from_flattened_dict(changes)
  with pytest.raises(UsageError, match=message):
    config_lib.resolve(config)


@pytest.mark.parametrize(
  ('file', 'changes'), [(bert, {}), (gpt1, {'objective.name': "prefix('deshuffle')"})]
)
def test_random_tokens_are_no_text(file, changes):
  config = file.get_config('cpu').unlock()
  config.update_from_flattened_dict(changes)
  resolved = config_lib.resolve(config)
  with pytest.raises(UsageError, match='gpt-jax train'):
    train.measure(resolved, 1)


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'vocab_size': 29}, r'model\.vocab_size=29: the teacher scores 23 tokens'),
    ({'context_length': 17}, r'context_length=17: the teacher reads 13 tokens'),
    ({'d_model': 19}, r'model\.d_model=19: the teacher is 17 wide, and cosine'),
    ({'output': 'adaptive'}, r"model\.output='adaptive': objective\.name=dis"),
  ],
)
def test_students_that_are_refused(changes, message):
  teacher, model = tiny.model(), tiny.model(**changes)
  with pytest.raises(UsageError, match=message):
    choices.build("distilled(text='causal')", model, None, {'teacher': teacher})


@pytest.mark.parametrize(('call', 'model'), [('masked()', ENCODER), ('denoise()', BOTH)])
def test_a_tokenizer_without_a_mask_is_refused(call, model):
  """Also where a store was prepared before."""
  with pytest.raises(UsageError, match=r'needs a \[MASK\]'):
    choices.build(call, tiny.model(**model), Bytes())
