# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Bad usage: exit code 2, one line that names what to mend, nothing made."""

import contextlib
import logging
import os
import pathlib
import resource
import shlex
import subprocess
import sys
import tomllib

import numpy as np
import pytest

from gpt_jax import __main__, cli
from gpt_jax.core import malloc
from gpt_jax.core.files import buckets, files
from gpt_jax.core.spec import UsageError
from gpt_jax.hf import checkpoint

ROOT = pathlib.Path(__file__).parents[2]
GPT2 = f'--config={ROOT}/configs/gpt2.py'
SMOKE = f'--config={ROOT}/configs/smoke.py'
FINETUNE = f'--config={ROOT}/configs/finetune/rte.py'
W = '--workdir=w'

BAD = {
  'command': (['trian'], "gpt-jax: unknown command 'trian'; did you mean train? one of train, "),
  'flag': (['train', SMOKE, '--wordkir=w'], 'wordkir'),
  'flag value': (['generate', W, '--prompt=x', '--top_k=-1'], 'top_k'),
  'flag type': (['generate', W, '--prompt=x', '--seed=one'], 'seed'),
  **{
    f'flag {flag}': (argv, f': flag --{flag}: {message}')
    for flag, argv, message in (
      ('port=x', ['serve', W, '--port=x'], 'takes whole numbers from 0 to 65,535'),
      ('top_p=', ['generate', W, '--prompt=x', '--top_p='], 'takes numbers from 0 to 1'),
      ('json=maybe', ['inspect', '--json=maybe'], 'takes true or false'),
    )
  },
  'no value': (['serve', W, '--port'], '--port: has no value; write --port='),
  'out is in': (
    ['generate', W, '--prompts=./a.txt', '--out=a.txt'],
    '--out=a.txt: is what --prompts names, and would be overwritten',
  ),
  'export over the run': (['convert', W, '--to_hf=w/'], '--to_hf=w/: is what --workdir names'),
  'run over the model': (['convert', W, '--from_hf=w'], '--workdir=w: is what --from_hf names'),
  'temperature': (
    ['generate', W, '--prompt=x', '--temperature=nan'],
    'flag --temperature=nan: must be a finite number',
  ),
  'top_p': (['generate', W, '--prompt=x', '--top_p=nan'], 'must be a finite'),
  'draws': (
    ['generate', W, '--prompt=x', '--seed=4294967296'],
    'flag --seed=4294967296: must be at most 4,294,967,295',
  ),
  'not a number': (
    ['train', SMOKE, W, '--config.optim.clip_norm=nan'],
    'optim.clip_norm=nan: must be a finite number',
  ),
  'infinite rate': (
    ['train', SMOKE, W, '--config.schedule.name=cosine(peak=1e999)'],
    'peak=inf must be a finite number',
  ),
  'negative rate': (
    ['train', SMOKE, W, '--config.schedule.name=cosine(peak=1, final=-5)'],
    'final=-5 must be at least 0',
  ),
  'endless run': (
    ['train', SMOKE, W, '--config.schedule.num_steps=99999999999999'],
    'schedule.num_steps=99999999999999: must be at most 2,147,483,646',
  ),
  'long seed': (
    ['train', SMOKE, W, '--config.seed=18446744073709551616'],
    'seed=18446744073709551616: must be at most 4,294,967,295',
  ),
  'wide': (
    ['inspect', SMOKE, '--config.model.d_model=1000000000'],
    'model.d_model=1000000000: must be at most 16,777,216',
  ),
  'no epoch': (
    ['finetune', FINETUNE, W, '--init=none', '--config.finetune.epochs=0'],
    'finetune.epochs=0.0: must be above 0',
  ),
  'rule twice': (
    ['train', SMOKE, W, '--config.mesh.rules.mlp=data, data'],
    "mesh.rules.mlp='data, data': names 'data' twice",
  ),
  'argument': (['train', SMOKE, W, 'now'], "unexpected argument 'now'"),
  'no config': (['train', W], '--config is missing'),
  'no workdir': (['train', SMOKE], '--workdir is missing'),
  'empty workdir': (['train', SMOKE, '--workdir='], '--workdir is missing'),
  'file': (['train', '--config=nope.py', W], '--config=nope.py: no such file'),
  'not python': (['train', '--config=nope', W], '--config=nope: no such file'),
  'size': (
    ['train', f'{GPT2}:7b', W],
    'configs/gpt2.py:7b: unknown size; one of small, medium, large, xl',
  ),
  'no size': (['train', f'{SMOKE}:big', W], 'configs/smoke.py:big: has one size; leave :big out'),
  'field': (['train', SMOKE, W, '--config.model.num_layer=3'], 'num_layer'),
  'section': (['train', SMOKE, W, '--config.modell.num_layers=3'], 'modell'),
  'type': (['train', SMOKE, W, '--config.model.num_layers=x'], 'num_layers'),
  'number': (
    ['train', SMOKE, W, '--config.model.num_layers=0'],
    'model.num_layers=0: must be at least 1',
  ),
  'call-string': (
    ['train', SMOKE, W, '--config.model.ffn=swiglo'],
    "model.ffn='swiglo': unknown 'swiglo'; one of ",
  ),
  'call arguments': (
    ['train', SMOKE, W, '--config.model.norm=layernorm(eps=1e-5)'],
    'layernorm takes (epsilon: float = 1e-05, ',
  ),
  'call syntax': (
    ['train', SMOKE, W, '--config.model.norm=layernorm('],
    "model.norm='layernorm(': cannot be read",
  ),
  'heads': (
    ['train', SMOKE, W, '--config.model.num_heads=3'],
    'model.d_model=256: is not divisible by model.num_heads=3',
  ),
  'mesh': (
    ['train', SMOKE, W, '--config.mesh.data=3'],
    'mesh.data=3, mesh.stage=1, mesh.fsdp=-1, mesh.expert=1, mesh.context=1, '
    'mesh.tensor=1: does not match',
  ),
  'rule': (
    ['train', SMOKE, W, '--config.mesh.rules.mlp=model'],
    "mesh.rules.mlp='model': unknown mesh axis 'model'",
  ),
  'ramp boundary': (
    ['train', SMOKE, W, '--config.batch.size=ramp(0:8, 5k:16)'],
    "batch.size: boundary='5k': give a whole number of steps or tokens",
  ),
  'run length': (
    ['train', SMOKE, W, '--config.schedule.num_steps=5G'],
    "schedule.num_steps='5G': give a whole number of steps or tokens",
  ),
  'inspect': (['inspect', f'{GPT2}:7b'], 'configs/gpt2.py:7b: unknown size; one of small'),
  'steps': (['inspect', '--steps=3'], '--workdir is missing'),
  'no steps': (['inspect', W], '--steps is missing'),
  'ledger': (['inspect', W, '--steps=3'], '--workdir=w: holds no run'),
  'two plots': (['plot', SMOKE, W], 'give one'),
  'vocabulary': (['inspect', SMOKE], 'model.vocab_size is empty'),
  'task': (['evaluate', W, '--tasks=validation,lambad'], "unknown 'lambad'; one of"),
  'evaluate': (['evaluate', W], '--workdir=w: holds no run'),
  'generate': (['generate', W, '--prompt=x'], '--workdir=w: holds no run'),
  'prompt': (['generate', W, '--prompt='], '--prompt is empty'),
  'plot': (['plot', W], '--workdir=w: has no losses in metrics.jsonl'),
  'report': (['report', W], '--workdir=w: holds no run'),
  'out': (['prepare', SMOKE], '--out is missing'),
  'other config': (
    ['train', '--config.seed=3', W],
    '--config.seed: overrides a field of a config, but --config is missing',
  ),
  'rewind to the same': (
    ['train', SMOKE, W, '--config.optim.on_spike=rewind(batches=0)'],
    'batches=0 must be at least 1',
  ),
  'rate': (
    ['train', SMOKE, W, '--config.schedule.name=cosine(peak=1e30)'],
    'peak=1e+30 must be at most 100',
  ),
  'noam': (
    ['train', SMOKE, W, '--config.schedule.name=noam(256, factor=1e30)'],
    'factor=1e+30 must be at most 100',
  ),
  'tuned rate': (
    ['finetune', FINETUNE, W, '--init=none', '--config.finetune.peak=1e30'],
    'finetune.peak=1e+30: must be at most 100',
  ),
  'decay': (
    ['train', SMOKE, W, '--config.optim.name=adamw(weight_decay=1e30)'],
    'weight_decay=1e+30 must be at most 1,000,000',
  ),
  'epsilon': (['train', SMOKE, W, '--config.optim.name=adamw(eps=5)'], 'eps=5 must be at most 1'),
  'norm': (
    ['train', SMOKE, W, '--config.model.norm=rmsnorm(epsilon=1e30)'],
    'epsilon=1e+30 must be at most 1',
  ),
  'penalty': (
    ['train', SMOKE, W, '--config.objective.name=causal(z_loss=1e30)'],
    'z_loss=1e+30 must be at most 1,000,000',
  ),
  'first weights': (
    ['train', SMOKE, W, '--config.model.init_weights=normal(stddev=1e30)'],
    'stddev=1e+30 must be at most 1,000,000',
  ),
  'cleaned twice': (
    ['train', SMOKE, W, '--config.data.clean=minhash, minhash(rows=5)'],
    'names minhash twice with the same arguments; once is enough',
  ),
  'figure': (['plot', SMOKE, '--out=x.nope'], '--out=x.nope: must end in .png; rename it'),
  'budget': (
    ['plan', '--budget=1e-5'],
    '--budget=1e-05: 1e-05 training FLOPs train no model; give at least 1e+09',
  ),
  'budget of chips': (
    ['plan', '--chips=v4-8', '--days=1e-12'],
    'training FLOPs train no model; give at least 1e+09',
  ),
  'no run': (['compare', W], "--run is missing; give 'NAME FILE[:SIZE]'"),
  'run': (['compare', W, '--run=a'], "--run='a': give 'NAME"),
  'run of two': (['compare', W, '--run=a b.py c.py'], "c.py': give 'NAME"),
  'run twice': (['compare', W, '--run=a b.py', '--run=a c.py'], 'the names a, a must differ'),
  'run data': (['compare', W, '--run=data b.py'], "'data' must name a folder"),
  'run above': (['compare', W, '--run=../a b.py'], "'../a' must name a folder"),
  'seeds': (['compare', W, '--run=a b.py', '--seeds=0,x'], '--seeds=0,x: give distinct whole'),
  'no direction': (['convert', W], 'give one of --from_hf and --to_hf'),
  'directions': (['convert', W, '--from_hf=a', '--to_hf=b'], 'give one of --from_hf and --to_hf'),
  **{
    f'shard size {size!r}': (
      ['convert', W, '--to_hf=out', f'--max_shard_size={size}'],
      f'--max_shard_size={size}: must be a number of bytes',
    )
    for size in ('0', '5GiB', 'large', '-3MB', '')
  },
  'no text': (['tokenizers'], 'give --config or --text'),
  'no tokenizer': (
    ['tokenizers', '--text=other.txt'],
    "give --tokenizer 'NAME CALL' with different names",
  ),
  'no name': (['tokenizers', '--text=other.txt', '--tokenizer=bytes'], "give 'NAME CALL'"),
  'no such text': (['tokenizers', '--text=gone/*.txt', '--tokenizer=a bytes'], 'no file matches'),
  'tokenizer twice': (
    ['tokenizers', '--text=x', '--tokenizer=a bytes', '--tokenizer=a words'],
    'repeats a name (a, a)',
  ),
  'port': (['serve', W, '--port=65536'], 'must be at most 65,535'),
  'connections': (['serve', W, '--max_connections=0'], 'must be at least 1'),
  'warm up': (['serve', W, '--warm_up=40+16,7'], '--warm_up=7: give PROMPT+NEW'),
  'no key': (['serve', W, '--api_key_file=none'], 'no such file'),
  'a folder of keys': (['serve', W, '--api_key_file=.'], 'is a directory'),
  'a public key': (
    ['serve', W, '--api_key_file=/dev/null'],
    '--api_key_file=/dev/null: other users may read or write it',
  ),
  'a host with a scheme': (
    ['serve', W, '--allowed_hosts=https://a.example'],
    'give names or addresses without scheme and port',
  ),
  'seeds twice': (
    ['compare', W, '--run=a b.py', '--seeds=0,00'],
    '--seeds=0,00: give distinct whole numbers from 0',
  ),
}


@pytest.fixture
def main(tmp_path, monkeypatch):
  """Runs a command in an empty folder."""
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(sys, 'path', [*sys.path])
  monkeypatch.setattr(malloc, 'keep_memory', lambda: None)
  return __main__.main


@pytest.mark.parametrize('case', BAD)
def test_bad_usage(case, main, tmp_path, capfd):
  argv, message = BAD[case]
  assert main(argv) == 2
  out, err = capfd.readouterr()
  assert out == ''
  assert message in err
  assert err.startswith('gpt-jax')
  assert err.endswith('\n') and err.count('\n') == 1
  assert [*tmp_path.iterdir()] == []


def test_bad_usage_of_the_installed_command(tmp_path):
  """In a process of its own, away from the checkout."""
  argv = ['train', SMOKE, W, '--config.model.ffn=swiglo']
  done = subprocess.run(
    [sys.executable, '-m', 'gpt_jax', *argv], cwd=tmp_path, capture_output=True, text=True
  )
  assert done.returncode == 2
  assert done.stdout == ''
  assert done.stderr == (
    "gpt-jax train: model.ffn='swiglo': unknown 'swiglo'; one of bilinear, "
    'geglu, geglu_tanh, gelu, gelu_tanh, glu, reglu, relu, silu, swiglu, '
    'switch, tanh\n'
  )
  assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
  'text, why',
  [
    ('import nothing_of_that_name', 'nothing_of_that_name'),
    ('def get_config(arg=""):\n  return 1 / 0', 'division by zero'),
    ('def get_config(', 'never closed'),
  ],
)
def test_a_mistake_in_ones_own_config(main, tmp_path, capfd, text, why):
  """One line that says which file it is in."""
  name = f'mine_{len(text)}.py'
  (tmp_path / name).write_text(text + '\n')
  assert main(['train', f'--config={name}', W]) == 2
  err = capfd.readouterr().err
  assert err.count('\n') == 1
  assert why in err and name in err


def test_a_config_that_is_not_the_whole_tree(main, tmp_path, capfd):
  (tmp_path / 'part.py').write_text(
    'from ml_collections import ConfigDict\n'
    'def get_config(arg=""):\n'
    '  return ConfigDict({"seed": 3})\n'
  )
  assert main(['train', '--config=part.py', W]) == 2
  err = capfd.readouterr().err
  assert err.count('\n') == 1 and 'is missing from the config' in err


@pytest.mark.parametrize('argv, code', [([], 2), (['--help'], 0), (['-h'], 0), (['help'], 0)])
def test_usage(main, capsys, argv, code):
  assert main(argv) == code
  out = capsys.readouterr().out
  assert all(f'  {name} ' in out for name in __main__.COMMANDS)


def test_the_version_is_that_of_the_project(main, capsys):
  project = tomllib.loads((ROOT / 'pyproject.toml').read_text(encoding='utf-8'))['project']
  assert main(['--version']) == 0
  assert capsys.readouterr().out == f'gpt-jax {project["version"]}\n'


@pytest.mark.parametrize('name', __main__.COMMANDS)
def test_help_of_each_command(main, capsys, tmp_path, name):
  assert main([name, '--help']) == 0
  out, err = capsys.readouterr()
  assert out.startswith(f'gpt-jax {name}: ')
  assert f'gpt-jax {name}' in out.partition('\n')[2]
  assert err == ''
  assert [*tmp_path.iterdir()] == []


@contextlib.contextmanager
def closed(*, at_once):
  """A stdout that nothing reads any more, as after `| head`."""
  reader, writer = os.pipe()
  os.close(reader)
  # Closing it raises where the rest was not dropped.
  with open(writer, 'w', encoding='utf-8') as file:
    file.reconfigure(write_through=at_once)
    with contextlib.redirect_stdout(file):
      yield


@pytest.mark.parametrize('at_once', [False, True])
@pytest.mark.parametrize(
  'argv, code',
  [
    ([], 1),
    (['--help'], 1),
    (['train', '--help'], 1),
    (['inspect', SMOKE, '--config.model.vocab_size=97', '--json'], 1),
    (['train', SMOKE, '--wordkir=w'], 2),
  ],
)
def test_a_closed_pipe(main, capfd, argv, code, at_once):
  """Nothing is said of it, and a mistake is still one."""
  with closed(at_once=at_once):
    assert main(argv) == code
  assert capfd.readouterr().err.count('\n') == (code == 2)


def test_a_table_on_a_closed_pipe(main, capfd):
  """Rich makes an exit of it, which is none of a user's code."""
  with closed(at_once=False):
    assert main(['inspect', SMOKE, '--config.model.vocab_size=97']) == 1
  assert capfd.readouterr().err == ''


def test_all_pipes_closed(tmp_path):
  """In a process of its own, whose exit flushes once more."""
  done = subprocess.run(
    f'{sys.executable} -m gpt_jax train --help | true; '
    'echo "${PIPESTATUS[0]}"; '
    f'{sys.executable} -m gpt_jax train {SMOKE} --nope=1 2>&1 | true; '
    'echo "${PIPESTATUS[0]}"',
    shell=True,
    executable='/bin/bash',
    cwd=tmp_path,
    capture_output=True,
    text=True,
  )
  assert (done.stdout, done.stderr) == ('1\n2\n', '')


def test_a_pipe_that_is_not_stdout(main, capfd):
  """Another reader that has gone is a failure like any."""
  assert cli.run(Module(BrokenPipeError(32, 'Broken pipe')), []) == 1
  assert 'failed: BrokenPipeError' in capfd.readouterr().err


@pytest.mark.parametrize('code', [0, None, 3, 'bye'])
def test_an_exit_of_foreign_code_is_a_failure(code, capfd):
  """Whoever started the command would take it for one that is done."""
  assert cli.run(Module(SystemExit(code)), []) == 1
  assert 'gpt-jax fake: failed: SystemExit' in capfd.readouterr().err


class Module:
  """Stands for a command."""

  __name__ = 'gpt_jax.fake'
  __doc__ = 'A command.'

  def __init__(self, error):
    """`error` is raised when the command runs, unless it is None."""
    self._error = error

  def define(self, values):
    """Has no flags."""

  def main(self, args):
    """Fails as it was told."""
    if self._error:
      raise self._error


@pytest.mark.parametrize(
  'error, code, last',
  [
    (None, 0, None),
    (UsageError('a.b=3:\n  too\n  much'), 2, 'gpt-jax fake: a.b=3: too much'),
    (ValueError('odd'), 1, 'gpt-jax fake: failed: ValueError: odd'),
    (KeyError('k'), 1, 'gpt-jax fake: failed: KeyError: k'),
    (OSError(5, 'full'), 1, None),
    (
      OSError(28, 'full', 'a/b'),
      1,
      'gpt-jax fake: failed: a/b: cannot be written: no space left on device; '
      'make room there, and give the same command again',
    ),
    (KeyboardInterrupt(), 130, 'gpt-jax fake: interrupted'),
  ],
)
def test_exit_codes(main, capsys, error, code, last):
  assert cli.run(Module(error), []) == code
  err = capsys.readouterr().err
  if code == 0:
    assert err == ''
  elif last is not None:
    assert err.splitlines()[-1] == last
  assert ('Traceback' in err) == (code == 1 and 'make room' not in err)


def test_a_failure_of_the_system_says_why(main, capsys):
  """`OSError(5, 'broken')`: the number alone would not help."""
  cli.run(Module(OSError(5, 'Input/output error')), [])
  last = capsys.readouterr().err.splitlines()[-1]
  assert 'Input/output error' in last


ODD = 'a\x1b]0;title\x07\x1b[2Jb\x9b31m\u202ec\rd'
ESCAPED = r'a\x1b]0;title\x07\x1b[2Jb\x9b31m\u202ec\rd'


def test_control_characters_are_shown_as_escapes(main, capsys):
  """Names of files and texts of others may hold a terminal's commands."""
  assert cli.run(Module(UsageError(f'{ODD}: no such file')), []) == 2
  spaced = ESCAPED.replace(r'\r', ' ')  # white space becomes a space
  assert capsys.readouterr().err == f'gpt-jax fake: {spaced}: no such file\n'
  assert cli.run(Module(ValueError(ODD)), []) == 1
  error = capsys.readouterr().err
  assert ESCAPED in error and 'Traceback' in error and ODD[:3] not in error
  logging.getLogger('gpt_jax').info('read %s', f'{ODD}\n2026 forged')
  error = capsys.readouterr().err
  assert error.endswith(rf' read {ESCAPED}\n2026 forged' + '\n')
  assert cli.run(Module(OSError(28, 'full', ODD)), []) == 1
  assert ODD[:3] not in capsys.readouterr().err


@contextlib.contextmanager
def largest_file(size):
  """Files may have `size` bytes, as where a disk is full."""
  before = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
  try:
    yield
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def write_text(folder):
  buckets.write_atomically(f'{folder}/text', 'x' * 99999)


def write_small(folder):
  files.write(folder, 'small', bytes(99999))


def write_weights(folder):
  checkpoint.write(folder, {}, [[('a', np.zeros(99999))]], {})


def write_beside(folder):
  checkpoint.write(folder, {}, [], {'b': bytes(99999)})


@pytest.mark.parametrize('write', [write_text, write_small, write_weights, write_beside])
def test_what_cannot_be_written_is_named(tmp_path, main, capsys, write):
  module = Module(None)
  module.main = lambda args: write(str(tmp_path))
  with largest_file(1000):
    assert cli.run(module, []) == 1
  (line,) = capsys.readouterr().err.splitlines()
  assert line.startswith(f'gpt-jax fake: failed: {tmp_path}')
  assert ': cannot be written: file too large; raise the limit on' in line


def test_logs_go_to_stderr(main, capsys):
  logging.getLogger('gpt_jax').handlers.clear()
  assert cli.run(Module(None), []) == 0
  logging.getLogger('gpt_jax').info('a line')
  out, err = capsys.readouterr()
  assert out == '' and 'a line' in err


def test_a_full_place_is_found_where_no_file_is_named(tmp_path, main, capsys, monkeypatch):
  """As where a file that is open already is written to."""
  statvfs, full = os.statvfs, []

  def of_disks(path):
    found = statvfs(path)
    if path in full:
      found = os.statvfs_result((*found[:4], 0, *found[5:]))
    return found

  monkeypatch.setattr(os, 'statvfs', of_disks)
  module = Module(OSError(28, 'No space left on device'))
  module.define = lambda values: values.path('out', None, 'A file.')
  out = f'--out={tmp_path}/a/b'
  assert cli.run(module, [out]) == 1
  assert 'failed: a file: cannot be written' in capsys.readouterr().err
  full.append(str(tmp_path))
  assert cli.run(module, [out]) == 1
  assert f'failed: {out}: cannot be written' in capsys.readouterr().err


@pytest.mark.parametrize(
  ('word', 'written'),
  [
    ("--source=text('*.md')", '''"--source=text('*.md')"'''),
    ('a b', "'a b'"),
    ('--steps=3', '--steps=3'),
    ("it's $5", None),
    ('it\'s "so"', None),
    ("it's a \\", None),
  ],
)
def test_a_recorded_command_is_what_a_shell_reads(word, written):
  line = cli.shell_line(['gpt-jax', word])
  assert shlex.split(line) == ['gpt-jax', word]
  if written:
    assert line == f'gpt-jax {written}'
