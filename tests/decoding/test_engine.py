# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Requests that come and go get what each would get alone."""

import contextlib
import functools
import itertools

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from gpt_jax.core import malloc, sharding
from gpt_jax.decoding import engine as engine_lib
from gpt_jax.decoding import programs, requests
from gpt_jax.decoding.engine import Engine, warm_up, warm_up_all
from gpt_jax.decoding.programs import Decoder
from gpt_jax.decoding.requests import Request, Token
from gpt_jax.decoding.settings import Sampler
from tests.support import tiny

GREEDY = Sampler(temperature=0)
WARM = Sampler(temperature=2.0)
CONTEXT = 307


@functools.cache
def model():
  return tiny.model(num_layers=1, context_length=CONTEXT)


@functools.cache
def decoder():
  return programs.for_decoding(model(), tiny.params(model()))


def engine(slots):
  return Engine(Decoder(*decoder()), slots=slots)


def prompt(length, seed=0):
  return tiny.tokens(length, seed=seed).tolist()


def ids_of(tokens, number):
  own = [token for token in tokens if token.request == number]
  assert all(token.finish is None for token in own[:-1])
  assert own[-1].finish in ('stop', 'length')
  return [token.id for token in own if token.id is not None]


def alone(request):
  one = engine(1)
  number = one.add(request)
  return ids_of(list(one.run()), number)


def test_a_recurrent_state_is_kept_from_padding():
  """Prompts of unequal lengths, one of several blocks, in two slots."""
  lstm = tiny.model(
    num_layers=2,
    attention=f'lstm(7, projection=5), lstm({tiny.D})',
    block='plain',
    position='none',
    context_length=CONTEXT,
  )
  params = tiny.random_like(tiny.params(lstm), seed=1)
  batch = Engine(Decoder(lstm, params), slots=2, keep=1)
  given = [prompt(5, 1), prompt(19, 2), prompt(270, 3), prompt(19, 2)]
  numbers = [batch.add(Request(ids, 11, GREEDY)) for ids in given]
  tokens = list(batch.run())
  for number, ids in zip(numbers, given, strict=True):
    found = ids_of(tokens, number)
    row = np.array([ids + found])
    hidden = lstm.apply({'params': params}, row).hidden_BLD
    logits = lstm.apply({'params': params}, hidden, method='logits')
    best = np.argmax(logits[0, len(ids) - 1 : -1], axis=-1)
    np.testing.assert_array_equal(found, best)


def test_warmed_up_requests_compile_nothing():
  """Of the sizes that were given, from one row to all."""
  small = tiny.model(num_layers=1, context_length=127)
  made = functools.partial(Engine, Decoder(*programs.for_decoding(small, tiny.params(small))))
  assert [*warm_up(made(slots=3), 11, 7)] == [1, 2, 3]
  compiled = programs.read_block, programs.draw, programs.decode_step
  before = [program._cache_size() for program in compiled]
  batch = made(slots=3)
  for length, sampler in ((10, GREEDY), (12, WARM), (16, GREEDY)):
    batch.add(Request(prompt(length), 5, sampler))
    batch.step()
  assert len({token.request for token in batch.run()}) == 3
  assert [program._cache_size() for program in compiled] == before


@contextlib.contextmanager
def compilations():
  """The events of programs that are compiled meanwhile."""
  events = []

  def note(event, seconds, **_):
    if event == '/jax/core/compile/backend_compile_duration':
      events.append(seconds)

  jax.monitoring.register_event_duration_secs_listener(note)
  try:
    yield events
  finally:
    jax.monitoring.unregister_event_duration_listener(note)


def any_requests(num):
  """Of all lengths, with every option."""
  rng = np.random.default_rng(0)
  for i in range(num):
    length = int(rng.integers(1, 127))
    new = int(rng.integers(1, 128 - length))
    sampler = Sampler(
      i % 2,
      5 * (i % 3),
      (0.9, 1.0)[i % 5 > 2],
      0.1 * (i % 7 == 0),
      repetition_penalty=(1.0, 1.3)[i % 4 == 0],
    )
    num_top = (None, 0, 20)[i % 3]
    yield Request(
      prompt(length),
      new,
      sampler,
      i,
      num_top=num_top,
      scores_prompt=num_top is not None and i % 2 == 0,
    )


@pytest.mark.slow
def test_all_sizes_are_warmed_up():
  """Then no request compiles anything, whatever it asks for, in any company."""
  small = tiny.model(num_layers=1, context_length=127)
  made = functools.partial(
    Engine, Decoder(*programs.for_decoding(small, tiny.params(small))), slots=3
  )
  assert not warm_up_all(made(), 0)
  with compilations() as events:
    assert warm_up_all(made(), 600)
  # Each number of rows with each length of prompts and of caches, and what
  # draws; `_take`, `_put` and empty caches are the small ones.
  assert 0 < len(events) < 110
  batch, rng = made(), np.random.default_rng(1)
  with compilations() as events:
    for request in any_requests(40):
      number = batch.add(request)
      for _ in range(rng.integers(1, 30)):
        batch.step()
      if rng.integers(0, 5) == 0:
        batch.cancel(number)
    list(batch.run())
  assert events == []


REQUESTS = [
  Request(prompt(5, 1), 11, GREEDY),
  Request(prompt(7, 2), 5, WARM, 3),
  Request(prompt(19, 3), 17, Sampler(2.0, top_k=7), 5),
  Request(prompt(3, 4), 2, Sampler(3.0, top_p=0.9), 7),
  Request(prompt(2, 5), 13, Sampler(2.0, min_p=0.1), 11),
  Request(prompt(5, 6), 7, Sampler(0, repetition_penalty=1.7)),
  Request(prompt(5, 1), 3, WARM, 13),
  Request(prompt(5, 1), 1, WARM, 17),
]


def test_a_request_does_not_depend_on_its_company():
  """Eight of all kinds, in three slots, some of which come later."""
  batch, tokens, numbers = engine(3), [], []
  for i, request in enumerate(REQUESTS):
    numbers.append(batch.add(request))
    if i > 4:
      tokens += batch.step()
      assert batch.num_running <= 3
  tokens += batch.run()
  assert batch.num_running == batch.num_waiting == batch.cache_bytes == 0
  for number, request in zip(numbers, REQUESTS, strict=True):
    found = ids_of(tokens, number)
    assert found == alone(request)
    assert len(found) == request.max_tokens


def test_equal_prompts_and_seeds_draw_the_same_and_other_seeds_not():
  batch = engine(5)
  seeds = [3, 3, 5, 7]
  numbers = [batch.add(Request(prompt(5), 11, WARM, seed)) for seed in seeds]
  tokens = list(batch.run())
  one, same, *others = [tuple(ids_of(tokens, number)) for number in numbers]
  assert one == same
  assert len({one, *others}) == 3


def test_ends_are_told_with_the_last_token():
  plain = alone(REQUESTS[0])
  at = next(i for i, token in enumerate(plain) if token not in plain[:i] and i)
  batch = engine(2)
  stopped = REQUESTS[0]._replace(stop_ids={plain[at]})
  one, two = batch.add(stopped), batch.add(stopped._replace(max_tokens=at))
  tokens = list(batch.run())
  assert [t for t in tokens if t.request == one][-1] == Token(one, None, 'stop')
  assert ids_of(tokens, one) == plain[:at]
  assert [t for t in tokens if t.request == two][-1] == Token(two, plain[at - 1], 'length')


def test_cancelled_requests_are_forgotten():
  """Running, waiting, ended; the others do not notice."""
  batch = engine(2)
  numbers = [batch.add(request) for request in REQUESTS[:4]]
  tokens = batch.step() + batch.step()
  assert (batch.num_running, batch.num_waiting) == (2, 2)
  batch.cancel(numbers[0])
  batch.cancel(numbers[2])
  assert (batch.num_running, batch.num_waiting) == (1, 1)
  rest = list(batch.run())
  assert {token.request for token in rest} == {numbers[1], numbers[3]}
  for i in (1, 3):
    assert ids_of(tokens + rest, numbers[i]) == alone(REQUESTS[i])
  batch.cancel(numbers[1])
  assert batch.num_running == 0 and batch.step() == []


def test_rows_that_have_ended_cost_nothing():
  """Of eight rows seven end after two tokens."""
  batch = engine(8)
  for seed in range(7):
    batch.add(Request(prompt(3, seed), 2, GREEDY))
  batch.add(Request(prompt(3, 7), 11, GREEDY))
  batch.step()
  size = batch.cache_bytes
  batch.step()
  assert batch.num_running == 1
  assert batch.cache_bytes == size // 8


def test_caches_grow_and_shrink_with_the_longest_row(monkeypatch):
  """From 64 slots to all, while a short one comes and a long one leaves."""
  long, short = Request(prompt(61), 200, GREEDY), Request(prompt(3), 140, WARM)
  expected = [alone(request) for request in (long, short)]
  monkeypatch.setattr(requests, 'AHEAD', 2)
  batch = engine(2)
  numbers, tokens, sizes = [batch.add(long)], [], []
  for i in range(1000):
    if i == 150:
      numbers.append(batch.add(short))
    tokens += batch.step()
    sizes.append(batch.cache_bytes)
    if i > 150 and not batch.num_running:
      break
  assert [ids_of(tokens, number) for number in numbers] == expected
  unit = batch_bytes(64)
  rows = [size / unit for size, _ in itertools.groupby(sizes)]
  # The long one; both, up to the whole context; the short one; none.
  assert rows == [1, 2, 4, 8, 2 * CONTEXT / 64, 1, 2, 4, 0]


def batch_bytes(length):
  """Keys and values of one layer in one row, float32."""
  return 2 * length * tiny.G * tiny.K * 4


def test_programs_are_as_few_as_the_sizes():
  """Any number of requests of any lengths up to 64 tokens, in four slots."""
  batch, rng = engine(4), np.random.default_rng(0)
  for _ in range(23):
    length = int(rng.integers(1, 32))
    batch.add(Request(prompt(length), int(rng.integers(1, 33)), GREEDY))
  before = programs.decode_step._cache_size()
  list(batch.run())
  # One, two and four rows.
  assert programs.decode_step._cache_size() <= before + 3


LONG = 1301


@functools.cache
def long_decoder():
  long = tiny.model(num_layers=1, context_length=LONG)
  return programs.for_decoding(long, tiny.params(long))


def counted_blocks(monkeypatch):
  """The sizes of the blocks that are read from now on."""
  read, sizes = programs.read_block, []

  def counted(params, caches, tokens_BL, *args, **kwargs):
    sizes.append(tokens_BL.shape)
    return read(params, caches, tokens_BL, *args, **kwargs)

  monkeypatch.setattr(programs, 'read_block', counted)
  return sizes


def test_a_long_prompt_is_read_between_the_steps_of_others(monkeypatch):
  """One block a step, with a short one behind it; alone it is read at once."""
  some = [
    Request(prompt(5, 1), 8, GREEDY),
    Request(prompt(1024, 2), 3, GREEDY),
    Request(prompt(7, 3), 1, GREEDY),
  ]
  block, sizes = (1, 256), counted_blocks(monkeypatch)
  expected, alone = [], Engine(Decoder(*long_decoder()), slots=1)
  for request in some:
    number = alone.add(request)
    tokens = alone.step()
    expected.append(ids_of(tokens + list(alone.run()), number))
  assert sizes == [(1, 16), block, block, block, block, (1, 16)]
  batch = Engine(Decoder(*long_decoder()), slots=4)
  numbers, tokens = [batch.add(some[0])], batch.step()
  numbers += [batch.add(request) for request in some[1:]]
  read, came = [], []
  for _ in range(6):
    sizes.clear()
    step = batch.step()
    came.append([numbers.index(token.request) for token in step])
    read.append([*sizes])
    tokens += step
    assert batch.num_waiting == 0
  assert read == [[block]] * 4 + [[(1, 16)], []]
  assert came == [[0], [0], [0], [0, 1], [0, 1, 2], [0, 1]]
  tokens += batch.run()
  assert [ids_of(tokens, number) for number in numbers] == expected


def test_prompts_are_read_together_up_to_a_block(monkeypatch):
  """Five of 100 tokens, two of them equal: two at a time while a row runs."""
  some = [Request(prompt(100, max(i, 1)), 3, WARM, i) for i in range(5)]
  batch = engine(8)
  before, tokens = batch.add(REQUESTS[0]), batch.step()
  sizes = counted_blocks(monkeypatch)
  numbers = [batch.add(request) for request in some]
  tokens += batch.step()
  batch.cancel(numbers[4])  # while it waits for its turn
  tokens += batch.run()
  assert sizes == [(2, 128)] * 2
  for number, request in zip(numbers[:4], some[:4], strict=True):
    assert ids_of(tokens, number) == alone(request)
  assert ids_of(tokens, before) == alone(REQUESTS[0])
  assert numbers[4] not in {token.request for token in tokens}


def chat(batch, *, turns):
  """What is drawn in some turns, each of which goes on from the ones before."""
  ids, out = prompt(19, 1), []
  for turn in range(turns):
    number = batch.add(Request(ids, 9, WARM, turn))
    tokens = list(batch.run())
    out.append(ids_of(tokens, number))
    ids = [*ids, *out[-1], *prompt(5, turn)]
  return out


def test_a_turn_reads_what_is_new(monkeypatch):
  """Whole blocks of eight tokens that the row before held, windows or not."""
  monkeypatch.setattr(programs, 'BLOCK', 8)
  seen = tiny.model(num_layers=2, context_length=97, attention='local(window=11), full')
  made = programs.for_decoding(seen, tiny.params(seen))
  sizes = counted_blocks(monkeypatch)
  expected = chat(Engine(Decoder(*made), slots=1), turns=2)
  # 19 and 33 tokens; of these 27 were read before, in the steps all but one.
  assert len(sizes) == 3 + 5
  sizes.clear()
  batch = Engine(Decoder(*made), slots=1, keep=1)
  assert chat(batch, turns=2) == expected
  assert len(sizes) == 3 + (5 - 3)
  assert batch.cache_bytes == 0
  # Another text is read as a whole, also where it begins as the one kept.
  sizes.clear()
  other = Request([*prompt(7, 1), *prompt(11, 3)], 3, GREEDY)
  plain = [Engine(Decoder(*made), slots=1), batch]
  one, two = ((one.add(other), list(one.run())) for one in plain)
  assert ids_of(one[1], one[0]) == ids_of(two[1], two[0])
  assert sizes == [(1, 8)] * 6


def test_memory_goes_back_when_caches_outgrow_those_before(monkeypatch):
  """Not for requests of the same size, nor for small caches."""
  calls = []
  monkeypatch.setattr(malloc, 'give_back', lambda: calls.append(len(calls)))

  def decode(batch, rows):
    for row in range(rows):
      batch.add(Request(prompt(5, row), 3, GREEDY))
    list(batch.run())
    return len(calls)

  assert decode(engine(2), 2) == 0
  monkeypatch.setattr(engine_lib, '_MANY_SLOTS', 1)
  batch = engine(2)
  assert [decode(batch, rows) for rows in (1, 1, 2, 1, 2)] == [1, 1, 2, 2, 2]


@pytest.mark.parametrize(
  'length, longest, slots',
  [
    (1, 8192, 64),
    (64, 8192, 64),
    (65, 8192, 128),
    (512, 8192, 512),
    (513, 8192, 768),
    (769, 8192, 1024),
    (1025, 8192, 1536),
    (1537, 8192, 2048),
    (2049, 8192, 3072),
    (8000, 8192, 8192),
    (70, 100, 100),
    (13, 13, 13),
  ],
)
def test_a_cache_has_the_size_of_what_it_holds(length, longest, slots):
  assert programs.bucket(length, longest) == slots
  sizes = {programs.bucket(i + 1, longest) for i in range(longest)}
  assert programs.buckets(longest) == sorted(sizes)


def test_the_declared_context_costs_nothing():
  """The caches of a model that could read far more are no larger."""
  long = tiny.model(num_layers=1, context_length=4099, position='none')
  batch = Engine(Decoder(long, tiny.params(long)), slots=1)
  batch.add(Request([5, 3, 1], 5))
  batch.step()
  assert batch.cache_bytes == batch_bytes(64)


@pytest.mark.slow
def test_over_a_mesh():
  """Caches lie as the rules say, and the tokens are those of one device."""
  fields = {'model.context_length': 41, 'model.num_layers': 1}
  run = tiny.build(tiny.config(**{**tiny.MESHABLE, **fields}), (2, 2, 2))
  params = tiny.params(run.model)
  samplers = (WARM, WARM, WARM._replace(top_k=5), GREEDY)
  some = [
    Request(prompt(3 + seed, seed), 11 - 3 * seed, sampler, seed)
    for seed, sampler in enumerate(samplers)
  ]

  def tokens_of(params):
    batch = Engine(Decoder(run.model, params), slots=4)
    for request in some:
      batch.add(request)
    first = batch.step()
    caches = [x.sharding for x in batch._batch.caches[0][:2]]
    return first + list(batch.run()), batch, caches

  expected, _, _ = tokens_of(params)
  with sharding.use(run.mesh, run.rules):
    split = jax.device_put(params, run.shardings.params)
    found, batch, caches = tokens_of(split)
  assert found == expected
  rows = PartitionSpec(('data', 'fsdp'), 'tensor')
  for lies in caches:
    assert lies.is_equivalent_to(NamedSharding(run.mesh, rows), 4)
  # One layer's matrix lies as it does in the stack.
  block = batch._decoder.params['decoder']['period_0']['block_0']
  kernel = block['ffn']['in']['kernel']
  lies = NamedSharding(run.mesh, PartitionSpec('fsdp', 'tensor'))
  assert kernel.sharding.is_equivalent_to(lies, 2)
