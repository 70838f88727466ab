# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints larger than memory, and conversions that were stopped."""

import json
import os
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from gpt_jax import __main__, hf
from gpt_jax.core.files import arrays
from gpt_jax.core.spec import UsageError
from gpt_jax.hf import checkpoint
from gpt_jax.opening import importing
from gpt_jax.opening import models as trained_lib
from gpt_jax.tuning import exporting
from tests.support.golden_io import ROOT, config, tensors

LLAMA = ROOT / 'llama_gqa'
INDEX = 'model.safetensors.index.json'


def sharded(folder):
  """The tensors of all files that an index names."""
  places = json.loads((folder / INDEX).read_text())['weight_map']
  found = {f: load_file(folder / f) for f in {*places.values()}}
  assert sum(map(len, found.values())) == len(places)
  return {name: found[file][name] for name, file in places.items()}


@pytest.fixture(scope='module')
def workdir(tmp_path_factory):
  folder = tmp_path_factory.mktemp('convert') / 'w'
  importing.from_hf(str(LLAMA), str(folder))
  return folder


def test_exports_are_split_into_files_of_a_size(tmp_path, workdir):
  out, again = tmp_path / 'out', tmp_path / 'again'
  argv = ['convert', f'--to_hf={out}', f'--workdir={workdir}']
  assert __main__.main([*argv, '--max_shard_size=20KB']) == 0
  before, after = tensors(LLAMA), sharded(out)
  assert {*before} == {*after}
  for name, value in before.items():
    np.testing.assert_array_equal(after[name], value, name, strict=True)
  largest = max(x.nbytes for x in before.values())
  sizes = [
    sum(x.nbytes for x in load_file(path).values()) for path in out.glob('model-*.safetensors')
  ]
  assert len(sizes) > 3 and max(sizes) <= max(largest, 20_000)
  index = json.loads((out / INDEX).read_text())
  assert index['metadata']['total_size'] == sum(sizes)
  # An import of it is the same model.
  importing.from_hf(str(out), str(again))
  _, params = hf.load(str(out))
  state = trained_lib.load_state(str(again))[1]
  np.testing.assert_array_equal(state.params['embed']['embedding'], params['embed']['embedding'])


def test_nothing_is_read_before_it_is_needed(tmp_path, monkeypatch, workdir):
  """Nothing of the tensors with the headers, and then one at a time."""
  reading = []

  def read(self, name, read=checkpoint.TensorReader.read):
    reading.append(name)
    return read(self, name)

  monkeypatch.setattr(checkpoint.TensorReader, 'read', read)
  source = hf.HeaderSource(str(LLAMA))
  assert not reading

  came = []

  class Places:
    """Notes how much was read when each part comes."""

    def __getitem__(self, index):
      return self

    def __setitem__(self, where, part):
      came.append(len(reading))

  source.fill(Places())
  # Each tensor's parts come before the next tensor is read.
  assert came == sorted(came)
  assert {*came} == {*range(1, len(reading) + 1)}


def test_a_stopped_import_starts_again(tmp_path, monkeypatch, capsys):
  w = tmp_path / 'w'
  fill = hf.HeaderSource.fill
  calls = []

  def stops(self, to, told):
    calls.append(to)
    fill(self, to, told)
    if len(calls) == 2:
      raise KeyboardInterrupt

  argv = ['convert', f'--from_hf={LLAMA}', f'--workdir={w}']
  with monkeypatch.context() as patched:
    patched.setattr(hf.HeaderSource, 'fill', stops)
    assert __main__.main(argv) != 0
  assert len(calls) == 2
  assert not (w / 'config.json').exists()
  with pytest.raises(UsageError, match='holds no run'):
    trained_lib.load_state(str(w))
  assert __main__.main(argv) == 0
  assert not (w / importing.UNFINISHED).exists()
  trained_lib.load_state(str(w))


def test_a_stopped_export_is_no_model(tmp_path, monkeypatch, workdir):
  out = tmp_path / 'out'
  saved = []

  def stops(tensors, path, metadata):
    saved.append(path)
    if len(saved) == 3:
      raise OSError(28, 'No space left on device')
    save_file(tensors, path, metadata=metadata)

  with monkeypatch.context() as patched:
    patched.setattr(arrays, 'save_file', stops)
    with pytest.raises(OSError, match='No space'):
      exporting.to_hf(str(workdir), str(out), 20_000)
  assert not [*out.iterdir()]
  # As if the power had gone.
  (out / 'model.safetensors').write_bytes(b'an older one')
  (out / 'model-00001-of-00009.safetensors.new').write_bytes(b'half')
  (out / 'README.md').write_text('mine')
  with pytest.raises(UsageError, match=r'config\.json'):
    hf.load(str(out))
  exporting.to_hf(str(workdir), str(out), 20_000)
  assert (out / 'README.md').exists()
  assert not [*out.glob('*.new')] and not (out / 'model.safetensors').exists()
  assert {*sharded(out)} == {*tensors(LLAMA)}


def write_like_7b(folder, *, layers=32, width=640, hidden=1728, vocab=4001):
  """LLaMA 7B's shape, narrower: 327 MB of bfloat16 in files of four layers.

  Returns:
    The bytes of all tensors.
  """
  rng = np.random.default_rng(0)

  def matrix(*shape):
    return rng.standard_normal(shape, np.float32).astype(ml_dtypes.bfloat16)

  def layer(i):
    block = f'model.layers.{i}'
    shapes = {f'self_attn.{x}_proj': (width, width) for x in 'qkvo'}
    shapes |= {f'mlp.{x}_proj': (hidden, width) for x in ('gate', 'up')}
    shapes |= {'mlp.down_proj': (width, hidden), 'input_layernorm': (width,)}
    shapes['post_attention_layernorm'] = (width,)
    return {f'{block}.{n}.weight': matrix(*s) for n, s in shapes.items()}

  def outside():
    tables = ('model.embed_tokens', 'lm_head')
    out = {f'{name}.weight': matrix(vocab, width) for name in tables}
    return out | {'model.norm.weight': matrix(width)}

  groups = [range(i, i + 4) for i in range(0, layers, 4)]
  parts = [lambda g=g: {n: x for i in g for n, x in layer(i).items()} for g in groups]
  places, size = {}, 0
  folder.mkdir()
  for number, part in enumerate([*parts, outside]):
    found = part()
    name = f'part-{number}.safetensors'
    save_file(found, folder / name, metadata={'format': 'pt'})
    places |= dict.fromkeys(found, name)
    size += sum(x.nbytes for x in found.values())
  (folder / INDEX).write_text(json.dumps({'weight_map': places}))
  sizes = {'num_hidden_layers': layers, 'hidden_size': width}
  sizes |= {'intermediate_size': hidden, 'vocab_size': vocab}
  sizes |= {'num_attention_heads': 8, 'num_key_value_heads': 8}
  values = config(ROOT / 'llama_mha') | sizes | {'head_dim': width // 8}
  (folder / 'config.json').write_text(json.dumps(values))
  return size


# As users run it. A child's ru_maxrss would begin with its parent's.
PEAK = """
import re, sys
from gpt_jax import __main__
assert __main__.main(sys.argv[1:]) == 0
found = re.search(r'VmHWM:\\s+(\\d+) kB', open('/proc/self/status').read())
print(int(found[1]) * 1024)
"""


def peak(*argv):
  """The most memory of `gpt-jax convert` in bytes."""
  run = [sys.executable, '-c', PEAK, 'convert', *argv]
  environment = os.environ | {'XLA_FLAGS': '', 'JAX_PLATFORMS': 'cpu'}
  done = subprocess.run(run, capture_output=True, text=True, env=environment)
  assert done.returncode == 0, done.stderr
  return int(done.stdout.split()[-1])


@pytest.mark.long
@pytest.mark.slow
def test_memory_is_a_quarter_of_the_checkpoint(tmp_path, record_property):
  source, w, out = (tmp_path / name for name in ('hf', 'w', 'out'))
  size = write_like_7b(source)
  given = f'--workdir={w}'
  # What a conversion of next to nothing takes.
  base = peak(f'--from_hf={ROOT / "llama_mha"}', f'--workdir={tmp_path / "x"}')
  imports = peak(f'--from_hf={source}', given) - base
  exports = peak(f'--to_hf={out}', given, '--max_shard_size=25MB') - base
  record_property('figures', json.dumps([size, base, imports, exports]))
  assert imports < size / 4
  assert exports < size / 4
  after = sharded(out)
  for path in source.glob('*.safetensors'):
    for name, value in load_file(path).items():
      assert value.tobytes() == after.pop(name).tobytes(), name
  assert not after
