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

from dataclasses import dataclass
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax import spec
from gpt_jax.nn.build import period
from gpt_jax.nn.heads import OUTPUTS, ReplacedHead
from gpt_jax.nn.layers import ACTIVATIONS, INITS, gelu_exact
from gpt_jax.nn.transformer import DTYPES, Transformer, parameter_shapes
from gpt_jax.objectives import forward
from gpt_jax.objectives.base import Needs, Objective, Part, Scored
from gpt_jax.objectives.cross_entropy import (
  num_right,
  penalised_cross_entropy,
  sampled,
)
from gpt_jax.objectives.loss import Batch, Loss, Mean, Params
from gpt_jax.objectives.masked import (
  Masking,
  masked_batch,
  masked_loss,
)
from gpt_jax.optim.train_state import Stages
from gpt_jax.ranges import NotNegative, OneOf, Probability, Weight, Whole
from gpt_jax.rows.rows import Keys, Rows
from gpt_jax.spec import UsageError

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


# What the model learns -> whether of the chosen tokens alone, and whether it
# scores the vocabulary (section 3.4).
TARGETS = {
  'electra': (False, False),
  'electra_15': (True, False),
  'replace_mlm': (True, True),
  'all_tokens_mlm': (False, True),
}


@dataclass(frozen=True)
class Electra(Objective):
  """Replaced tokens, or one of the paper's comparisons (section 3.4).

  Attributes:
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
    sharing: of the embeddings: 'es', 'nes' or 'gdes', see `SHARINGS`.
  """

  rate: Probability = 0.15
  weight: Weight = 50.0
  targets: Annotated[str, OneOf((*TARGETS,))] = 'electra'
  temperature: NotNegative = 1.0
  generator_steps: Whole = 0
  sharing: Annotated[str, OneOf((*SHARINGS,))] = 'es'

  def __post_init__(self):
    """Refuses a shared table of models that are trained one after the other."""
    if self.generator_steps and self.sharing == 'gdes':
      raise UsageError(
        f'objective.name: sharing={self.sharing!r}: with generator_steps the '
        'models share nothing; leave one of the two out'
      )

  @property
  def masking(self) -> Masking:
    """How tokens are chosen; all of them become [MASK]."""
    return Masking(
      *(self.rate, 1.0, 0.0),
      most=lambda length: int((self.rate + 0.005) * length),
    )

  @property
  def _chosen_only(self) -> bool:
    return TARGETS[self.targets][0]

  @property
  def _scores_vocabulary(self) -> bool:
    return TARGETS[self.targets][1]

  @property
  def needs(self) -> Needs:
    """An encoder, its generator and a [MASK]."""
    places = self.masking.places

    def output(length: int) -> int:
      if not self._scores_vocabulary:
        return 0
      return places(length) if self._chosen_only else length

    sharing = 'nes' if self.generator_steps else self.sharing
    shared, added = SHARINGS[sharing]
    generator = Part(shared, Scored(places, lambda length: 0), added=added)
    return Needs(
      attention='bidirectional',
      rows=('stream', 'documents', 'full_sentences', 'doc_sentences', 'pairs'),
      tokens=('mask',),
      scored=Scored(output, lambda length: length),
      pooler='gelu',  # the released code
      parts={'generator': generator},
    )

  @property
  def generator(self) -> Transformer:
    """Draws what stands in the places of chosen tokens."""
    return self.parts['generator']

  def check(self) -> None:
    """Checks that the two models go together."""
    model, generator = self.model, self.generator
    forward.check_scores(generator, 'electra', field='models.generator')
    forward.check_scores(model, 'electra')
    head = spec.build('model.output', model.output, OUTPUTS)
    plain = head.tied and not head.bias and not head.transform
    if not self._scores_vocabulary and not plain:
      raise UsageError(
        f'model.output={model.output!r}: with targets={self.targets!r} the '
        'model scores no vocabulary, and nothing would train its output; give '
        "'tied'"
      )
    layers = period(generator.attention, generator.ffn)
    if any(layer.ffn.router for layer in layers):
      raise UsageError(
        f'models.generator.ffn={generator.ffn!r}: only the model has experts; '
        'give the generator another'
      )
    _check_shared(model, generator, self.needs.parts['generator'])
    if self.generator_steps:
      _check_same_size(model, generator)

  def make_batch(self, rows: Rows, keys: Keys) -> dict[str, np.ndarray]:
    """Masked rows, and the numbers that the generator's draws follow from."""
    masking = self.masking.known_to(self.tokenizer)
    batch = masked_batch(rows, keys, masking)
    return {**batch, 'numbers': keys.run.astype(np.uint32)}

  def init(self, key: jax.Array) -> Params:
    """Parameters of both, shared ones once."""
    of_head, of_generator = jax.random.split(jax.random.fold_in(key, 1))
    params = super().init(key)
    own = forward.init(self.generator, of_generator)
    part = self.needs.parts['generator']
    own = {name: x for name, x in own.items() if name not in part.shared}
    # "[...] initialized as a zero matrix" (DeBERTaV3, section 3.2).
    zeros = {n: params[n] for n in part.added if n in params}
    params = {**params, **jax.tree.map(jnp.zeros_like, zeros)}
    if not self._scores_vocabulary:
      # As Hugging Face's pre-training head is kept, see `hf.heads`.
      hidden_BLD = jnp.zeros((1, 1, self.model.d_model))
      head: Any = self._head.init(of_head, hidden_BLD)
      params['heads'] = head['params']
    return {**params, 'parts': {'generator': own}}

  @property
  def _head(self) -> ReplacedHead:
    """Says which tokens are replaced."""
    model = self.model
    inits = spec.build('model.init_weights', model.init_weights, INITS)
    # The discriminator's head has the activation of its layers in the released
    # code; those of gated layers, and of experts, are none of its kind.
    name = spec.parse('model.ffn', model.ffn)[0].name
    activation = ACTIVATIONS.get(name, gelu_exact)
    kernel = inits(model.num_layers).kernel
    return ReplacedHead(kernel, activation, DTYPES[model.dtype])

  @property
  def stages(self) -> Stages | None:
    """The generator first, where it has steps of its own."""
    if not self.generator_steps:
      return None
    return Stages(
      *(self.generator_steps, ('generator',), self.enter, self.loss_of_stage)
    )

  def enter(self, params: Params) -> Params:
    """The model as the generator, with the head that it has."""
    of_generator = params['parts']['generator']
    own = {name: of_generator[name] for name in parameter_shapes(self.model)}
    # Each its own buffers: the step gives both away.
    return {**params, **jax.tree.map(jnp.copy, own)}

  def loss_of_stage(
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
    replaced_BL = corrupt_BL != original_BL
    if self._scores_vocabulary:
      total, metrics = self._vocabulary_loss(
        *(model, hidden_BLD, original_BL, replaced_BL, batch),
        evaluating=evaluating,
      )
    else:
      total, metrics = self._replaced_loss(
        model['heads'], hidden_BLD, replaced_BL, batch
      )
    found = found._replace(metrics={**(found.metrics or {}), **metrics})
    if evaluating:
      counted = jnp.sum(self._weights(batch))
      found = found._replace(added=(Mean(self.weight * total, counted),))
    else:
      # Equal in all rows; see `balance`.
      factor = self.weight * jnp.max(batch['second_factor'])
      found = found._replace(
        sum=factors[0] * found.sum + factors[1] * factor * total
      )
    return forward.add_routers(found, routers, training=not evaluating)

  def _replaced_loss(
    self,
    heads: Params,
    hidden_BLD: jax.Array,
    replaced_BL: jax.Array,
    batch: Batch,
  ) -> tuple[jax.Array, dict[str, Mean]]:
    """Whether each token is replaced (section 2): the sum, and metrics."""
    logits_BL: Any = self._head.apply({'params': heads}, hidden_BLD)
    weights_BL, label_BL = self._weights(batch), replaced_BL
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

  def _vocabulary_loss(
    self,
    params: Params,
    hidden_BLD: jax.Array,
    original_BL: jax.Array,
    replaced_BL: jax.Array,
    batch: Batch,
    *,
    evaluating: bool,
  ) -> tuple[jax.Array, dict[str, Mean]]:
    """What each token was (section 3.4): the sum, and metrics."""
    weights_BL = self._weights(batch)
    targets = original_BL, weights_BL
    if self._chosen_only:
      hidden_BLD = forward.at_chosen(hidden_BLD, batch)
      targets = batch['masked_targets'], batch['masked_weights']
    hidden, table_VD, softcap = forward.scores(self.model, params, hidden_BLD)
    scored = (hidden, table_VD, *targets)
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

  def _weights(self, batch: Batch) -> jax.Array:
    """Float32 [B, L], 1 for the tokens whose loss counts."""
    if not self._chosen_only:
      return batch['mask'].astype(jnp.float32)
    rows_B1 = jnp.arange(len(batch['mask']))[:, None]
    zeros_BL = jnp.zeros(batch['mask'].shape, jnp.float32)
    return zeros_BL.at[rows_B1, batch['masked_positions']].max(
      batch['masked_weights']
    )

  def balance(self, batch: Batch) -> Batch:
    """Makes both losses means of the whole batch.

    Sums of parts are divided by the number of chosen tokens alone, so that
    each token of the second loss counts for its share of them.
    """
    chosen = jnp.sum(batch['masked_weights'])
    counted = jnp.maximum(jnp.sum(self._weights(batch)), 1)
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


def _check_shared(
  model: Transformer, generator: Transformer, part: Part
) -> None:
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


def _check_same_size(model: Transformer, generator: Transformer) -> None:
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
