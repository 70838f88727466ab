# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Every file in configs/: it loads, resolves and counts as its paper does."""

import importlib
import json
import math
import pathlib
import re

import jax
import numpy as np
import pytest

import configs
from gpt_jax.__main__ import main
from gpt_jax.core import config as config_lib
from gpt_jax.core import sharding, spec
from gpt_jax.core.costs import flops, totals
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers.tokenizer import TOKENIZERS
from gpt_jax.core.tokens import mixture
from gpt_jax.core.training import device_check
from gpt_jax.tasks.registry import TUNED
from gpt_jax.tuning import method as method_lib

FOLDER = pathlib.Path(__file__).parents[3] / 'configs'


def module(name):
  return importlib.import_module(f'configs.{name}')


def sizes(name):
  return list(getattr(module(name), 'SIZES', ['']))


FILES = sorted(
  '.'.join(path.relative_to(FOLDER).with_suffix('').parts) for path in FOLDER.rglob('*.py')
)
# Those with a section `finetune` are for fine-tuning and post-training, the
# others for `train`.
TUNINGS = [name for name in FILES if 'finetune' in module(name).get_config()]
NAMES = [name for name in FILES if name not in TUNINGS]

ALL = [(name, size) for name in NAMES for size in sizes(name)]
TUNED_SIZES = [(name, size) for name in TUNINGS for size in sizes(name)]
TUNED_SIZES += [('lamda', 'finetune')]


def test_configs_come_from_this_checkout():
  # Other tests may put the folder onto the path once more.
  assert {pathlib.Path(p) for p in configs.__path__} == {FOLDER}
  assert {'base', 'gpt1', 'gpt2', 'smoke'} <= {*NAMES}


@pytest.mark.parametrize('name, size', ALL)
def test_config_resolves(name, size):
  config = module(name).get_config(size)
  assert config.is_locked
  resolved = config_lib.resolve_model(config)
  unknown = {k for k, v in config_lib.flatten(resolved).items() if v is None}
  assert unknown <= {
    'model.vocab_size',
    'data.store',
    'data.workers',
    'eval.num_batches',
    'eval.tasks',
    'batch.length',
    'checkpoint.every_minutes',
    'batch.micro_rows',
    'model.encoder_ffn',
    'models.generator.encoder_ffn',
    'models.teacher.encoder_ffn',
    'model.encoder_attention',
    'models.generator.encoder_attention',
    'models.teacher.encoder_attention',
  }
  assert config_lib.resolve(config) == resolved
  # A config may change fields, not invent them.
  base_fields = config_lib.flatten(module('base').get_config())
  # The grid of `scaling` is no part of a run; sources have names of their own.
  fields = {
    f
    for f in config_lib.flatten(resolved)
    if not f.startswith(('sweep.', 'data.sources.', 'models.'))
  }
  assert fields == {*base_fields}


# Percent of the rows, as the papers' tables print them.
@pytest.mark.parametrize(
  ('name', 'size', 'printed'),
  [
    # Table 2.2 adds up to 101.
    ('gpt3', '175b', [60, 22, 8, 8, 3]),
    ('gopher', '280b', [48, 27, 10, 10, 3, 2]),
    ('chinchilla', '70b', [45, 30, 10, 10, 4, 1]),
    ('palm', '540b', [50, 27, 13, 5, 4, 1]),
    ('llama', '65b', [67, 15, 4.5, 4.5, 4.5, 2.5, 2]),
    ('llama3', '405b', [50, 25, 17, 8]),
    ('lamda', '137b', [50, 12.5, 12.5, 12.5, 6.25, 6.25]),
  ],
)
def test_mixture(name, size, printed):
  config = module(name).get_config(size)
  (phase,) = mixture.phases(config.data.source)
  found = np.array([*phase.weights.values()])
  np.testing.assert_allclose(found, np.array(printed) / sum(printed), 1e-6)
  assert set(config.data.sources) == {*phase.weights}
  mixture.corpus(config.data.source, config.data.sources)


# vocab_size, normalization, byte_fallback, split_digits, as the papers say.
@pytest.mark.parametrize(
  ('name', 'expected'),
  [
    ('gopher', (32_000, 'nfkc', True, False)),
    ('chinchilla', (32_000, 'identity', True, False)),
    ('lamda', (32_000, 'identity', True, False)),
    ('palm', (256_000, 'identity', True, True)),
    ('llama', (32_000, 'identity', True, True)),
  ],
)
def test_tokenizers_are_those_of_the_papers(name, expected):
  config = module(name).get_config()
  text = config.tokenizer.name
  spec.build('tokenizer.name', text, TOKENIZERS)  # its arguments do
  (call,) = spec.bind_all('tokenizer.name', text, TOKENIZERS)
  keys = ('vocab_size', 'normalization', 'byte_fallback', 'split_digits')
  assert tuple(call.kwargs[key] for key in keys) == expected
  assert config.model.vocab_size == expected[0]


@pytest.mark.parametrize('name', NAMES)
def test_default_size_is_the_first(name):
  default, first = module(name).get_config(), sizes(name)[0]
  assert default == module(name).get_config(first)


# Their size is a folder.
OF_FOLDERS = ('continue', 'distil')


@pytest.mark.parametrize('name', [n for n in NAMES if n not in OF_FOLDERS])
def test_unknown_size_lists_the_sizes(name):
  with pytest.raises(ValueError) as error:
    module(name).get_config('no such')
  known = sizes(name)
  if known == ['']:
    expected = f'configs/{name}.py:no such: has one size; leave :no such out'
  else:
    listed = ', '.join(known)
    expected = f'configs/{name}.py:no such: unknown size; one of {listed}'
  assert str(error.value) == expected


class Device:
  """What a mesh knows of one."""

  platform = device_kind = 'cpu'
  process_index = 0

  def __init__(self, number):
    self.id = number


@pytest.mark.parametrize('name, size', ALL)
def test_batch_splits_over_any_number_of_devices(name, size):
  """Its stages as they are, however few rows the first has."""
  config = config_lib.resolve_model(module(name).get_config(size))
  for count in (1, 8, 64, 512):
    devices = [Device(i) for i in range(count)]
    device_check.check_devices(config, devices)
    mesh = sharding.make_mesh(config.mesh, devices, width=config_lib.width(config))
    assert config.model.d_model % mesh.shape['fsdp'] == 0
    assert mesh.size == count


# Of GPT-2's table 2, counted with tied embeddings: 124M, 355M, 774M, 1.56B.
@pytest.mark.parametrize(
  'name, size, parameters',
  [
    ('gpt1', '117m', 116_534_784),
    ('gpt2', 'small', 124_439_808),
    ('gpt2', 'medium', 354_823_168),
    ('gpt2', 'large', 774_030_080),
    ('gpt2', 'xl', 1_557_611_200),
  ],
)
def test_parameter_counts_of_the_papers(name, size, parameters):
  config = config_lib.resolve(module(name).get_config(size))
  tree, figures = totals.figures_of(config)
  assert figures['parameters'] == parameters
  assert figures['parameters_active'] == parameters
  # The same by arithmetic: embeddings, positions, 12 D^2 + 13 D a layer, and
  # the last norm where norms come first.
  m = config.model
  layer = 12 * m.d_model**2 + 13 * m.d_model
  table = (m.vocab_size + m.context_length) * m.d_model
  last = 2 * m.d_model if m.block == 'pre' else 0
  assert parameters == table + m.num_layers * layer + last
  assert figures['parameters_without_embeddings'] == parameters - table
  assert {x.dtype for x in jax.tree.leaves(tree)} == {np.dtype('float32')}


@pytest.mark.parametrize('name, size', TUNED_SIZES)
def test_fine_tuning_changes_no_fields_of_the_tree(name, size):
  config = module(name).get_config(size)
  assert config.is_locked
  (call,) = spec.parse('finetune.task', config.finetune.task)
  if call.name in method_lib.METHODS:
    method_lib.of_config(config, call.name)
  else:
    spec.build('finetune.task', config.finetune.task, TUNED)
  fields = {*config_lib.flatten(config)}
  tree = {*config_lib.flatten(module('base').get_config())}
  assert tree == {f for f in fields if not f.startswith('finetune.')}
  with pytest.raises(UsageError, match='give it to gpt-jax finetune'):
    config_lib.resolve(config)
  with pytest.raises(ValueError, match=r'^configs/[\w/]+\.py:no such: '):
    module(name).get_config('no such')


def test_ppo_of_instructgpt():
  """256k episodes, 512 at a time in minibatches of 64, each used once."""
  config = module('instructgpt').get_config('ppo')
  method = method_lib.of_config(config, 'ppo')
  assert config.schedule.num_steps * config.batch.size == 256_000
  assert config.batch.size * method.num_mini_batches == 512
  assert method.num_ppo_epochs == method.gamma == method.temperature == 1
  # Prompts of over 1k tokens are left out.
  assert config.finetune.length - method.max_completion_length == 1024


def test_parameters_of_the_notes():
  """About 10M: of a folder of one's own texts there is no paper to ask."""
  config = config_lib.resolve(module('notes').get_config())
  (call,) = spec.bind_all('tokenizer.name', config.tokenizer.name, TOKENIZERS)
  vocab_size = call.kwargs['vocab_size']
  config = config_lib.set_vocab_size(config, vocab_size, 'sentencepiece')
  # 12 D^2 and 13 D a layer; tables of tokens and positions; the last norm.
  layers = 7 * (12 * 320 * 320 + 13 * 320)
  tables = (4096 + 256) * 320 + 2 * 320
  figures = totals.figures_of(config)[1]
  assert figures['parameters'] == layers + tables == 10_024_000


def test_figures_of_gpt2_small():
  config = config_lib.resolve(module('gpt2').get_config('small'))
  _, figures = totals.figures_of(config)
  # 12 layers of 12 * 768^2, and the 50,257 x 768 table, once.
  matmul = 12 * 12 * 768**2 + 50_257 * 768
  # PaLM, appendix B: 6 N + 12 L H Q T.
  per_token = 6 * matmul + 12 * 12 * 12 * 64 * 1024
  assert figures['parameters_matmul'] == matmul
  assert figures['flops_per_token'] == per_token
  assert figures['tokens_per_step'] == 512 * 1024
  assert figures['tokens_total'] == 600_000 * 512 * 1024
  assert figures['flops_total'] == per_token * 600_000 * 512 * 1024


def test_untied_head_is_counted_once():
  config = module('gpt2').get_config('small').unlock()
  config.model.output = 'untied'
  config = config_lib.resolve(config)
  tree, figures = totals.figures_of(config)
  assert figures['parameters'] == 124_439_808 + 50_257 * 768
  tied = 12 * 12 * 768**2 + 50_257 * 768
  assert flops.matmul_parameters(config, tree) == tied


def test_figures_need_the_vocabulary():
  config = config_lib.resolve(module('smoke').get_config())
  with pytest.raises(UsageError, match=r'--config\.model\.vocab_size=N'):
    totals.figures_of(config)


# Decoder-only models: layers, d_model, heads, head size, key/value heads,
# d_ff, vocabulary, context; parameters, and the same as the paper prints them.
PLAIN = 50_257, 2048
JOINT = 37_000, 256
PIECES = 32_000, 2048
PALM = 256_000, 2048
TIK = 128_256, 8192
T5 = 32_128, 512
WORDS, BYTES, LITE = (30_522, 512), (50_265, 512), (30_000, 512)
TINY = 4, 64, 4, 16, 4, 256, 1024, 128
BASE = 12, 768, 12, 64, 12, 3072, 50_257, 1024
ROWS = {
  'gpt1-117m': (12, 768, 12, 64, 12, 3072, 40_478, 512, 116_534_784, '117M'),
  'gpt1-cpu': (4, 192, 6, 32, 6, 768, 4096, 256, 2_615_040, '2.6M'),
  'gpt2-small': (12, 768, 12, 64, 12, 3072, 50_257, 1024, 124_439_808, '124M'),
  'gpt2-medium': (24, 1024, 16, 64, 16, 4096, 50_257, 1024, 354_823_168, '355M'),
  'gpt2-large': (36, 1280, 20, 64, 20, 5120, 50_257, 1024, 774_030_080, '774M'),
  'gpt2-xl': (48, 1600, 25, 64, 25, 6400, 50_257, 1024, 1_557_611_200, '1.56B'),
  'gpt3-125m': (12, 768, 12, 64, 12, 3072, *PLAIN, 125_226_240, '125M'),
  'gpt3-350m': (24, 1024, 16, 64, 16, 4096, *PLAIN, 355_871_744, '350M'),
  'gpt3-760m': (24, 1536, 16, 96, 16, 6144, *PLAIN, 760_300_032, '760M'),
  'gpt3-1.3b': (24, 2048, 24, 128, 24, 8192, *PLAIN, 1_517_123_584, '1.3B'),
  'gpt3-2.7b': (32, 2560, 32, 80, 32, 10_240, *PLAIN, 2_651_553_280, '2.7B'),
  'gpt3-6.7b': (32, 4096, 32, 128, 32, 16_384, *PLAIN, 6_658_404_352, '6.7B'),
  'gpt3-13b': (40, 5140, 40, 128, 40, 20_560, *PLAIN, 12_936_488_380, '13.0B'),
  'gpt3-175b': (96, 12_288, 96, 128, 96, 49_152, *PLAIN, 174_604_259_328, '175B'),
  'gopher-44m': (8, 512, 16, 32, 16, 2048, *PIECES, 43_700_736, '44M'),
  'gopher-117m': (12, 768, 12, 64, 12, 3072, *PIECES, 116_709_120, '117M'),
  'gopher-417m': (12, 1536, 12, 128, 12, 6144, *PIECES, 417_443_328, '417M'),
  'gopher-1.4b': (24, 2048, 16, 128, 16, 8192, *PIECES, 1_374_799_872, '1.4B'),
  'gopher-7.1b': (32, 4096, 32, 128, 32, 16_384, *PIECES, 7_112_101_888, '7.1B'),
  'gopher-280b': (80, 16_384, 128, 128, 128, 65_536, *PIECES, 279_714_217_984, '280B'),
  'chinchilla-70b': (80, 8192, 64, 128, 64, 32_768, *PIECES, 70_063_890_432, '70B'),
  'lamda-137b': (64, 8192, 128, 128, 128, 65_536, *PIECES, 137_715_798_016, '137B'),
  'palm-8b': (32, 4096, 16, 256, 1, 16_384, *PALM, 8_631_877_632, '8.63B'),
  'palm-62b': (64, 8192, 32, 256, 1, 32_768, *PALM, 62_495_129_600, '62.50B'),
  'palm-540b': (118, 18_432, 48, 256, 1, 73_728, *PALM, 540_354_281_472, '540.35B'),
  'llama-7b': (32, 4096, 32, 128, 32, 11_008, *PIECES, 6_738_415_616, '6.7B'),
  'llama-13b': (40, 5120, 40, 128, 40, 13_824, *PIECES, 13_015_864_320, '13.0B'),
  'llama-33b': (60, 6656, 52, 128, 52, 17_920, *PIECES, 32_528_943_616, '32.5B'),
  'llama-65b': (80, 8192, 64, 128, 64, 22_016, *PIECES, 65_285_660_672, '65.3B'),
  'llama3-8b': (32, 4096, 32, 128, 8, 14_336, *TIK, 8_030_261_248, '8B'),
  'llama3-70b': (80, 8192, 64, 128, 8, 28_672, *TIK, 70_553_706_496, '71B'),
  'llama3-405b': (126, 16_384, 128, 128, 8, 53_248, *TIK, 405_853_388_800, '406B'),
  # Of these the paper has the encoder-decoders: table 9.
  'switch-tiny': (*TINY, 738_048, '0.7M'),
  'switch-tiny-dense': (*TINY, 273_792, '0.3M'),
  'switch-base-8': (*BASE, 322_818_816, '323M'),
  'switch-base-16': (*BASE, 549_532_416, '550M'),
  'switch-base-32': (*BASE, 1_002_959_616, '1.0B'),
  'switch-base-64': (*BASE, 1_909_814_016, '1.9B'),
  'switch-base-128': (*BASE, 3_723_522_816, '3.7B'),
  'switch-t5-base-128': (12, 768, 12, 64, 12, 2048, *T5, 7_415_217_408, '7.4B'),
  'switch-t5-large': (24, 1024, 16, 64, 16, 4096, *T5, 26_309_291_008, '26B'),
  'switch-xxl': (24, 4096, 64, 64, 64, 10_240, *T5, 394_543_476_736, '395B'),
  # No one vocabulary gives the sizes that the paper prints: 37,000 pieces here.
  'transformer-base': (6, 512, 8, 64, 8, 2048, *JOINT, 63_082_496, '65M'),
  'transformer-big': (6, 1024, 16, 64, 16, 4096, *JOINT, 214_245_376, '213M'),
  'transformer-cpu': (3, 192, 4, 48, 4, 448, 8000, 128, 3_911_808, '3.9M'),
  'cove-base': (2, 300, 1, 300, 1, 1200, 50_000, 128, 155_505_300, '156M'),
  'cove-cpu': (2, 100, 1, 100, 1, 400, 12_000, 128, 3_015_100, '3.0M'),
  'bert-base': (12, 768, 12, 64, 12, 3072, *WORDS, 110_106_428, '110M'),
  'bert-large': (24, 1024, 16, 64, 16, 4096, *WORDS, 336_226_108, '340M'),
  'bert-cpu': (4, 192, 6, 32, 6, 768, 4096, 256, 2_694_786, '2.7M'),
  'unilm-base': (12, 768, 12, 64, 12, 3072, 28_996, 512, 108_932_934, '109M'),
  'unilm-large': (24, 1024, 16, 64, 16, 4096, 28_996, 512, 334_661_958, '340M'),
  'unilm-cpu': (4, 192, 6, 32, 6, 768, 4096, 256, 2_694_786, '2.7M'),
  # The paper says BERT's sizes, and prints no count.
  'xlnet-base': (12, 768, 12, 64, 12, 3072, 32_000, 512, 116_750_336, '117M'),
  'xlnet-large': (24, 1024, 16, 64, 16, 4096, 32_000, 512, 360_300_800, '360M'),
  'xlnet-cpu': (4, 192, 6, 32, 6, 768, 4096, 256, 2_718_400, '2.7M'),
  'mass-base': (6, 1024, 8, 128, 8, 4096, 60_000, 100, 238_066_272, '238M'),
  'mass-cpu': (2, 192, 6, 32, 6, 768, 4096, 256, 2_966_272, '3.0M'),
  'bigbird-base': (12, 768, 12, 64, 12, 3072, 50_358, 4096, 128_112_824, '128M'),
  'bigbird-large': (24, 1024, 16, 64, 16, 4096, 50_358, 4096, 360_228_024, '360M'),
  'bigbird-cpu': (4, 192, 6, 32, 6, 768, 4096, 512, 2_645_634, '2.6M'),
  'roberta-base': (12, 768, 12, 64, 12, 3072, *BYTES, 124_697_433, '125M'),
  'roberta-large': (24, 1024, 16, 64, 16, 4096, *BYTES, 355_412_057, '355M'),
  'roberta-cpu': (4, 192, 6, 32, 6, 768, 4096, 256, 2_657_536, '2.7M'),
  # With the 512 positions of the mask decoder.
  'deberta-base': (12, 768, 12, 64, 12, 3072, *BYTES, 139_637_337, '140M'),
  'deberta-large': (24, 1024, 16, 64, 16, 4096, *BYTES, 406_789_209, '407M'),
  'deberta-v3_base': (12, 768, 12, 64, 12, 3072, 128_100, 512, 326_447_461, '326M'),
  'deberta-cpu': (4, 192, 6, 32, 6, 768, 4096, 256, 3_050_176, '3.1M'),
  'albert-base': (12, 768, 12, 64, 12, 3072, *LITE, 11_813_810, '12M'),
  'albert-large': (24, 1024, 16, 64, 16, 4096, *LITE, 17_847_474, '18M'),
  'albert-xlarge': (24, 2048, 32, 64, 32, 8192, *LITE, 59_021_490, '59M'),
  'albert-xxlarge': (12, 4096, 64, 64, 64, 16_384, *LITE, 223_158_450, '223M'),
  'bart-base': (6, 768, 12, 64, 12, 3072, 50_265, 1024, 139_420_416, '139M'),
  'bart-large': (12, 1024, 16, 64, 16, 4096, 50_265, 1024, 406_291_456, '406M'),
  # With six layers of 12,596,224, a table, positions and a norm before large.
  'bart-translation': (
    12,
    1024,
    16,
    64,
    16,
    4096,
    50_265,
    1024,
    406_291_456 + 6 * 12_596_224 + (50_265 + 1026 + 2) * 1024,
    '534M',
  ),
  'bart-cpu': (2, 192, 6, 32, 6, 768, 4096, 256, 2_962_944, '3.0M'),
  # With the generators; the paper prints the discriminators, without head.
  'electra-small': (12, 256, 4, 64, 4, 1024, *WORDS, 14_196_219, '14M'),
  'electra-base': (12, 768, 12, 64, 12, 3072, *WORDS, 119_386_427, '110M'),
  'electra-large': (24, 1024, 16, 64, 16, 4096, *WORDS, 354_655_291, '335M'),
  'electra-cpu': (4, 192, 6, 32, 6, 768, 4096, 256, 2_882_305, '2.9M'),
  # With the teachers, 109,514,298 and 2,657,344.
  'distilbert-base': (6, 768, 12, 64, 12, 3072, *WORDS, 66_985_530 + 109_514_298, '66M'),
  'distilbert-cpu': (2, 192, 6, 32, 6, 768, 4096, 256, 1_767_232 + 2_657_344, '4.4M'),
  'albert-cpu': (4, 256, 4, 64, 4, 1024, 8192, 256, 2_012_290, '2.0M'),
  't5-small': (6, 512, 8, 64, 8, 2048, *T5, 60_506_624, '61M'),
  't5-base': (12, 768, 12, 64, 12, 3072, *T5, 222_903_552, '223M'),
  't5-large': (24, 1024, 16, 64, 16, 4096, *T5, 737_668_096, '738M'),
  't5-3b': (24, 1024, 32, 128, 32, 16_384, *T5, 2_851_598_336, '2.9B'),
  't5-11b': (24, 1024, 128, 128, 128, 65_536, *T5, 11_307_321_344, '11B'),
  't5-v1.1-small': (8, 512, 6, 64, 6, 1024, *T5, 76_961_152, '77M'),
  't5-v1.1-base': (12, 768, 12, 64, 12, 2048, *T5, 247_577_856, '248M'),
  't5-v1.1-large': (24, 1024, 16, 64, 16, 2816, *T5, 783_150_080, '783M'),
  't5-v1.1-xl': (24, 2048, 32, 64, 32, 5120, *T5, 2_849_757_184, '2.8B'),
  't5-v1.1-xxl': (24, 4096, 64, 64, 64, 10_240, *T5, 11_135_332_352, '11B'),
  't5-cpu': (3, 192, 6, 32, 6, 768, 4096, 128, 3_886_656, '3.9M'),
  # The released sizes of the large one do not give the 257M that it prints.
  'transformer_xl-wt103': (16, 410, 10, 41, 10, 2100, 267_735, 900, 151_107_538, '151M'),
  'transformer_xl-wt103-large': (18, 1024, 16, 64, 16, 4096, 267_735, 3072, 285_170_506, '257M'),
  'transformer_xl-enwik8-12': (12, 512, 8, 64, 8, 2048, 204, 5632, 41_055_436, '41M'),
  'transformer_xl-enwik8-24': (24, 1024, 8, 128, 8, 3072, 204, 3136, 277_231_820, '277M'),
  'transformer_xl-cpu': (3, 128, 4, 32, 4, 512, 204, 256, 669_004, '0.7M'),
  'ulmfit-wt2': (3, 400, 1, 400, 1, 1600, 33_278, 280, 33_556_078, '33.6M'),
  'ulmfit-ptb': (3, 400, 1, 400, 1, 1600, 10_000, 280, 24_221_600, '24.2M'),
  'ulmfit-wt103': (3, 400, 1, 400, 1, 1600, 238_462, 280, 115_834_862, '116M'),
  'ulmfit-cpu': (3, 64, 1, 64, 1, 256, 128, 280, 568_960, '0.6M'),
  'elmo-base': (2, 1024, 1, 1024, 1, 4096, 793_471, 160, 93_600_864 + 407_050_623, '501M'),
  'elmo-cpu': (2, 128, 1, 128, 1, 512, 4096, 160, 798_128, '0.8M'),
  'char-t12': (12, 512, 2, 256, 2, 2048, 256, 512, 44_251_136, '44M'),
  'char-t64': (64, 512, 2, 256, 2, 2048, 256, 512, 235_438_080, '235M'),
  'char-cpu': (12, 64, 2, 32, 2, 256, 256, 64, 1_058_560, '1.1M'),
  'switch-c': (15, 2080, 32, 64, 32, 6144, *T5, 1_571_308_972_448, '1571B'),
}
# Parameters that a token takes, where there are experts: those of the dense
# model, which the paper calls 223M, 739M and 11B, and the routers.
ACTIVE = {
  'elmo-base': 93_600_864 + 8192 * 512 + 793_471,  # of the softmax a sample
  'elmo-cpu': 568_752,
  'switch-tiny': 273_792 + 2 * 64 * 8,
  **{f'switch-base-{n}': 124_439_808 + 6 * 768 * n for n in (8, 16, 32, 64, 128)},
  'switch-t5-base-128': 222_903_552 + 12 * 768 * 128,
  'switch-t5-large': 737_668_096 + 24 * 1024 * 128,
  'switch-xxl': 11_003_736_064 + 24 * 4096 * 128,
  'switch-c': 1_600_530_848 + 30 * 2080 * 2048,
}
# LaMDA's count says that embeddings are left out.
COUNTED = {'lamda-137b': 'parameters_without_embeddings'}
# Where the sizes of GPT-3's table do not give the digits beside them.
OFF = {'gpt3-350m': '356M', 'gpt3-1.3b': '1.5B', 'gpt3-13b': '12.9B'}
OFF |= {'bert-large': '336M', 'unilm-large': '335M'}  # nor BERT's
OFF |= {'electra-base': '119M', 'electra-large': '355M'}
OFF |= {'transformer-base': '63M', 'transformer-big': '214M'}
OFF |= {'distilbert-base': '176M', 'transformer_xl-wt103-large': '285M'}


def rounded(count, printed):
  """`count` with as many digits as `printed` has: '8.63B'."""
  digits, unit = printed[:-1], printed[-1]
  places = len(digits.partition('.')[2])
  return f'{count / {"M": 1e6, "B": 1e9}[unit]:.{places}f}{unit}'


@pytest.mark.parametrize('row', ROWS)
def test_decoder_row(row):
  *sizes, parameters, printed = ROWS[row]
  name, _, size = row.partition('-')
  config = config_lib.resolve_model(module(name).get_config(size))
  m = config.model
  found = [m.num_layers, m.d_model, m.num_heads, m.head_size, m.num_kv_heads]
  assert [*found, m.d_ff, m.vocab_size, m.context_length] == sizes
  _, figures = totals.figures_of(config)
  assert figures['parameters'] == parameters
  assert figures['parameters_active'] == ACTIVE.get(row, parameters)
  counted = figures[COUNTED.get(row, 'parameters')]
  assert rounded(counted, printed) == OFF.get(row, printed)


@pytest.mark.parametrize(
  'size, ffn, d_ff, printed',
  [
    ('t5-large', "geglu, switch(num_experts=128, expert='geglu')", 2816, '27B'),
    ('xxl', "geglu, switch(num_experts=64, expert='geglu')", 10_240, '201B'),
    ('xxl', "switch(num_experts=64, expert='geglu')", 10_240, '392B'),
  ],
)
def test_switch_sizes_that_the_paper_prints_with_other_totals(size, ffn, d_ff, printed):
  """26B and 395B in its table 9."""
  config = module('switch').get_config(size).unlock()
  config.model.ffn, config.model.d_ff = ffn, d_ff
  config.model.encoder_ffn = None
  figures = totals.figures_of(config_lib.resolve_model(config))[1]
  assert rounded(figures['parameters'], printed) == printed


def test_an_encoder_decoder_is_inspected(monkeypatch, capsys):
  """Tokens of text: of 568 the encoder reads 512, and 114 are written."""
  monkeypatch.chdir(FOLDER.parent)
  config = ['--config', 'configs/switch.py:t5-base-128']
  assert main(['inspect', *config, '--json']) == 0
  found = json.loads(capsys.readouterr().out)
  assert found['parameters'] == ROWS['switch-t5-base-128'][-2]
  assert found['tokens_per_step'] == 2048 * 568
  assert main(['inspect', *config]) == 0
  said = capsys.readouterr().out
  assert f'\ntokens per step: {2048 * 568:,}\n' in said
  assert f'\nparameters: {found["parameters"]:,} (' in said
  assert not [line for line in said.splitlines() if re.match(r'\w+_\w+:', line)]
  # No encoder-decoder is trained by what trains decoders.
  config = module('t5').get_config('cpu').unlock()
  config.objective.name = 'causal'
  with pytest.raises(UsageError, match=r"name='causal' trains decoders"):
    config_lib.resolve(config)


@pytest.mark.parametrize(
  'size, position, parameters',
  [
    ('base', 'deberta(mask_decoder=0)', 139_244_121),
    ('large', 'deberta(mask_decoder=0)', 406_264_921),
    # Without the projections of distances to keys, or to queries.
    ('base', 'deberta(c2p=False)', 139_244_121 - 12 * 768**2),
    ('base', 'deberta(p2c=False)', 139_244_121 - 12 * (768**2 + 768)),
  ],
)
def test_the_ablation_of_deberta(size, position, parameters):
  config = module('deberta').get_config(size).unlock()
  config.model.position = position
  params, _ = totals.figures_of(config_lib.resolve(config))
  assert sum(math.prod(x.shape) for x in jax.tree.leaves(params)) == parameters


def test_electra_is_compared_with_bert_at_equal_flops():
  """Section 3.4; see docs/results/fine-tuning.md."""
  totals_of = [
    totals.figures_of(config_lib.resolve(module(name).get_config('cpu')))[1]
    for name in ('bert', 'electra')
  ]
  bert, electra = (figures['flops_total'] for figures in totals_of)
  assert electra == pytest.approx(bert, rel=0.01)


def test_models_of_deberta_v3():
  """HF counts 184,551,780 with a masked language model's head."""
  config = config_lib.resolve(module('deberta').get_config('v3_base'))
  params, _ = totals.figures_of(config)
  V, D = 128_100, 768
  head = D**2 + D + 2 * D + V
  body = 184_551_780 - head
  replaced = D**2 + D + D + 1
  generator = params.pop('parts')['generator']

  def count(tree):
    return sum(math.prod(x.shape) for x in jax.tree.leaves(tree))

  assert count(params) == body + replaced == 184_422_913
  # Half of the layers, a table of distances with its norm, and the head; the
  # tokens' table, to which the model adds one, with its norm.
  layers = 12 * D**2 + 13 * D
  own = 6 * layers + 512 * D + 2 * D + head
  assert count(generator) == own + V * D + 2 * D


@pytest.mark.parametrize('size', ['base', 'cpu'])
def test_parameters_of_mass_by_arithmetic(size):
  """The paper counts none."""
  m = config_lib.resolve(module('mass').get_config(size)).model
  D, V = m.d_model, m.vocab_size
  # Four products and a feed-forward layer with biases, and their norms; the
  # decoder attends twice.
  attention, norm = 4 * (D**2 + D), 2 * D
  ffn = 2 * 4 * D**2 + 5 * D
  layers = m.num_layers * (3 * attention + 2 * ffn + 5 * norm)
  # A table of tokens with a bias for each, and of each stack one of positions
  # and the norm after them.
  tables = V * D + V + 2 * (m.context_length * D + norm)
  assert ROWS[f'mass-{size}'][-2] == layers + tables


def body(params):
  """Parameters without the output's and those of two sentences."""
  names = ('output_dense', 'output_norm', 'head_bias')
  tree = {name: x for name, x in params.items() if name not in names}
  tree['heads'] = {'pooler': params['heads']['pooler']}
  return sum(math.prod(x.shape) for x in jax.tree.leaves(tree))


LITE_INPUT = 'tokens(token_types=2, norm=True, d_embed={})'


@pytest.mark.parametrize(
  'name, size, overrides, parameters, bare',
  [
    ('bert', 'base', {'num_layers': 3}, 46_315_580, False),
    ('bert', 'base', {'num_layers': 6, 'num_heads': 3}, 67_579_196, False),
    ('bert', 'large', {'num_layers': 12}, 185_071_420, False),
    ('bert', 'base', {'vocab_size': 28_996}, 108_932_934, False),
    ('unilm', 'large', {'input': 'tokens(token_types=6, norm=True)'}, 334_666_054, False),
    ('bert', 'base', {}, 109_482_240, True),
    ('bigbird', 'base', {}, 127_468_800, True),
    ('bigbird', 'large', {}, 359_123_968, True),
    (
      'bigbird',
      'base',
      {'attention': 'bigbird(block=64, random=0, extra=256)'},
      128_309_432,
      False,
    ),
    ('bert', 'large', {}, 335_141_888, True),
    *(
      ('albert', 'base', {'share': share, 'input': d_embed}, count, True)
      for share, d_embed, count in (
        ('none', 64, 87_648_000),
        ('none', 128, 89_650_176),
        ('none', 256, 93_654_528),
        ('none', 768, 109_671_936),
        ('all', 64, 9_681_408),
        ('all', 128, 11_683_584),
        ('all', 256, 15_687_936),
        ('all', 768, 31_705_344),
        ('attention', 128, 63_647_232),
        ('attention', 768, 83_668_992),
        ('ffn', 128, 37_686_528),
        ('ffn', 768, 57_708_288),
      )
    ),
    *(
      ('albert', 'large', {'num_layers': depth}, 17_683_968, True)
      for depth in (1, 3, 6, 12, 24, 48)
    ),
    ('albert', 'large', {'num_layers': 3, 'd_model': 6144, 'num_heads': 96}, 495_518_208, True),
  ],
)
def test_ablations_of_encoders(name, size, overrides, parameters, bare):
  """As the docstrings of the configs list them."""
  config = module(name).get_config(size).unlock()
  if name == 'albert' and 'input' in overrides:
    overrides = {**overrides, 'input': LITE_INPUT.format(overrides['input'])}
  config.model.update(overrides)
  params, figures = totals.figures_of(config_lib.resolve_model(config))
  assert (body(params) if bare else figures['parameters']) == parameters
  assert f'{parameters:,}' in str(module(name).__doc__)


DEPTHS = 'num_layers', 'num_encoder_layers'
WIDE = {'d_model': 1024, 'head_size': 128, 'd_ff': 2048}


@pytest.mark.parametrize(
  'overrides, parameters, printed',
  [
    ({'num_heads': 32}, 63_082_496, 65),
    ({'head_size': 16, 'value_size': 64}, 55_990_784, 58),
    ({'head_size': 32, 'value_size': 64}, 58_354_688, 60),
    (dict.fromkeys(DEPTHS, 2), 33_656_832, 36),
    (dict.fromkeys(DEPTHS, 4), 48_369_664, 50),
    (dict.fromkeys(DEPTHS, 8), 77_795_328, 80),
    ({'d_model': 256, 'head_size': 32, 'd_ff': 2048}, 26_834_944, 28),
    (WIDE, 163_889_152, 168),
    ({'d_ff': 1024}, 50_487_296, 53),
    ({'d_ff': 4096}, 88_272_896, 90),
    # A table of positions for each stack.
    ({'position': 'learned'}, 63_082_496 + 2 * 256 * 512, None),
  ],
)
def test_variations_of_the_transformer(overrides, parameters, printed):
  """Its table 3: the differences to base are the paper's, within a million."""
  config = module('transformer').get_config('base').unlock()
  config.model.update(overrides)
  figures = totals.figures_of(config_lib.resolve(config))[1]
  assert figures['parameters'] == parameters
  assert f'{parameters:,}' in str(module('transformer').__doc__)
  if printed:
    off = (parameters - 63_082_496) / 1e6 - (printed - 65)
    # That of d_model 1024 is given with a whole million less or more.
    assert abs(off) < (2.3 if overrides == WIDE else 1)


def test_flops_of_narrower_queries_and_keys():
  """Row B: 18 times two kernels, and products of queries and keys."""
  flops = []
  for size in (64, 16):
    config = module('transformer').get_config('base').unlock()
    config.model.update({'head_size': size, 'value_size': 64})
    resolved = config_lib.resolve(config)
    figures = totals.figures_of(resolved)[1]
    flops.append(figures['flops_per_token'])
  narrower, length = 64 - 16, 256
  kernels = 6 * 18 * 2 * 512 * 8 * narrower
  assert flops[0] - flops[1] == kernels + 6 * 18 * 8 * narrower * length


def test_t5_with_one_set_of_layers():
  """Table 2, shared: twelve layers of queries to output, ffn and two norms."""
  config = module('t5').get_config('base').unlock()
  config.model.share = 'stacks'
  figures = totals.figures_of(config_lib.resolve(config))[1]
  layer = 4 * 768**2 + 2 * 768 * 3072 + 2 * 768
  assert figures['parameters'] == 222_903_552 - 12 * layer == 137_950_464


def test_models_of_distilbert():
  """The student as Hugging Face counts it, and its FLOPs by arithmetic."""
  config = config_lib.resolve(module('distilbert').get_config('base'))
  params, figures = totals.figures_of(config)
  teacher = figures['parameters_of_teacher']
  assert figures['parameters'] - teacher == 66_985_530
  # BERT without its pooler, 768^2 + 768, and the head of pairs, 2 * 768 + 2.
  assert teacher == 110_106_428 - (768 * 769 + 2 * 769)
  body = {*params} - {'output_dense', 'output_norm', 'head_bias', 'parts'}
  assert (
    sum(math.prod(x.shape) for x in jax.tree.leaves({n: params[n] for n in body})) == 66_362_880
  )
  for count in ('66,985,530', '66,362,880', '109,514,298'):
    assert count in str(module('distilbert').__doc__)
  # Both score all tokens; a third for the teacher, which has no backward pass.
  passes = 6 * 6 + 2 * 12
  layers = passes * 12 * 768**2 + 2 * passes * 512 * 768
  head = (6 + 2) * (768**2 + 30_522 * 768)
  assert figures['flops_per_token'] == layers + head


@pytest.mark.parametrize(
  'size, discriminator, generator',
  [
    ('small', 13_549_057, 647_162),
    ('base', 109_483_009, 9_903_418),
    ('large', 335_142_913, 19_512_378),
  ],
)
def test_models_of_electra(size, discriminator, generator):
  """Of the generator what it does not share; the first as HF counts it."""
  config = config_lib.resolve(module('electra').get_config(size))
  params, figures = totals.figures_of(config)

  def count(tree):
    return sum(math.prod(x.shape) for x in jax.tree.leaves(tree))

  assert count(params['parts']['generator']) == generator
  assert figures['parameters'] - generator == discriminator
  assert f'{discriminator:,}' in str(module('electra').__doc__)
  # In each product of the discriminator every token, but for the vocabulary's;
  # in the generator's, too, and in those of the vocabulary the chosen ones.
  m, g, (length, tokens) = (
    config.model,
    config.models.generator,
    {'small': (128, 19), 'base': (512, 79), 'large': (512, 130)}[size],
  )
  d_embed = {'small': 128, 'base': 768, 'large': 1024}[size]
  both = [
    x.num_layers * (12 * x.d_model**2) + (x.d_model != d_embed) * d_embed * x.d_model
    for x in (m, g)
  ]
  head = m.d_model**2 + m.d_model
  scored = tokens / length * (g.d_model * d_embed + m.vocab_size * d_embed)
  attention = 12 * length * sum(x.num_layers * x.d_model for x in (m, g))
  expected = 6 * (sum(both) + head + scored) + attention
  assert figures['flops_per_token'] == pytest.approx(expected, abs=2)


def test_switch_tiny_and_its_twin():
  """Equal FLOPs but for the routers, and nothing else differs."""
  switch, dense = (
    config_lib.resolve(module('switch').get_config(size)) for size in ('tiny', 'tiny-dense')
  )
  found = {text.partition(':')[0] for text in config_lib.differences(switch, dense)}
  assert found == {'model.ffn'}
  switch, dense = (totals.figures_of(config)[1]['flops_per_token'] for config in (switch, dense))
  assert switch - dense == 6 * 2 * 64 * 8


def test_palm_has_no_scales_in_its_norms():
  """With them the largest of the table would be 540.36B."""
  config = config_lib.unlocked(config_lib.resolve(module('palm').get_config('540b')))
  config.model.norm = 'layernorm(bias=False)'
  with_scales = totals.figures_of(config)[1]['parameters']
  # One norm for each layer's attention and feed-forward, and the last.
  assert with_scales - ROWS['palm-540b'][-2] == 119 * 18_432
  assert rounded(with_scales, '540.35B') == '540.36B'


@pytest.mark.parametrize(
  'parameters, text',
  [
    (540_354_281_472, '540.35B'),
    (124_439_808, '124.44M'),
    (999_994_999, '999.99M'),
    (999_996_000, '1.00B'),
    (1_571_000_000_000, '1.57T'),
    (994_999, '995.00k'),
  ],
)
def test_parameters_in_words(parameters, text):
  assert totals.short(parameters, 2) == text


@pytest.mark.parametrize(
  'count, text',
  [(999.99e6, '1.0B'), (960e6, '960.0M'), (67e9, '67.0B'), (216.2e12, '216.2T'), (5.0, '5.0')],
)
def test_counts_with_one_digit(count, text):
  assert totals.short(count) == text


def test_gopher_counts_the_projection_of_its_relative_positions():
  """417M are 13 d^2 a layer and the table; 12 d^2 would make 389M."""
  config = config_lib.resolve(module('gopher').get_config('417m'))
  figures = totals.figures_of(config)[1]
  # They multiply distances: a token does not meet them.
  assert figures['parameters_matmul'] == 12 * 12 * 1536**2 + 32_000 * 1536
  config = config_lib.unlocked(config)
  config.model.position = 'rope'
  plain = totals.figures_of(config)[1]['parameters']
  # The projection, u and v.
  assert figures['parameters'] - plain == 12 * (1536**2 + 2 * 1536)
  assert rounded(plain, '417M') == '389M'


def test_heads_that_give_gpt3_1_3b_its_name():
  config = module('gpt3').get_config('1.3b').unlock()
  config.model.num_heads = 16
  figures = totals.figures_of(config_lib.resolve(config))[1]
  assert rounded(figures['parameters'], '1.3B') == '1.3B'


@pytest.mark.parametrize(
  'row, tokens, batch',
  [
    ('gpt3-125m', 300e9, 0.5 * 2**20),
    ('gpt3-175b', 300e9, 3.2e6),
    ('gopher-44m', 300e9, 0.25 * 2**20),
    ('gopher-280b', 300e9, 6 * 2**20),
    ('chinchilla-70b', 1.4e12, 3 * 2**20),
    ('palm-8b', 780e9, 512 * 2048),
    ('palm-540b', 780e9, 2048 * 2048),
    ('llama-7b', 1.0e12, 4 * 2**20),
    ('llama-65b', 1.4e12, 4 * 2**20),
    ('llama3-8b', 15e12, 16 * 2**20),
    ('llama3-405b', 15.6e12, 16 * 2**20),
  ],
)
def test_tokens_of_the_recipes(row, tokens, batch):
  name, _, size = row.partition('-')
  config = config_lib.resolve(module(name).get_config(size))
  figures = totals.figures_of(config)[1]
  np.testing.assert_allclose(figures['tokens_per_step'], batch, rtol=5e-3)
  np.testing.assert_allclose(figures['tokens_total'], tokens, rtol=1e-4)


@pytest.mark.parametrize(
  'row, rows, starts, last',
  [
    # PaLM, section 5: 512 rows to step 50k, 1024 to 115k, 2048 to 255k.
    ('palm-540b', [512, 1024, 2048], [0, 50_000, 115_000], 255_000),
    # The middle of the run, in tokens: 390e9 / (256 * 2048), rounded up.
    ('palm-8b', [256, 512], [0, 743_866], 743_866 * 3 // 2),
    ('gopher-280b', [1536, 3072], [0, 47_684], 47_684 * 3 // 2),
    ('chinchilla-70b', [768, 1536], [0, 445_049], 445_049 * 3 // 2),
    # 252M tokens, 4M a step; 8M a step up to 2.87T; 16M up to 15.6T.
    ('llama3-405b', [1024, 1024, 2048], [0, 61, 342_162], 1_100_929),
  ],
)
def test_ramps_of_the_papers(row, rows, starts, last):
  name, _, size = row.partition('-')
  config = config_lib.resolve(module(name).get_config(size))
  stages = config_lib.ramp(config).stages
  assert [stage.rows for stage in stages] == rows
  assert [stage.start for stage in stages] == starts
  # 255k is rounded, 780e9 tokens too.
  np.testing.assert_allclose(config.schedule.num_steps, last, rtol=4e-3)


def test_gpt3_starts_with_32k_tokens_and_follows_its_tokens():
  config = config_lib.resolve(module('gpt3').get_config('175b'))
  ramp = config_lib.ramp(config)
  assert ramp.tokens(1) == 32 * 1024
  full = ramp.step_at_tokens(12 * 10**9)
  assert ramp.rows(full - 1) < ramp.rows(full) == 1568
  rate = config_lib.schedule(config)
  warm = ramp.step_at_tokens(375 * 10**6)
  np.testing.assert_allclose(rate(warm), 0.6e-4, rtol=1e-6)
  decayed = ramp.step_at_tokens(260 * 10**9)
  assert decayed < config.schedule.num_steps
  np.testing.assert_allclose(rate(decayed), 0.6e-5, rtol=1e-6)
  # Half of the cosine, by tokens.
  half = ramp.step_at_tokens((375 * 10**6 + 260 * 10**9) // 2)
  np.testing.assert_allclose(rate(half), 0.55 * 0.6e-4, rtol=1e-4)


@pytest.mark.long
@pytest.mark.slow
def test_table_in_the_docs(monkeypatch, capsys):
  """`gpt-jax inspect --table`, with a case of `test_decoder_row` a row."""
  monkeypatch.chdir(FOLDER.parent)
  assert main(['inspect', '--table']) == 0
  table = capsys.readouterr().out.rstrip('\n')
  page = (FOLDER.parent / 'docs/configs.md').read_text(encoding='utf-8')
  _, _, rest = page.partition('<!-- table: gpt-jax inspect --table -->\n')
  assert rest.partition('\n<!-- end of table -->')[0] == table
  assert {*re.findall(r'test_decoder_row\[(.*?)\]', table)} == {*ROWS}
