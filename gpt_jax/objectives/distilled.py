# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A student learns what its teacher says (DistilBERT, Sanh et al., 2019).

  L = soft * mean of T^2 KL(softmax(z_t / T) || softmax(z_s / T))
    + hard * the loss of the text itself
    + cosine * mean of 1 - cos(h_s, h_t)                (the released code)

z are the logits and h the last states of the student s, which is `model`, and
of the teacher t, `models.teacher`, which stays as it is and has no dropout.
The paper's L_ce = -sum t log s differs from the KL by a constant and T^2.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from gpt_jax import spec
from gpt_jax.data.tokenizers.tokenizer import Tokenizer
from gpt_jax.nn import choices as nn_choices
from gpt_jax.nn.transformer import Transformer
from gpt_jax.objectives import scores, soft_targets, student, taught
from gpt_jax.objectives.base import (
  Batch,
  Declared,
  Loss,
  Mean,
  Means,
  Needs,
  Objective,
  Params,
  Part,
  Scored,
  Stored,
  Text,
)
from gpt_jax.objectives.causal import add_routers, causal
from gpt_jax.objectives.masked import masked
from gpt_jax.ranges import Positive, Weight, Whole
from gpt_jax.spec import UsageError

# Losses of text that there can be a teacher for.
TEXTS = {'causal': causal, 'masked': masked}
# Which tokens the soft targets are of.
PLACES = ('real', 'chosen')


def distilled(
  temperature: Positive = 2.0,
  soft: Weight = 5.0,
  hard: Weight = 2.0,
  cosine: Weight = 1.0,
  text: str = 'masked',
  places: str = 'real',
  layers: tuple = (),
  top_k: Whole = 0,
) -> Declared:
  """A teacher's soft targets, beside the text itself.

  Args:
    temperature: T.
    soft: weight of the KL; 0 leaves it out, as it does the next two.
    hard: of the loss of the text.
    cosine: of the last states' cosine distance, over all real tokens.
    text: the loss: 'masked' or 'causal', with arguments of its own.
    places: the tokens of the soft targets: 'real', all that are no padding
      (the released default), or 'chosen', those of the text's loss.
    layers: which of the teacher's layers the student's start as, with all
      that is outside the layers (released: 0, 2, 4, 7, 9, 11); (): the student
      starts at random.
    top_k: read from disk what the teacher said, its most probable tokens and
      what all others have together: see `soft_targets.top_divergence`. Needs
      cosine=0.0 and no layers, and a text with the same rows in each epoch.
      0: the teacher is at hand.
  """
  declared = spec.build('objective.name: text', text, TEXTS)
  if places not in PLACES:
    raise UsageError(
      f'objective.name: places={places!r}: unknown; one of ' + ', '.join(PLACES)
    )
  if not soft and not cosine:
    raise UsageError(
      'objective.name: soft=0 and cosine=0 take nothing from the teacher; '
      f'raise one, or train on {text!r} alone'
    )
  if any(not isinstance(n, int) or isinstance(n, bool) for n in layers):
    raise UsageError(
      f'objective.name: layers={layers}: must be whole numbers, such as '
      '(0, 2, 4)'
    )
  if top_k:
    stored = _stored(text, declared.needs, places, temperature, top_k)
    _check_stored(stored, soft, cosine, layers)
    whole = Scored(_whole, _none) if places == 'real' else declared.needs.scored
    needs = declared.needs._replace(scored=whole, pooler='relu')
    return taught.taught(declared, needs, stored, soft=soft, hard=hard)
  # Of a row, where the student and its teacher meet the vocabulary.
  own, both = declared.needs.scored, None
  if own is not None:
    both = Scored(_whole if places == 'real' else own.output, own.heads)
  of_teacher = Scored(
    (both.output if both else _whole) if soft else _none, _none
  )
  needs = declared.needs._replace(
    scored=both if soft else own,
    pooler='relu',  # the released code
    parts={'teacher': Part(scored=of_teacher, frozen=True)},
  )

  def build(
    model: Transformer, tokenizer: Tokenizer | None, teacher: Transformer
  ) -> Objective:
    _check(model, teacher, cosine)
    if layers:
      student.check(model, teacher, layers)
    plain, other = declared(model, tokenizer), declared(teacher, tokenizer)
    assert plain.text is not None and other.text is not None, 'see TEXTS'
    pair = _Pair(
      *(model, teacher, plain, plain.text, other.text, needs),
      *(temperature, soft, hard, cosine, places, layers),
    )
    return plain._replace(
      init=pair.init,
      loss=pair.loss,
      every_token=False,
      balance=pair.balance,
      text=None,
      frozen=needs.frozen,
      start=pair.start if layers else None,
    )

  return Declared(needs, build)


class _Pair(NamedTuple):
  """A student and its teacher; the rest is as in `distilled`."""

  model: Transformer
  teacher: Transformer
  plain: Objective  # of the student, on the text alone
  text: Text  # of the student
  other: Text  # of the teacher
  needs: Needs
  temperature: float
  soft: float
  hard: float
  cosine: float
  places: str
  layers: tuple[int, ...]

  def init(self, key: jax.Array) -> Params:
    """Parameters of both."""
    tokens = jnp.zeros((1, 1), jnp.int32)
    own = self.teacher.init(jax.random.fold_in(key, 2), tokens)['params']
    return {**self.plain.init(key), 'parts': {'teacher': own}}

  def start(self, params: Params) -> Params:
    """The student as its teacher's layers."""
    return student.copied(
      params,
      params['parts']['teacher'],
      *(self.model, self.teacher, self.layers),
    )

  def loss(self, params: Params, batch: Batch, key: jax.Array | None) -> Loss:
    """The loss at the top of this file."""
    trees = self.needs.trees(params)
    ours, theirs = trees[''], trees['teacher']
    seen = _read_by(self.model, batch)
    hidden, routers = self.text.states(ours, seen, key)
    guide, _ = self.other.states(theirs, _read_by(self.teacher, batch), None)
    found = self.text.loss(ours, hidden, seen, key is None)
    metrics: dict[str, Mean | Means] = {
      **(found.metrics or {}),
      'objective/hard_loss': found.means,
    }
    # Beside the text's own, each with its weight and its factor of the batch.
    others: list[tuple[float, Mean, str]] = []
    if self.soft:
      weights = self._soft_weights(batch)
      at = self.text.chosen if self.places == 'chosen' else _as_they_are
      summed = self.temperature**2 * soft_targets.divergence(
        scores.of_states(self.model, ours, at(hidden, batch)),
        scores.of_states(self.teacher, theirs, at(guide, batch)),
        *(weights, self.temperature),
      )
      mean = Mean(summed, jnp.sum(weights))
      metrics['objective/soft_loss'] = mean
      others.append((self.soft, mean, 'soft_factor'))
    if self.cosine:
      weights = self.text.real(batch)
      summed = soft_targets.cosine_distance(hidden, guide, weights)
      mean = Mean(summed, jnp.sum(weights))
      metrics['objective/cosine_loss'] = mean
      others.append((self.cosine, mean, 'cosine_factor'))
    found = found.times(self.hard)._replace(metrics=metrics)
    for weight, mean, factor in others:
      if key is None:
        found = found._replace(added=(*found.added, mean.times(weight)))
      else:
        total = found.sum + weight * _factor(batch[factor]) * mean.sum
        found = found._replace(sum=total)
    return add_routers(found, routers, training=key is not None)

  def balance(self, batch: Batch) -> Batch:
    """Makes each loss a mean of the whole batch.

    Sums of parts are divided by the number of tokens that the text's loss
    counts alone, so that each token of the others counts for its share.
    """
    if self.plain.balance:
      batch = self.plain.balance(batch)
    counted = jnp.sum(self.text.counted(batch))
    rows = jnp.ones(len(batch['inputs']), jnp.float32)
    return {
      **batch,
      **{
        name: rows * (counted / jnp.maximum(jnp.sum(weights), 1))
        for name, weights in (
          ('soft_factor', self._soft_weights(batch)),
          ('cosine_factor', self.text.real(batch)),
        )
      },
    }

  def _soft_weights(self, batch: Batch) -> jax.Array:
    text = self.text
    return (text.counted if self.places == 'chosen' else text.real)(batch)


def _as_they_are(hidden_BLD: jax.Array, batch: Batch) -> jax.Array:
  del batch
  return hidden_BLD


def _factor(rows_B: jax.Array) -> jax.Array:
  """Equal in all rows; see `balance`."""
  return jnp.max(rows_B)


def _read_by(model: Transformer, batch: Batch) -> Batch:
  """The batch, without token types for a model that has none."""
  if nn_choices.build(model, 'input').num_token_types:
    return batch
  return {name: x for name, x in batch.items() if name != 'token_types'}


def _stored(
  text: str, needs: Needs, places: str, temperature: float, top_k: int
) -> Stored:
  """What a batch has of a teacher on disk."""
  (call,) = spec.bind_all('objective.name: text', text, TEXTS)
  # Causal rows are the same in each epoch.
  times = call.kwargs.get('static', 1)
  output = needs.scored.output if needs.scored else _whole
  positions = output if places == 'chosen' else _whole
  return Stored(text, places, temperature, top_k, times, positions)


def _check_stored(
  stored: Stored, soft: float, cosine: float, layers: tuple
) -> None:
  """Checks that all a student needs of its teacher are outputs.

  Raises:
    UsageError: it is not.
  """
  given = f'objective.name: top_k={stored.top_k}'
  if cosine or layers or not soft:
    raise UsageError(
      f"{given}: reads the teacher's outputs from disk, and its states and "
      'layers are not there; give cosine=0.0, leave layers out, and give soft '
      'a weight'
    )
  if not stored.times:
    raise UsageError(
      f'{given}: text={stored.text!r} masks other tokens each time, of which '
      "there are no outputs on disk; give text='masked(static=1)', or more"
    )


def _whole(length: int) -> int:
  return length


def _none(length: int) -> int:
  del length
  return 0


def _check(model: Transformer, teacher: Transformer, cosine: float) -> None:
  """Checks that the two go together.

  Raises:
    UsageError: names the field.
  """
  for field, of in (('models.teacher', teacher), ('model', model)):
    if nn_choices.build(of, 'output').own is not None:
      raise UsageError(
        f'{field}.output={of.output!r}: objective.name=distilled compares '
        'scores of the whole vocabulary; take tied or untied'
      )
  if model.vocab_size != teacher.vocab_size:
    raise UsageError(
      f'model.vocab_size={model.vocab_size}: the teacher scores '
      f'{teacher.vocab_size} tokens; give the model as many'
    )
  if model.context_length > teacher.context_length:
    raise UsageError(
      f'model.context_length={model.context_length}: the teacher reads '
      f'{teacher.context_length} tokens; give the model no more'
    )
  if cosine and model.d_model != teacher.d_model:
    raise UsageError(
      f'model.d_model={model.d_model}: the teacher is {teacher.d_model} wide, '
      'and cosine compares their states; give the same width, or cosine=0.0 in '
      'objective.name'
    )
