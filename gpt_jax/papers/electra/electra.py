# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Detecting tokens that a generator replaced (ELECTRA, Clark et al., 2020).

  x^masked  = the row with the chosen tokens as [MASK]
  x^corrupt = the row with the chosen tokens sampled from p_G(. | x^masked)
  L = mean over the chosen tokens of -log p_G(x_t | x^masked)
    + lambda * mean over all tokens of
        -1(x^corrupt_t = x_t) log D(x^corrupt, t)
        -1(x^corrupt_t != x_t) log(1 - D(x^corrupt, t))     (section 2)

In two stages (section 3.3) the generator is first trained alone on the first
mean; then the model is initialised with the generator's parameters and trained
on the second mean, with the generator fixed. They share no parameters.

There is no gradient through the sampling. D here is the probability that a
token is original; the head's logit is that of a replaced token, as in the
released models. `model` is the discriminator, `models.generator` the generator;
`SHARINGS` lists how they share embeddings.
"""

from dataclasses import dataclass
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.core import spec
from gpt_jax.core.nn.build import ModelChoices
from gpt_jax.core.nn.layers import ACTIVATIONS, gelu_exact
from gpt_jax.core.nn.params import flatten
from gpt_jax.core.nn.transformer import DTYPES, Transformer, parameter_shapes
from gpt_jax.core.objectives import forward
from gpt_jax.core.objectives.base import Needs, Objective, Part, Scored
from gpt_jax.core.objectives.cross_entropy import accuracy, sampled, token_loss
from gpt_jax.core.objectives.loss import RUN, Batch, Loss, Mean, Params, Term
from gpt_jax.core.optim.train_state import Stages
from gpt_jax.core.ranges import NotNegative, OneOf, Probability, Weight, Whole
from gpt_jax.core.rows.rows import Keys, Rows
from gpt_jax.core.spec import UsageError
from gpt_jax.papers.bert.masked import Masking, masked_batch, masked_loss
from gpt_jax.papers.bert.task_heads import ReplacedHead

# How the two models share their embeddings.
#
# es    one table, trained by both losses (ELECTRA, section 3.2)
# nes   separate tables
# gdes  E_D = sg(E_G) + E_Delta: the generator's table is trained by its own
#       loss, and the model adds a difference trained by the other loss
#       ("gradient-disentangled", He et al., 2021: DeBERTaV3, section 3.2 and
#       equation 3; E_Delta is initialised to 0)
#
# With es the generator uses the model's token, position and type vectors and
# their norm, as in ELECTRA's released code; its section 3.2 shares the first
# two. With gdes the model stores the differences, and each has its own norm.


TABLES = ('embed', 'positions', 'segments')
SHARED = (*TABLES, 'embed_norm')
# -> parameters that the generator takes from the model, and parameters that the
# model stores as differences from the generator's.
SHARINGS = {'es': (SHARED, ()), 'nes': ((), ()), 'gdes': ((), TABLES)}


# -> whether only the chosen tokens are scored, and whether over the vocabulary
# (section 3.4).
TARGETS = {
  'electra': (False, False),
  'electra_15': (True, False),
  'replace_mlm': (True, True),
  'all_tokens_mlm': (False, True),
}


@dataclass(frozen=True)
class Electra(Objective):
  """Replaced token detection, or a variant that the paper compares (3.4).

  Attributes:
    rate: fraction of a row's tokens that are chosen, at most
      int((rate + 0.005) n) of n (the released code); all become [MASK].
    weight: lambda, the weight of the model's loss.
    targets: 'electra': whether each token was replaced; 'electra_15': the same
      for the chosen tokens only; 'replace_mlm': the originals of the chosen
      tokens; 'all_tokens_mlm': those of all tokens, without the paper's copy
      mechanism. The last two score the vocabulary, so that `model.output` is
      that of a masked model; give them weight=1.0.
    temperature: of sampling; 0: always the most probable token.
    generator_steps: steps of the first of two stages; the models must have the
      same size, and share nothing. 0: both are trained jointly.
    sharing: of the embeddings: 'es', 'nes' or 'gdes', see `SHARINGS`.
  """

  rate: Probability = 0.15
  weight: Weight = 50.0
  targets: Annotated[str, OneOf((*TARGETS,))] = 'electra'
  temperature: NotNegative = 1.0
  generator_steps: Whole = 0
  sharing: Annotated[str, OneOf((*SHARINGS,))] = 'es'

  def __post_init__(self):
    """Rejects shared tables with two-stage training."""
    if self.generator_steps and self.sharing == 'gdes':
      raise UsageError(
        f'objective.name: sharing={self.sharing!r}: with generator_steps the '
        'models share nothing; leave one of the two out'
      )

  @property
  def masking(self) -> Masking:
    """How tokens are chosen; all of them become [MASK]."""
    return Masking(self.rate, 1.0, 0.0, most=lambda length: int((self.rate + 0.005) * length))

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
      rows=('stream', 'documents', 'sentences', 'pairs'),
      tokens=('mask',),
      scored=Scored(output, lambda length: length),
      pooler='gelu',  # the released code
      parts={'generator': generator},
    )

  @property
  def generator(self) -> Transformer:
    """Samples replacements for the chosen tokens."""
    return self.parts['generator']

  def check(self) -> None:
    """Checks that model and generator are compatible."""
    model, generator = self.model, self.generator
    forward.check_scores(generator, 'electra', field='models.generator')
    forward.check_scores(model, 'electra')
    head = ModelChoices.of(model).output
    plain = head.tied and not head.bias and not head.transform
    if not self._scores_vocabulary and not plain:
      raise UsageError(
        f'model.output={model.output!r}: with targets={self.targets!r} the '
        'model scores no vocabulary, and nothing would train its output; give '
        "'tied'"
      )
    if any(ffn.router for ffn in ModelChoices.of(generator).ffn):
      raise UsageError(
        f'models.generator.ffn={generator.ffn!r}: only the model has experts; '
        'give the generator another'
      )
    _check_shared(model, generator, self.needs.parts['generator'])
    if self.generator_steps:
      _check_same_size(model, generator)

  def make_batch(self, rows: Rows, keys: Keys) -> dict[str, np.ndarray]:
    """Masked rows, and the row numbers that seed the generator's sampling."""
    masking = self.masking.known_to(self.tokenizer)
    batch = masked_batch(rows, keys, masking)
    return {**batch, 'numbers': keys.run.astype(np.uint32)}

  def init(self, key: jax.Array) -> Params:
    """Parameters of both models; shared ones are stored once."""
    of_head, of_generator = jax.random.split(jax.random.fold_in(key, 1))
    params = super().init(key)
    own = forward.init(self.generator, of_generator)
    part = self.needs.parts['generator']
    own = {name: x for name, x in own.items() if name not in part.shared}
    # "[...] initialized as a zero matrix" (DeBERTaV3, section 3.2).
    zeros = {n: params[n] for n in part.added if n in params}
    params = {**params, **jax.tree.map(jnp.zeros_like, zeros)}
    if not self._scores_vocabulary:
      # Stored like Hugging Face's pre-training head, see `hf.heads`.
      hidden_BLD = jnp.zeros((1, 1, self.model.d_model))
      head: Any = self._head.init(of_head, hidden_BLD)
      params['heads'] = head['params']
    return {**params, 'parts': {'generator': own}}

  @property
  def _head(self) -> ReplacedHead:
    """The head that detects replaced tokens."""
    model = self.model
    # In the released code the head has the activation of the layers; gated
    # layers and experts have none that fits, so they get GELU.
    name = spec.parse('model.ffn', model.ffn)[0].name
    activation = ACTIVATIONS.get(name, gelu_exact)
    kernel = ModelChoices.of(model).init_weights.kernel
    return ReplacedHead(kernel, activation, DTYPES[model.dtype])

  def stages(self) -> Stages | None:
    """The generator's stage first, if `generator_steps` is set."""
    if not self.generator_steps:
      return None
    return Stages((self.generator_steps,), self.trains, self.enter)

  def trains(self, tree: Params, stage: jax.Array) -> Params:
    """The generator in stage 0, all others in stage 1."""
    of_model = jax.tree.map(lambda _: stage == 1, tree)
    parts = jax.tree.map(lambda _: stage == 0, tree['parts'])
    return {**of_model, 'parts': parts}

  def enter(self, params: Params) -> Params:
    """Initialises the model with the generator's parameters; heads stay."""
    of_generator = params['parts']['generator']
    own = {name: of_generator[name] for name in parameter_shapes(self.model)}
    # Separate buffers, since the step donates both.
    return {**params, **jax.tree.map(jnp.copy, own)}

  def loss(self, params: Params, batch: Batch, key: jax.Array | None) -> Loss:
    """The loss at the top of this file; in a stage of training its own mean."""
    evaluating = key is None
    # Held-out rows get the same replacements in each evaluation.
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
    ids_BP = sampled(chosen, keys_B, self.temperature)
    original_BL = _placed(batch, batch['masked_targets'])
    corrupt_BL = _placed(batch, ids_BP)
    corrupt = {**batch, 'inputs': corrupt_BL}
    hidden_BLD, stats = forward.states(self.model, model, corrupt, dropout[1])
    replaced_BL = corrupt_BL != original_BL
    if self._scores_vocabulary:
      total, metrics = self._vocabulary_loss(
        model, hidden_BLD, original_BL, replaced_BL, batch, evaluating=evaluating
      )
    else:
      total, metrics = self._replaced_loss(model['heads'], hidden_BLD, replaced_BL, batch)
    run: Any = batch.get(RUN, {})
    stage = run.get('stage')
    first, second = (1, 1) if stage is None else (stage == 0, stage == 1)
    return found._replace(
      sum=first * found.sum,
      metrics={**found.metrics, **metrics},
      terms={'second': Term(total, second * self.weight)},
      stats=stats,
    )

  def _replaced_loss(
    self, heads: Params, hidden_BLD: jax.Array, replaced_BL: jax.Array, batch: Batch
  ) -> tuple[jax.Array, dict[str, Mean]]:
    """Loss of detecting replaced tokens (section 2): the sum, and metrics."""
    logits_BL: Any = self._head.apply({'params': heads}, hidden_BLD)
    weights_BL, label_BL = self._weights(batch), replaced_BL
    # -log sigmoid(z) = softplus(-z), -log(1 - sigmoid(z)) = softplus(z).
    loss_BL = jax.nn.softplus(jnp.where(label_BL, -logits_BL, logits_BL))
    said_BL = logits_BL > 0
    mean = Mean.of(loss_BL, weights_BL)
    return mean.sum, {
      'objective/replaced_loss': mean,
      'objective/replaced_accuracy': Mean.of(said_BL == label_BL, weights_BL),
      'objective/replaced_recall': Mean.of(said_BL, weights_BL * label_BL),
      'objective/replaced_share': Mean.of(label_BL, weights_BL),
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
    """Loss of predicting originals (section 3.4): the sum, and metrics."""
    weights_BL = self._weights(batch)
    targets = original_BL, weights_BL
    if self._chosen_only:
      hidden_BLD = forward.at_chosen(hidden_BLD, batch)
      targets = batch['masked_targets'], batch['masked_weights']
    scores = forward.scores(self.model, params, hidden_BLD)
    total = token_loss(scores, *targets).sum
    metrics = {
      'objective/token_loss': Mean(total, jnp.sum(weights_BL)),
      'objective/replaced_share': Mean.of(replaced_BL, weights_BL),
    }
    if evaluating:
      metrics['objective/token_accuracy'] = accuracy(scores, *targets)
    return total, metrics

  def _weights(self, batch: Batch) -> jax.Array:
    """Float32 [B, L], 1 for the tokens whose loss counts."""
    if not self._chosen_only:
      return batch['mask'].astype(jnp.float32)
    rows_B1 = jnp.arange(len(batch['mask']))[:, None]
    zeros_BL = jnp.zeros(batch['mask'].shape, jnp.float32)
    return zeros_BL.at[rows_B1, batch['masked_positions']].max(batch['masked_weights'])

  def weights(self, batch: Batch) -> dict[str, jax.Array]:
    """Numbers of chosen tokens, and of those of the second loss."""
    second = jnp.sum(self._weights(batch))
    return {'': jnp.sum(batch['masked_weights']), 'second': second}


def _placed(batch: Batch, ids_BP: jax.Array) -> jax.Array:
  """The rows with `ids_BP` in place of the chosen tokens."""
  inputs_BL = jnp.asarray(batch['inputs'])
  at_BP = batch['masked_positions']
  old_BP = jnp.take_along_axis(inputs_BL, at_BP, axis=1)
  ids_BP = jnp.where(batch['masked_weights'] > 0, ids_BP, old_BP)
  rows_B1 = jnp.arange(len(inputs_BL))[:, None]
  return inputs_BL.at[rows_B1, at_BP].set(ids_BP)


def _check_shared(model: Transformer, generator: Transformer, part: Part) -> None:
  """Checks that shared parameters have the same shape in both models."""
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
  """Checks that the generator can initialise the model."""
  ours, theirs = (
    {name: x.shape for name, x in flatten(parameter_shapes(of)).items()}
    for of in (model, generator)
  )
  for name, shape in ours.items():
    if theirs.get(name) != shape:
      raise UsageError(
        f'models.generator: its {name} is {theirs.get(name, "missing")}, and '
        f"the model's {shape}; with generator_steps the model starts as the "
        'generator: give both the same size'
      )
