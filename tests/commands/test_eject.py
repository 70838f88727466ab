# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""gpt-jax eject: what it prints and writes, and what it refuses."""

import ast

import numpy as np
import pytest

from gpt_jax.__main__ import main
from gpt_jax.core.tokenizers import simple
from gpt_jax.ejecting import file
from tests.support import tiny
from tests.support.tiny import one_device  # noqa: F401

GPT2 = '--config=configs/gpt2.py:small'


def test_prints_a_program(capsys):
  assert main(['eject', GPT2, '--config.model.num_layers=3']) == 0
  printed = capsys.readouterr().out
  assert printed.startswith('"""GPT-2 (Radford et al., 2019), configs/gpt2.py:small.\n')
  assert '\nNUM_LAYERS = 3\n' in printed
  assert 'def pre_block(' in printed
  ast.parse(printed)


def test_without_ruff_it_is_a_program_too(monkeypatch, capsys):
  monkeypatch.setattr(file, '_ruff', lambda: None)
  assert main(['eject', GPT2]) == 0
  compile(capsys.readouterr().out, 'gpt2.py', 'exec')


def test_a_run_and_its_weights(tmp_path, capsys):
  workdir = tmp_path / 'W'
  workdir.mkdir()
  tiny.save(workdir, simple.Bytes(), **{'model.num_kv_heads': tiny.H, 'optim.name': 'adamw'})
  out, weights = tmp_path / 'run.py', tmp_path / 'run.npz'
  flags = [f'--workdir={workdir}', f'--out={out}', f'--weights={weights}']
  assert main(['eject', *flags]) == 0
  assert capsys.readouterr().out.strip() == str(out)
  with np.load(weights) as arrays:
    assert arrays['params/layers/4/attention/query/kernel'].shape == (tiny.D, tiny.H * tiny.K)
    assert len([n for n in arrays if n.startswith('params/layers/')]) == 5 * 16


@pytest.mark.parametrize(
  ('flags', 'said'),
  [
    ([], 'give one of --config and --workdir'),
    ([GPT2, '--workdir=W'], 'give one of --config and --workdir'),
    ([GPT2, '--weights=w.npz'], '--weights=w.npz: of which model?'),
    ([GPT2, '--init=W'], '--init=W: is for --weights'),
    ([GPT2, '--out=gpt2.txt'], '--out=gpt2.txt'),
    (['--config=configs/gpt1.py:cpu'], 'optim.name='),
    (['--config=configs/smoke.py'], 'model.vocab_size: is empty'),
  ],
)
def test_refusals_are_one_line(flags, said, capsys):
  assert main(['eject', *flags]) == 2
  error = capsys.readouterr().err.strip().splitlines()[-1]
  assert said in error
