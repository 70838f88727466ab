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
their embeddings is one says `embedding_sharing`.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax import spec
from gpt_jax.data.rows import Keys, Rows
from gpt_jax.data.tokenizers.tokenizer import Tokenizer
from gpt_jax.nn.embed import OUTPUTS
from gpt_jax.nn.pattern import period
from gpt_jax.nn.transformer import Transformer, parameter_shapes
from gpt_jax.objectives import embedding_sharing, scores
from gpt_jax.objectives.base import (
  Batch,
  Declared,
  Loss,
  Mean,
  Needs,
  Objective,
  Params,
  Scored,
)
from gpt_jax.objectives.causal import add_routers
from gpt_jax.objectives.cross_entropy import sampled
from gpt_jax.objectives.masked import (
  at_chosen,
  encode,
  masked_loss,
)
from gpt_jax.objectives.masking import Masking, masked_batch
from gpt_jax.objectives.replaced import ReplacedTargets, VocabularyTargets
from gpt_jax.optim.stages import Stages
from gpt_jax.ranges import NotNegative, Probability, Weight, Whole
from gpt_jax.spec import UsageError

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
  targets: str = 'electra',
  temperature: NotNegative = 1.0,
  generator_steps: Whole = 0,
  sharing: str = 'es',
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
    sharing: of the embeddings: 'es', 'nes' or 'gdes', see `embedding_sharing`.
  """
  if targets not in TARGETS:
    raise UsageError(
      f'objective.name: targets={targets!r}: unknown; one of '
      + ', '.join(TARGETS)
    )
  chosen_only, scores = TARGETS[targets]

  def most(length: int) -> int:
    return int((rate + 0.005) * length)

  unknown = Masking(rate, 1.0, 0.0, most=most)
  places = unknown.places

  def none(length: int) -> int:
    del length
    return 0

  def whole(length: int) -> int:
    return length

  part = embedding_sharing.part(
    sharing, Scored(places, none), apart=generator_steps > 0
  )
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
    embedding_sharing.check(model, generator, part)
    if generator_steps:
      embedding_sharing.check_same_size(model, generator)
    masking = None
    if tokenizer is not None:
      mask_id = tokenizer.special.mask_id
      assert mask_id is not None, 'see choices.build'
      masking = unknown._replace(
        vocab_size=tokenizer.vocab_size, mask_id=mask_id
      )
    second = (
      VocabularyTargets(model, chosen_only)
      if scores
      else ReplacedTargets(model, chosen_only)
    )
    both = _Both(model, generator, second, needs, weight, temperature)
    stages = Stages(generator_steps, ('generator',), both.enter, both.of_stage)

    def make_batch(rows: Rows, keys: Keys) -> dict[str, np.ndarray]:
      batch = masked_batch(rows, keys, places, masking)
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
    tokens = jnp.zeros((1, 1), jnp.int32)
    of_targets, of_generator = jax.random.split(jax.random.fold_in(key, 1))
    params: Any = self.model.init(key, tokens)['params']
    own: Any = self.generator.init(of_generator, tokens)['params']
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
    hidden_BLD, _ = encode(generator, own, batch['inputs'], batch, dropout[0])
    states_BPD = at_chosen(hidden_BLD, batch)
    chosen = scores.of_states(generator, own, states_BPD)
    found = masked_loss(chosen, batch, evaluating=evaluating)
    of_rows = jax.vmap(jax.random.fold_in, (None, 0))
    keys_B = of_rows(keys[0], batch['numbers'])
    ids_BP = sampled(
      *(chosen.hidden_BLD, chosen.table_VD, keys_B, self.temperature),
      chosen.softcap,
    )
    original_BL = _placed(batch, batch['masked_targets'])
    corrupt_BL = _placed(batch, ids_BP)
    hidden_BLD, routers = encode(
      self.model, model, corrupt_BL, batch, dropout[1]
    )
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
    return add_routers(found, routers, training=not evaluating)

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
  """Checks that the two go together.

  Raises:
    UsageError: names the field.
  """
  _, scores = TARGETS[targets]
  for field, text in (
    ('models.generator.output', generator.output),
    ('model.output', model.output),
  ):
    if spec.build(field, text, OUTPUTS).own is not None:
      raise UsageError(
        f'{field}={text!r}: objective.name=electra scores the whole '
        'vocabulary; take tied or untied'
      )
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
