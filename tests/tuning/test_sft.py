# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""`gpt-jax sft`, as a user would run it."""

import gzip
import json
import math
import pathlib

import jax
import numpy as np
import pytest

from gpt_jax.__main__ import main
from gpt_jax.core.nn import params
from gpt_jax.core.tokenizers import tokenizer
from gpt_jax.core.training import metrics
from gpt_jax.decoding.chat import ChatTemplate
from gpt_jax.hf_tokenizers import special_files
from gpt_jax.opening import models
from gpt_jax.tuning import method
from tests.support import tiny, whole_runs

ROOT = pathlib.Path(__file__).parents[2]
STEPS = 12


def dialogues(path, count, seed):
  """Answers that repeat the question's letter."""
  rng = np.random.default_rng(seed)
  lines = []
  for _ in range(count):
    letter = rng.choice([*'abcd'])
    chat = [
      {'role': 'user', 'content': f'say {letter}'},
      {'role': 'assistant', 'content': letter * int(rng.integers(2, 5))},
    ]
    lines.append(json.dumps({'messages': chat}) + '\n')
  opened = gzip.open if path.suffix == '.gz' else open
  with opened(path, 'wt', encoding='utf-8') as file:
    file.writelines(lines)
  return str(path)


@pytest.fixture(scope='module')
def files(tmp_path_factory):
  folder = tmp_path_factory.mktemp('files')
  return (dialogues(folder / 'train.jsonl.gz', 61, 1), dialogues(folder / 'dev.jsonl', 17, 2))


def flags(files, workdir, *more, init='none'):
  train, dev = files
  return [
    'sft',
    f'--config={ROOT}/configs/finetune/sft.py',
    f'--init={init}',
    f'--workdir={workdir}',
    "--config.finetune.task=sft('a', 'b', template='vicuna')",
    f'--train={train}',
    f'--dev={dev}',
    *tiny.flags(
      model=dict(num_layers=1, d_model=32, num_heads=4, context_length=96, dtype='float32'),
      tokenizer=dict(name='bytes'),
      finetune=dict(peak='1e-2'),
      batch=dict(size=8),
      schedule=dict(num_steps=STEPS),
      eval=dict(every_steps=6, rows=8),
      checkpoint=dict(every_steps=4),
      log=dict(every_steps=2),
    ),
    *more,
  ]


@pytest.fixture(scope='module')
def workdir(tmp_path_factory, files):
  folder = tmp_path_factory.mktemp('run') / 'w'
  assert main(flags(files, folder)) == 0
  return folder


@pytest.mark.slow
def test_the_run_is_told(workdir):
  result = json.loads((workdir / 'result.json').read_text())
  assert result['step'] == STEPS
  assert result['train']['examples'] == 61
  assert (result['train']['cut'], result['train']['left_out']) == (0, 0)
  dev = result['dev']
  assert dev['examples'] == 17
  assert dev['num_tokens'] == dev['learned_tokens']
  np.testing.assert_allclose(dev['perplexity'], np.exp(dev['loss']))
  lines = metrics.read(str(workdir))
  judged = [m for m in lines if 'eval/validation/loss' in m]
  assert [m['step'] for m in judged] == [6, 12]
  assert judged[-1]['eval/validation/loss'] == dev['loss']
  assert judged[-1]['eval/validation/loss'] < judged[0]['eval/validation/loss']
  logged = [m for m in lines if 'entropy' in m]
  assert len(logged) == STEPS // 2
  assert 0 < logged[-1]['mean_token_accuracy'] < 1


def test_a_resumed_run_has_the_same_bits(workdir, files, tmp_path):
  _, *argv = flags(files, workdir)
  argv = [flag for flag in argv if not flag.startswith('--workdir')]
  first = whole_runs.Trained('sft', workdir, argv)
  whole_runs.assert_resumes(first, tmp_path / 'w', 'sft')
  again = (tmp_path / 'w/result.json').read_text()
  assert again == (workdir / 'result.json').read_text()


@pytest.mark.slow
def test_the_model_chats_here_and_in_transformers(workdir, files, tmp_path):
  """Its template is saved, exported, and taken by the next fine-tuning."""
  chat = [{'role': 'user', 'content': 'say b'}]
  prompts = tmp_path / 'prompts.jsonl'
  prompts.write_text(json.dumps({'messages': chat}) + '\n')
  drawn = ['--temperature=0', '--max_tokens=9', '--json']
  out = tmp_path / 'out.jsonl'
  drawn = ['--temperature=0', '--max_tokens=9']
  argv = ['generate', f'--workdir={workdir}', f'--prompts={prompts}', *drawn]
  assert main([*argv, f'--out={out}']) == 0
  assert json.loads(out.read_text())
  folder = tmp_path / 'hf'
  assert main(['convert', f'--workdir={workdir}', f'--to_hf={folder}']) == 0
  ours = tokenizer.load(str(workdir / 'tokenizer'))
  call = f"hf_tokenizer('{folder}/tokenizer.json')"
  theirs = special_files.tokenizer(call, str(folder))
  templates = [ChatTemplate.load(str(path)) for path in (workdir / 'tokenizer', folder)]
  ids = [
    template and template.ids(made, chat)
    for template, made in zip(templates, (ours, theirs), strict=True)
  ]
  assert ids[0] == ids[1] == [*b'USER: say b ASSISTANT:']
  more = ['--config.finetune.task=sft("a", "b")', '--config.schedule.num_steps=1']
  assert main(flags(files, tmp_path / 'w2', *more, init=str(folder))) == 0
  result = json.loads((tmp_path / 'w2/result.json').read_text())
  before = json.loads((workdir / 'result.json').read_text())
  assert result['train'] == before['train']


@pytest.mark.slow
def test_adapters_are_trained_beside_the_model(workdir, files, tmp_path):
  """Of the merged model the adapted kernels differ, and nothing else."""
  more = ["--config.finetune.lora=lora(rank=3, on='query')", '--config.schedule.num_steps=2']
  argv = flags(files, tmp_path / 'w', *more, init=str(workdir))
  assert main(argv) == 0
  trees = [models.load_state(str(path))[1].eval_params for path in (workdir, tmp_path / 'w')]
  same = jax.tree.map(lambda *x: bool(np.all(x[0] == x[1])), *trees)
  changed = {
    params.name_of(path) for path, equal in jax.tree_util.tree_leaves_with_path(same) if not equal
  }
  assert changed and all('query/kernel' in name for name in changed)


@pytest.mark.parametrize(
  ('epochs', 'count', 'rows', 'steps', 'every'),
  [
    (80.0, 12, 16, 60, 3),  # 960 rows; the end of every fourth pass
    (3.0, 100, 32, 10, 4),  # 300 rows in ten batches
    (0.1, 40, 2, 2, 20),
    (21.0, 64, 16, 84, 8),
    (1.0, 3, 16, 1, 1),
  ],
)
def test_as_many_epochs_as_asked_for(epochs, count, rows, steps, every):
  """Of few rows too, and at most twenty evaluations."""
  assert method.steps_of(epochs, count, rows) == steps
  often = math.ceil(epochs / method.EVALUATIONS)
  assert method.steps_of(often, count, rows) == every
  assert steps // every <= 20
