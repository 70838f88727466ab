# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Configs that cannot be used: what is given, and what the error says."""

import functools
import math
import pathlib
import re

import pytest

from configs import base, bert, electra, t5
from configs.finetune import base as tuning
from gpt_jax import __main__
from gpt_jax.core import config as config_lib
from gpt_jax.core import spec
from gpt_jax.core.config import flatten, loading, validation
from gpt_jax.core.config.validation import OPTIONS
from gpt_jax.core.nn.choices import CHOICES, PATTERNS
from gpt_jax.core.ranges import OneOf, Range
from gpt_jax.core.spec import UsageError
from gpt_jax.reports import explaining
from tests.support import tiny

CONFIGS = pathlib.Path(__file__).parents[3] / 'configs'

# What the rows of the table do with what is given.


def resolve(changes):
  """The tiny config with some fields changed."""
  config_lib.resolve(tiny.holding(**changes))


def model(fields):
  """The same with fields of the model, whatever the objective needs."""
  changes = {f'model.{name}': value for name, value in fields.items()}
  config_lib.resolve_model(tiny.holding(**changes))


def words(fields):
  """The same with a tokenizer of words."""
  changes = {f'model.{name}': value for name, value in fields.items()}
  changes['tokenizer.name'] = 'words'
  config_lib.resolve_model(tiny.holding(**changes))


def stacks(fields):
  """An encoder-decoder whose stacks share their parameters."""
  model({'num_encoder_layers': 5, 'share': 'stacks', **fields})


def source(fields):
  """An encoder-decoder with an additional encoder for its sources."""
  model({'num_source_layers': 1, 'num_encoder_layers': 5, **fields})


def lstm(fields):
  """A model of LSTMs."""
  plain = {'attention': 'lstm(17)', 'block': 'plain', 'position': 'none'}
  model({**plain, **fields})


def source_tokens(number):
  """A tokenizer with `number` source tokens; the model has 12."""
  fields = {'num_encoder_layers': 5, 'source_vocab_size': 12}
  fields['num_source_layers'] = 1
  if number == 12:  # without an encoder for them
    fields = {}
  changes = {f'model.{name}': value for name, value in fields.items()}
  config = config_lib.resolve_model(tiny.config(**changes))
  config_lib.set_vocab_size(config, 19, 'sides', number)


def part(fields):
  """ELECTRA with fields of its generator."""
  config = electra.get_config('small').unlock()
  config.models.generator.unlock().update(fields)
  config_lib.resolve(config)


def without_part(read):
  config = electra.get_config('small').unlock()
  config.models = {}
  read(config)


def with_teacher(section):
  """BERT, which learns from none."""
  config = bert.get_config().unlock()
  config.models = {'teacher': section}
  config_lib.resolve(config)


def tokenizer(name):
  """ELECTRA with 97 tokens in one of its models, of 101 of the tokenizer."""
  config = electra.get_config('small').unlock()
  config.model.vocab_size = 107
  section = config.models.generator if name == 'generator' else config.model
  section.vocab_size = 97
  config_lib.set_vocab_size(config_lib.resolve(config), 101, 'bytes')


def lengths(text):
  """T5 with rows of several lengths."""
  config = t5.get_config('small').unlock()
  config.batch.length = text
  config_lib.resolve(config)


def labels(found):
  """The classes that a run of fine-tuning has filled in."""
  config = config_lib.unlocked(config_lib.resolve(tiny.config()))
  config.finetune = tuning.get_config().finetune.to_dict()
  with config.ignore_type():
    config.finetune.labels = found
  validation.check_fields(config)


def file(text):
  """A config file, beside a module that fails."""
  pathlib.Path('helper.py').write_text('1 / 0')
  pathlib.Path('mine.py').write_text(text)
  loading.load_config('mine.py:big' if 'def get_config()' in text else 'mine.py', [])


def line(text, ancestor='configs.base'):
  """A line of a config file that builds on one of ours."""
  file(
    f'import {ancestor} as ancestor\n\n\ndef get_config(arg=""):\n'
    '  config = ancestor.get_config().unlock()\n'
    f'  with config.ignore_type(): {text}\n  return config.lock()\n'
  )


of_electra = functools.partial(line, ancestor='configs.electra')
of_scaling = functools.partial(line, ancestor='configs.scaling')
of_rte = functools.partial(line, ancestor='configs.finetune.rte')


def flag(text, file='smoke.py'):
  loading.load_config(f'{CONFIGS}/{file}', [text])


tuned_flag = functools.partial(flag, file='finetune/rte.py')


def no_file(name):
  loading.load_config(name, [])


def explain(name):
  explaining.explain(name, {})


NO_FIELD = ': there is no such field; '
REFUSED = [
  # Sizes.
  (
    model,
    {'d_model': 17, 'num_heads': 3, 'head_size': None},
    'model.d_model=17: is not divisible by model.num_heads=3; change one of '
    'them, or set model.head_size',
  ),
  (
    model,
    {'num_heads': 7, 'num_kv_heads': 3},
    'model.num_heads=7: is not divisible by model.num_kv_heads=3; change one',
  ),
  (model, {'attention': 'full, local(window=3)'}, 'model.num_layers=5: is not divisible by the'),
  (model, {'ffn': 'relu, switch(num_experts=2)'}, 'model.num_layers=5: is not divisible by the'),
  (
    model,
    {'num_layers': 6, 'share': 'all(groups=2, inner=2)'},
    'model.num_layers=6: is not divisible by 4, the 2 groups of model.share='
    "'all(groups=2, inner=2)' times the 2 layers that each repeats; change "
    'one of them',
  ),
  (
    model,
    {'ffn': 'switch(num_experts=2), relu, switch(num_experts=3)', 'num_layers': 3},
    "model.ffn='switch(num_experts=2), relu, switch(num_experts=3)': "
    'layers with different num_experts cannot be reported together; give all '
    'layers the same num_experts',
  ),
  # Calls and names.
  (
    model,
    {'attention': 'full, lokal'},
    "model.attention='full, lokal': unknown 'lokal'; one of " + ', '.join(sorted(PATTERNS)),
  ),
  (
    model,
    {'dropout': 'rates(residual=1.0)'},
    "model.dropout='rates(residual=1.0)': residual=1.0 must be below 1",
  ),
  (model, {'dtype': 'float16'}, "model.dtype='float16': is unknown; one of float32, bfloat16"),
  (model, {'share': 'all(groups=0)'}, 'groups=0 must be at least 1'),
  # Values of another type, or none.
  (model, {'num_layers': None}, 'model.num_layers: must not be empty; its default is 12'),
  (model, {'dtype': None}, "model.dtype: must not be empty; its default is 'bfloat16'"),
  (model, {'norm': 3}, 'model.norm=3: must be a text'),
  (model, {'num_heads': True}, 'num_heads=True: must be a whole number'),
  (model, {'depth': 3}, f'model.depth=3{NO_FIELD}'),
  (resolve, {'optim.clip_norm': 'x'}, "clip_norm='x': must be a number"),
  (resolve, {'data.source': "text('a\0b')"}, 'has a NUL character; remove it'),
  (resolve, {'log.sample_prompt': 'a\0b'}, "log.sample_prompt='a\\x00b': has a NUL character"),
  (
    resolve,
    {'log.sample_prompt': '\udc80'},
    "log.sample_prompt='\\udc80': is not valid UTF-8 at character 0; remove it",
  ),
  (
    resolve,
    {'data.sources': {'a': 3}},
    'data.sources.a=3: must be a text that calls a source, such as "text(\'a.txt\')"',
  ),
  (resolve, {'model': 3}, 'model=3: must be a section'),
  (resolve, {'mesh': None}, 'mesh=None: must be a section'),
  (labels, 'no', "finetune.labels='no': must be a list of texts"),
  (labels, ['no', 7], "finetune.labels=['no', 7]: must be a list of texts"),
  (labels, ['no', '\ud800'], 'is not valid UTF-8 at character 0'),
  # Sizes that cannot be counted: the compiler would abort the process.
  (
    model,
    {'d_model': 2**24, 'd_ff': 2**24, 'num_layers': 4096},
    'model.num_layers=4096, model.d_model=16777216, model.d_ff=16777216: need '
    'an array of 1.2e+18 numbers, above the maximum of 5.8e+17; give smaller '
    'sizes',
  ),
  (
    resolve,
    {'model.context_length': 2**24, 'batch.size': 2**13, 'batch.micro_rows': 1},
    'need an array of',
  ),
  (model, {'ffn': 'switch(num_experts=2147483647)', 'd_ff': 2**24}, 'need an array of'),
  # Batches, the length of the run, and its schedule.
  (resolve, {'schedule.num_steps': True}, '=True: give a whole number of'),
  (resolve, {'schedule.num_steps': 2.5}, '=2.5: give a whole number of'),
  (
    resolve,
    {'optim.ema': 'mean(patience=5)', 'eval.every_steps': 0},
    "optim.ema='mean(patience=5)': starts when evaluations get worse, and with "
    "data.holdout='documents(fraction=0.02)' and eval.every_steps=0 the run",
  ),
  (resolve, {'optim.outer': 'diloco(replicas=3)'}, 'batch.size=16: 16 rows do not divide over'),
  (
    resolve,
    {'schedule.num_steps': '9T_tokens'},
    "schedule.num_steps='9T_tokens': gives 43,269,230,770 steps, more than the maximum of ",
  ),
  (resolve, {'batch.size': '16'}, "batch.size='16': must be a whole number"),
  (
    resolve,
    {'schedule.name': 'wsd(1e-3, cooldown=21)'},
    'cooldown=21 after warmup=0 does not fit the 20 steps',
  ),
  (
    resolve,
    {'schedule.name': 'cosine(peak=1.0, warmup=-1)'},
    'schedule.name: warmup=-1: give a whole number of steps or tokens',
  ),
  (lengths, 'stages(513)', 'rows of 513 tokens do not fit'),
  # What the objective cannot train: causal would reach a loss of 0.
  (
    resolve,
    {'model.attention': 'bidirectional'},
    "model.attention='bidirectional': tokens would see the targets of "
    "objective.name='causal'; use causal patterns",
  ),
  (
    resolve,
    {'model.attention': 'full, bidirectional', 'model.num_layers': 4},
    "model.attention='full, bidirectional': tokens would see the targets",
  ),
  (
    resolve,
    {'model.num_encoder_layers': 2},
    "model.num_encoder_layers=2: objective.name='causal' trains decoders; give 0",
  ),
  (resolve, {'objective.teacher': 'W'}, "objective.teacher='W': objective.name='causal' has no"),
  # Recurrent layers.
  (
    model,
    {'encoder_attention': 'full', 'num_encoder_layers': 5},
    "model.encoder_attention='full': an encoder's layers are bidirectional; take 'bidirectional'",
  ),
  (
    lstm,
    {'encoder_attention': 'lstm(size=16, residual=True)', 'num_encoder_layers': 1},
    "model.encoder_attention='lstm(size=16, residual=True)': an encoder's lstm "
    'works without attends, residual and separate directions',
  ),
  (lstm, {'num_encoder_layers': 1}, 'model.encoder_attention=None and model.block='),
  (
    lstm,
    {'num_encoder_layers': 1, 'encoder_attention': 'lstm(3)'},
    "model.attention='lstm(17)' and model.num_encoder_layers=1: an encoder and "
    'a layer lstm(attends=True), which reads its output, need each other',
  ),
  (
    model,
    {'matmul': 'int8', 'ffn': "switch(3, capacity_factor='none')"},
    "model.matmul='int8': the kernels of experts without a capacity have no "
    "int8; take 'plain', or a capacity_factor in model.ffn",
  ),
  (
    lstm,
    {
      'attention': 'lstm(17, attends=True)',
      'num_encoder_layers': 2,
      'encoder_attention': 'lstm(3)',
    },
    "model.encoder_attention='lstm(3)': its last layer is 3 wide, so that it "
    'cannot repeat from d_model=17 on; list model.num_encoder_layers=2 layers',
  ),
  (
    lstm,
    {'num_encoder_layers': 5, 'encoder_attention': 'lstm(3), lstm(17)'},
    'model.num_encoder_layers=5: is not divisible by the 2 layers after which '
    "'lstm(3), lstm(17)' repeats; set model.encoder_attention",
  ),
  (
    lstm,
    {'block': 'pre'},
    "model.attention='lstm(17)' and model.block='pre': lstm in all layers and "
    "model.block='plain' need each other; change one of them",
  ),
  (model, {'block': 'plain'}, "model.attention='full' and model.block='plain': lstm in all"),
  (lstm, {'attention': 'lstm(11)'}, "model.attention='lstm(11)': its last layer is 11 wide;"),
  (lstm, {'ffn': 'relu, gelu, silu, relu, relu'}, "model.ffn='relu, gelu, silu, relu, relu':"),
  (
    lstm,
    {'attention': 'lstm(17, projection_clip=3.0)'},
    'model.attention: lstm(projection_clip=3.0): nothing is projected',
  ),
  (
    lstm,
    {
      **{'d_model': 34, 'num_layers': 2},
      'attention': "lstm(17, directions='separate'), lstm(17, directions='both')",
    },
    "lstm(directions='separate') works in all layers or in none; change the",
  ),
  (
    lstm,
    {'attention': 'lstm(13), lstm(17, residual=True)', 'num_layers': 2},
    'lstm(residual=True): a layer of width 17 cannot add its input of width '
    '13; leave it out, or change a width',
  ),
  (
    resolve,
    {
      **{'model.d_model': 34, 'model.block': 'plain'},
      **{'model.position': 'none', 'objective.name': 'masked'},
      'model.attention': "lstm(17, directions='separate')",
    },
    "objective.name='masked' trains models that see both sides of a token, and "
    "each of its LSTMs sees one; take directions='both', or objective.name=",
  ),
  # Words without a table.
  (
    resolve,
    {'model.input': 'characters()', 'tokenizer.name': 'bytes'},
    "tokenizer.name='bytes': model.input='characters(...)' reads words, and "
    "its tokens are not words; take 'words(...)'",
  ),
  (
    words,
    {'input': 'characters(num_characters=200)'},
    'model.input: characters(num_characters=200, length=50): the characters of '
    'words are the bytes of UTF-8 and a few marks; give num_characters=262',
  ),
  (words, {'input': 'characters()'}, "model.output='tied': needs a table of words, and"),
  (
    words,
    {**{'input': 'characters()', 'output': 'untied'}, 'dropout': 'rates(words=0.1)'},
    "model.dropout='rates(words=0.1)': needs a table of words, and",
  ),
  # Encoders.
  (
    model,
    {'num_layers': 4, 'num_encoder_layers': 3, 'ffn': 'relu, geglu'},
    'model.num_encoder_layers=3: is not divisible by the 2 layers after which '
    "'relu, geglu' repeats; set model.encoder_ffn",
  ),
  (
    model,
    {'encoder_num_heads': 4, 'num_encoder_layers': 1},
    'encoder_num_heads=4: model.num_kv_heads=2 * 4 is not divisible by 6',
  ),
  (
    model,
    {'encoder_num_heads': 12, 'num_encoder_layers': 1},
    'encoder_num_heads=12: model.head_size=7 * 6 is not divisible by 12',
  ),
  # Both stacks with the same parameters.
  (stacks, {'num_encoder_layers': 3}, "model.share='stacks': needs as many layers in both"),
  (stacks, {'encoder_ffn': 'relu'}, 'needs equal layers in both stacks'),
  (
    stacks,
    {'attention': 'full, local(window=3)', 'num_layers': 4, 'num_encoder_layers': 4},
    'needs equal layers in both stacks',
  ),
  # An encoder before the encoder.
  (source, {'ffn': 'switch(num_experts=2)'}, 'model.num_source_layers=1: needs layers that are'),
  (source, {'share': 'all'}, "does not work with model.share='all'"),
  (source, {'input': 'tokens(d_embed=3)'}, "model.input='tokens(d_embed=3)'"),
  (source_tokens, 12, 'set model.num_encoder_layers'),
  (source_tokens, 13, 'model.source_vocab_size=12: is smaller than the 13 source tokens of'),
  # Several models.
  (part, {'d_modell': 3}, f'models.generator.d_modell=3{NO_FIELD}'),
  (part, {'d_ff': 'a'}, "models.generator.d_ff='a': must be a whole"),
  (part, {'norm': 'no'}, "models.generator.norm='no': unknown"),
  (part, {'loop': 'no'}, "models.generator.loop='no': is unknown"),
  (part, {'num_heads': 7}, 'models.generator.d_model=64: is not divisible'),
  (part, {'num_kv_heads': 3}, 'models.generator.num_heads=1: is not divisible'),
  (part, {'attention': 'full'}, "models.generator.attention='full': objective.name='electra"),
  (without_part, config_lib.resolve, 'models.generator is missing: objec'),
  (
    without_part,  # where a model is only looked at, too
    lambda config: config_lib.objective(config_lib.resolve_model(config)),
    'models.generator is missing: objec',
  ),
  (with_teacher, {'d_model': 96}, 'no teacher'),
  (with_teacher, 64, 'models.teacher=64: must be a section'),
  (tokenizer, 'model', 'model.vocab_size=97: is smaller than the 101 tokens of'),
  (tokenizer, 'generator', 'models.generator.vocab_size=97: is smaller than'),
  # Files.
  (no_file, 'configs/nope.py', '--config=configs/nope.py: no such file'),
  (no_file, 'smoke.py', 'no such file'),
  (no_file, './configs/../configs/x.py', 'no such file'),
  (file, 'x = 3', "mine.py: defines no get_config(arg='')"),
  (file, 'def get_config(arg=""):\n  pass', 'returns None, not a ConfigDict'),
  (file, 'def get_config(arg=""):\n  return {}', 'returns {}, not a ConfigD'),
  (file, 'import sys\nsys.exit(3)', 'mine.py, line 2: exits the process'),
  (file, 'def get_config(arg=""):\n  exit()', 'line 2: exits the process'),
  (file, '\nx = y', "mine.py, line 2: NameError: name 'y' is not defined"),
  (file, 'x = (', 'mine.py, line 1: SyntaxError: '),
  (file, 'import helper', 'helper.py, line 1: ZeroDivisionError'),
  (
    file,
    'def get_config(arg=""):\n  raise ValueError("no such corpus")',
    'line 2: ValueError: no such corpus',
  ),
  (file, 'def get_config():\n  pass', 'TypeError: get_config() takes 0'),
  (line, 'del config.optim', 'optim is missing from the config; build the config on one '),
  (line, 'del config.optim.name', 'optim.name is missing from the config; '),
  (line, 'config.optim = 3', 'optim=3: must be a section'),
  (line, 'config.models.x = 3', 'models.x=3: must be a section'),
  (line, 'config.finetune = dict(task="rte()")', 'finetune.auxiliary is missing from the config; '),
  # Overrides.
  (tuned_flag, '--config.finetune.labels=x', '--config.finetune.labels: is filled in by the'),
  (tuned_flag, '--config.finetune.labels[0]=x', 'is filled in by the run;'),
  (flag, '--config.=3', '--config.: is not the name of a field; write '),
  (flag, 'x', "unexpected argument 'x'; see --help"),
  # Names that there are not, and what is likely meant: of a file,
  *(
    (action, f'config.{name} = 1', f'{name}=1{NO_FIELD}{meant and "did you mean "}{meant}')
    for action, name, meant in (
      (line, 'optim.clipnorm', 'optim.clip_norm?'),
      (line, 'batch.sise', 'batch.size?'),
      (line, 'sed', 'seed?'),
      (line, 'num_layers', 'model.num_layers?'),
      (line, 'model.depth', 'model.num_layers?'),
      (line, 'mesh.rules.mpl', 'mesh.rules.mlp?'),
      (line, 'data.every_steps', 'checkpoint.every_steps'),
      (line, 'optim.drop_steps', ''),
      (of_electra, 'models.generator.d_f', 'models.generator.d_ff?'),
      (of_rte, 'finetune.epoch', 'finetune.epochs?'),
      (of_rte, 'finetune.model.dtyp', 'finetune.model.dtype?'),
      (of_rte, 'optim.lr', 'finetune.peak and finetune.warmup?'),
      (of_scaling, 'sweep.budget', 'sweep.budgets?'),
    )
  ),
  (line, 'config.optimm = dict()', f'optimm{NO_FIELD}did you mean optim?'),
  (line, 'config.eval.stes = dict()', f'{NO_FIELD}did you mean eval.sets?'),
  (line, 'config.trainer = dict()', f'trainer{NO_FIELD}gpt-jax inspect'),
  # as a flag of a field, and of none, in the words of other frameworks,
  *(
    (flag, f'--{prefix}{word}=3', f'{word}: there is no such {kind}; did you mean {start}{meant}')
    for word, meant in (
      ('lr', 'schedule.name='),
      ('optim.learning_rate', 'schedule.name='),
      ('optim.weight_decay', "optim.name='adamw("),
      ('batch_size', 'batch.size'),
      ('batch.batch_size', 'batch.size'),
      ('epochs', 'schedule.num_steps'),
      ('model.dropout_rate', "model.dropout='rates("),
      ('dropout', "model.dropout='rates("),
      ('model.n_layer', 'model.num_layers'),
      ('model.hidden_size', 'model.d_model'),
      ('seq_len', 'model.context_length'),
      ('grad_clip', 'optim.clip_norm'),
    )
    for prefix, kind, start in (('config.', 'field', ''), ('', 'flag', '--config.'))
  ),
  (flag, '--batch-size=3', 'did you mean --config.batch.size?'),
  # and of `inspect --field`.
  (explain, 'model.layers', f'{NO_FIELD}did you mean model.num_layers?'),
  (explain, 'lr', f'{NO_FIELD}did you mean schedule.name='),
  (explain, 'finetune.lr', 'did you mean finetune.peak and finetune.warmup?'),
  (explain, 'zzz', f'--field=zzz{NO_FIELD}see --fields'),
]


@pytest.mark.parametrize(('action', 'given', 'message'), REFUSED, ids=[m for _, _, m in REFUSED])
def test_refusals(tmp_path, monkeypatch, action, given, message):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(UsageError) as error:
    action(given)
  said = loading.one_line(error.value)
  assert message in said and 'Traceback' not in said
  # It says how to go on.
  assert re.search('; |: give |must |one of |did you mean', said) or action is file, said


# Fields without those of finetune, which resolves its section itself.
TAKES = {name: field.range for name, field in config_lib.FIELDS.items()}
RANGES = {name: x for name, x in TAKES.items() if isinstance(x, Range)}
NAMES = {name: x for name, x in TAKES.items() if isinstance(x, OneOf)}
OF_A_RUN = {*flatten(base.get_config())}


@pytest.mark.parametrize('field', sorted({*config_lib.CALL_STRINGS} & OF_A_RUN))
def test_an_unknown_choice(field):
  choices = ', '.join(sorted(config_lib.CALL_STRINGS[field]))
  message = f"{field}='nope': unknown 'nope'; one of {choices}"
  with pytest.raises(UsageError, match=f'^{re.escape(message)}$'):
    config_lib.resolve(tiny.config(**{field: 'nope'}))


@pytest.mark.parametrize('field', sorted({*NAMES} & OF_A_RUN))
def test_an_unknown_name(field):
  names = ', '.join(NAMES[field].names)
  message = f"{field}='nope': is unknown; one of {names}"
  with pytest.raises(UsageError, match=f'^{re.escape(message)}$'):
    config_lib.resolve(tiny.config(**{field: 'nope'}))


def out_of(declared):
  """Values just outside of a range, far outside, and in none."""
  if declared.kind is int:
    yield from (declared.least - 1, declared.most + 1)
    yield from (-(10**400), 10**400)
  else:
    yield from (declared.least - 1.0, declared.most * 2.0)
    yield from (math.nan, math.inf, -math.inf)


@pytest.mark.parametrize('field', RANGES)
def test_a_number_out_of_its_range(field):
  section, _, name = field.rpartition('.')
  for value in out_of(RANGES[field]):
    with pytest.raises(UsageError) as error:
      if field in OF_A_RUN:
        resolve({field: value})
      else:
        config = base.get_config().unlock()
        config[section] = {name: value}
        config_lib.check_ranges(config)
    message = str(error.value)
    assert message.startswith(f'{field}={spec.shown(value)}: must be ')
    assert len(message) < 400


@pytest.mark.parametrize('command', ['train', 'prepare', 'tokenizers', 'plot', 'plan', 'teach'])
def test_all_commands_refuse(tmp_path, capsys, monkeypatch, command):
  """Also those that read but a part of the config; nothing is written."""
  monkeypatch.chdir(tmp_path)
  with pytest.raises(UsageError):
    line('config.optim.clipnorm = 0.1')
  before = {*tmp_path.iterdir()}
  assert __main__.main([command, '--config=mine.py']) == 2
  said = capsys.readouterr().err
  assert 'optim.clipnorm=0.1: there is no such field' in said
  assert said.count('\n') == 1
  assert {*tmp_path.iterdir()} == before


# What fields and options declare that they need.
NEEDY = {name: field.needs for name, field in config_lib.FIELDS.items() if field.needs}
TABLES = {f'model.{name}': table for name, table in CHOICES.items()} | config_lib.CALL_STRINGS
WRONG = {
  'model.position': 'learned',
  'model.share': 'all',
  'model.matmul': 'int8',
  'optim.state': 'host',
}


@pytest.mark.parametrize('field', NEEDY)
def test_a_field_without_what_it_needs(field):
  # Four heads, and the model's two of keys, would not fit its six either.
  value = 4 if config_lib.FIELDS[field].default == 0 else 'bidirectional'
  said = f'^{field}={value!r}: needs {NEEDY[field]}; set it, or {field}='
  with pytest.raises(UsageError, match=said):
    resolve({field: value})


@pytest.mark.parametrize(
  ('option', 'field'), [(name, field) for name in OPTIONS for field in OPTIONS[name].needs]
)
def test_an_option_without_what_it_needs(option, field):
  named, _, name = option.rpartition('.')
  needed, wrong = OPTIONS[option].needs, WRONG.get(field, 7)
  assert name in TABLES[named] and wrong != needed[field]
  text = 'lstm(3)' if name == 'lstm' else name
  config = tiny.holding(**{'model.num_encoder_layers': 1, **needed, named: text, field: wrong})
  said = f'{field}={wrong!r}: does not work with {named}={text!r}; set it to {needed[field]!r}'
  with pytest.raises(UsageError, match=f'^{re.escape(said)}$'):
    validation.check_options(config)
