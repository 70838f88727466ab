# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What training refuses: a config, a teacher, a folder; nothing is written."""

import pathlib
import re
import sys

import pytest

from configs import electra
from gpt_jax.__main__ import main
from gpt_jax.core import config as config_lib
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers import tokenizer
from gpt_jax.core.training import parts as parts_lib
from gpt_jax.core.training.run import check_before
from gpt_jax.opening import models
from gpt_jax.reports import goodput
from tests.support import tiny
from tests.support.golden_io import ROOT as GOLDEN

CONFIGS = pathlib.Path(__file__).parents[3] / 'configs'
FULL = '; it must divide a row or be a whole number of rows, and all groups '
FULL += 'must be full: give 0 for one group a row'
# Fields that the cases have in common, by the name before their changes.
COMMON = {
  '': {},
  # A causal model with rotated queries, and a kernel that serves it.
  'kernel': {
    'model.attention_backend': 'splash(interpret=True)',
    **{'model.context_length': 128, 'model.head_size': 64},
    **{'model.num_layers': 2, 'model.position': 'rope', 'mesh.tensor': 2},
  },
  # Rows of 16 tokens over all eight devices.
  'split': {
    **tiny.MESHABLE,
    **{'model.context_length': 16, 'model.num_layers': 1},
    **{'model.position': 'rope', 'batch.size': 2, 'batch.micro_rows': 2},
    **{'schedule.name': 'constant(peak=1e-2)'},
    **{'mesh.context': 8, 'mesh.fsdp': 1},
  },
}
REPLICAS = {'optim.outer': 'diloco(replicas=4)'}
CONFIGS_REFUSED = [
  # What the attention's backend serves.
  *(
    ('kernel', {f'model.{field}': value}, f'model.attention_backend=.*{why}')
    for field, value, why in (
      ('context_length', 130, 'the length 130 is not a multiple of 128'),
      ('head_size', 72, 'head_size=72 is below 64 or no multiple of 32'),
      ('position', 'alibi', 'model.position adds a bias'),
      ('position', 'transformer_xl', 'model.position adds products with vec'),
      ('dropout', 'rates(attention=0.1)', 'model.dropout drops attention'),
      ('attention_backend', 'splash', 'it needs a TPU'),
      ('attention_backend', 'cudnn', 'it needs a GPU'),
    )
  ),
  # The tokens of a micro-batch that int32 sums hold.
  ('', {**tiny.MESHABLE, 'model.context_length': 80_000, 'mesh.fsdp': 8,
        'model.matmul': 'int8'},
   'model.matmul=int8: the gradient of a kernel sums 160,000 tokens of a device'),
  ('kernel', {'model.num_heads': 3, 'model.num_kv_heads': 3},
   r'3 \(heads\) does not divide'),
  # Rows over devices.
  ('split', {'model.context_length': 24},
   'rows of 24 tokens are not divisible by 16, tw'),
  ('split', {'model.position': 'transformer_xl'},
   'scores by distances within whole rows, which mesh.context=8 splits'),
  ('split', {'model.attention': 'bigbird', 'objective.name': 'masked'},
   "model.attention='bigbird': the blocks of bigbird are those of whole row"),
  ('split', {'model.attention_backend': 'splash'},
   'model.attention_backend=splash: it needs a TPU'),
  ('split', {'model.attention_backend': 'ulysses', 'model.num_heads': 4},
   'ulysses: model.num_heads=4 does not divide over the 8 devices'),
  # Layers over stages.
  *(
    ('', {**tiny.MESHABLE, 'model.num_layers': 6, 'mesh.stage': 2, **changes},
     message)
    for changes, message in (
      ({'mesh.stage': 4}, 'mesh.stage=4: the 6 layers of model.num_layers do '
       'not divide over 4 stages x 1 repeats of whole periods of 1 layers, 4;'),
      ({'model.pipeline': 'circular(repeats=2)', 'model.remat': 'full'},
       'the 6 layers .* 2 stages x 2 repeats of whole periods of 1 layers, 4'),
      ({'model.attention': 'full, local(window=3)'},
       '2 stages x 1 repeats of whole periods of 2 layers, 4; change mesh'),
      ({'model.pipeline': 'circular(repeats=3)'},
       "with 3 repeats model.remat='none' would store the weights once more"),
      ({'model.pipeline': "circular(weights='stage')",
        'model.ffn': 'switch(num_experts=4)'},
       "with weights='stage' a device computes its rows alone, and the expert"),
      ({'model.num_encoder_layers': 3, 'objective.name': 'denoise'},
       'model.num_encoder_layers=3: its layers read the encoder, so that '
       'mesh.stage=2 does not split the 6; give mesh.stage=1'),
      ({'model.share': 'all'}, "model.share='all': its layers share parameter"),
      ({'mesh.rules.layers': ''}, "mesh.stage=2: mesh.rules has 'stage' for b"),
      ({'mesh.rules.embed': 'fsdp, stage'}, 'for batch, embed, layers; it spl'),
    )
  ),
  # Experts and their groups of tokens.
  *(
    ('', {'model.ffn': f'switch(num_experts={experts})', **changes}, why)
    for experts, changes, why in (
      ('6', {'mesh.expert': 4},
       '6 experts do not divide over the 4 devices of mesh axes expert; '
       'change num_experts or the mesh'),
      ('16, capacity_factor=1.0', {},
       'capacity_factor=1.0 gives each of 16 experts 0.812 of the 13 tokens '
       'of a group, which rounds to zero; raise it, give a larger group_size'),
      ('2, top_k=3', {}, r'top_k=3\): must be from 1 to num_experts=2'),
      ('2, group_size=5', {},
       f'group_size=5 does not fit 16 rows of 13 tokens{FULL}'),
      ('2, group_size=104', {'batch.micro_rows': 4, 'mesh.tensor': 8},
       f'group_size=104 does not fit 4 rows of 13 tokens{FULL}'),
      ('2, group_size=26',
       {'batch.size': 12, 'batch.micro_rows': 3, 'mesh.tensor': 8},
       'group_size=26 does not fit 3 rows'),
      ('2, eval_capacity_factor=1, group_size=52', {'eval.rows': 7},
       f'group_size=52 does not fit 7 rows of 13 tokens{FULL}'),
      # Evaluation takes 8 rows, for each device has one.
      ('2, eval_capacity_factor=1, group_size=39',
       {'eval.rows': 6, 'batch.size': 24},
       f'group_size=39 does not fit 8 rows of 13 tokens{FULL}'),
    )
  ),
  # The optimizer.
  ('', {'optim.on_spike': 'rewind(before=-1)'}, 'before=-1 must be at least 0'),
  # Replicas.
  ('', {**REPLICAS, 'mesh.data': 8}, 'do not divide over mesh.data=8; give re'),
  ('', {**REPLICAS, 'mesh.data': 4, 'mesh.rules.embed': 'data, fsdp'},
   'mesh.rules splits more than the rows by data'),
  ('', {**REPLICAS, 'mesh.stage': 2, 'model.num_layers': 4,
        'mesh.rules.layers': 'stage',
        'mesh.rules.batch': 'data, stage, fsdp, expert'},
   'its replicas have no pipelines'),
  # Trackers.
  *(
    ('', {'log.trackers': value}, f'log.trackers.*{why}')
    for value, why in (
      ('mlflow', "unknown 'mlflow'; one of none, tensorboard, wandb"),
      ('wandb', 'project'),
      ("wandb(project='')", "project='' is empty"),
      ("wandb(project='p', mode='of')", 'online, offline'),
      ('tensorboard(3)', 'too many positional arguments'),
      ('tensorboard, tensorboard', 'twice'),
      ('tensorboard, none', "'none' excludes other trackers"),
      ('', 'is empty'),
      ("wandb(project='p', mode='offline')",
       r'needs the package wandb; run pip install -c constraints.txt -e '),
    )
  ),
]  # fmt: skip


@pytest.mark.parametrize(('common', 'changes', 'message'), CONFIGS_REFUSED)
def test_configs(monkeypatch, common, changes, message):
  monkeypatch.setitem(sys.modules, 'wandb', None)
  config = tiny.config(**{**COMMON[common], **changes})
  with pytest.raises(UsageError, match=message):
    check_before(config_lib.resolve(config), '')


@pytest.mark.parametrize(
  ('common', 'changes'),
  [
    ('kernel', {}),
    ('kernel', {'model.dropout': 'rates(residual=0.1)'}),
    # Takes the reference instead.
    ('kernel',
     {'model.attention_backend': 'auto', 'model.position': 'alibi'}),
    # Rows that do not divide over the eight devices.
    ('', {'batch.size': 12}),
    ('', {'batch.size': 'ramp(0:3, 9_steps:12)', 'batch.micro_rows': 1}),
    # Groups of two rows: of 12 rows and 4 that fill up.
    ('', {'model.ffn': 'switch(num_experts=2, group_size=26)',
          'batch.size': 12, 'mesh.tensor': 8}),
  ],
)  # fmt: skip
def test_configs_that_are_served(common, changes):
  config = tiny.config(**{**COMMON[common], **changes})
  check_before(config_lib.resolve(config), '')


def test_replicas_do_not_train_in_stages():
  config = electra.get_config('cpu').unlock()
  config.model.vocab_size = 97
  config.models.generator.d_model = config.model.d_model
  config.update_from_flattened_dict({**REPLICAS, 'objective.name': 'electra(generator_steps=5)'})
  with pytest.raises(UsageError, match=r'optim\.outer.*in stages'):
    parts_lib.build(config_lib.resolve(config))


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'mesh.stage': 2}, r"mesh\.rules\.layers='stage'"),
    ({'objective.name': 'electra(generator_steps=5)'}, 'in stages'),
  ],
)
def test_moments_in_the_hosts_memory(changes, message):
  config = electra.get_config('cpu').unlock()
  config.model.vocab_size = 97
  config.models.generator.d_model = config.model.d_model
  config.update_from_flattened_dict({'optim.state': 'host', **changes})
  with pytest.raises(UsageError, match=message):
    parts_lib.build(config_lib.resolve(config))


COMMANDS_REFUSED = [
  ('distilbert.py:cpu', [], 'objective.teacher is empty: objective.name='),
  ('distilbert.py:cpu', ['objective.teacher=none'],
   "objective.teacher='none': is not a model"),
  ('distilbert.py:cpu', ['objective.teacher=/no/such'],
   'objective.teacher=/no/such: holds no config.json; give a workdir'),
  ('distilbert.py:cpu', [f'objective.teacher={GOLDEN}/electra_disc'],
   'electra_disc: has neither tokenizer.json nor'),
  ('distilbert.py:cpu', ['objective.name=masked', 'objective.teacher=x'],
   'has no teacher; leave it out'),
  ('distil.py:{}/teacher',
   ["data.source=text('{}/*.txt')", 'data.holdout=none',
    'data.store={}/store', 'tokenizer.name=characters',
    'model.vocab_size=257'],
   "its tokenizer, bytes, is not the run's, characters; give the teacher's"),
  # Before the data, which are not there.
  ('smoke.py', ["data.source=text('nowhere/*.txt')", 'log.trackers=mlflow'],
   "log.trackers='mlflow': unknown 'mlflow'"),
]  # fmt: skip


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """A text, and a model that reads bytes."""
  folder = tmp_path_factory.mktemp('teacher')
  (folder / 'a.txt').write_text('The cat sat on the mat.\n' * 40)
  tiny.save(folder / 'teacher', tokenizer.build('bytes', []))
  return folder


@pytest.mark.parametrize(('config', 'fields', 'message'), COMMANDS_REFUSED)
def test_commands(folder, tmp_path, capfd, config, fields, message):
  flags = [f'--config={CONFIGS}/{config}']
  flags += [f'--config.{field}' for field in fields]
  flags = [flag.replace('{}', str(folder)) for flag in flags]
  assert main(['train', *flags, f'--workdir={tmp_path}/w']) == 2
  assert re.search(message, capfd.readouterr().err.strip().splitlines()[-1])
  assert not (tmp_path / 'w').exists()


def test_folders_without_a_run(tmp_path):
  with pytest.raises(UsageError, match=f'--workdir={tmp_path}: holds no run'):
    models.load(str(tmp_path))
  with pytest.raises(UsageError, match='does not begin with a start'):
    goodput.wall_time(str(tmp_path))
  assert not [*tmp_path.iterdir()]
  config = config_lib.resolve(tiny.config(**tiny.MESHABLE))
  (tmp_path / 'config.json').write_text(config_lib.to_json(config))
  with pytest.raises(UsageError, match='holds no checkpoint yet'):
    models.load(str(tmp_path))
