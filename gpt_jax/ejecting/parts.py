# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which functions of `gpt_jax.plain`, and which constants, a config takes.

What `plain` has no function for is refused, by its field.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from gpt_jax.core import config as config_lib
from gpt_jax.core import spec
from gpt_jax.core.config import FIELDS, Config
from gpt_jax.core.nn.build import ModelChoices
from gpt_jax.core.optim import schedules
from gpt_jax.core.optim.schedules import Clock, Ramp
from gpt_jax.core.spec import Call, UsageError
from gpt_jax.core.tokens import mixture

# Tokens that are computed at once, if the config does not say: 8 rows of 1,024.
MICRO_TOKENS = 8192


class Recipe(NamedTuple):
  """What a config takes of `plain`.

  Attributes:
    parts: alias -> function, see `program.of`.
    constants: the values of the names in `plain.recipe`.
    ancestor: of the same lineage.
  """

  parts: dict[str, str]
  constants: dict[str, Any]


def refused(field: str, value: Any, why: str) -> UsageError:
  """What stands in the way of ejecting a config."""
  return UsageError(f'{field}={spec.shown(value)}: cannot be ejected: {why}')


def call_of(config: Config, field: str) -> Call:
  """The call of a field, all arguments by name."""
  section, name = field.split('.')
  (call,) = spec.bind_all(field, config[section][name], _choices(field))
  return call


def _choices(field: str) -> Mapping[str, Any]:
  return config_lib.CALL_STRINGS.get(field) or FIELDS[field].table


# Fields for which `plain` has the default alone.
ONLY = {
  'model.num_source_layers': 0,
  'model.source_vocab_size': 0,
  'model.value_size': 0,
  'model.encoder_num_heads': 0,
  'model.encoder_d_ff': 0,
  'model.share': 'none',
  'model.matmul': 'plain',
  'batch.exact_over': 0,
  'optim.start': '',
  'optim.drawn': '',
  'optim.vectors': '',
  'optim.trained': '',
  'optim.outer': 'none',
  'optim.precision': 'float32',
  'optim.ema': 'none',
  'data.compression': 'none',
}


def of(config: Config) -> Recipe:
  """The recipe of a config that `config_lib.resolve` returned.

  Raises:
    UsageError: a field has a value that `plain` has no function for.
  """
  for field, value in ONLY.items():
    section, name = field.split('.')
    if config[section][name] != value:
      raise refused(field, config[section][name], f'only {value!r} is written in plain JAX')
  if config.models:
    raise refused('models', ', '.join(config.models), 'the file has one model')
  if config.model.vocab_size is None:
    raise UsageError(
      'model.vocab_size: is empty, and the file needs a number; set it to that of the tokenizer'
    )
  found = Recipe({}, {})
  for part in (_rows, _model, _training):
    parts, constants = part(config)
    found.parts.update(parts)
    found.constants.update(constants)
  given = found.constants
  same = [('NUM_KV_HEADS', 'NUM_HEADS')]
  if not given['DECAY_BY_TOKENS'] and not given['WARMUP_BY_TOKENS']:
    same += [('DECAY_START', 'WARMUP'), ('DECAY_END', 'NUM_STEPS')]
  found.parts.update({one: other for one, other in same if given.get(one) == given[other]})
  return found


Parts = tuple[dict[str, str], dict[str, Any]]


def _one(config: Config, field: str, names: Mapping[str, Any], **expected: Any) -> Any:
  """The entry of a call's name, whose arguments must be as expected."""
  call = call_of(config, field)
  section, name = field.split('.')
  if call.name not in names:
    raise refused(field, config[section][name], f'plain JAX has {", ".join(names)}')
  for argument, value in expected.items():
    if call.kwargs.get(argument, value) != value:
      why = f'plain JAX has {argument}={value!r} alone'
      raise refused(field, config[section][name], why)
  return names[call.name]


_ACTIVATIONS = {
  'relu': 'jax.nn.relu',
  'gelu': 'gelu_exact',
  'gelu_tanh': 'gelu',
  'silu': 'jax.nn.silu',
  'tanh': 'jnp.tanh',
}
_GATES = {
  'glu': 'jax.nn.sigmoid',
  'reglu': 'jax.nn.relu',
  'geglu': 'gelu_exact',
  'geglu_tanh': 'gelu',
  'swiglu': 'jax.nn.silu',
}


def _model(config: Config) -> Parts:
  model = config.model
  choices, window = ModelChoices.of(model), _window(config)
  parts, constants = _ffn(config)
  position = call_of(config, 'model.position')
  rope = position.name == 'rope'
  known = ('learned', 'rope', 'alibi', 'transformer_xl', 'sinusoidal', 't5_bias')
  _one(
    config,
    'model.position',
    dict.fromkeys(known),
    offset=0,
    fraction=1.0,
    scaling='none',
    local_theta=0.0,
    memory=0,
    clamp=0,
    segment=0,
    biases='own',
  )
  norm = call_of(config, 'model.norm')
  _one(config, 'model.norm', {'layernorm': 0, 'rmsnorm': 0}, plus_one=False)
  if norm.name == 'layernorm' and norm.kwargs['scale'] != norm.kwargs['bias']:
    raise refused('model.norm', model.norm, 'a LayerNorm has both scale and bias, or neither')
  scaled = norm.name == 'rmsnorm' or norm.kwargs['scale']
  blocks = {'pre': 'pre_block', 'post': 'post_block', 'parallel': 'parallel_block'}
  block = _one(config, 'model.block', blocks, qk_norm='none', num_norms=1)
  turned = {'half': 'rotate_halves', 'interleaved': 'rotate_pairs'}
  norms = {'layernorm': 'layer_norm' if scaled else 'standardize', 'rmsnorm': 'rms_norm'}
  output = call_of(config, 'model.output')
  entry = call_of(config, 'model.input')
  encoder = model.attention == 'bidirectional'
  if encoder:
    # BERT's.
    _one(config, 'model.output', {'tied': 0}, bias=True, transform='gelu', scale='none')
    _one(config, 'model.input', {'tokens': 0}, token_types=2, norm=True, scale='none')
    _one(config, 'model.position', {'learned': 0})
    _one(config, 'model.block', {'post': 0})
  else:
    _one(config, 'model.output', {'tied': 0, 'untied': 0}, bias=False, transform='none')
    _one(config, 'model.input', {'tokens': 0}, token_types=0, norm=False)
  _one(config, 'model.output', {'tied': 0, 'untied': 0}, softcap=0.0)
  _one(config, 'model.input', {'tokens': 0}, d_embed=0, queries=False)
  seq2seq = model.num_encoder_layers > 0
  of_kind = {'sinusoidal': seq2seq, 't5_bias': seq2seq, 'transformer_xl': not (seq2seq or encoder)}
  if not of_kind.get(position.name, not seq2seq):
    raise refused('model.position', model.position, 'not for this kind of model in plain JAX')
  if position.name == 'alibi':
    _one(config, 'model.position', {'alibi': 0}, scale='none', dtype='float32')
    if model.num_heads & (model.num_heads - 1):
      raise refused('model.num_heads', model.num_heads, 'ALiBi has a power of two in plain JAX')
  if position.name == 'sinusoidal':
    _one(config, 'model.position', {'sinusoidal': 0}, layout='interleaved')
  if seq2seq and block == 'parallel_block':
    raise refused('model.block', model.block, 'an encoder-decoder has pre or post in plain JAX')
  if seq2seq and model.num_kv_heads < model.num_heads:
    raise refused('model.num_kv_heads', model.num_kv_heads, 'plain JAX has it in decoders alone')
  if model.encoder_attention not in (None, 'bidirectional'):
    raise refused('model.encoder_attention', model.encoder_attention, 'plain JAX has attention')
  if not seq2seq and entry.kwargs['scale'] != 'none':
    raise refused('model.input', model.input, 'only an encoder-decoder scales it in plain JAX')
  scales = {'none': 1.0, 'rsqrt': model.d_model**-0.5, 'sqrt': model.d_model**0.5}
  attention_scales = {'rsqrt': model.head_size**-0.5, 'none': 1.0}
  rates = choices.dropout
  parts |= {
    'norm': norms[norm.name],
    'block': block,
    'cross_block': block.replace('_block', '_cross_block'),
    'rotate': turned[position.kwargs['layout']] if rope else 'not_rotated',
    'self_attention': 'relative_attention' if position.name == 'transformer_xl' else 'attention',
  }
  constants |= {
    'VOCAB_SIZE': model.vocab_size,
    'CONTEXT_LENGTH': model.context_length,
    'NUM_LAYERS': model.num_layers,
    'NUM_ENCODER_LAYERS': model.num_encoder_layers,
    'D_MODEL': model.d_model,
    'NUM_HEADS': model.num_heads,
    'NUM_KV_HEADS': model.num_kv_heads,
    'HEAD_SIZE': model.head_size,
    'D_FF': model.d_ff,
    'WINDOW': window,
    'ROPE_THETA': position.kwargs.get('theta', 0.0),
    'NUM_BUCKETS': position.kwargs.get('num_buckets', 0),
    'MAX_DISTANCE': position.kwargs.get('max_distance', 0),
    'NORM_EPSILON': norm.kwargs['epsilon'],
    'SCORE_SCALE': _one(config, 'model.attention_scale', attention_scales, size=0, softcap=0.0),
    'EMBEDDING_SCALE': scales[entry.kwargs['scale']],
    'OUTPUT_SCALE': scales[output.kwargs['scale']],
    'DTYPE': f'jnp.{model.dtype}',
    'EMBEDDING_DROPOUT': rates.embedding,
    'RESIDUAL_DROPOUT': rates.residual,
    'ATTENTION_DROPOUT': rates.attention,
    'BIASES': _one(config, 'model.bias', {'all': True, 'none': False}),
    'NORM_SCALES': scaled,
    'NORM_BIASES': norm.name == 'layernorm',
    'FINAL_NORM': choices.block.final_norm,
    'POSITION_TABLE': position.name == 'learned',
    'SINUSOIDS': position.name == 'sinusoidal',
    'DISTANCE_VECTORS': position.name == 'transformer_xl',
    'ALIBI': position.name == 'alibi',
    'SCORE_BIAS': position.name in ('alibi', 'transformer_xl', 't5_bias'),
    'TIED': output.name == 'tied',
    # With experts a key says that the model trains, and capacities count.
    'DRAWS': any(rates) or constants['NUM_EXPERTS'] > 0,
  }
  if rates.words:
    raise refused('model.dropout', model.dropout, 'words are not dropped in plain JAX')
  initial, stddevs = _initial(config)
  return parts | initial, constants | stddevs


def _window(config: Config) -> int:
  """The window of every second layer; 0: all layers see all."""
  given = config.model.attention
  calls = spec.bind_all('model.attention', given, _choices('model.attention'))
  match [call.name for call in calls]:
    case ['full'] | ['bidirectional']:
      return 0
    case ['full', 'local']:
      return calls[1].kwargs['window']
  raise refused('model.attention', given, "plain JAX has 'full' and 'full, local(window=...)'")


def _ffn(config: Config) -> Parts:
  """The feed-forward layers: those of the decoder, and of the encoder but for their groups."""
  model = config.model
  parts, constants = _ffn_of(config, model.ffn, model.context_length)
  if not model.num_encoder_layers:
    return parts, constants
  ours, theirs = constants, _ffn_of(config, model.encoder_ffn or model.ffn, model.context_length)
  if (parts, {**ours, 'GROUP_SIZE': 0}) != (theirs[0], {**theirs[1], 'GROUP_SIZE': 0}):
    raise refused('model.encoder_ffn', model.encoder_ffn, 'both stacks are alike in plain JAX')
  if ours['NUM_EXPERTS']:
    # A group of the decoder is of its own, shorter rows.
    size = ours['GROUP_SIZE']
    size = _lengths(config)[1] if size == model.context_length else size
    constants = {**ours, 'GROUP_SIZE': theirs[1]['GROUP_SIZE'], 'DECODER_GROUP_SIZE': size}
    parts = {**parts, 'written_states_of': 'switch_seq2seq_states_alone'}
  return parts, constants


def _ffn_of(config: Config, given: str, length: int) -> Parts:
  model = config.model
  calls = spec.bind_all('model.ffn', given, _choices('model.ffn'))
  constants: dict[str, Any] = {'NUM_EXPERTS': 0, 'ROUTER_JITTER': 0.0}
  parts = {}
  form = calls[0].name
  if calls[-1].name == 'switch':
    asked = calls[-1].kwargs
    form = asked['expert']
    fixed = {
      'top_k': 1,
      'capacity': 0,
      'z_loss': 0.0,
      'renormalize': None,
      'router_bias': False,
      'eval_capacity_factor': 'none',
    }
    if any(asked[name] != value for name, value in fixed.items()):
      raise refused('model.ffn', given, "plain JAX has Switch's layer, of one expert a token")
    if asked['capacity_factor'] == 'none':
      raise refused('model.ffn', given, 'plain JAX has experts with a capacity')
    constants = {
      'NUM_EXPERTS': asked['num_experts'],
      'EXPERT_EVERY': len(calls),
      'CAPACITY_FACTOR': asked['capacity_factor'],
      'GROUP_SIZE': asked['group_size'] or length,
      'ROUTER_JITTER': asked['jitter'],
      'BALANCE': asked['balance'],
    }
    seq2seq = model.num_encoder_layers > 0
    if model.attention != 'full':
      raise refused('model.attention', model.attention, 'with experts plain JAX has full')
    position = spec.parse('model.position', model.position)[0].name
    if position != ('t5_bias' if seq2seq else 'learned') or model.block != 'pre':
      why = 'plain JAX has it in pre blocks, with learned positions or, as T5, t5_bias'
      raise refused('model.ffn', given, why)
    if config.optim.name.startswith('adafactor') and model.bias != 'none':
      raise refused('optim.name', config.optim.name, 'of experts with biases in plain JAX: adamw')
    parts['states_of'] = 'switch_states_alone'
  if any(call.name != form for call in calls[:-1]) or calls[-1].name not in (form, 'switch'):
    raise refused('model.ffn', given, 'the layers have one form in plain JAX')
  if form in _GATES:
    constants['GATED'] = True
    return parts | {'feed_forward': 'gated', 'gate_activation': _GATES[form]}, constants
  constants['GATED'] = False
  if form not in _ACTIVATIONS:
    raise refused('model.ffn', given, f'plain JAX has {", ".join([*_ACTIVATIONS, *_GATES])}')
  return parts | {'feed_forward': 'mlp', 'activation': _ACTIVATIONS[form]}, constants


def _initial(config: Config) -> Parts:
  call = call_of(config, 'model.init_weights')
  stddev = call.kwargs.get('stddev', 0.0)
  constants = {'INIT_STDDEV': stddev, 'TABLE_STDDEV': stddev, 'INIT_SCALE': 1.0}
  kernel, table = 'normal_kernel', 'normal_table'
  match call.name:
    case 'gpt2' | 'normal':
      pass
    case 'truncated_normal':
      kernel, table = 'cut_normal_kernel', 'cut_normal_table'
    case 'palm' | 't5':
      kernel, constants['TABLE_STDDEV'] = 'fan_in_kernel', 1.0
    case 'switch':
      kernel, constants['INIT_SCALE'] = 'truncated_kernel', call.kwargs['scale']
      constants['TABLE_STDDEV'] = call.kwargs['embedding']
    case 'transformer':
      kernel, constants['TABLE_STDDEV'] = 'uniform_kernel', config.model.d_model**-0.5
    case _:
      raise refused('model.init_weights', config.model.init_weights, 'not written in plain JAX')
  parts = dict.fromkeys(('init_kernel', 'init_query', 'init_residual'), kernel)
  # A table is a kernel where both have one deviation.
  table = kernel if call.name in ('gpt2', 'normal', 'truncated_normal') else table
  if call.name == 'gpt2':
    parts['init_residual'] = 'residual_kernel'
  if call.name == 't5':
    parts['init_query'] = 'small_query_kernel'
  return parts | {'init_table': table}, constants


# By the objective: its rows, batch, loss, first parameters and sample.
_OBJECTIVES = {
  'causal': (('stream', 'documents'), '', 'causal_loss', 'init_decoder', 'sample'),
  'span': (('stream',), 'span_batch', 'written_loss', 'init_encoder_decoder', 'write'),
  'seq2seq': (('parallel',), 'pair_batch', 'written_loss', 'init_encoder_decoder', 'write'),
  'masked': (('pairs',), 'masked_batch', 'masked_loss', 'init_encoder', 'fill'),
}


def _rows(config: Config) -> Parts:
  """What the objective asks for: rows, batches, the loss."""
  call, rows = call_of(config, 'objective.name'), call_of(config, 'data.rows')
  if call.name not in _OBJECTIVES:
    why = f'plain JAX has {", ".join(_OBJECTIVES)}'
    raise refused('objective.name', config.objective.name, why)
  known, batch, loss, init, sample = _OBJECTIVES[call.name]
  if rows.name not in known:
    raise refused('data.rows', config.data.rows, f'plain JAX has {", ".join(known)}')
  weights, of_tokens = _weights(config)
  order = str(config.seed)
  if len(weights) == 1:
    # Each row is of the one corpus, in its own order.
    order, weights = f'{order}/{next(iter(weights))}', {}
  if weights and rows.name == 'parallel':
    raise refused('data.source', config.data.source, 'plain JAX has pairs of one source')
  if of_tokens and rows.name == 'pairs':
    raise refused('data.source', config.data.source, 'shares of tokens are for rows of documents')
  if not batch:
    ramped = len(config_lib.ramp(config).stages) > 1
    batch = 'ramped_stream_batch' if ramped else 'stream_batch'
    batch = 'mixed_stream_batch' if weights else batch
    batch = 'document_batch' if rows.name == 'documents' else batch
  parts = {'batch_of': batch, 'init_params': init, 'sample': sample}
  parts['place'] = 'mixture' if weights else 'one_corpus'
  name = spec.parse('tokenizer.name', config.tokenizer.name)[0].name
  texts = {'sentencepiece': 'sentencepiece_text', 'bytes': 'byte_text'}
  parts['text_of'] = texts.get(name, 'id_text')
  several = rows.name in ('documents', 'parallel')
  constants: dict[str, Any] = {
    'SEED': config.seed,
    'ORDER': repr(order),
    'WEIGHTS': weights,
    'SHARES_OF_TOKENS': of_tokens and rows.name == 'documents',
    'PACKED': several,
    'PADDED': several or rows.name == 'pairs',
    'READS_DOCUMENTS': several or rows.name == 'pairs',
    'READS_SENTENCES': rows.name == 'pairs',
  }
  given = call.kwargs
  match call.name:
    case 'causal':
      constants['Z_LOSS'] = given['z_loss']
      if given['z_loss']:
        loss = 'causal_loss_with_z'
      if ModelChoices.of(config.model).ffn[-1].router:
        loss = 'switch_loss'
        if given['z_loss'] or rows.name != 'stream':
          raise refused('objective.name', config.objective.name, 'no z-loss with experts')
    case 'seq2seq':
      if ModelChoices.of(config.model).ffn[-1].router:
        raise refused('objective.name', config.objective.name, 'experts write spans in plain JAX')
      _one(config, 'objective.name', _OBJECTIVES, start='eos')
      constants['LABEL_SMOOTHING'] = given['label_smoothing']
      if given['label_smoothing']:
        loss = 'smoothed_loss'
    case 'span':
      if ModelChoices.of(config.model).ffn[-1].router:
        loss = 'switch_written_loss'
      _one(config, 'objective.name', _OBJECTIVES, start='pad')
      if name != 'sentencepiece' or config.batch.length or given['rate'] >= 0.5:
        why = 'plain JAX has rows of one length, SentencePiece, and a rate below 0.5'
        raise refused('objective.name', config.objective.name, why)
      constants |= _span(config, given)
    case 'masked':
      fixed = {'unit': 'token', 'ngram': 1, 'pair': 'next', 'static': 0}
      _one(config, 'objective.name', _OBJECTIVES, **fixed)
      if name not in ('wordpiece', 'wordpiece_file'):
        raise refused('tokenizer.name', config.tokenizer.name, 'plain JAX has wordpiece for it')
      constants |= {
        'MASK_RATE': given['rate'],
        'MASK_SHARE': given['mask'],
        'RANDOM_SHARE': given['random'],
        'SHORT_SHARE': rows.kwargs['short'],
      }
  constants['PENALTY'] = loss not in ('causal_loss', 'written_loss', 'masked_loss')
  return parts | {'loss_of': loss}, constants


def _weights(config: Config) -> tuple[dict[str, float], bool]:
  """The weights of a mixture, and whether they are shares of tokens; {}: there is none."""
  if not mixture.is_mixture(config.data.source):
    return {}, False
  (phase, *more) = mixture.phases(config.data.source)
  if more or phase.draw != 'without_replacement' or phase.shares == 'examples':
    why = 'plain JAX has mixtures of one phase, without replacement, by rows or tokens'
    raise refused('data.source', config.data.source, why)
  return phase.weights, phase.shares == 'tokens'


def _span(config: Config, given: Mapping[str, Any]) -> dict[str, Any]:
  length = config_lib.ramp(config).longest
  noise = min(max(round(length * given['rate']), 1), length - 1)
  spans = max(round(noise / given['length']), 1)
  (tokenizer,) = spec.parse('tokenizer.name', config.tokenizer.name)
  return {
    'NOISE_RATE': given['rate'],
    'SPAN_LENGTH': given['length'],
    'TEXT_LENGTH': length,
    'SOURCE_LENGTH': length - noise + spans + 1,
    'TARGET_LENGTH': noise + spans + 1,
    'NUM_SENTINELS': tokenizer.kwargs.get('sentinels', 0),
  }


def _training(config: Config) -> Parts:
  ramp = config_lib.ramp(config)
  parts, constants = _schedule(config, ramp)
  update, of_optimizer = _optimizer(config)
  stages = [(s.start, s.rows, s.length) for s in ramp.between(0, config.schedule.num_steps)]
  constants |= of_optimizer | {
    'NUM_STEPS': config.schedule.num_steps,
    'BATCH_ROWS': stages[0][1],
    'STAGES': tuple(stages),
    'MICRO_ROWS': _micro_rows(config, stages),
    'CLIP_NORM': config.optim.clip_norm,
  }
  parts['shape_of'] = 'ramped_batch' if len(stages) > 1 else 'even_batch'
  return parts | update, constants


def _lengths(config: Config) -> tuple[int, int]:
  """The most tokens of a row that the encoder and the decoder read; without an encoder the same."""
  return config_lib.sides(config, config_lib.ramp(config).longest)


def _micro_rows(config: Config, stages: list[tuple[int, int, int]]) -> int:
  """The most rows at once that divide the batches of all stages."""
  whole = math.gcd(*(rows for _, rows, _ in stages))
  given = config.batch.micro_rows
  longest = max(length for *_, length in stages)
  most = whole if given == 0 else given or max(MICRO_TOKENS // longest, 1)
  # Experts take whole groups, of either stack, which a resolved config's batches are made of.
  choices, lengths = ModelChoices.of(config.model), _lengths(config)
  routers = choices.encoder_ffn[-1].router, choices.ffn[-1].router
  sizes = [r.group_size // n for r, n in zip(routers, lengths, strict=True) if r]
  rows = math.lcm(*(max(size, 1) for size in sizes))
  fits = [n for n in range(rows, whole + 1, rows) if whole % n == 0]
  return max([n for n in fits if n <= most], default=fits[0])


def _optimizer(config: Config) -> Parts:
  call = call_of(config, 'optim.name')
  given = call.kwargs
  if call.name in ('adam', 'adamw'):
    if given.get('l2'):
      raise refused('optim.name', config.optim.name, 'plain JAX has decoupled decay, adamw')
    return {'update': 'adam', 'init_moments': 'init_adam'}, {
      'BETA1': given['b1'],
      'BETA2': given['b2'],
      'ADAM_EPSILON': given['eps'],
      'WEIGHT_DECAY': given.get('weight_decay', 0.0),
    }
  if call.name != 'adafactor':
    raise refused('optim.name', config.optim.name, 'plain JAX has adam, adamw and adafactor')
  power = given['weight_decay_power']
  if (
    not given['parameter_scale']
    or given['min_size'] != 128
    or (given['weight_decay'] and power != 2)
  ):
    raise refused('optim.name', config.optim.name, "plain JAX has T5's and PaLM's adafactor")
  return {'update': 'adafactor', 'init_moments': 'init_adafactor'}, {
    'BETA1': given['b1'],
    'MOMENTUM': given['b1'] > 0,
    'BETA2_POWER': given['decay'],
    'FACTORED': given['factored'],
    'CLIP_UPDATE': given['clip'],
    'WEIGHT_DECAY': given['weight_decay'],
  }


def _schedule(config: Config, ramp: Ramp) -> Parts:
  call = call_of(config, 'schedule.name')
  given, parse = call.kwargs, schedules.parse
  warm = parse('schedule.name: warmup', given.get('warmup', 0))
  constants: dict[str, Any] = {
    'PEAK_RATE': given.get('peak'),
    'WARMUP': warm.count,
    'WARMUP_TOKENS': warm.count,
    'WARMUP_BY_TOKENS': warm.unit == 'tokens',
    'WARMUP_STEPS': ramp.step_at(warm),
    'DECAY_BY_TOKENS': False,
  }
  match call.name:
    case 'cosine' | 'linear':
      stop = schedules.Amount(config.schedule.num_steps, 'steps')
      if given['decay'] != '':
        stop = parse('schedule.name: decay', given['decay'])
      clock = Clock(ramp, stop.unit)
      constants |= {
        'FINAL_RATE': given['final'],
        'DECAY_START': clock.at(warm),
        'DECAY_END': max(clock.at(stop), clock.at(warm) + 1),
        'DECAY_BY_TOKENS': stop.unit == 'tokens',
      }
      by_tokens = constants['WARMUP_BY_TOKENS'] or constants['DECAY_BY_TOKENS']
      if call.name == 'linear' and by_tokens:
        raise refused('schedule.name', config.schedule.name, 'plain JAX counts its steps')
      return {'rate_of': call.name}, constants
    case 'rsqrt':
      hold = parse('schedule.name: hold', given['hold'])
      if warm.count or hold.unit != 'steps':
        raise refused('schedule.name', config.schedule.name, 'plain JAX holds the peak for steps')
      return {'rate_of': 'inverse_sqrt'}, constants | {'HOLD': hold.count}
    case 'noam' if given['factor'] == 1.0 and given['d_model'] == config.model.d_model:
      return {'rate_of': 'noam'}, constants
  known = 'plain JAX has cosine, linear, rsqrt and noam'
  raise refused('schedule.name', config.schedule.name, known)
