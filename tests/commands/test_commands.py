# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The commands one after the other, as a user would run them."""

import html.parser
import json
import math
import pathlib
import re
import shlex
import shutil
import subprocess

import jax
import numpy as np
import pytest
from jax.profiler import ProfileData
from matplotlib import pyplot

from gpt_jax.__main__ import main
from gpt_jax.core.training import metrics
from gpt_jax.reports import data_order
from tests.support import files_page, tiny
from tests.support.metrics_page import METRICS
from tests.support.stdin import stdin_of

ROOT = pathlib.Path(__file__).parents[2]
STEPS = 21


@pytest.fixture(scope='module')
def workdir(tmp_path_factory):
  """A trained run of a tiny model on this project's own configs."""
  folder = tmp_path_factory.mktemp('run') / 'w'
  code = main(
    [
      'train',
      *tiny.SMOKE,
      '--config.model.num_layers=2',
      '--config.model.d_model=48',
      '--config.model.context_length=61',
      # Over eight devices: five rows, and then one at a time on each.
      *tiny.flags(
        batch=dict(size='ramp(0:5, 9_steps:16)', micro_rows=1),
        schedule=dict(num_steps=STEPS, name='constant(peak=1e-2)'),
        checkpoint=dict(every_steps=11),
        eval=dict(every_steps=10),
        log=dict(every_steps=3, sample_tokens=20),
      ),
      f'--workdir={folder}',
    ]
  )
  assert code == 0
  return folder


@pytest.mark.slow
def test_train_leaves_the_workdir_that_the_design_promises(workdir):
  assert {p.name for p in workdir.iterdir()} == {
    'config.json',
    'metrics.jsonl',
    'checkpoints',
    'tokenizer',
    'data',
    'loss.png',
    'samples.txt',
    'tensorboard',
    '.lock',
  }
  tables = files_page.tables()
  for name, folder in (
    ('A run', workdir),
    ('A token store', workdir / 'data'),
    ('A checkpoint', workdir / 'checkpoints' / str(STEPS)),
  ):
    assert files_page.unlisted(tables[name], folder) == []
    assert files_page.missing(tables[name], folder) == []
  lines = metrics.read(str(workdir))
  known = re.compile('|'.join(re.sub('[A-Z]+', '[^/]+', n) for n in METRICS))
  for line in lines:
    if 'event' not in line:
      assert [name for name in line if not known.fullmatch(name)] == []
  losses = [m['loss'] for m in lines if 'loss' in m]
  assert losses[0] > losses[-1] + 0.5
  assert {m['step'] for m in lines if 'eval/validation/loss' in m} == {10, 20, STEPS}
  keys = {'tokens', 'learning_rate', 'batch_rows', 'grad_norm', 'mfu'}
  keys |= {'tokens_per_second', 'data_wait_seconds'}
  assert all(keys <= m.keys() for m in lines if 'loss' in m)
  assert (workdir / 'loss.png').read_bytes().startswith(b'\x89PNG')
  assert (workdir / 'samples.txt').read_text().startswith('def main(')


@pytest.fixture(scope='module')
def tasks_dir(tmp_path_factory):
  folder = tmp_path_factory.mktemp('tasks')
  (folder / 'lambada').mkdir()
  (folder / 'lambada' / 'lambada_test.jsonl').write_text(
    '{"text": "def get_config"}\n{"text": "return the config"}\n'
  )
  return folder


def test_evaluate_scores_tasks(workdir, tasks_dir, capsys):
  flags = [f'--workdir={workdir}', f'--tasks_dir={tasks_dir}', '--shots=0,1']
  tasks = "--tasks=validation,lambada,lambada(name='again')"
  assert main(['evaluate', *flags, tasks, '--overlap', '--json']) == 0
  found = json.loads(capsys.readouterr().out)
  assert found['step'] == STEPS
  assert found['eval/validation/loss'] > 0
  assert found['eval/lambada/examples'] == 2
  assert found['eval/lambada/perplexity'] > 1
  assert found['eval/lambada/1_shots/perplexity'] > 1
  assert found['eval/lambada/overlap'] == 0  # no text has 13 words
  assert found['eval/lambada/examples_clean'] == 2
  for key in [key for key in found if key.startswith('eval/lambada/')]:
    assert found[key.replace('lambada', 'again')] == found[key]
  saved = workdir / 'evaluations' / f'step-{STEPS}.json'
  kept = json.loads(saved.read_text())
  assert kept.pop('model') and kept.pop('tasks') == {'lambada': 'lambada', 'again': 'lambada'}
  assert kept == found
  assert main(['evaluate', *flags, '--tasks=lambada']) == 0
  # What was measured of the same model before is still there.
  assert json.loads(saved.read_text())['eval/validation/loss'] > 0
  assert 'lambada/1_shots: accuracy' in capsys.readouterr().out
  # A part is told as one, and written beside the whole.
  part = ['--tasks=lambada', '--limit=1', '--rows=1', '--batch_tokens=64']
  assert main(['evaluate', *flags, *part, '--json']) == 0
  found = json.loads(capsys.readouterr().out)
  assert found['limit'] == found['eval/lambada/examples'] == 1
  beside = saved.with_name(f'step-{STEPS}-limit-1.json')
  assert found.items() <= json.loads(beside.read_text()).items()
  whole = json.loads(saved.read_text())
  assert whole['eval/lambada/examples'] == 2 and 'limit' not in whole
  assert main(['evaluate', *flags, '--tasks=race']) == 2
  assert 'no such file; fetch RACE from' in capsys.readouterr().err


def test_metrics_count_the_rows_of_a_ramp(workdir):
  lines = [m for m in metrics.read(str(workdir)) if 'loss' in m]
  per_epoch = json.loads((workdir / 'data/manifest.json').read_text())
  per_epoch = (per_epoch['num_tokens'] - 1) // 61
  for m in lines:
    step = m['step']
    rows = 5 * min(step, 9) + 16 * max(step - 9, 0)
    assert m['tokens'] == rows * 61
    assert m['batch_rows'] == (5 if step <= 9 else 16)
    assert m['epochs'] == rows / per_epoch
  assert lines[-1]['step'] == STEPS


def test_inspect_shows_the_documents_of_steps(workdir, capsys):
  flags = ['inspect', f'--workdir={workdir}', '--steps=9:11']
  assert main([*flags, '--text', '--json']) == 0
  rows = json.loads(capsys.readouterr().out)['rows']
  # The last step of 5 rows, and the first of 16.
  assert [row['step'] for row in rows] == [9] * 5 + [10] * 16
  assert [row['row'] for row in rows] == [*range(40, 61)]
  # With one token a byte, and one at the end of each document.
  files = sorted((ROOT / 'configs').glob('*.py'))
  for row in rows:
    spans = row['spans']
    assert sum(s['stop'] - s['start'] for s in spans) == 62
    text = b''
    for s in spans:
      assert s['name'] == files[s['document']].name
      text += files[s['document']].read_bytes()[s['start'] : s['stop']]
    assert row['text'] == text.decode(errors='replace')
  assert main([*flags[:-1], '--steps=9']) == 0
  out = capsys.readouterr().out
  assert out.count('\n') == 5 and out.startswith('step 9 row 40 epoch 0 ')


def test_inspect_draws_the_documents_of_steps(workdir, tmp_path, monkeypatch, capsys):
  """Those that it prints."""
  flags = ['inspect', f'--workdir={workdir}', '--steps=2:9']
  assert main([*flags, '--json']) == 0
  printed = {
    (row['step'], span['document'])
    for row in json.loads(capsys.readouterr().out)['rows']
    for span in row['spans']
  }
  drawn, reads = [], data_order.reads

  def kept(rows):
    drawn.extend(reads(rows))
    return drawn

  monkeypatch.setattr(data_order, 'reads', kept)
  out = tmp_path / 'order.png'
  assert main([*flags, f'--order={out}']) == 0
  assert capsys.readouterr().out == f'{out}\n' and out.exists()
  assert {(read.step, read.document) for read in drawn} == printed


@pytest.mark.parametrize('steps', ['0', '5:5', '7:5', '1:23', '22', 'x', '1:', '-1:3'])
def test_inspect_refuses_steps_that_are_not_there(workdir, capsys, steps):
  assert main(['inspect', f'--workdir={workdir}', f'--steps={steps}']) == 2
  error = capsys.readouterr().err
  assert error.count('\n') == 1 and f'--steps={steps}: ' in error


def test_profile_traces_steps_and_changes_nothing(workdir, capsys):
  def files():
    found = (p for p in workdir.rglob('*') if p.is_file())
    return {p: p.read_bytes() for p in found if 'profile' not in p.parts}

  before = files()
  assert main(['profile', f'--workdir={workdir}', '--steps=10:12']) == 0
  out = capsys.readouterr().out
  assert out.startswith('2 steps of ') and ' on 8 device(s)' in out
  assert 'collectives' in out and 'all-reduce' in out and 'batches' in out
  assert files() == before
  (file,) = workdir.glob('profile/plugins/profile/*/*.xplane.pb')
  assert out.endswith(f'{file}\n')
  events = [
    dict(event.stats)['step_num']
    for plane in ProfileData.from_file(str(file)).planes
    for line in plane.lines
    for event in line.events
    if event.name == 'train'
  ]
  assert events == [10, 11]
  shutil.rmtree(workdir / 'profile')


def test_evaluate_prints_what_training_measured_last(workdir, capsys):
  assert main(['evaluate', f'--workdir={workdir}', '--json']) == 0
  found = json.loads(capsys.readouterr().out)
  lines = metrics.read(str(workdir))
  last = [m for m in lines if 'eval/validation/loss' in m][-1]
  clocks = {'eval_seconds', 'time'}
  assert found == {k: v for k, v in last.items() if k not in clocks}
  # Bits per byte with a byte tokenizer: one token a byte, one end a document.
  manifest = json.loads((workdir / 'data/validation/manifest.json').read_text())
  bits = found['eval/validation/loss'] / math.log(2)
  np.testing.assert_allclose(
    found['eval/validation/bits_per_byte'],
    bits * (manifest['num_bytes'] + manifest['num_documents']) / manifest['num_bytes'],
  )


@pytest.mark.long
@pytest.mark.slow
def test_evaluate_averages_checkpoints(workdir, capsys):
  """Those of steps 11 and 21; of one it is what it would be without."""

  def run(*flags):
    argv = ['evaluate', f'--workdir={workdir}', '--json', *flags]
    assert main(argv) == 0
    return json.loads(capsys.readouterr().out)

  plain, one, two = run(), run('--average=1'), run('--average=2')
  assert (one.pop('averaged'), two.pop('averaged')) == ([21], [11, 21])
  assert one == plain
  assert two['step'] == 21
  loss = 'eval/validation/loss'
  assert abs(two[loss] - plain[loss]) > 1e-4
  each = run('--steps=all')
  assert [*each] == ['11', '21'] and each['21'] == plain
  assert run('--steps=11') == {'11': each['11']}
  assert main(['evaluate', f'--workdir={workdir}', '--average=3']) == 2
  said = capsys.readouterr().err.strip().splitlines()[-1]
  assert 'keeps 2 checkpoints, of steps 11, 21; train with checkpoint' in said


@pytest.mark.long
@pytest.mark.slow
def test_generate_is_a_function_of_the_seed(workdir, capsys):
  def run(*flags):
    assert main(['generate', f'--workdir={workdir}', *flags]) == 0
    return capsys.readouterr().out

  prompt = ('--prompt=import ', '--max_tokens=20')
  assert run(*prompt, '--seed=1') == run(*prompt, '--seed=1')
  assert run(*prompt, '--seed=1') != run(*prompt, '--seed=2')
  assert run(*prompt, '--temperature=0').startswith('import ')
  several = run(*prompt, '--num_samples=3', '--top_k=7', '--top_p=0.9')
  assert several.count('import ') >= 3


@pytest.mark.slow
def test_generate_continues_each_of_several_prompts(workdir, capsys):
  def run(*flags):
    argv = ['generate', f'--workdir={workdir}', '--max_tokens=7', *flags]
    assert main([*argv, '--temperature=0']) == 0
    return capsys.readouterr().out

  one, two = run('--prompt=import '), run('--prompt=def f(')
  both = ('--prompt=import ', '--prompt=def f(')
  assert run(*both) == one + '\n' + two
  found = json.loads(run(*both, '--json'))['prompts']
  assert [f['prompt'] for f in found] == ['import ', 'def f(']
  assert [f['samples'] for f in found] == [[one[:-1]], [two[:-1]]]


@pytest.mark.slow  # tests/serving and tests/decoding have stop texts
def test_generate_ends_before_a_stop_text(workdir, capsys):
  """Of several tokens, in each sample by itself; the prompt does not count."""

  def run(*flags):
    assert main(['generate', f'--workdir={workdir}', *flags]) == 0
    return capsys.readouterr().out.removesuffix('\n')

  prompt = ('--prompt=import ', '--max_tokens=30', '--seed=1')
  new = run(*prompt).removeprefix('import ')
  # The first place that two or three characters are seen at.
  early, late = new[5:7], new[11:14]
  at, after = new.index(early), new.index(late)
  assert 0 < at < after
  for stops, end in (
    ([late], after),
    ([late, early], at),
    ([late, 'never'], after),
    (['never'], len(new)),
    (['import'], len(new) if 'import' not in new else new.index('import')),
  ):
    flags = [f'--stop={text}' for text in stops]
    assert run(*prompt, *flags) == 'import ' + new[:end]


@pytest.mark.parametrize(
  'flags, field',
  [
    (['--prompt=abc', '--stop='], '--stop'),
    (['--prompt='], '--prompt'),
    (['--prompt=abc', '--prompt='], '--prompt'),
    ([], '--prompt'),
    (['--prompt=' + 'x' * 61], '--prompt'),
    (['--prompt=abc', '--max_tokens=59'], '--max_tokens'),
  ],
)
def test_generate_refuses_what_does_not_fit(workdir, capsys, monkeypatch, flags, field):
  monkeypatch.setattr('sys.stdin', stdin_of(''))
  assert main(['generate', f'--workdir={workdir}', *flags]) == 2
  error = capsys.readouterr().err
  assert error.count('\n') == 1 and field in error


def test_another_config_is_refused_and_nothing_changes(workdir, capsys):
  before = {p: p.read_bytes() for p in workdir.rglob('*') if p.is_file()}
  code = main(['train', f'--config={ROOT}/configs/smoke.py', f'--workdir={workdir}'])
  assert code == 2
  error = capsys.readouterr().err
  assert 'model.num_layers: 2 -> 4' in error
  assert before == {p: p.read_bytes() for p in workdir.rglob('*') if p.is_file()}


def test_plot_compares_runs(workdir, tmp_path, capsys):
  out, other = tmp_path / 'two.png', tmp_path / 'other'
  other.mkdir()
  for name in ('config.json', 'metrics.jsonl'):
    shutil.copyfile(workdir / name, other / name)
  both = f'--workdir={workdir},{other}'
  assert main(['plot', both, f'--out={out}']) == 0
  assert out.read_bytes().startswith(b'\x89PNG')


class Page(html.parser.HTMLParser):
  """Collects a page's cells, and checks that its elements are closed."""

  def __init__(self, text):
    super().__init__()
    self.open, self.seen, self.cells = [], set(), []
    self.feed(text)
    assert self.open == []

  def handle_starttag(self, tag, attrs):
    self.seen.add(tag)
    assert not {'src', 'href'} & {name for name, _ in attrs} or tag == 'use'
    if tag not in ('meta', 'path', 'use'):
      self.open.append(tag)

  def handle_endtag(self, tag):
    if tag not in ('meta', 'path', 'use'):
      assert self.open.pop() == tag

  def handle_data(self, data):
    if self.open and self.open[-1] in ('td', 'code', 'pre'):
      self.cells.append(data)


def test_the_report_has_what_the_run_logged(workdir, tmp_path, capsys):
  """In one file: nothing is read from elsewhere."""
  out = tmp_path / 'run.html'
  assert main(['report', f'--workdir={workdir}', f'--out={out}']) == 0
  assert capsys.readouterr().out == f'{out}\n'
  page = Page(out.read_text(encoding='utf-8'))
  assert {'svg', 'table', 'details'} <= page.seen
  lines = metrics.read(str(workdir))
  losses = [line['loss'] for line in lines if 'loss' in line]
  held_out = [m for m in lines if 'eval/validation/loss' in m][-1]
  for value in (losses[-1], held_out['eval/validation/loss']):
    assert any(cell.startswith(f'{value:.4f}') for cell in page.cells)
  config = json.loads((workdir / 'config.json').read_text())
  at = page.cells.index('schedule.num_steps')
  assert page.cells[at + 1] == str(config['schedule']['num_steps'])
  assert any(f'JAX {jax.__version__}' in cell for cell in page.cells)
  # The command, the parameters, and who set the fields.
  start = lines[0]
  capsys.readouterr()
  flags = shlex.split(start['command'])
  flags = [f for f in flags[2:] if not f.startswith('--workdir')]
  vocab = '--config.model.vocab_size=257'
  assert main(['inspect', *flags, vocab, '--json']) == 0
  inspected = json.loads(capsys.readouterr().out)
  assert start['parameters'] == inspected['parameters']
  assert page.cells[3] == f'{start["parameters"]:,}'
  assert start['command'] == page.cells[1]
  assert start['command'].startswith('gpt-jax train --config=')
  for field, who in {
    'batch.micro_rows': 'command line',
    'model.dtype': 'config file',
    'model.vocab_size': 'program',
    'model.head_size': 'program',
  }.items():
    assert page.cells[page.cells.index(field) - 1] == who
  assert any(re.match(r'\w+\.py \[\d+:\d+\]', c) for c in page.cells)


BROWSER = shutil.which('chromium') or shutil.which('google-chrome')


@pytest.mark.slow
@pytest.mark.skipif(not BROWSER, reason='needs Chromium')
def test_a_browser_shows_the_report(workdir, tmp_path):
  """The picture of the page is not blank, and its curves are drawn."""
  out, picture = tmp_path / 'run.html', tmp_path / 'run.png'
  assert main(['report', f'--workdir={workdir}', f'--out={out}']) == 0
  subprocess.run(
    [
      BROWSER,
      '--headless',
      '--no-sandbox',
      '--disable-gpu',
      '--window-size=1000,1500',
      f'--screenshot={picture}',
      out.as_uri(),
    ],
    check=True,
    timeout=120,
  )
  shown = pyplot.imread(picture)[..., :3]
  # Of the losses' curve, in the first color of matplotlib.
  blue = np.abs(shown - np.array([31, 119, 180]) / 255).max(axis=-1) < 0.02
  assert blue.sum() > 500


def test_inspect_counts_gpt2(capsys):
  config = f'--config={ROOT}/configs/gpt2.py:medium'
  assert main(['inspect', config, '--json']) == 0
  found = json.loads(capsys.readouterr().out)
  assert found['parameters'] == 354_823_168
  assert found['parameters_text'] == '354.82M'
  # 6 * (24 layers of 12 d^2, and the output table) + 12 L d T.
  d, layers, vocab, context = 1024, 24, 50_257, 1024
  assert (
    found['flops_per_token'] == 6 * (layers * 12 * d * d + vocab * d) + 12 * layers * d * context
  )
  assert [s['rows'] for s in found['schedule']] == [512]
  assert main(['inspect', config]) == 0
  shown = capsys.readouterr().out
  assert '354,823,168' in shown and '354.82M' in shown


def test_inspect_and_plot_show_the_schedule(tmp_path, capsys):
  flags = [
    f'--config={ROOT}/configs/palm.py:540b',
    # Small, so that it is quick; the recipe stays.
    '--config.model.num_layers=1',
    '--config.model.d_model=8',
    '--config.model.vocab_size=16',
  ]
  assert main(['inspect', *flags, '--json']) == 0
  first, second, third = json.loads(capsys.readouterr().out)['schedule']
  assert first == {
    'step': 1,
    'rows': 512,
    'row_tokens': 2048,
    'tokens_per_step': 2**20,
    'tokens': 0,
    'learning_rate': pytest.approx(1e-2),
  }
  assert (second['step'], third['step']) == (50_001, 115_001)
  assert third['tokens'] == 2**20 * (50_000 + 2 * 65_000)
  expected = first['learning_rate'] * math.sqrt(10_000 / 115_000)
  assert third['learning_rate'] == pytest.approx(expected)
  assert main(['inspect', *flags]) == 0
  assert '115,001' in capsys.readouterr().out
  out = tmp_path / 'schedule.png'
  assert main(['plot', *flags, f'--out={out}']) == 0
  assert out.read_bytes().startswith(b'\x89PNG')


@pytest.mark.slow
def test_benchmark_measures_a_step(capsys):
  flags = [
    f'--config={ROOT}/configs/benchmark.py:char',
    '--config.model.num_layers=1',
    '--config.batch.size=8',
    '--steps=3',
    '--json',
  ]
  assert main(['benchmark', *flags]) == 0
  found = json.loads(capsys.readouterr().out)
  tokens = 8 * 64
  np.testing.assert_allclose(found['tokens_per_second'], tokens / found['step_seconds'])
  np.testing.assert_allclose(
    found['mfu'], found['tokens_per_second'] * found['flops_per_token'] / found['peak_flops']
  )
  assert 0 <= found['data_wait_fraction'] < 1


@pytest.mark.long
@pytest.mark.slow
def test_benchmark_of_saving(capsys):
  flags = [
    f'--config={ROOT}/configs/benchmark.py:char',
    '--config.model.num_layers=1',
    '--config.batch.size=8',
    '--config.log.every_steps=1',
    '--what=checkpoint',
    '--steps=1',
    '--json',
  ]
  assert main(['benchmark', *flags]) == 0
  result = json.loads(capsys.readouterr().out)
  # An embedding, positions, a layer, a norm; Adam keeps two more of each, and
  # there are three counts of steps.
  layer = 12 * 128**2 + 13 * 128
  assert result['parameters'] == (65 + 64) * 128 + layer + 2 * 128
  assert result['state_gib'] * 2**30 == 12 * result['parameters'] + 12
  assert 0 < result['blocked_seconds'] < result['save_seconds']
  assert 0 < result['checksum_seconds'] < result['save_seconds']
  assert result['restore_seconds'] > 0
  # The arrays of the restored state are new.
  assert result['restore_gib_of_host'] > 0 <= result['save_gib_of_host']
  assert result['bare_step_seconds'] > 0 < result['loop_step_seconds']


@pytest.mark.long
@pytest.mark.slow
def test_benchmark_of_decoding(capsys):
  flags = [
    f'--config={ROOT}/configs/benchmark.py:decode',
    *tiny.flags(
      model=dict(num_layers=3, d_model=32, num_heads=4, context_length=26), batch=dict(size=5)
    ),
    '--what=decode',
    '--steps=3',
    '--json',
  ]
  assert main(['benchmark', *flags]) == 0
  found = json.loads(capsys.readouterr().out)
  many, one = found['kv_heads']['4'], found['kv_heads']['1']
  # Keys and values, layers, rows, slots, heads, head size, float32.
  assert many['cache_bytes'] == 2 * 3 * 5 * 26 * 4 * 8 * 4
  assert one['cache_bytes'] == many['cache_bytes'] / 4
  assert one['tokens_per_second'] > 0


@pytest.mark.slow
def test_doctor_finds_this_machine_sound(capsys):
  assert main(['doctor']) == 0
  said = capsys.readouterr().out
  assert 'failed' not in said
  for row in ('libtpu', 'hosts', 'topology', 'memory', 'interconnect'):
    assert f'\n{row} ' in said


@pytest.mark.parametrize('name', ['text', 'missing', 'encoding', 'short'])
def test_bad_corpus_leaves_nothing_behind(tmp_path, capsys, name):
  path = tmp_path / 'corpus.txt'
  path.write_bytes(
    {'text': b'', 'missing': b'', 'encoding': b'abc\xff\xfe', 'short': b'far too short'}[name]
  )
  if name == 'missing':
    path.unlink()
  workdir = tmp_path / 'w'
  code = main(
    [
      'train',
      f'--config={ROOT}/configs/smoke.py',
      f"--config.data.source=text('{path}')",
      '--config.data.holdout=none',
      '--config.tokenizer.name=bytes',
      f'--workdir={workdir}',
    ]
  )
  error = capsys.readouterr().err
  assert code == 2, error
  # What was logged on the way ends with the one line that says what to mend.
  said = [s for s in error.splitlines() if s.startswith('gpt-jax train: ')]
  assert said == error.splitlines()[-1:] and str(tmp_path) in said[0]
  assert 'Traceback' not in error
  if name == 'short':
    # Found out once it was prepared: a finished store is never removed.
    assert [p.name for p in workdir.iterdir()] == ['data']
    assert (workdir / 'data/manifest.json').exists()
    return
  assert not workdir.exists()
