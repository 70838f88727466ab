# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The terms of MFU: parameters and FLOPs per token."""

import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import linen as nn

from gpt_jax.core import config as config_lib
from gpt_jax.core import spec
from gpt_jax.core.config import Config
from gpt_jax.core.nn.build import Layer, ModelChoices
from gpt_jax.core.nn.masks import Pattern
from gpt_jax.core.nn.positions import Position
from gpt_jax.core.objectives import choices as objectives
from gpt_jax.core.objectives.base import Scored

# How each MFU in metrics.jsonl is counted.
FORMULA = (
  'mfu: tokens/s * (6 * matmul parameters + 12 * layers * heads * head size '
  '* span) / peak; head size: the mean of a key and a value; span: the context '
  '(PaLM, appendix B: attention counted whole), or the most keys a token sees '
  'where its layer has a window or a sparse pattern (of random keys the mean); '
  'of experts only those that a token takes, and of the output only what the '
  'objective scores; of a frozen model a third, '
  'and of a model with adapters two thirds, without the adapters'
)
FORMULA_CAUSAL = (
  'mfu_causal: the same with the mean number of keys that the tokens of a row '
  "see by the layer's mask: (context + 1) / 2 where they see all before"
)
FORMULA_COMPILER = (
  'mfu_compiler: steps/s * FLOPs of all matrix products handed to the '
  'compiler / peak; loops times their trips, recomputation included'
)
# Experts share one array with an axis of experts: a path identifies the layer
# only.
_EXPERT = re.compile(r'^(\w+)/periods/block_(\d+)/ffn/(?:in|gate|out)/')
# Stacks that read the source.
_ON_SOURCE = ('encoder/', 'source/')
# Kernels that the tokens of a second stream skip.
_OF_KEYS = re.compile(r'/attention/(?:key|value)/')
# Kernels that a decoder applies to the encoder's output.
_OF_SOURCE = re.compile(r'/cross/(?:key|value)/')


def parameter_table(params: Any) -> dict[str, tuple[int, ...]]:
  """Maps paths such as 'embed/embedding' to shapes, abstract ones too."""
  return {
    jax.tree_util.keystr(path, simple=True, separator='/'): leaf.shape
    for path, leaf in jax.tree_util.tree_leaves_with_path(nn.meta.unbox(params))
  }


def active_parameters(config: Config, params: Any) -> dict[str, int]:
  """Parameters of each array that one token uses.

  All, except that experts count top_k / num_experts, whether or not a full
  expert drops the token, and of a sampled softmax the words of the sample.
  """
  stacks, counts = _stacks(config), {}
  candidates = objectives.needs(config.objective.name).candidates
  for name, shape in parameter_table(params).items():
    if candidates and name == 'head/embedding':
      shape = min(shape[0], candidates), *shape[1:]
    counts[name] = math.prod(shape)
    expert = _EXPERT.search(name)
    if expert and (router := stacks[expert[1]][1][int(expert[2])].ffn.router):
      counts[name] = counts[name] // router.num_experts * router.top_k
  return counts


class _Model(NamedTuple):
  """One of the models that a config trains."""

  config: Config  # with the model's section as `model`
  params: Any  # all of its parameters, including shared ones
  scored: Scored | None  # see `objectives.base.Scored`
  # Forward, and backward for the inputs and for the parameters.
  passes: int
  head_passes: int
  num_predicted: Callable[[int], int]  # see `objectives.base.Needs`

  def scores(self, length: int) -> bool:
    """Whether any token of a row of `length` is scored by the output."""
    return self.scored is None or self.scored.output(length) > 0


def _models(config: Config, params: Any) -> list[_Model]:
  """The run's model, and the others that its objective trains."""
  needs = objectives.needs(config.objective.name)
  # Without sections for other models, only the run's model is counted.
  names = needs.parts if config.models else {}
  trees = needs._replace(parts=names).trees(params)
  scored = {'': needs.scored, **{n: p.scored for n, p in names.items()}}
  tuned, trained = config.get('finetune'), 3
  if tuned and tuned.features:
    trained = 1
  elif tuned and spec.build('finetune.lora', tuned.lora, objectives.LORAS):
    trained = 2  # the adapters themselves are left out
  return [
    _Model(
      config_lib.of_part(config, name),
      tree,
      scored[name],
      passes=1 if name in needs.frozen else trained,
      head_passes=1 if name in needs.frozen else 3,
      num_predicted=needs.num_predicted if not name else lambda length: 0,
    )
    for name, tree in trees.items()
  ]


def matmul_parameters(config: Config, params: Any) -> int:
  """Active parameters in matrix products, as often as a token uses them.

  Parameters that layers or models share count in each of them. Included are
  kernels (also routers') and the output embedding if it scores anything; of
  experts only those that a token uses. Embedding lookups, positions, biases and
  norm scales are no matrix products, and the relative-position kernels of
  Transformer-XL and DeBERTa multiply distances, once for all rows.
  """
  models = _models(config, params)
  return sum(sum(_products(model).values()) for model in models)


def met_parameters(config: Config, params: Any) -> float:
  """`matmul_parameters` that the mean token of a row of text uses.

  Fewer if an objective scores only some positions of a row, and in an
  encoder-decoder, where each side's tokens use its own parameters.
  """
  length = config_lib.row_tokens(config)
  return sum(_met(model, length) + _of_heads(model, length) for model in _models(config, params))


def share_of_layers(config: Config, params: Any) -> float:
  """The fraction of `matmul_parameters` in the layers, without routers.

  That is what `model.matmul` multiplies.
  """
  counts = [_products(model) for model in _models(config, params)]
  in_layers = sum(
    count
    for products in counts
    for name, count in products.items()
    if name.startswith(('decoder/', 'encoder/')) and '/router/' not in name
  )
  return in_layers / sum(sum(products.values()) for products in counts)


def _products(model: _Model) -> dict[str, int]:
  """`matmul_parameters` of each array."""
  config, params = model.config, model.params
  choices = ModelChoices.of(config.model)
  head = 'embed' if choices.output.tied else 'head'
  active, uses = active_parameters(config, params), _uses(model)
  # DeBERTa's last layer may be run more than once.
  again = {'decoder': choices.position.last_layer_runs - 1}
  return {
    name: count * uses[name] + count * again.get(name.split('/')[0], 0) // config.model.num_layers
    for name, count in active.items()
    # An adaptive embedding has `kernel_0`, `embedding_0`, ...
    if ('/kernel' in name and '/relative' not in name) or name.startswith(f'{head}/embedding')
  }


def _trunk(model: _Model) -> dict[str, int]:
  """`_products` without heads that score some positions: see `_of_heads`."""
  return {
    name: count
    for name, count in _products(model).items()
    if model.scored is None or not name.startswith('heads/')
  }


def _met(model: _Model, length: int) -> float:
  """Parameters in matrix products that the mean token of a row uses.

  All, unless the objective scores only some positions: the others skip the
  output; the heads are in `_of_heads`. For an encoder-decoder see
  `_met_by_sides`.
  """
  if model.config.model.num_encoder_layers:
    return _met_by_sides(model, length)
  scored = model.scored
  # With two texts in one row, it reads more tokens than either text has.
  read = config_lib.sides(model.config, length)[1]
  choices = ModelChoices.of(model.config.model)
  read += choices.num_extra
  products = _trunk(model)
  met = sum(products.values())
  if read != length:
    met *= read / length
  # A second stream passes all layers, but provides no keys and values.
  met += sum(
    count * model.num_predicted(length) / length
    for name, count in products.items()
    if name.startswith('decoder/') and not _OF_KEYS.search(name)
  )
  if scored is None:
    return met
  head = 'embed/embedding' if choices.output.tied else 'head/embedding'
  uses = _uses(model)
  for name, shape in parameter_table(model.params).items():
    if name in (head, 'output_dense/kernel'):
      left = uses[name] * (read - scored.output(length)) / length
    elif name == 'embed_projection/kernel':
      left = (uses[name] - 1) * (read - scored.output(length)) / length
    else:
      left = 0
    met -= left * math.prod(shape)
  return met


def _of_heads(model: _Model, length: int) -> float:
  """Parameters of heads that score some positions, for the mean token."""
  if model.scored is None:
    return 0
  total = 0
  for name, shape in parameter_table(model.params).items():
    stack, *inside = name.split('/')
    if stack == 'heads' and inside[-1] == 'kernel':
      once = inside[0] in model.scored.once
      times = 1 if once else model.scored.heads(length)
      total += times / length * math.prod(shape)
  return total


def _met_by_sides(model: _Model, length: int) -> float:
  """`_met` of an encoder-decoder: products of a row per token of its text.

  Source tokens use the encoder and the cross-attention's keys and values;
  target tokens use the rest.
  """
  of_source, of_target = config_lib.sides(model.config, length)
  total = 0
  for name, count in _trunk(model).items():
    on_source = name.startswith(_ON_SOURCE) or _OF_SOURCE.search(name)
    if _of_both(model.config, name):
      total += count / 2 * (of_source + of_target)
    else:
      total += count * (of_source if on_source else of_target)
    if name == 'embed_projection/kernel':  # of both sides' embeddings
      total += math.prod(parameter_table(model.params)[name]) * of_source
  return total / length


def _uses(model: _Model) -> dict[str, int]:
  """How often a token uses each entry of a parameter."""
  config = model.config
  stacks, uses = _stacks(config), {}
  choices = ModelChoices.of(config.model)
  output, reader = choices.output, choices.input.reader
  scores = model.scores(config.model.context_length)
  for name, shape in parameter_table(model.params).items():
    stack, *inside = name.split('/')
    uses[name] = 1
    if name == 'embed_projection/kernel':
      # Used again to project back to the embeddings, to score the vocabulary.
      uses[name] += int(scores and output.tied and not output.transform)
    elif reader and name.startswith('embed/'):
      uses[name] = reader.uses(shape)
    elif name.startswith(('embed/', 'head/')):
      # Each of two directions scores the vocabulary.
      uses[name] = int(scores) * (1 + choices.separate)
    if stack in stacks and inside[0] == 'periods':
      number, layers = stacks[stack]
      uses[name] = number // len(layers) // shape[0]
    if _of_both(config, name):
      uses[name] *= 2
  return uses


def _of_both(config: Config, name: str) -> bool:
  """Whether both stacks of an encoder-decoder share a parameter."""
  shared = ModelChoices.of(config.model).share.stacks
  return shared and name.startswith('decoder/') and '/cross' not in name


def _stacks(config: Config) -> dict[str, tuple[int, tuple[Layer, ...]]]:
  """For each stack its number of layers, and those that it repeats."""
  model, choices = config.model, ModelChoices.of(config.model)
  return {
    'decoder': (model.num_layers, choices.decoder),
    'encoder': (model.num_encoder_layers, choices.encoder),
  }


def per_token(config: Config, params: Any, length: int | None = None) -> int:
  """Training FLOPs per token, forward and backward: see `FORMULA`.

  Attention is counted as PaLM counts it: each token as if it saw as many keys
  as the token of its row that sees most. With full attention those are all
  `length` tokens of the row (default: the context), with local(window=w) the w
  tokens of the window, with Transformer-XL's segments a segment and its memory
  (whose keys and values count once, though each segment projects them again).
  With bigbird it is the mean, since few tokens see all. A row counts as one
  document: if rows are packed and masked by document, tokens see less.

  For an encoder-decoder these are a row's FLOPs divided by its `length` tokens
  of text; the objective says how many the encoder reads and the decoder writes
  (see `Needs.sides`). For pairs of texts, a token of the source and one of the
  target count together. Each decoder layer attends twice, to its own tokens
  and to the encoder's.

  Several models of an objective are added up; a frozen one has only the forward
  pass, a third, and one with adapters no gradient of its kernels.
  """
  return _per_token(config, params, lambda seen: int(seen.max()), length)


def per_token_causal(config: Config, params: Any, length: int | None = None) -> int:
  """`per_token` with the mean number of visible keys: see `FORMULA_CAUSAL`.

  In an encoder's layers and in cross-attention all keys are visible: they count
  as in `per_token`.
  """
  return _per_token(config, params, lambda seen: float(seen.mean()), length)


def _per_token(
  config: Config, params: Any, span: Callable[[np.ndarray], float], length: int | None
) -> int:
  if length is None:
    needs = objectives.needs(config.objective.name)
    length = needs.text_length(config.model.context_length)
  return sum(
    round(2 * model.passes * _met(model, length))
    + round(2 * model.head_passes * _of_heads(model, length))
    + round(4 * model.passes * _attended(model, span, length))
    for model in _models(config, params)
  )


def _attended(counted: _Model, span: Callable[[np.ndarray], float], length: int) -> int | float:
  """The sum over the layers of heads * head size * `span`: see `FORMULA`.

  With `span` the context it is LHQT of PaLM's appendix B.

  `span` maps the number of keys that each query of a row sees to the number
  that counts; `length` is of a row of text.
  """
  config, model = counted.config, counted.config.model
  of_source, of_target = config_lib.sides(config, length)
  choices = ModelChoices.of(model)
  of_target += choices.num_extra
  spans = [_span(choices.position, pattern, span, of_target) for pattern in choices.attention]
  total = sum(spans[i % len(spans)] for i in range(model.num_layers))
  if choices.recurrent:
    attending = sum(layer.attends for layer in choices.recurrent)
    attending *= model.num_layers // len(choices.recurrent)
    return attending * (choices.memory_width or 0) * of_source * of_target / length
  if model.num_encoder_layers:
    total = (total + model.num_layers * of_source) * of_target / length
    before = model.num_encoder_layers + model.num_source_layers
    total += before * of_source**2 / length
  elif of_target != length:  # see `_met`
    total *= of_target / length
  if predicted := counted.num_predicted(length):
    total += total * predicted / length
  # The mean of the products with keys and with values.
  each = model.head_size + (model.value_size or model.head_size)
  return model.num_heads * each / 2 * total


def _span(
  position: Position, pattern: Pattern, span: Callable[[np.ndarray], float], length: int
) -> float:
  """`span` of a pattern; for block patterns the mean, since few see all."""
  if not length:  # an encoder is read alone
    return 0.0
  if position.recurrence:
    num_keys = position.recurrence.num_visible(pattern, length)
  else:
    num_keys = pattern.num_visible(length)
  return float(num_keys.mean()) if pattern.blocks else span(num_keys)


def both_mfu(whole: float, causal: float, digits: int = 0) -> str:
  """An MFU as text: '52%', or '65% (34% causal)' where the counts differ.

  Args:
    whole: by `FORMULA`, which counts all pairs of tokens of a row.
    causal: by `FORMULA_CAUSAL`, which counts those that the mask admits.
    digits: after the point.
  """
  first, second = (f'{x:.{digits}%}' for x in (whole, causal))
  return first if first == second else f'{first} ({second} causal)'


def mfu(tokens_per_second: float, flops: float, peaks: float) -> float:
  """Model FLOPs utilisation; `peaks` is the sum over all devices."""
  return tokens_per_second * flops / peaks
