# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""`generate` with sources, and with beam search; of a tiny model of its own."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpt_jax.__main__ import main
from gpt_jax.core import config as config_lib
from gpt_jax.core import sharding
from gpt_jax.core.checkpoints import checkpointer
from gpt_jax.core.nn.row import Row
from gpt_jax.core.rows import sides
from gpt_jax.core.tokenizers import tokenizer as tokenizer_lib
from gpt_jax.core.training import parts
from gpt_jax.decoding import texts
from gpt_jax.decoding.beam import search
from gpt_jax.decoding.settings import BeamSettings
from gpt_jax.evaluation.score import Scorer
from gpt_jax.opening import models as trained_lib
from tests.support import tiny
from tests.support.decoding import generate
from tests.support.stdin import stdin_of

CONTEXT = 61
LINES = ['Ein Hund läuft.', 'a', 'Zwei Katzen', 'Der Mann sieht rot.', 'b c']
real_load = trained_lib.load


@functools.cache
def load(folder, use='run', average=0):
  """A run on one device: on eight, compiling takes most of the time."""
  trained = real_load(folder, use, average)
  state = jax.device_put(trained.state, jax.devices()[0])
  mesh = trained.parts._replace(mesh=tiny.make_mesh(1, 1, 1))
  return trained._replace(state=state, parts=mesh)


def made(folder, **fields):
  """A run with two checkpoints of random parameters, and byte tokens."""
  tokenizer = tokenizer_lib.build('bytes', [])
  sizes = {'d_model': 24, 'num_heads': 3, 'head_size': 8, 'num_kv_heads': 3}
  sizes |= {'num_layers': 1, 'init_weights': 'normal(stddev=0.5)'}
  sizes |= {'context_length': CONTEXT, 'vocab_size': tokenizer.vocab_size}
  sizes = {f'model.{name}': size for name, size in sizes.items()}
  built = parts.build(config_lib.resolve(tiny.config(**sizes, **fields)))
  saver = checkpointer.Checkpointer(str(folder), keep=2)
  state = parts.initial_state(built)
  saver.save(state)
  saver.save(state._replace(step=state.step + 1))
  saver.close()
  (folder / 'config.json').write_text(config_lib.to_json(built.config))
  tokenizer.save(str(folder / 'tokenizer'))
  return folder


@pytest.fixture(scope='module')
def workdir(tmp_path_factory):
  return made(
    tmp_path_factory.mktemp('run'),
    **{'model.num_encoder_layers': 1},
    **{'objective.name': "continuation(start='eos')"},
  )


@pytest.fixture
def run(workdir, capsys, monkeypatch):
  """Runs generate; returns its exit code, stdout and stderr."""
  monkeypatch.setattr(trained_lib, 'load', load)

  def run(*flags, stdin='', folder=workdir):
    monkeypatch.setattr('sys.stdin', stdin_of(stdin))
    capsys.readouterr()
    code = main(['generate', f'--workdir={folder}', *flags])
    return code, *capsys.readouterr()

  return run


def ids_of(workdir, text):
  tokenizer = load(str(workdir)).tokenizer
  return sides.source_ids(tokenizer.encode(text), tokenizer.special).tolist()


def greedy(workdir, text, most):
  """The answer to one source, by the engine."""
  trained = load(str(workdir))
  special = trained.tokenizer.special
  # Inside the mesh, where the command has compiled the same.
  with sharding.use(trained.parts.mesh, trained.parts.rules):
    (ids,) = generate(
      *trained.decoder()[:2],
      [[special.eos_id]],
      sources=[ids_of(workdir, text)],
      max_tokens=most,
      stop_ids=special.stop_ids,
    )
  return trained.tokenizer.decode(ids)


@pytest.mark.slow
def test_sources_are_answered(run, workdir):
  """Each by itself, streamed or not, from flags and from standard input."""
  flags = ['--temperature=0', '--max_tokens=7']
  expected = [greedy(workdir, text, 7) for text in LINES[:2]]
  several = [f'--source={text}' for text in LINES[:2]]
  code, stdout, stderr = run(*several, '--rows=1', *flags)
  assert (code, stdout) == (0, '\n'.join([*expected, '']))
  assert 'tokens, the first after ' in stderr
  plain = run('--source=-', '--stream', *flags, stdin=LINES[0] + '\n')
  assert plain[:2] == (0, expected[0] + '\n')
  # At most 50 tokens more than the source has, its end among them.
  flags = ['--source=a', '--json', '--temperature=0']
  (entry,) = json.loads(run(*flags)[1])['sources']
  assert entry['source'] == 'a'
  assert entry['finish'] == ['length'] or len(entry['samples'][0]) < 52


@pytest.fixture
def searches(monkeypatch):
  """How many texts each search was given, how, and what it found."""
  out, real = [], search

  def searched(decoder, asked, beam, **options):
    found = list(real(decoder, asked, beam, **options))
    out.append((len(asked), beam, dict(found)))
    yield from found

  monkeypatch.setattr(texts, 'search', searched)
  return out


@pytest.mark.slow
def test_a_file_is_searched_in_its_order_and_resumed(run, workdir, tmp_path, searches):
  path, out = tmp_path / 'in.de', tmp_path / 'out.jsonl'
  path.write_text('\n'.join(LINES) + '\n')
  flags = [f'--sources={path}', f'--out={out}', '--rows=2', '--beam=3']
  flags += ['--max_tokens=7', '--num_samples=2', '--penalty=gnmt']
  flags += ['--length_penalty=0.6', '--no_repeat_ngram=2', '--min_tokens=3']
  code, stdout, stderr = run(*flags)
  assert (code, stdout) == (0, ''), stderr
  whole = out.read_bytes()
  rows = [json.loads(line) for line in whole.splitlines()]
  assert [row['index'] for row in rows] == [*range(len(LINES))]
  assert [row['source'] for row in rows] == LINES
  ((number, beam, found),) = searches
  assert number == len(LINES)
  assert beam == BeamSettings(3, 0.6, 'gnmt', no_repeat_ngram=2, min_tokens=3)
  decode = load(str(workdir)).tokenizer.decode
  for row in rows:
    assert row['continuations'] == [
      {'text': decode(h.ids), 'tokens': len(h.ids), 'finish': h.finish, 'score': h.score}
      for h in found[row['index']][:2]
    ]
  # Two are missing, and are done again.
  lines = whole.splitlines(keepends=True)
  out.write_bytes(b''.join(lines[2:]))
  code, _, stderr = run(*flags)
  assert code == 0 and '3 sources are done' in stderr
  again = out.read_bytes().splitlines(keepends=True)
  assert searches[-1][0] == 2 and again[2:] == lines[2:]
  for line, row in zip(again, rows[:2], strict=False):
    for new, old in zip(json.loads(line)['continuations'], row['continuations'], strict=True):
      # Another batch may round otherwise.
      assert abs(new.pop('score') - old.pop('score')) < 1e-5
      assert new == old
  code, _, stderr = run(*flags, '--beam=4')
  assert code == 2 and 'another beam search;' in stderr
  code, _, stderr = run(*flags, '--average=2')
  assert code == 2 and 'another average of steps;' in stderr


@pytest.mark.slow
def test_a_search_prints_the_best(run):
  flags = [f'--source={LINES[0]}', '--beam=3', '--max_tokens=7']
  code, stdout, _ = run(*flags)
  several = run(*flags, '--num_samples=3', '--json')[1]
  (entry,) = json.loads(several)['sources']
  assert (code, stdout) == (0, entry['samples'][0] + '\n')
  assert entry['scores'] == sorted(entry['scores'], reverse=True)
  assert len({*entry['samples']}) == 3
  # Both checkpoints are the same, so their mean is.
  assert run(*flags, '--average=2')[1] == stdout


@pytest.mark.slow
def test_a_source_loses_its_end_as_in_an_evaluation(run, workdir):
  text = 'x' * CONTEXT + LINES[0]
  flags = [f'--source={text}', '--source=a', '--temperature=0']
  flags += ['--max_tokens=5']
  code, stdout, stderr = run(*flags)
  trained = load(str(workdir))
  request, cut = Scorer(trained.parts, None, trained.tokenizer).source_request(text, 5)
  excess = len(ids_of(workdir, text)) - CONTEXT
  assert (code, cut) == (0, excess) and len(request.source) == CONTEXT
  assert '1 of 2 sources do not fit' in stderr and f'to {cut}' in stderr
  kept = text.encode()[:-excess].decode()
  assert stdout.partition('\n')[0] == greedy(workdir, kept, 5)
  assert ids_of(workdir, kept) == request.source
  code, _, stderr = run(*flags, '--truncate=left')
  assert code == 2 and 'leave it out' in stderr


@pytest.mark.slow  # tests/decoding/test_beam.py searches one
def test_a_decoder_is_searched_too(run, tmp_path, searches):
  folder = made(tmp_path)
  flags = ['--prompt=The cat', '--max_tokens=9', '--beam=3', '--json']
  (entry,) = json.loads(run(*flags, folder=folder)[1])['prompts']
  ((_, _, found),) = searches
  new = load(str(folder)).tokenizer.decode(found[0][0].ids)
  assert entry['samples'] == ['The cat' + new]
  assert entry['scores'] == [found[0][0].score]
  code, stdout, stderr = run('--source=x', folder=folder)
  assert (code, stdout, stderr.count('\n')) == (2, '', 1)
  assert 'holds neither an encoder-decoder' in stderr


@pytest.mark.slow
def test_a_prefix_lm_writes_as_it_was_trained(run, tmp_path):
  """The most probable token of a whole row, each time, by both commands."""
  fields = {'objective.name': "prefix('seq2seq')", 'data.rows': 'parallel'}
  folder = made(tmp_path, **fields)
  trained, text = load(str(folder)), LINES[2]
  model, special = trained.parts.model, trained.tokenizer.special
  source = ids_of(folder, text)

  @jax.jit
  def following(tokens, last):
    variables = {'params': trained.state.eval_params}
    prefix = jnp.array([len(source)])
    out = model.apply(variables, Row(tokens[None], prefix_B=prefix))
    last = out.hidden_BLD[0, last]
    return jnp.argmax(model.apply(variables, last, method='logits'))

  row, expected = np.zeros(CONTEXT, np.int32), []
  start = [*source, special.eos_id]
  while len(expected) < 5 and special.eos_id not in expected:
    known = [*start, *expected]
    row[: len(known)] = known
    expected.append(int(following(row, len(known) - 1)))
  expected = trained.tokenizer.decode([i for i in expected if i in range(256)])
  flags = [f'--source={text}', '--temperature=0', '--max_tokens=5']
  code, stdout, stderr = run(*flags, folder=folder)
  assert (code, stdout) == (0, expected + '\n'), stderr
  scorer = Scorer(trained.parts, trained.state.eval_params, trained.tokenizer, rows=2)
  request, _ = scorer.source_request(text, 5)
  ((_, written),) = scorer.generate([request])
  assert written == expected.strip()
  code, _, stderr = run('--prompt=x', folder=folder)
  assert code == 2 and 'give --source' in stderr
  flags = [f'--source={text}', f'--max_tokens={CONTEXT - 1}']
  code, _, stderr = run(*flags, folder=folder)
  assert code == 2 and 'source and answer together' in stderr


@pytest.mark.parametrize(
  'flags, message',
  [
    (['--prompt=x'], 'holds a model that reads a source; give'),
    ([], 'holds a model that reads a source; give --source'),
    (['--source=x', '--prompt=x'], 'give one of --prompt and --source'),
    (['--source='], '--source is empty'),
    (['--sources=x.de'], '--out: needs --prompts or --sources'),
    (['--source=x', '--beam=2', '--temperature=0'], 'so --temperature has no effect'),
    (['--source=x', '--beam=2', '--stop=a'], 'so --stop has no effect; leave'),
    (['--source=x', '--beam=2', '--stream'], 'leave --stream out'),
    (['--source=x', '--beam=2', '--num_samples=3'], 'must be at most --beam=2'),
    (['--source=x', '--min_tokens=3'], '--min_tokens: is an option of beam'),
    (['--beam=2'], '--beam=2: does not work in a session; give'),
    (['--source=x', '--average=3'], 'keeps 2 checkpoints, of steps 0, 1;'),
    (['--source=x', '--max_tokens=99'], 'what the decoder starts with has 1'),
  ],
)
def test_what_does_not_go_together_is_one_line(run, flags, message):
  code, stdout, stderr = run(*flags)
  assert (code, stdout, stderr.strip().count('\n')) == (2, '', 0), stderr
  assert message in stderr


@pytest.mark.parametrize(
  'name, text, message',
  [
    ('a.de', 'x\n\ny\n', 'a.de:2: needs a source'),
    ('a.jsonl', '{"source": "x"}\n{"prompt": "y"}', 'a.jsonl:2: needs a sour'),
    ('a.jsonl', '{"source": "x"}\n{', 'a.jsonl:2: is not JSON'),
    ('a.de', '\n\n', 'holds no source'),
  ],
)
def test_files_that_do_not_do(run, tmp_path, name, text, message):
  (tmp_path / name).write_text(text)
  code, _, stderr = run(f'--sources={tmp_path / name}', f'--out={tmp_path}/o')
  assert code == 2 and message in stderr
  assert not (tmp_path / 'o').exists()
