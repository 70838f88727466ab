# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Prompts from flags, files and lines, of a model that has a chat template."""

import functools
import json
import os
import pathlib
import pty
import select
import signal
import subprocess
import sys
import time

import pytest

from gpt_jax.__main__ import main
from gpt_jax.core import config as config_lib
from gpt_jax.core.checkpoints import checkpointer
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers import tokenizer as tokenizer_lib
from gpt_jax.core.tokenizers.hf import HfTokenizer
from gpt_jax.core.tokenizers.simple import Bytes
from gpt_jax.core.training import parts
from gpt_jax.decoding import constraints, engine, files, programs, texts
from gpt_jax.decoding.chat import ChatTemplate
from gpt_jax.decoding.sampler import seeds_of
from gpt_jax.decoding.settings import Sampler
from gpt_jax.hf_tokenizers import special_files
from gpt_jax.opening import models as trained_lib
from tests.support import tiny
from tests.support.decoding import generate
from tests.support.stdin import stdin_of

ROOT = pathlib.Path(__file__).parents[2]
GOLDEN = ROOT / 'tests/hf_tokenizers/golden'
CONTEXT = 113
LINES = ['Speak, speak.', 'The cat', 'You are 17', 'All', 'hear me', 'a']


@pytest.fixture(scope='module')
def workdir(tmp_path_factory):
  """An import's workdir: random parameters, and a tokenizer with ChatML."""
  folder = tmp_path_factory.mktemp('run') / 'w'
  sizes = {'vocab_size': 293, 'd_model': 24, 'num_heads': 3, 'head_size': 8}
  sizes |= {'num_kv_heads': 3, 'num_layers': 1, 'context_length': CONTEXT}
  sizes |= {'init_weights': 'normal(stddev=0.5)'}
  config = tiny.config(**{f'model.{name}': x for name, x in sizes.items()})
  built = parts.build(config_lib.resolve(config))
  saver = checkpointer.Checkpointer(str(folder))
  saver.save(parts.initial_state(built))
  saver.close()
  (folder / 'config.json').write_text(config_lib.to_json(built.config))
  source = GOLDEN / 'smollm2'
  name = f'hf_tokenizer({str(source / "tokenizer.json")!r})'
  made = special_files.tokenizer(name, str(source))
  made.save(str(folder / 'tokenizer'))
  return folder


load = functools.cache(trained_lib.load)


@pytest.fixture
def run(workdir, capsys, monkeypatch):
  """Runs generate; returns its exit code, stdout and stderr."""
  restored = load(str(workdir))

  def reload(folder, use, average=0, *, field='--workdir'):
    assert not average
    # Reading the parameters again takes most of the time.
    made = tokenizer_lib.load(f'{folder}/tokenizer')
    return restored._replace(tokenizer=made)

  monkeypatch.setattr(trained_lib, 'load', reload)

  def run(*flags, stdin=''):
    monkeypatch.setattr('sys.stdin', stdin_of(stdin))
    capsys.readouterr()
    code = main(['generate', f'--workdir={workdir}', *flags])
    return code, *capsys.readouterr()

  return run


def drawn(workdir, prompts, seeds=None, max_tokens=7, temperature=1.0):
  """Ids that follow each of some prompts, decoded one prompt at a time."""
  trained = load(str(workdir))
  out = []
  for ids, seed in zip(prompts, seeds or [0] * len(prompts), strict=True):
    out += generate(
      trained.parts.model,
      trained.state.eval_params,
      [ids],
      max_tokens=max_tokens,
      sampler=Sampler(temperature),
      seed=seed,
      stop_ids=trained.tokenizer.special.stop_ids,
      never_V=constraints.never_drawn(trained.tokenizer, trained.parts.model.vocab_size),
    )
  return out


@pytest.mark.slow
def test_a_file_of_prompts_and_its_resumption(workdir, run, tmp_path, monkeypatch):
  path, out = tmp_path / 'in.jsonl', tmp_path / 'out.jsonl'
  chat = [{'role': 'user', 'content': 'Speak <|im_end|>'}]
  entries = [{'prompt': text} for text in LINES] + [{'messages': chat}]
  path.write_text('\n'.join(map(json.dumps, entries)) + '\n\n')
  flags = [f'--prompts={path}', f'--out={out}', '--max_tokens=7', '--rows=3']
  code, stdout, stderr = run(*flags)
  assert (code, stdout) == (0, '')
  assert 'tokens, the first after ' in stderr
  whole = out.read_bytes()
  rows = [json.loads(line) for line in whole.splitlines()]
  assert [row['index'] for row in rows] == [*range(len(entries))]
  tokenizer = tokenizer_lib.load(str(workdir / 'tokenizer'))
  template = ChatTemplate.load(str(workdir / 'tokenizer'))
  assert template is not None
  prompts = [tokenizer.encode(text).tolist() for text in LINES]
  prompts.append(template.ids(tokenizer, chat))
  for row, entry, prompt, new in zip(rows, entries, prompts, drawn(workdir, prompts), strict=True):
    finish = 'length' if len(new) == 7 else 'stop'
    text = tokenizer.decode([*prompt, *new])
    text = text.removeprefix(tokenizer.decode(prompt))
    found = {'text': text, 'tokens': len(new), 'finish': finish}
    assert {**row, 'index': 0} == {'index': 0, **entry, 'continuations': [found]}
  # In the order in which they finished, and torn: two are done again.
  lines = whole.splitlines(keepends=True)
  out.write_bytes(b''.join([*lines[4:], *lines[:2], lines[2][:17]]))
  added = []
  add = engine.Engine.add
  monkeypatch.setattr(engine.Engine, 'add', lambda *a: (added.append(a[1]), add(*a))[1])
  code, _, stderr = run(*flags)
  assert code == 0 and '5 prompts are done' in stderr
  assert [list(request.ids) for request in added] == prompts[2:4]
  assert out.read_bytes() == whole
  assert run(*flags)[0] == 0 and len(added) == 2  # nothing is left to do
  for changed, what in (
    ([*flags, '--temperature=0.5'], 'another temperature'),
    ([*flags, '--seed=1', '--stop=x'], 'another seed, another stop'),
  ):
    code, _, stderr = run(*changed)
    assert code == 2 and what in stderr
  path.write_text('{"prompt": "x"}')
  code, _, stderr = run(*flags)
  assert code == 2 and 'another set of prompts' in stderr
  assert out.read_bytes() == whole


def test_results_of_another_model_are_kept_apart(run, workdir, tmp_path):
  path, out = tmp_path / 'in.txt', tmp_path / 'out.jsonl'
  path.write_text('\n'.join(LINES))
  flags = [f'--prompts={path}', f'--out={out}', '--max_tokens=2']
  assert run(*flags, '--num_samples=2')[0] == 0
  rows = list(map(json.loads, out.read_text().splitlines()))
  assert [row['prompt'] for row in rows] == LINES
  assert {len(row['continuations']) for row in rows} == {2}
  config = workdir / 'config.json'
  before = config.read_text()
  config.write_text(before + '\n')
  code, _, stderr = run(*flags, '--num_samples=2')
  config.write_text(before)
  assert code == 2 and 'another model;' in stderr
  out.with_suffix('.jsonl.run').write_text('[')
  assert 'is damaged; name another' in run(*flags)[2]
  out.with_suffix('.jsonl.run').unlink()
  assert 'does not; name another file' in run(*flags)[2]


def test_prompts_from_standard_input(run):
  flags = ['--max_tokens=5', '--temperature=0']
  plain = run('--prompt=The cat', *flags)
  assert run('--prompt=-', *flags, stdin='The cat\n')[:2] == plain[:2]
  assert plain[1].startswith('The cat')
  # Streamed or not, it is the same text.
  assert run('--prompt=The cat', '--stream', *flags)[:2] == plain[:2]
  found = json.loads(run('--prompt=The cat', '--json', *flags)[1])
  (entry,) = found['prompts']
  assert entry['samples'] == [plain[1][:-1]] and entry['finish'] == ['length']


def test_a_long_prompt_may_lose_its_beginning(run, workdir):
  text = 'x' * CONTEXT + 'The cat'
  flags = [f'--prompt={text}', '--max_tokens=11', '--temperature=0']
  code, _, stderr = run(*flags)
  assert code == 2
  excess = len(tokenizer_lib.load(f'{workdir}/tokenizer').encode(text))
  excess -= CONTEXT - 1
  assert f': {excess} too many; shorten it, or give --truncate=left' in stderr
  code, stdout, _ = run(*flags, '--truncate=left')
  tokenizer = tokenizer_lib.load(f'{workdir}/tokenizer')
  kept = tokenizer.encode(text).tolist()[-(CONTEXT - 11) :]
  (new,) = drawn(workdir, [kept], max_tokens=11, temperature=0)
  assert (code, stdout) == (0, tokenizer.decode([*kept, *new]) + '\n')


def test_flags_of_the_sampler_reach_it(run):
  flags = ['--prompt=The cat', '--max_tokens=23']
  greedy = run(*flags, '--temperature=0')[1]
  assert run(*flags)[1] != greedy
  assert run(*flags, '--min_p=1')[1] == greedy
  other = run(*flags, '--temperature=0', '--repetition_penalty=1e9')[1]
  assert other != greedy


def test_a_draft_proposes(run, workdir, tmp_path):
  """The model to itself, whose greedy text and seeds' company stay the same."""
  flags = ['--prompt=The cat', '--max_tokens=11', '--json']
  draft = [f'--draft={workdir}', '--draft_tokens=3']
  plain = json.loads(run(*flags, '--temperature=0')[1])
  code, stdout, stderr = run(*flags, '--temperature=0', *draft)
  found = json.loads(stdout)
  # The first token, two rounds of four, and one that has room for two more.
  proposed = {'proposed': 8, 'accepted': 8}
  assert (code, found['draft']) == (0, proposed)
  assert found['prompts'] == plain['prompts']
  assert 'draft' not in plain and found['tokens_per_second'] > 0
  assert 'proposed 8 tokens, of which 8 (100.0%) were accepted' in stderr
  path, out = tmp_path / 'in.txt', tmp_path / 'out.jsonl'
  path.write_text('The cat')
  flags = [f'--prompts={path}', f'--out={out}', '--max_tokens=11']
  assert run(*flags, *draft, '--temperature=0')[0] == 0
  code, _, stderr = run(*flags, '--temperature=0')
  assert code == 2 and 'holds results of another draft;' in stderr


def test_weights_of_eight_bits_are_used_and_told_apart(run, tmp_path, monkeypatch):
  params, init = [], engine.Engine.__init__
  monkeypatch.setattr(
    engine.Engine,
    '__init__',
    lambda self, decoder, **kw: (params.append(decoder.params), init(self, decoder, **kw))[1],
  )
  path, out = tmp_path / 'in.txt', tmp_path / 'out.jsonl'
  path.write_text('The cat')
  flags = [f'--prompts={path}', f'--out={out}', '--max_tokens=3']
  assert run(*flags, '--weights=int8')[0] == 0
  (used,) = params
  block = used['decoder']['period_0']['block_0']
  assert block['attention']['out']['kernel'].dtype == 'int8'
  code, _, stderr = run(*flags)
  assert code == 2 and 'holds results of another kind of weights;' in stderr


def test_a_draft_with_another_vocabulary_is_refused(run, tmp_path):
  made = special_files.tokenizer(
    f'hf_tokenizer({str(GOLDEN / "gpt2" / "tokenizer.json")!r})', str(GOLDEN / 'gpt2')
  )
  made.save(str(tmp_path / 'tokenizer'))
  code, stdout, stderr = run('--prompt=The cat', f'--draft={tmp_path}')
  assert (code, stdout, stderr.count('\n')) == (2, '', 1)
  assert f'--draft={tmp_path}: its tokenizer, ' in stderr


def test_lines_of_a_pipe_are_a_chat(run, workdir, monkeypatch):
  """A turn reads what is new, in blocks of 16; after a reset, the beginning."""
  starts, read = [], programs.read_block

  def noted(params, caches, tokens_BL, start, *args, **kwargs):
    starts.append(start)
    return read(params, caches, tokens_BL, start, *args, **kwargs)

  with monkeypatch.context() as patched:
    patched.setattr(programs, 'BLOCK', 16)
    patched.setattr(programs, 'read_block', noted)
    code, stdout, _ = run(
      '--max_tokens=5',
      '--seed=3',
      stdin='hear me\n\n/help\n//etc\n/reset\nhear me\n/exit\nno more\n',
    )
  tokenizer = tokenizer_lib.load(str(workdir / 'tokenizer'))
  template = ChatTemplate.load(str(workdir / 'tokenizer'))
  assert template is not None
  seeds, expected, chat = seeds_of(3, 3), '', []
  blocks, held = [], []
  for turn, text in enumerate(['hear me', '/etc', 'hear me']):
    if turn == 2:
      chat = []
    chat.append({'role': 'user', 'content': text})
    ids = template.ids(tokenizer, chat)
    (new,) = drawn(workdir, [ids], [seeds[turn]], max_tokens=5)
    alike = [x == y for x, y in zip(ids[:-1], held, strict=False)]
    same = [*alike, False].index(False)
    blocks += range(same // 16 * 16, len(ids), 16)
    held = [*ids, *new][:-1]
    answer = tokenizer.decode([*ids, *new])
    answer = answer.removeprefix(tokenizer.decode(ids))
    chat.append({'role': 'assistant', 'content': answer})
    expected += answer + '\n'
  assert (code, stdout) == (0, expected)
  assert starts == blocks and starts.count(0) == 1


def test_without_a_template_it_is_one_text(run, workdir):
  template = workdir / 'tokenizer'
  hidden = template.rename(workdir / 'other')
  try:
    name = f'hf_tokenizer({str(GOLDEN / "gpt2" / "tokenizer.json")!r})'
    made = special_files.tokenizer(name, str(GOLDEN / 'gpt2'))
    made.save(str(template))
    flags = ['--max_tokens=3', '--temperature=0']
    code, stdout, _ = run(*flags, stdin='The cat\nAll')
    first, second = run('--prompt=The cat', *flags)[1], 'All'
    answers = first.removeprefix('The cat')
    whole = run(f'--prompt={first}{second}', *flags)[1]
    answers += whole.removeprefix(first + second)
    assert (code, stdout) == (0, answers)
  finally:
    for path in template.iterdir():
      path.unlink()
    template.rmdir()
    hidden.rename(template)


def test_a_long_chat_forgets_its_oldest_messages(run):
  lines = 'The cat sat on the mat, 2026, You\n' * 7
  flags = ['--max_tokens=9']
  code, stdout, stderr = run(*flags, stdin=lines)
  assert code == 2 and 'the conversation has ' in stderr
  assert stderr.endswith(
    '; shorten it, forget what was said with /reset, or start again with --truncate=left\n'
  )
  assert stdout and stderr.count('\n') == 1
  code, stdout, _ = run(*flags, '--truncate=left', stdin=lines)
  assert code == 0


@pytest.mark.parametrize(
  'more, options, remedies',
  [
    (0, {}, 'shorten it, or give --truncate=left'),
    (4, {}, 'shorten it, or give --truncate=left'),
    (0, {'truncate': 'left', 'max_tokens': CONTEXT}, 'shorten it'),
    (0, {'max_tokens': CONTEXT}, 'shorten it'),
    (-3, {'max_tokens': 4}, 'ask for at most 3, or give --truncate=left'),
    (-3, {'max_tokens': CONTEXT}, 'ask for at most 3'),
    (1 - CONTEXT, {'max_tokens': CONTEXT}, f'ask for at most {CONTEXT - 1}'),
  ],
)
def test_what_is_said_of_a_prompt_that_does_not_fit(more, options, remedies):
  """The context holds a token of the answer, too."""
  num_tokens = CONTEXT + more
  with pytest.raises(UsageError) as e:
    texts.fitted([0] * num_tokens, Bytes(), texts.Options(**options), context_length=CONTEXT)
  said = str(e.value)
  assert said.endswith(f'; {remedies}')
  plural = '' if num_tokens == 1 else 's'
  assert f'--prompt has {num_tokens} token{plural}, ' in said
  assert (f': {num_tokens + 1 - CONTEXT} too many;' in said) == (more >= 0)


BAD = {
  'json': (['x.jsonl', '{'], 'x.jsonl:1: is not JSON'),
  'no prompt': (['x.jsonl', '{"prompt": ""}'], 'x.jsonl:1: needs a prompt'),
  'list': (['x.jsonl', '[1]'], 'x.jsonl:1: needs a prompt'),
  'both': (['x.jsonl', '{"prompt": "a", "messages": [{}]}'], 'x.jsonl:1: needs a prompt'),
  'role': (['x.jsonl', '{"messages": [{"role": "user"}]}'], 'needs a prompt'),
  'surrogate': (['x.jsonl', r'{"prompt": "\ud800"}'], 'x.jsonl:1: the text is not UTF-8'),
  'empty': (['x.txt', '\n \n'], 'x.txt: holds no prompt'),
  'name': (['x.csv', 'a'], 'x.csv: is neither .txt'),
  'encoding': (['x.txt', b'\xff'], 'x.txt:1: is not UTF-8: byte 0'),
  'long': (['x.txt', 'x' * 999], 'x.txt:1 has 9'),
  'room': (['x.txt', 'a', '--max_tokens=113'], '--max_tokens=113: '),
  'alone': (['x.txt', 'a', '--out='], '--out: needs --prompts or --sources'),
  'two': (['x.txt', 'a', '--prompt=b'], 'one of --prompt and --prompts'),
  'stream': (['x.txt', 'a', '--stream'], 'works without --json and --stream'),
  'folder': (['x.txt', 'a', '--out=.'], '--out=.: is not a regular file'),
  'min_p': (['x.txt', 'a', '--min_p=1.5'], 'min_p'),
  'penalty': (['x.txt', 'a', '--repetition_penalty=0'], 'penalty'),
  'rows': (['x.txt', 'a', '--rows=0'], 'rows'),
}


@pytest.mark.parametrize('case', BAD)
def test_a_bad_file_is_one_line(run, tmp_path, monkeypatch, case):
  (name, data, *flags), why = BAD[case]
  monkeypatch.chdir(tmp_path)
  data = data if isinstance(data, bytes) else data.encode()
  pathlib.Path(name).write_bytes(data)
  code, stdout, stderr = run(f'--prompts={name}', '--out=out.jsonl', *flags)
  assert (code, stdout, stderr.count('\n')) == (2, '', 1)
  assert why in stderr
  assert [p.name for p in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(
  'flags, stdin, why',
  [
    ([], '', '--prompt is missing, and nothing comes on'),
    (['--json'], 'a', '--prompt is missing; give it, or'),
    (['--num_samples=2'], 'a', '--prompt is missing; give it, or'),
    (['--prompt=-', '--prompt=-'], 'a', 'standard input is read once'),
    (['--prompt=-'], '', '--prompt is empty'),
    (['--prompt=a', '--num_samples=2', '--stream'], '', '--stream: shows one'),
    (['--prompts=nope.txt', '--out=o'], '', 'nope.txt: no such file'),
    (['--prompt=a\udcff'], '', '--prompt: the text is not UTF-8'),
    ([], 'a\udcff', 'standard input:1: is not UTF-8: byte 1'),
    ([], '/what now', '/what: is not a command'),
    ([], 'x' * 999, 'the message has '),
    (['--prompt=a', '--draft_tokens=0'], '', '--draft_tokens'),
  ],
)
def test_a_bad_call_is_one_line(run, flags, stdin, why):
  code, stdout, stderr = run(*flags, stdin=stdin)
  assert (code, stdout, stderr.count('\n')) == (2, '', 1)
  assert why in stderr


def test_a_failing_template_is_one_line(run, workdir, tmp_path):
  path = tmp_path / 'in.jsonl'
  chat = {'messages': [{'role': 'tool', 'content': 'a'}]}
  path.write_text(json.dumps(chat))
  source = workdir / 'tokenizer'
  made = tokenizer_lib.load(str(source))
  source.rename(workdir / 'kept')
  try:
    assert isinstance(made, HfTokenizer)
    template = "{{ raise_exception('No tools here') }}"
    contents = {**made.contents, 'chat_template.jinja': template.encode()}
    HfTokenizer(contents).save(str(source))
    code, _, stderr = run(f'--prompts={path}', f'--out={tmp_path}/out.jsonl')
    assert (code, stderr.count('\n')) == (2, 1)
    assert 'in.jsonl:1: the chat template fails: No tools here' in stderr
  finally:
    for file in source.iterdir():
      file.unlink()
    source.rmdir()
    (workdir / 'kept').rename(source)


def command(workdir, *flags):
  argv = [sys.executable, '-m', 'gpt_jax', 'generate', f'--workdir={workdir}']
  return [*argv, *flags], {**os.environ, 'PYTHONPATH': str(ROOT)}


@pytest.mark.long
@pytest.mark.slow
def test_killed_at_any_moment_it_goes_on(run, workdir, tmp_path):
  path, out = tmp_path / 'in.txt', tmp_path / 'out.jsonl'
  path.write_text('\n'.join(f'{line} {i}' for i in range(99) for line in LINES))
  flags = [f'--prompts={path}', '--max_tokens=13', '--temperature=0.7']
  assert run(*flags, f'--out={tmp_path}/whole.jsonl')[0] == 0
  whole = (tmp_path / 'whole.jsonl').read_bytes()
  total, kills = 99 * len(LINES), 0
  for share in (0, 0.2, 0.5, 0.8):
    argv, env = command(workdir, *flags, f'--out={out}')
    process = subprocess.Popen(argv, env=env, stderr=subprocess.DEVNULL)
    while process.poll() is None:
      lines = out.read_bytes().count(b'\n') if out.exists() else 0
      if lines > share * total:
        process.kill()
        kills += 1
        break
      time.sleep(0.01)
    process.wait()
  assert kills >= 2
  assert 0 < out.read_bytes().count(b'\n') < total
  assert run(*flags, f'--out={out}')[0] == 0
  assert out.read_bytes() == whole


# Takes its input as its terminal, so that Ctrl-C reaches it, also where the
# tests run in the background, with that signal ignored or blocked.
LEAD = """
import fcntl, os, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGINT, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_SETMASK, [])
os.execvp(sys.argv[1], sys.argv[1:])
"""


class Terminal:
  """The session in a pseudo-terminal of its own."""

  def __init__(self, workdir, *flags):
    argv, env = command(workdir, *flags)
    self.file, inner = pty.openpty()
    self.process = subprocess.Popen(
      [sys.executable, '-c', LEAD, *argv],
      **dict.fromkeys(('stdin', 'stdout', 'stderr'), inner),
      env={**env, 'TERM': 'dumb'},
      start_new_session=True,
    )
    os.close(inner)

  def until(self, text, seconds=120, press=''):
    """Reads on up to a text; presses keys after five seconds of silence."""
    seen, end = '', time.monotonic() + seconds
    while text not in seen:
      assert time.monotonic() < end, seen
      if not select.select([self.file], [], [], 5)[0]:
        self.type(press)
        continue
      try:
        seen += os.read(self.file, 4096).decode(errors='replace')
      except OSError:  # the other side has gone
        assert text in seen, seen
    return seen

  def type(self, text):
    os.write(self.file, text.encode())


@pytest.mark.slow
def test_a_session_on_a_terminal(workdir):
  terminal = Terminal(workdir, '--max_tokens=80', '--truncate=left')
  try:
    assert 'A chat; /help lists' in terminal.until('> ')
    terminal.type('/help\n')
    assert '/reset' in terminal.until('\n> ')
    terminal.type('/what\n')
    assert '/what: is not a command' in terminal.until('\n> ')
    terminal.type('All\n')
    terminal.until('\n> ')
    terminal.type('\x10\n')  # Ctrl-P: the line before
    assert terminal.until('\n> ').startswith('All')
    terminal.type('hear')
    terminal.until('hear')  # readline waits for more
    # Ctrl-C leaves the line, not the session. Where the signal comes between an
    # echo and its wait, Python's readline sleeps on until the next signal. Not
    # at once: a second Ctrl-C that meets Python's answer to the first ends it.
    terminal.type('\x03')
    terminal.until('\n> ', press='\x03')
    terminal.type('\x04')  # Ctrl-D
    assert terminal.process.wait(60) == 0
  finally:
    terminal.process.kill()
    terminal.process.wait()
    os.close(terminal.file)


def test_ctrl_c_stops_an_answer_and_no_more(run, monkeypatch, workdir):
  """As a signal between two steps: what was said so far is kept."""
  steps, step = [], engine.Engine.step

  def counted(self):
    steps.append(1)
    if len(steps) == 3:
      os.kill(os.getpid(), signal.SIGINT)
    return step(self)

  flags = ['--max_tokens=9', '--temperature=0']
  whole = run(*flags, stdin='hear me\n')[1]
  monkeypatch.setattr(engine.Engine, 'step', counted)
  code, stdout, _ = run(*flags, stdin='hear me\n/reset\nhear me\n')
  first, second = stdout[: -len(whole)], stdout[-len(whole) :]
  assert code == 0 and second == whole
  assert len(steps) == 3 + 9
  assert first.endswith('\n') and whole.startswith(first[:-1])
  assert len(first) < len(whole)


def test_prompts_have_a_digest():
  read = [files.Prompt('a:1', 'x'), files.Prompt('a:2', 'y')]
  moved = [files.Prompt('b:3', 'x'), files.Prompt('b:4', 'y')]
  assert files.digest(read) == files.digest(moved)
  assert files.digest(read) != files.digest(read[::-1])
