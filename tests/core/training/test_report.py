# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The figures of a log line: speeds, and those of routers; their picture."""

import functools
import io
import json
import types

import jax
import numpy as np
import pytest
import rich.console
import rich.text

from gpt_jax.core import config as config_lib
from gpt_jax.core import sharding
from gpt_jax.core.optim.schedules import Shape
from gpt_jax.core.training import compiled as compiled_lib
from gpt_jax.core.training import parts as parts_lib
from gpt_jax.core.training import report
from gpt_jax.core.training.compiled import Compiled
from gpt_jax.core.training.metrics import Metrics
from gpt_jax.core.training.report import TensorBoardTracker
from gpt_jax.reports import runs
from gpt_jax.reports import runs as plot_routers
from tests.support import tiny

SWITCH = 'switch(num_experts=3)'


@pytest.mark.parametrize(
  ('value', 'text'),
  [
    (2.34567, '2.346'),
    (0.125, '0.125'),
    (-0.0026, '-0.0026'),
    (-2.345e-9, '-2.3e-09'),
    (0.0, '0.000'),
    (-0.0, '0.000'),
    (1234.5, '1234.500'),
    (float('nan'), 'nan'),
    (float('-inf'), '-inf'),
  ],
)
def test_a_figure_keeps_two_digits(value, text):
  assert report.figure(value) == text


def test_a_log_line_has_what_the_method_is_judged_by():
  values = {'loss': -2e-9, 'reward': 0.125, 'objective/kl': 0.5}
  values |= {'tokens_per_second': 1234.5, 'mfu': 0.5, 'mfu_causal': 0.25}
  speed = '1,234 tokens/s | MFU 50% (25% causal)'
  assert report.summary(values) == f'loss -2e-09 | {speed}'
  shown = 'loss', 'reward', 'objective/kl', 'absent'
  assert report.summary(values, shown) == (f'reward 0.125, KL 0.500 | loss -2e-09 | {speed}')


def config(**changes):
  return config_lib.resolve_model(tiny.config(**changes))


@pytest.mark.parametrize(
  'ffn, attention, num_layers, layers',
  [
    (SWITCH, 'full', 3, [0, 1, 2]),
    (f'relu, {SWITCH}', 'full', 6, [1, 3, 5]),
    (f'relu, relu, {SWITCH}', 'full, local(window=5)', 6, [2, 5]),
    (f'{SWITCH}, relu, {SWITCH}', 'full', 3, [0, 2]),
    ('relu', 'full', 3, []),
  ],
)
def test_layers_are_those_of_the_model(ffn, attention, num_layers, layers):
  changes = {'model.ffn': ffn, 'model.attention': attention, 'model.num_layers': num_layers}
  assert report.layers(config(**changes), 'decoder') == layers


def test_layers_of_an_encoder():
  found = config(
    **{'model.ffn': f'relu, {SWITCH}', 'model.num_layers': 2, 'model.num_encoder_layers': 4}
  )
  assert report.layers(found, 'encoder') == [1, 3]


def output(loads, dropped):
  """What a step reports of two layers, whose entropy is as they drop."""
  return {
    'loss': np.float32(2.5),
    'router/decoder/load_E': np.array(loads, np.float32),
    'router/decoder/dropped': np.array(dropped, np.float32),
    'router/decoder/entropy': np.array(dropped, np.float32) / 2,
  }


EVERY_SECOND = {'model.ffn': f'relu, {SWITCH}', 'model.num_layers': 4}
OUTPUTS = [
  output([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]], [0.25, 0.0]),
  output([[0.0, 1.0, 0.0], [0.5, 0.0, 0.5]], [0.75, 0.0]),
]


def test_metrics_pool_the_steps_of_the_interval():
  found = report.of_routers(config(**EVERY_SECOND), OUTPUTS)
  assert found == {
    'router/decoder/layer_1/load': [0.5, 0.5, 0.0],
    'router/decoder/layer_1/dead': 1,
    'router/decoder/layer_3/load': [0.5, 0.25, 0.25],
    # Each was without a token in one step, none in both.
    'router/decoder/layer_3/dead': 0,
    'router/decoder/layer_1/dropped': 0.5,
    'router/decoder/layer_3/dropped': 0.0,
    'router/decoder/layer_1/entropy': 0.25,
    'router/decoder/layer_3/entropy': 0.0,
  }
  assert json.loads(json.dumps(found)) == found


def test_no_metrics_without_experts_or_steps():
  assert report.of_routers(config(), [{'loss': np.float32(1)}]) == {}
  assert report.of_routers(config(**EVERY_SECOND), []) == {}


def test_one_warning_names_the_dead():
  found = report.of_routers(config(**EVERY_SECOND), OUTPUTS)
  text = report.dead_experts({'loss': 2.5, **found})
  assert text.endswith(': decoder layer 1 expert 2')
  assert report.dead_experts({'loss': 0.0}) == ''
  del found['router/decoder/layer_1/load']
  assert report.dead_experts(found) == ''


def test_a_warning_stays_short():
  loads = {'router/decoder/layer_0/load': [0.0] * 2000 + [1.0]}
  text = report.dead_experts(loads)
  assert text.endswith('layer 0 expert 7, and 1992 more')
  assert len(text) < 400


@pytest.mark.slow
def test_metrics_of_a_training_step():
  """Against the choices that the model sows for the same tokens."""
  changes = {
    **tiny.MESHABLE,
    # The same in training and evaluation.
    'model.ffn': 'relu, switch(num_experts=3, jitter=0.0, capacity_factor=0.5, '
    'eval_capacity_factor=0.5)',
    'model.num_layers': 4,
    'model.context_length': 13,
  }
  run = tiny.build(tiny.config(**changes), (1, 1, 1))
  state = parts_lib.initial_state(run)
  batch = tiny.batch(16, 13, 48)
  apply = functools.partial(run.model.apply, mutable=['intermediates'])
  _, sown = jax.jit(apply)({'params': state.params}, batch['inputs'])
  logits = sown['intermediates']['decoder']['periods']['block_1']['ffn']['router_logits'][0]
  _, out = compiled_lib.compile_train_step(run).call(state, run.put(batch, 16))
  found = report.of_routers(run.config, [jax.device_get(out)])
  assert len(found) == 2 * 7  # the six of `RouterStats`, and `dead`
  for period, layer in enumerate((1, 3)):
    chosen = np.argmax(logits[period], axis=-1)
    counts = np.array([np.bincount(row, minlength=3) for row in chosen])
    place = f'router/decoder/layer_{layer}'
    np.testing.assert_allclose(found[f'{place}/load'], counts.sum(axis=0) / counts.sum(), rtol=1e-3)
    # Two slots: 13 tokens of a row, half of them, by three experts.
    past = np.maximum(counts - 2, 0).sum() / counts.sum()
    np.testing.assert_allclose(found[f'{place}/dropped'], past, rtol=1e-5)


@pytest.mark.parametrize('num_experts', [3, 17])
def test_picture(tmp_path, num_experts):
  board = TensorBoardTracker(str(tmp_path), step=0)
  log = Metrics(str(tmp_path), step=0, active=True, trackers=[board])
  rng = np.random.default_rng(0)
  for step in (5, 10, 15):
    values = {'tokens': step, 'loss': 2.5}
    for layer in (1, 3):
      place = f'router/decoder/layer_{layer}'
      values[f'{place}/load'] = rng.dirichlet(np.ones(num_experts)).tolist()
      values[f'{place}/dropped'] = values[f'{place}/entropy'] = 0.5
    log.write(step, **values)
    log.write(step, **{'eval/validation/loss': 2.0})
  log.close()
  path = plot_routers.router_curves(str(tmp_path))
  assert path == str(tmp_path / 'router.png')
  assert (tmp_path / 'router.png').read_bytes().startswith(b'\x89PNG')
  # Lists are for the JSON lines; TensorBoard has one figure a layer.
  [events] = (tmp_path / 'tensorboard').iterdir()
  assert b'layer_3/dropped' in events.read_bytes()
  assert b'/load' not in events.read_bytes()


def test_no_picture_without_experts(tmp_path):
  log = Metrics(str(tmp_path), step=0, active=True)
  log.write(1, tokens=1, loss=2.5)
  log.close()
  assert plot_routers.router_curves(str(tmp_path)) is None
  assert runs.loss_curves([str(tmp_path)])
  assert not (tmp_path / 'router.png').exists()


# Speeds -------------------------------------------------------------------


@pytest.fixture
def known_peak(monkeypatch):
  monkeypatch.setattr(report.peaks, 'of_device', lambda device: (1e12, 'a figure'))


@pytest.fixture
def meter(known_peak):
  """A meter of a run of 16 rows of 7 tokens on eight devices."""
  config = {**tiny.MESHABLE, 'schedule.name': 'linear(peak=0.5, warmup=4)'}
  run = tiny.build(tiny.config(**config), (2, 2, 2))
  return made_meter(run, {Shape(16, 7): 3e6})


def made_meter(run, flops):
  """One that finds so many FLOPs a token in compiled steps."""
  steps = {s: Compiled(None, 0.0, int(n * s.tokens)) for s, n in flops.items()}
  return report.Meter(run, tiny.params(run.model), steps)


def test_the_meter_says_one_line(known_peak, caplog):
  """What the FLOPs of a token are; the definitions are in `inspect --mfu`."""
  run = tiny.build(tiny.config(**tiny.MESHABLE), (2, 2, 2))
  matmul = 48 * 24 + 3 * (24 * 16 * 2 + 24 * 8 * 2 + 2 * 24 * 40)
  per_token = 6 * matmul + 12 * 3 * 8 * 2 * 7
  with caplog.at_level('INFO', 'gpt_jax'):
    made_meter(run, {Shape(16, 7): 3e6})
  assert [record.getMessage() for record in caplog.records] == [
    f'MFU: {per_token:.4g} FLOPs a token, at most 8e+12 FLOP/s (a figure)'
  ]


def test_meter(meter, monkeypatch):
  now = [100.0]
  clock = types.SimpleNamespace(perf_counter=lambda: now[0])
  monkeypatch.setattr(report, 'time', clock)
  meter.restart()
  for step in range(1, 5):
    meter.add({'loss': np.float32(step), 'grad_norm': np.float32(10 * step)})
    now[0] += 0.5
  assert [output['loss'] for output in meter.fetch()] == [1, 2, 3, 4]
  values = meter.read(8)
  assert values['tokens'] == 8 * 16 * 7
  assert (values['loss'], values['grad_norm']) == (4, 40)
  # Of the eighth step, which the schedule calls 7: 3 of 16 after the warm-up.
  assert values['learning_rate'] == pytest.approx(0.5 * (1 - 3 / 16))
  assert values['tokens_per_second'] == pytest.approx(4 * 16 * 7 / 2)
  assert values['step_seconds'] == pytest.approx(0.5)
  model = tiny.MESHABLE
  matmul = 48 * 24 + 3 * (24 * 16 * 2 + 24 * 8 * 2 + 2 * 24 * 40)
  attention = model['model.num_layers'] * 8 * 2 * 7
  per_token = 6 * matmul + 12 * attention
  assert values['mfu'] == pytest.approx(56 * 4 * per_token / 8e12)
  # The 7 tokens of a row see 1 to 7: 4 in the mean.
  causal = 6 * matmul + 12 * attention * 4 / 7
  assert values['mfu_causal'] == pytest.approx(56 * 4 * causal / 8e12)
  assert values['mfu_compiler'] == pytest.approx(56 * 4 * 3e6 / 8e12)
  # The next line counts from here.
  meter.add({'loss': np.float32(5), 'grad_norm': np.float32(50)})
  now[0] += 0.25
  meter.fetch()
  assert meter.read(9)['step_seconds'] == pytest.approx(0.25)


def test_few_steps_are_under_way(meter, monkeypatch):
  """However seldom a run logs; of slow steps just one besides the first."""
  now, waited = [100.0], []
  clock = types.SimpleNamespace(perf_counter=lambda: now[0])
  monkeypatch.setattr(report, 'time', clock)
  monkeypatch.setattr(jax, 'block_until_ready', waited.append)
  outputs = [{'loss': np.float32(i), 'grad_norm': 1.0} for i in range(11)]
  meter.restart()
  for seconds, most in ((0.05, 1), (0.5, sharding.MOST_STARTED), (0.05, 1)):
    waited.clear()
    for output in outputs:
      meter.add(output)
      now[0] += seconds
    assert waited == outputs[:-most]
    meter.fetch()
    meter.read(11)


class Pending:
  """An array that is ready once it is told so, or waited for."""

  ready = False

  def is_ready(self):
    return self.ready

  def block_until_ready(self):
    self.ready = True
    return self


def test_a_step_counts_once_it_is_done(meter):
  outputs = [Pending() for _ in range(5)]
  outputs[0].ready = True
  meter._outputs = [{'loss': output} for output in outputs]
  assert meter.under_way() == 4
  outputs[2].ready = True  # the second is not
  assert meter.under_way() == 4
  outputs[1].ready = True
  assert meter.under_way() == 2
  assert [*meter.finishing()] == [1, 0]
  meter.fetch()
  assert meter.under_way() == 0


def test_the_time_left_follows_from_all_steps(monkeypatch):
  """However they come: here 2 s each, in bursts of ten, after step 100."""
  screen, now = io.StringIO(), [50.0]
  console = rich.console.Console(file=screen, force_terminal=True, width=120)
  monkeypatch.setattr(report, 'console', console)
  clock = types.SimpleNamespace(monotonic=lambda: now[0])
  monkeypatch.setattr(report, 'time', clock)
  with report.Progress(total=400, done=100, active=True) as progress:
    progress.advance(100)
    assert progress._left(100) == ''
    for step in range(110, 210, 10):
      now[0] += 20
      for done in range(step - 9, step + 1):
        progress.advance(done)
      progress.show(step, 'loss 2.5')
  shown = screen.getvalue().splitlines()[-2]
  assert '200/400' in shown
  assert '0:06:40 left' in shown


@pytest.mark.parametrize(
  'width, last', [(160, 'causal)'), (100, '2,285 tokens/s'), (80, '0.0014'), (40, '1.000')]
)
def test_a_narrow_terminal_shows_the_step_and_the_times(width, last, monkeypatch):
  """The line leaves out figures, from the last, and cuts nothing else."""
  screen = io.StringIO()
  console = rich.console.Console(file=screen, force_terminal=True, width=width, no_color=True)
  monkeypatch.setattr(report, 'console', console)
  text = 'mean_token_accuracy 1.000 | loss 0.0014 | 2,285 tokens/s | MFU 19% (17% causal)'
  with report.Progress(total=360, done=100, active=True) as progress:
    progress._start -= 400  # 4 s a step
    progress.show(200, text)
    line = progress._bar.tasks[0].fields['text']
  assert text.startswith(line)
  assert line.endswith(last)
  if width >= 80:
    shown = rich.text.Text.from_ansi(screen.getvalue()).plain.split('step')[-1]
    assert '200/360' in shown
    assert line in shown
    assert '0:10:40 left' in shown
    assert '0:00:00' in shown


def test_meter_across_stages(known_peak, monkeypatch):
  now = [100.0]
  clock = types.SimpleNamespace(perf_counter=lambda: now[0])
  monkeypatch.setattr(report, 'time', clock)
  changes = {
    **tiny.MESHABLE,
    'batch.size': 'ramp(0:16, 3_steps:32)',
    'batch.length': 'stages(3, 20%:7)',  # of 20 steps
  }
  run = tiny.build(tiny.config(**changes), (2, 2, 2))
  short, wide, large = Shape(16, 3), Shape(32, 3), Shape(32, 7)
  meter = made_meter(run, {short: 3e6, wide: 5e6, large: 7e6})
  for step in range(1, 6):
    if step == 2:
      meter.restart()  # after an evaluation, say
    meter.add({'loss': np.float32(step), 'grad_norm': np.float32(1)})
    now[0] += 0.5
  meter.fetch()
  values = meter.read(5)
  assert values['tokens'] == (3 * 16 + 32) * 3 + 32 * 7
  assert (values['batch_rows'], values['row_tokens']) == (32, 7)
  assert values['rows'] == 3 * 16 + 2 * 32
  # Steps 2 to 5 took 16, 16, 32 and 32 rows, the last of 7 tokens.
  assert values['tokens_per_second'] == pytest.approx((64 * 3 + 32 * 7) / 2)
  spent = 2 * 16 * 3 * 3e6 + 32 * 3 * 5e6 + 32 * 7 * 7e6
  assert values['mfu_compiler'] == pytest.approx(spent / 2 / 8e12)
  matmul = 48 * 24 + 3 * (24 * 16 * 2 + 24 * 8 * 2 + 2 * 24 * 40)
  # 3 layers of 8 heads of size 2; each token sees the others of its row.
  seen = 64 * 3 * 3 + 32 * 7 * 7
  spent = (64 * 3 + 32 * 7) * 6 * matmul + 12 * 3 * 8 * 2 * seen
  assert values['mfu'] == pytest.approx(spent / 2 / 8e12)


def test_meter_counts_the_wait_for_data(meter, monkeypatch):
  now = [100.0]
  clock = types.SimpleNamespace(perf_counter=lambda: now[0])
  monkeypatch.setattr(report, 'time', clock)

  def slow():
    for i in range(3):
      now[0] += 0.25
      yield i

  meter.restart()
  for _ in meter.waiting(slow()):
    now[0] += 1
    meter.add({'loss': np.float32(1), 'grad_norm': np.float32(1)})
  meter.fetch()
  assert meter.read(3)['data_wait_seconds'] == pytest.approx(0.25)
