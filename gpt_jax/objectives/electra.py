# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which tokens did a generator replace? (ELECTRA, Clark et al., 2020.)

  x^masked  = the row with the chosen tokens as [MASK]
  x^        ~ p_G(. | x^masked) in the chosen places, x^corrupt the row with it
  L = mean over the chosen tokens of -log p_G(x_t | x^masked)
    + lambda * mean over all tokens of
        -1(x^corrupt_t = x_t) log D(x^corrupt, t)
        -1(x^corrupt_t != x_t) log(1 - D(x^corrupt, t))     (section 2)

In two stages (section 3.3) the generator is trained alone by the first mean;
then the model starts as the generator, and is trained by the second mean while
the generator stays. They share nothing.

Nothing has a gradient through the draw. D here is the probability of the
original; the head's logit is that of a replaced token, as in the released
models. `model` is the discriminator, `models.generator` the generator. What of
their embeddings is one says `SHARINGS`.
"""

from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax import spec
from gpt_jax.nn.build import period
from gpt_jax.nn.heads import OUTPUTS, ReplacedHead
from gpt_jax.nn.layers import ACTIVATIONS, INITS, gelu_exact
from gpt_jax.nn.transformer import DTYPES, Transformer, parameter_shapes
from gpt_jax.objectives import forward
from gpt_jax.objectives.base import (
  Batch,
  Declared,
  Loss,
  Mean,
  Needs,
  Objective,
  Params,
  Part,
  Scored,
)
from gpt_jax.objectives.cross_entropy import (
  num_right,
  penalised_cross_entropy,
  sampled,
)
from gpt_jax.objectives.masked import (
  Masking,
  masked_batch,
  masked_loss,
)
from gpt_jax.optim.train_state import Stages
from gpt_jax.ranges import NotNegative, OneOf, Probability, Weight, Whole
from gpt_jax.rows.rows import Keys, Rows
from gpt_jax.spec import UsageError
from gpt_jax.tokenizers.tokenizer import Tokenizer

# What ELECTRA's model learns of a row with other tokens: two kinds of targets.
#
# `ReplacedTargets`: whether each token is replaced (section 2).
# `VocabularyTargets`: what it was (section 3.4).


def _weights(batch: Batch, chosen_only: bool) -> jax.Array:
  """Float32 [B, L], 1 for the tokens whose loss counts."""
  if not chosen_only:
    return batch['mask'].astype(jnp.float32)
  rows_B1 = jnp.arange(len(batch['mask']))[:, None]
  zeros_BL = jnp.zeros(batch['mask'].shape, jnp.float32)
  return zeros_BL.at[rows_B1, batch['masked_positions']].max(
    batch['masked_weights']
  )


class ReplacedTargets:
  """Whether each token is replaced."""

  def __init__(self, model: Transformer, chosen_only: bool):
    """The head, as wide as the model."""
    inits = spec.build('model.init_weights', model.init_weights, INITS)
    # The discriminator's head has the activation of its layers in the released
    # code; those of gated layers, and of experts, are none of its kind.
    name = spec.parse('model.ffn', model.ffn)[0].name
    self._head = ReplacedHead(
      inits(model.num_layers).kernel,
      ACTIVATIONS.get(name, gelu_exact),
      DTYPES[model.dtype],
    )
    self._size, self._chosen_only = model.d_model, chosen_only

  def init(self, key: jax.Array) -> Params:
    """As Hugging Face's pre-training head is kept, see `hf.heads`."""
    made: Any = self._head.init(key, jnp.zeros((1, 1, self._size)))
    return {'heads': made['params']}

  def weights(self, batch: Batch) -> jax.Array:
    """See `_weights`."""
    return _weights(batch, self._chosen_only)

  def loss(
    self,
    params: Params,
    hidden_BLD: jax.Array,
    original_BL: jax.Array,
    replaced_BL: jax.Array,
    batch: Batch,
    *,
    evaluating: bool,
  ) -> tuple[jax.Array, dict[str, Mean]]:
    """The sum over the tokens that count, and metrics."""
    del original_BL, evaluating
    variables = {'params': params['heads']}
    logits_BL: Any = self._head.apply(variables, hidden_BLD)
    weights_BL, label_BL = self.weights(batch), replaced_BL
    # -log sigmoid(z) = softplus(-z), -log(1 - sigmoid(z)) = softplus(z).
    loss_BL = jax.nn.softplus(jnp.where(label_BL, -logits_BL, logits_BL))
    said_BL = logits_BL > 0
    total, count = jnp.sum(loss_BL * weights_BL), jnp.sum(weights_BL)

    def share(of_BL: jax.Array, among_BL: jax.Array) -> Mean:
      return Mean(jnp.sum(of_BL * among_BL), jnp.sum(among_BL))

    return total, {
      'objective/replaced_loss': Mean(total, count),
      'objective/replaced_accuracy': share(said_BL == label_BL, weights_BL),
      'objective/replaced_recall': share(said_BL, weights_BL * label_BL),
      'objective/replaced_share': share(label_BL, weights_BL),
    }


class VocabularyTargets:
  """What each token was."""

  def __init__(self, model: Transformer, chosen_only: bool):
    """Of a model that scores the vocabulary."""
    self._model, self._chosen_only = model, chosen_only

  def init(self, key: jax.Array) -> Params:
    """The model has all there is."""
    del key
    return {}

  def weights(self, batch: Batch) -> jax.Array:
    """See `_weights`."""
    return _weights(batch, self._chosen_only)

  def loss(
    self,
    params: Params,
    hidden_BLD: jax.Array,
    original_BL: jax.Array,
    replaced_BL: jax.Array,
    batch: Batch,
    *,
    evaluating: bool,
  ) -> tuple[jax.Array, dict[str, Mean]]:
    """The sum over the tokens that count, and metrics."""
    model, weights_BL = self._model, self.weights(batch)
    asked = original_BL, weights_BL
    if self._chosen_only:
      hidden_BLD = forward.at_chosen(hidden_BLD, batch)
      asked = batch['masked_targets'], batch['masked_weights']
    hidden, table_VD, softcap = forward.scores(model, params, hidden_BLD)
    scored = (hidden, table_VD, *asked)
    sums: Any = penalised_cross_entropy(*scored, 0.0, softcap)
    count = jnp.sum(weights_BL)
    share = jnp.sum(replaced_BL * weights_BL)
    metrics = {
      'objective/token_loss': Mean(sums.total, count),
      'objective/replaced_share': Mean(share, count),
    }
    if evaluating:
      metrics['objective/token_accuracy'] = Mean(num_right(*scored), count)
    return sums.total, metrics


# How the two models of ELECTRA share their embeddings.
#
# es    both have one table: it follows both losses (ELECTRA, section 3.2)
# nes   each has its own
# gdes  E_D = sg(E_G) + E_Delta: the model reads the generator's table, which
#       follows the generator's loss alone, with a difference of its own, which
#       follows the other ("gradient-disentangled", He et al., 2021: DeBERTaV3,
#       section 3.2 and equation 3; E_Delta is 0 at first)
#
# With es the generator takes token, position and type vectors and their norm
# from the model, as in ELECTRA's released code; its section 3.2 shares the
# first two. With gdes the model keeps the differences, and each has its own
# norm.


TABLES = ('embed', 'positions', 'segments')
SHARED = (*TABLES, 'embed_norm')
# -> what the generator takes from the model, and what the model adds to the
# generator's.
SHARINGS = {
  'es': (SHARED, ()),
  'nes': ((), ()),
  'gdes': ((), TABLES),
}


def shared_part(sharing: str, scored: Scored, *, apart: bool) -> Part:
  """The generator.

  Args:
    sharing: one of `SHARINGS`.
    apart: whether the models are trained one after the other, without sharing.
  """
  if apart and sharing == 'gdes':
    raise UsageError(
      f'objective.name: sharing={sharing!r}: with generator_steps the models '
      'share nothing; leave one of the two out'
    )
  shared, added = SHARINGS['nes' if apart else sharing]
  return Part(shared, scored, added=added)


def check(model: Transformer, generator: Transformer, part: Part) -> None:
  """Checks that what they share has one shape."""
  ours, theirs = parameter_shapes(model), parameter_shapes(generator)
  for name in (*part.shared, *part.added):
    shapes = [
      {} if name not in tree else jax.tree.map(lambda x: x.shape, tree[name])
      for tree in (ours, theirs)
    ]
    if shapes[0] != shapes[1]:
      raise UsageError(
        f'models.generator: its {name} is {shapes[1]}, but it takes that of '
        f'model, {shapes[0]}; give both the same vocab_size, context_length, '
        'position, token_types and norm, and where d_model differs '
        f"models.generator.input='tokens(..., d_embed=...)'"
      )


def check_same_size(model: Transformer, generator: Transformer) -> None:
  """Checks that the model can start as the generator."""
  ours, theirs = (
    {
      jax.tree_util.keystr(path, simple=True, separator='/'): x.shape
      for path, x in jax.tree_util.tree_leaves_with_path(parameter_shapes(of))
    }
    for of in (model, generator)
  )
  for name, shape in ours.items():
    if theirs.get(name) != shape:
      raise UsageError(
        f'models.generator: its {name} is {theirs.get(name, "missing")}, and '
        f"the model's {shape}; with generator_steps the model starts as the "
        'generator: give both the same size'
      )


# What the model learns -> whether of the chosen tokens alone, and whether it
# scores the vocabulary (section 3.4).
TARGETS = {
  'electra': (False, False),
  'electra_15': (True, False),
  'replace_mlm': (True, True),
  'all_tokens_mlm': (False, True),
}


def electra(
  rate: Probability = 0.15,
  weight: Weight = 50.0,
  targets: Annotated[str, OneOf((*TARGETS,))] = 'electra',
  temperature: NotNegative = 1.0,
  generator_steps: Whole = 0,
  sharing: Annotated[str, OneOf((*SHARINGS,))] = 'es',
) -> Declared:
  """Replaced tokens, or one of the paper's comparisons (section 3.4).

  Args:
    rate: of a row's tokens that are chosen, at most int((rate + 0.005) n) of n
      (the released code), all of which become [MASK].
    weight: lambda, of the model's loss beside the generator's.
    targets: 'electra': for all tokens, whether they are replaced;
      'electra_15': for the chosen ones only; 'replace_mlm': what the chosen
      ones were; 'all_tokens_mlm': what all were, without the paper's copying
      mechanism. The last two score the vocabulary, so that `model.output` is
      that of a masked model; give them weight=1.0.
    temperature: of the draw; 0: always the most probable token.
    generator_steps: of the first of two stages; the models must be of the same
      size, and share nothing. 0: both are trained at once.
    sharing: of the embeddings: 'es', 'nes' or 'gdes', see
      `SHARINGS`.
  """
  chosen_only, scores = TARGETS[targets]

  def most(length: int) -> int:
    return int((rate + 0.005) * length)

  masking = Masking(rate, 1.0, 0.0, most=most)
  places = masking.places

  def none(length: int) -> int:
    del length
    return 0

  def whole(length: int) -> int:
    return length

  part = shared_part(sharing, Scored(places, none), apart=generator_steps > 0)
  output = (places if chosen_only else whole) if scores else none
  needs = Needs(
    attention='bidirectional',
    rows=('stream', 'documents', 'full_sentences', 'doc_sentences', 'pairs'),
    tokens=('mask',),
    scored=Scored(output, whole),
    pooler='gelu',  # the released code
    parts={'generator': part},
  )

  def build(
    model: Transformer, tokenizer: Tokenizer | None, generator: Transformer
  ) -> Objective:
    _check(model, generator, targets)
    check(model, generator, part)
    if generator_steps:
      check_same_size(model, generator)
    known = masking.known_to(tokenizer)
    second = (
      VocabularyTargets(model, chosen_only)
      if scores
      else ReplacedTargets(model, chosen_only)
    )
    both = _Both(model, generator, second, needs, weight, temperature)
    stages = Stages(generator_steps, ('generator',), both.enter, both.of_stage)

    def make_batch(rows: Rows, keys: Keys) -> dict[str, np.ndarray]:
      batch = masked_batch(rows, keys, known)
      # What the generator's draws of a row follow from.
      return {**batch, 'numbers': keys.run.astype(np.uint32)}

    return Objective(
      *(make_batch, both.init, both.loss),
      balance=both.balance,
      stages=stages if generator_steps else None,
    )

  return Declared(needs, build)


class _Both(NamedTuple):
  """The two models, and what the first learns of the second's rows."""

  model: Transformer
  generator: Transformer
  targets: ReplacedTargets | VocabularyTargets
  needs: Needs
  weight: float
  temperature: float

  def init(self, key: jax.Array) -> Params:
    """Parameters of both, shared ones once."""
    of_targets, of_generator = jax.random.split(jax.random.fold_in(key, 1))
    params = forward.init(self.model, key)
    own = forward.init(self.generator, of_generator)
    part = self.needs.parts['generator']
    own = {name: x for name, x in own.items() if name not in part.shared}
    # "[...] initialized as a zero matrix" (DeBERTaV3, section 3.2).
    zeros = {n: params[n] for n in part.added if n in params}
    return {
      **params,
      **jax.tree.map(jnp.zeros_like, zeros),
      **self.targets.init(of_targets),
      'parts': {'generator': own},
    }

  def enter(self, params: Params) -> Params:
    """The model as the generator, with the head that it has."""
    of_generator = params['parts']['generator']
    own = {name: of_generator[name] for name in parameter_shapes(self.model)}
    # Each its own buffers: the step gives both away.
    return {**params, **jax.tree.map(jnp.copy, own)}

  def of_stage(
    self,
    params: Params,
    batch: Batch,
    key: jax.Array | None,
    second: jax.Array,
  ) -> Loss:
    """The first or the second mean alone."""
    return self._weighed(params, batch, key, (~second, second))

  def loss(self, params: Params, batch: Batch, key: jax.Array | None) -> Loss:
    """The loss at the top of this file."""
    return self._weighed(params, batch, key, (1, 1))

  def _weighed(
    self, params: Params, batch: Batch, key: jax.Array | None, factors: tuple
  ) -> Loss:
    """Both means, each times a factor."""
    evaluating = key is None
    # Held-out rows are replaced alike each time.
    keys = jax.random.split(jax.random.key(0) if key is None else key, 3)
    dropout = (None, None) if evaluating else (keys[1], keys[2])
    generator = self.generator
    own = self.needs.trees(params)['generator']
    stopped = jax.lax.stop_gradient(params['parts'])
    model = self.needs.merged({**params, 'parts': stopped})
    hidden_BLD, _ = forward.states(generator, own, batch, dropout[0])
    states_BPD = forward.at_chosen(hidden_BLD, batch)
    chosen = forward.scores(generator, own, states_BPD)
    found = masked_loss(chosen, batch, evaluating=evaluating)
    of_rows = jax.vmap(jax.random.fold_in, (None, 0))
    keys_B = of_rows(keys[0], batch['numbers'])
    ids_BP = sampled(
      *(chosen.hidden_BLD, chosen.table_VD, keys_B, self.temperature),
      chosen.softcap,
    )
    original_BL = _placed(batch, batch['masked_targets'])
    corrupt_BL = _placed(batch, ids_BP)
    corrupt = {**batch, 'inputs': corrupt_BL}
    hidden_BLD, routers = forward.states(self.model, model, corrupt, dropout[1])
    total, metrics = self.targets.loss(
      *(model, hidden_BLD, original_BL, corrupt_BL != original_BL, batch),
      evaluating=evaluating,
    )
    found = found._replace(metrics={**(found.metrics or {}), **metrics})
    if evaluating:
      counted = jnp.sum(self.targets.weights(batch))
      found = found._replace(added=(Mean(self.weight * total, counted),))
    else:
      # Equal in all rows; see `balance`.
      factor = self.weight * jnp.max(batch['second_factor'])
      found = found._replace(
        sum=factors[0] * found.sum + factors[1] * factor * total
      )
    return forward.add_routers(found, routers, training=not evaluating)

  def balance(self, batch: Batch) -> Batch:
    """Makes both losses means of the whole batch.

    Sums of parts are divided by the number of chosen tokens alone, so that
    each token of the second loss counts for its share of them.
    """
    chosen = jnp.sum(batch['masked_weights'])
    counted = jnp.maximum(jnp.sum(self.targets.weights(batch)), 1)
    rows = jnp.ones(len(batch['mask']), jnp.float32)
    return {**batch, 'second_factor': rows * (chosen / counted)}


def _placed(batch: Batch, ids_BP: jax.Array) -> jax.Array:
  """The row with ids in the places of the chosen tokens."""
  inputs_BL = jnp.asarray(batch['inputs'])
  at_BP = batch['masked_positions']
  old_BP = jnp.take_along_axis(inputs_BL, at_BP, axis=1)
  ids_BP = jnp.where(batch['masked_weights'] > 0, ids_BP, old_BP)
  rows_B1 = jnp.arange(len(inputs_BL))[:, None]
  return inputs_BL.at[rows_B1, at_BP].set(ids_BP)


def _check(model: Transformer, generator: Transformer, targets: str) -> None:
  """Checks that the two go together."""
  _, scores = TARGETS[targets]
  forward.check_scores(generator, 'electra', field='models.generator')
  forward.check_scores(model, 'electra')
  head = spec.build('model.output', model.output, OUTPUTS)
  if not scores and (not head.tied or head.bias or head.transform):
    raise UsageError(
      f'model.output={model.output!r}: with targets={targets!r} the model '
      "scores no vocabulary, and nothing would train its output; give 'tied'"
    )
  layers = period(generator.attention, generator.ffn)
  if any(layer.ffn.router for layer in layers):
    raise UsageError(
      f'models.generator.ffn={generator.ffn!r}: only the model has experts; '
      'give the generator another'
    )
