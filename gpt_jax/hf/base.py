# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A model family of Hugging Face: a table that is read and written.

To add a family, add a `Family` to the file of related families and list it in
`families.py`. Its main parts are

  `entries`           a list of `Entry`: options of config.json, and the fields
                      of `Transformer` that they determine. Reading all entries
                      imports a config.json, writing all exports a model. `save`
                      reads what it writes and refuses a model that does not
                      come back the same, so `write` need not check what the
                      family cannot express.
  `tensors(model)`    a list of `Tensor`: names in the file, paths in our
                      parameters, and the transposes between the two.

Paths that start with `layer/` are of one block (`layer/attention/query/kernel`)
and the tensor's name contains `{layer}`; `encoder_layer/` is a block of the
encoder in an encoder-decoder. If layers share parameters, the first has the
tensor, whose name may contain `{group}` and `{inner}` (the layer in the group)
instead. Names are those of the model with its language-model head; files may
leave out `prefix`. Every parameter must have a tensor and every tensor a
parameter: `load` checks. Other heads (`score`, `multiple_choice_head`) are the
same for all families: `heads.py`.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from gpt_jax.core import ranges, spec
from gpt_jax.core.config import defaults
from gpt_jax.core.nn.choices import CHOICES
from gpt_jax.core.nn.transformer import Transformer
from gpt_jax.core.spec import UsageError

# Parts of the names of sizes that no tensor has: positions without a table,
# windows, limits.
_FREE = ('position', 'n_ctx', 'window', 'distance', 'capacity', 'bos', 'eos')
# Parts of the names of options that count what tensors' names count.
_COUNTS = ('layer', 'group', 'expert', 'highway')


class Bounds(NamedTuple):
  """What the files contain: upper bounds of all sizes in config.json."""

  parts: int  # above each number in tensors' names: of layers, experts, ...
  numbers: int  # in all tensors
  layers: int  # above `parts` if layers share tensors

  @classmethod
  def of(cls, shapes: Mapping[str, Sequence[int]], *, shared: bool) -> 'Bounds':
    """The bounds of tensors by name."""
    places = (int(i) for name in shapes for i in re.findall(r'\d{1,9}', name))
    parts = max(places, default=0) + 1
    numbers = sum(map(math.prod, shapes.values()))
    return cls(parts, numbers, max(parts, 1000) if shared else parts)


class Options:
  """A config.json, read with errors that name the option."""

  def __init__(self, values: dict[str, Any], bounds: Bounds | None = None):
    """`values` is the parsed file, `bounds` are of the tensor files, if any."""
    self._values, self._bounds = values, bounds

  def fail(self, name: str, why: str) -> UsageError:
    """The error to raise about an option."""
    return UsageError(f'config.json: {name}={self._values.get(name)!r}: {why}')

  def get(self, name: str, default: Any = None) -> Any:
    """The value, or `default` if it is missing or null."""
    value = self._values.get(name)
    return default if value is None else value

  def has(self, name: str) -> bool:
    """Whether the option is present, even if null."""
    return name in self._values

  def size(self, name: str, default: int | None = None) -> int:
    """A whole number from 1; required if there is no default."""
    value = self.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
      raise self.fail(name, 'must be a whole number from 1')
    if value > (most := self._most(name)):
      raise self.fail(name, f'is more than the files can hold, {most:,}; copy them again')
    return value

  def _most(self, name: str) -> int:
    """The largest accepted size, so that nothing larger is allocated."""
    if self._bounds is None or any(part in name for part in _FREE):
      return ranges.INT32
    if any(part in name for part in _COUNTS):
      return self._bounds.layers if 'layer' in name else self._bounds.parts
    return min(self._bounds.numbers, ranges.INT32)

  def whole(self, name: str, default: int) -> int:
    """A whole number; negative numbers mean none."""
    value = self.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool):
      raise self.fail(name, 'must be a whole number')
    if value > 0:
      self.size(name)
    return value

  def number(self, name: str, default: float | None = None) -> float:
    """A number; required if there is no default."""
    value = self.get(name, default)
    if not isinstance(value, int | float) or isinstance(value, bool):
      raise self.fail(name, 'must be a number')
    if isinstance(value, float) and not math.isfinite(value):
      raise self.fail(name, 'must be a finite number')
    if abs(value) > ranges.LARGEST:
      raise self.fail(name, 'must be a number that float32 holds')
    return value if abs(value) <= ranges.INT32 else float(value)

  def flag(self, name: str, default: bool) -> bool:
    """A boolean."""
    value = self.get(name, default)
    if not isinstance(value, bool):
      raise self.fail(name, 'must be true or false')
    return value

  def choice(self, name: str, choices: dict[str, str], default: str) -> str:
    """The entry of `choices` for the value."""
    value = self.get(name, default)
    if not isinstance(value, str) or value not in choices:
      known = ', '.join(choices)
      raise self.fail(name, f'is not supported; one of {known}')
    return choices[value]

  def only(self, name: str, *accepted: Any) -> None:
    """Rejects other values; a missing or null option is accepted."""
    if self.get(name, accepted[0]) not in accepted:
      known = ' or '.join(repr(a) for a in accepted)
      raise self.fail(name, f'is not supported, only {known}')


# Fields that a family's entries may leave out: as in the config's defaults, but
# with float32, in which checkpoints are compared.
_TREE: Any = defaults.get_config().model
DEFAULTS: dict[str, Any] = {
  name: _TREE[name]
  for name in (
    'num_encoder_layers',
    'num_source_layers',
    'encoder_ffn',
    'input',
    'value_size',
    'encoder_num_heads',
    'encoder_d_ff',
    'source_vocab_size',
    'attention',
    'encoder_attention',
    'attention_scale',
    'attention_backend',
    'bias',
    'output',
    'dropout',
    'matmul',
    'init_weights',
    'remat',
    'loop',
    'share',
    'pipeline',
  )
} | {'dtype': 'float32'}
# Fields that do not change what a trained model computes.
FOR_TRAINING = (
  'attention_backend',
  'dropout',
  'matmul',
  'init_weights',
  'dtype',
  'remat',
  'loop',
  'pipeline',
)

# HF's names of activations -> our `model.ffn`.
ACTIVATIONS = {
  'gelu': 'gelu',
  'gelu_new': 'gelu_tanh',
  'gelu_fast': 'gelu_tanh',
  'gelu_pytorch_tanh': 'gelu_tanh',
  'relu': 'relu',
  'silu': 'silu',
  'swish': 'silu',
  'tanh': 'tanh',
}


class Entry(NamedTuple):
  """Options of config.json, and the fields that they determine.

  Later entries of a table override earlier ones.
  """

  read: Callable[[Options], dict[str, Any]] = lambda options: {}
  write: Callable[[Transformer], dict[str, Any]] = lambda model: {}


def sizes(**options: str | tuple[str, int | Callable[[Options], int]]) -> Entry:
  """Whole numbers: `option='field'`, or `option=('field', default)`.

  The default may be a function of the options.
  """

  def read(given: Options) -> dict[str, Any]:
    fields = {}
    for option, field in options.items():
      field, default = (field, None) if isinstance(field, str) else field
      default = default(given) if callable(default) else default
      fields[field] = given.size(option, default)
    return fields

  def write(model: Transformer) -> dict[str, Any]:
    fields = ((o, f if isinstance(f, str) else f[0]) for o, f in options.items())
    return {option: getattr(model, field) for option, field in fields}

  return Entry(read, write)


def call(field: str, name: str, **arguments: Any) -> Entry:
  """A call-string: `argument=(option, default)`, or `argument=constant`.

  The default's type says what the option is: a flag, a size or a number.
  """
  read_from = {a: x for a, x in arguments.items() if isinstance(x, tuple)}

  def value(options: Options, option: str, default: Any) -> Any:
    if isinstance(default, bool):
      return options.flag(option, default)
    read = options.size if isinstance(default, int) else options.number
    return read(option, default)

  def read(options: Options) -> dict[str, Any]:
    given = {a: value(options, *x) for a, x in read_from.items()}
    return {field: call_text(name, **{**arguments, **given})}

  def write(model: Transformer) -> dict[str, Any]:
    kwargs = choice(model, field).kwargs
    return {
      option: kwargs.get(argument, 0.0 if isinstance(default, float) else None)
      for argument, (option, default) in read_from.items()
    }

  return Entry(read, write)


def call_text(name: str, **arguments: Any) -> str:
  """A call-string with the arguments that are not None."""
  given = [f'{n}={x!r}' for n, x in arguments.items() if x is not None]
  return f'{name}({", ".join(given)})' if given else name


def named(option: str, field: str, names: Mapping[str, str], default: str) -> Entry:
  """An option whose value is a name; `names` maps HF's names to ours."""
  return Entry(
    lambda options: {field: options.choice(option, names, default)},
    lambda model: {option: hf_name(choice(model, field).name, names)},
  )


def hf_name(ours: str, names: Mapping[str, str]) -> str:
  """HF's first name for ours; ours if there is none (`save` refuses it)."""
  return next((theirs for theirs, x in names.items() if x == ours), ours)


def flag(option: str, field: str, yes: str, no: str, default: bool) -> Entry:
  """A boolean option that chooses between two call-strings."""
  name = yes.partition('(')[0]
  return Entry(
    lambda options: {field: yes if options.flag(option, default) else no},
    lambda model: {option: choice(model, field).name == name},
  )


def fixed(**fields: Any) -> Entry:
  """Fields that are the same for all models of the family."""
  return Entry(lambda options: fields)


def only(**accepted: Any) -> Entry:
  """Options that are rejected if they have other values; not written."""

  def read(options: Options) -> dict[str, Any]:
    for option, value in accepted.items():
      options.only(option, value)
    return {}

  return Entry(read)


def writes(**options: Any) -> Entry:
  """Options that are written for transformers but not read."""
  return Entry(write=lambda model: options)


def constant(**options: Any) -> Entry:
  """Options with one accepted value, which is also written."""
  return Entry(only(**options).read, writes(**options).write)


def dropout(embedding: str, residual: str, attention: str, rate: Any) -> Entry:
  """`model.dropout`: the options with the rates, and their default(s).

  If one option stands for several rates, the residuals' rate is written.
  """
  options = {'embedding': embedding, 'residual': residual}
  options['attention'] = attention
  rates = rate if isinstance(rate, tuple) else (rate, rate, rate)
  arguments = zip(options.items(), rates, strict=True)
  entry = call('dropout', 'rates', **{n: (o, r) for (n, o), r in arguments})

  def write(model: Transformer) -> dict[str, Any]:
    rate = choice(model, 'dropout').kwargs.get('residual', 0.0)
    return entry.write(model) | {residual: rate}

  return Entry(entry.read, write)


# The options that most families since BERT share.
BODY = {
  'vocab_size': 'vocab_size',
  'max_position_embeddings': 'context_length',
  'num_hidden_layers': 'num_layers',
  'hidden_size': 'd_model',
  'num_attention_heads': 'num_heads',
}
# Suffixes of the decoders' class names.
CAUSAL = {'ForCausalLM': 'lm', 'ForSequenceClassification': 'classification', 'Model': 'body'}


def classes(name: str, kinds: Mapping[str, str] = CAUSAL) -> dict[str, str]:
  """`Family.architectures`."""
  return {f'{name}{suffix}': kind for suffix, kind in kinds.items()}


class Tensor(NamedTuple):
  """One tensor of the file.

  Attributes:
    names: in the file; several if releases differ or tied copies are repeated.
      At least one must be present, and all that are must be equal. An export
      uses the names of the import, or the first.
    paths: of the parameters in it: several if fused, none if a constant.
    split: from the tensor to one array for each path.
    always: names that every export has, whatever the import had.
    layers: the layers of its stack that have it; None: all.
    experts: if above 0, there is one tensor for each expert, whose name
      contains `{expert}`, and the parameters have an axis of experts.
  """

  names: tuple[str, ...]
  paths: tuple[str, ...]
  split: Callable[[np.ndarray], Sequence[np.ndarray]]
  join: Callable[[Sequence[np.ndarray]], np.ndarray]
  always: tuple[str, ...] = ()
  layers: tuple[int, ...] | None = None
  experts: int = 0


def same(path: str, *names: str) -> Tensor:
  """A tensor stored like our parameter: vectors, embedding tables."""
  return Tensor(names, (path,), lambda x: [x], lambda parts: parts[0])


def transposed(path: str, *names: str) -> Tensor:
  """A matrix stored as the transpose of ours."""
  return Tensor(names, (path,), lambda x: [x.T], lambda parts: parts[0].T)


def linear(path: str, name: str, bias: bool = True) -> list[Tensor]:
  """Torch's `Linear`: its weight is [out, in]."""
  weight = transposed(f'{path}/kernel', f'{name}.weight')
  return [weight] + [same(f'{path}/bias', f'{name}.bias')] * bias


def conv1d(path: str, name: str) -> list[Tensor]:
  """HF's `Conv1D`: its weight is [in, out]."""
  kernel, bias = f'{path}/kernel', f'{path}/bias'
  return [same(kernel, f'{name}.weight'), same(bias, f'{name}.bias')]


def norm(path: str, name: str, bias: bool = True) -> list[Tensor]:
  """LayerNorm; without bias, RMSNorm."""
  weight = same(f'{path}/scale', f'{name}.weight')
  return [weight] + [same(f'{path}/bias', f'{name}.bias')] * bias


def fused_qkv(
  path: str,
  name: str,
  *,
  groups: int,
  heads: tuple[int, int, int],
  head_size: int,
  bias: bool,
  layout: str = 'linear',
) -> list[Tensor]:
  """Queries, keys and values fused in one matrix.

  Its outputs are `groups` groups, each with the given numbers of query, key and
  value heads. GPT-2: 1 group of (H, H, H). GPT-NeoX: H groups of (1, 1, 1).
  Falcon 7B: 1 group of (H, 1, 1); 40B: G groups of (H / G, 1, 1).

  Args:
    path: of the parent of `query`, `key` and `value`.
    name: without `.weight`.
    heads: in each group, of queries, keys and values.
    layout: `linear` is [out, in], `conv1d` is [in, out].
  """
  cuts = np.cumsum(heads)[:-1].tolist()

  def split(x: np.ndarray) -> list[np.ndarray]:
    x = x.T if layout == 'linear' else x
    x = x.reshape(*x.shape[:-1], groups, sum(heads), head_size)
    parts = np.split(x, cuts, axis=-2)
    return [p.reshape(*p.shape[:-3], -1) for p in parts]

  def join(parts: Sequence[np.ndarray]) -> np.ndarray:
    apart = [p.reshape(*p.shape[:-1], groups, -1, head_size) for p in parts]
    x = np.concatenate(apart, axis=-2)
    x = x.reshape(*x.shape[:-3], -1)
    return x.T if layout == 'linear' else x

  def tensor(leaf: str, kind: str) -> Tensor:
    paths = tuple(f'{path}/{p}/{leaf}' for p in ('query', 'key', 'value'))
    return Tensor((f'{name}.{kind}',), paths, split, join)

  return [tensor('kernel', 'weight')] + [tensor('bias', 'bias')] * bias


class Family(NamedTuple):
  """A `model_type` of Hugging Face: see the top of this file.

  Attributes:
    model_type: as config.json has it.
    architectures: class name -> one of `heads.KINDS`; exports of our own models
      get the first class of their kind.
    prefix: of the body's tensors, e.g. `transformer.`; some files leave it out.
    entries: config.json without `model_type`, `architectures`, `dtype`.
    tensors: from a `Transformer` to its tensors, without those in `heads.py`.
    buffers: regular expressions, with the prefix, of tensors that are no
      parameters (causal masks, rotary frequencies) and are ignored.
    unread: the same for parameters that are not imported; an import warns.
    token_types: whether `token_type_ids` are accepted; without `token_types` in
      `model.input` they are looked up in the token embeddings.
    positions: from the model, `input_ids`, the attention mask (bool) and
      `position_ids` (or None), all [batch, time], to our positions; None for
      0, 1, 2, ...
    bare: whether exports of our own models leave the prefix out.
    rewritten: options that an export always takes from `options`, since
      releases of transformers read the import's own differently.
    heads: names of heads' tensors that differ from `heads.py`: by head, or by
      kind and head, as in `tokens/classifier`.
    pair: the input and the output that say whether two sentences belong
      together.
    pooler: activation of the pooled first token: tanh, gelu or relu.
    output_bias: the tensor of a bias of the vocabulary's scores that
      config.json does not mention; zeros mean that the model has none.
    output_table: the tensor of an untied output table; a file without it has a
      tied one, which config.json does not say (T5 1.1 of transformers 5).
    shared_layers: whether layers may share tensors.
    scoring_body: whether the body alone can score the vocabulary.
    rolled: whether the decoder starts with the last target token (mBART: the
      language) instead of `decoder_start_token_id`.
    files: names in its folders of tokenizer files that we name otherwise.
    recurrent: for a family with memories, the inputs of `hf.forward` that it
      accepts besides `input_ids` and those of its heads.
  """

  model_type: str
  architectures: dict[str, str]
  prefix: str
  entries: tuple[Entry, ...]
  tensors: Callable[[Transformer], list[Tensor]]
  buffers: tuple[str, ...] = ()
  unread: tuple[str, ...] = ()
  token_types: bool = False
  positions: Callable[[Transformer, Any, Any, Any], Any] | None = None
  bare: bool = False
  rewritten: tuple[str, ...] = ()
  heads: Mapping[str, str] = MappingProxyType({})
  pair: tuple[str, str] = ('next_sentence_label', 'seq_relationship_logits')
  pooler: str = 'tanh'
  output_bias: str = ''
  output_table: str = ''
  shared_layers: bool = False
  scoring_body: bool = False
  rolled: bool = False
  files: Mapping[str, str] = MappingProxyType({})
  recurrent: tuple[str, ...] = ()

  def fields(self, options: Options) -> dict[str, Any]:
    """The fields of `Transformer` that differ from `DEFAULTS`."""
    fields = {}
    for entry in self.entries:
      fields |= entry.read(options)
    return fields

  def options(self, model: Transformer) -> dict[str, Any]:
    """The options of a config.json from which `fields` reads this model."""
    options = {}
    for entry in self.entries:
      options |= entry.write(model)
    return options


def choice(model: Transformer, field: str) -> spec.Call:
  """The name and arguments of a call-string, defaults filled in.

  For a comma list, such as `attention`, the first; see `choices`.
  """
  return choices(model, field)[0]


def choices(model: Transformer, field: str) -> list[spec.Call]:
  """Like `choice`, for a comma list of calls."""
  text = getattr(model, field)
  return spec.bind_all(f'model.{field}', text, CHOICES[field])


def layers(model: Transformer, field: str = 'attention') -> list[spec.Call]:
  """The call for each layer."""
  period = choices(model, field)
  return period * (model.num_layers // len(period))


def ffns(model: Transformer, stack: str) -> list[spec.Call]:
  """The feed-forward call of each layer of the `encoder` or `decoder`."""
  if stack == 'decoder':
    return layers(model, 'ffn')
  period = choices(model, 'encoder_ffn' if model.encoder_ffn else 'ffn')
  return period * (model.num_encoder_layers // len(period))


def shortest_period(patterns: list[str]) -> str:
  """The shortest comma list that repeats to these patterns of the layers."""
  count = len(patterns)
  period = next(
    n for n in range(1, count + 1) if count % n == 0 and patterns[:n] * (count // n) == patterns
  )
  return ', '.join(patterns[:period])


def tables(model: Transformer, embed: str, *heads: str) -> list[Tensor]:
  """The token embeddings and the output's table, one tensor if tied."""
  if choice(model, 'output').name == 'tied':
    return [same('embed/embedding', embed, *heads)]
  return [same('embed/embedding', embed), same('head/embedding', *heads)]


def qkv(
  path: str, name: str, *, bias: bool, names: tuple[str, str, str] = ('q_proj', 'k_proj', 'v_proj')
) -> list[Tensor]:
  """Queries, keys and values in separate matrices; see also `fused_qkv`."""
  parts = zip(('query', 'key', 'value'), names, strict=True)
  return [
    tensor
    for ours, theirs in parts
    for tensor in linear(f'{path}/{ours}', f'{name}.{theirs}', bias)
  ]
