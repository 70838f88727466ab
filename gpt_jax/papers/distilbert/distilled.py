# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Distillation of a teacher into a student (DistilBERT, Sanh et al., 2019).

  L = soft * mean of T^2 KL(softmax(z_t / T) || softmax(z_s / T))
    + hard * the loss of the text itself
    + cosine * mean of 1 - cos(h_s, h_t)                (the released code)

z are the logits and h the last states of the student s, `model`, and of the
teacher t, `models.teacher`, which is frozen and has no dropout. The paper's
L_ce = -sum t log s differs from the KL by a constant and T^2.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.core import spec
from gpt_jax.core.nn.build import ModelChoices
from gpt_jax.core.nn.params import flatten
from gpt_jax.core.nn.transformer import Transformer, parameter_shapes
from gpt_jax.core.objectives import forward
from gpt_jax.core.objectives.base import Needs, Objective, Part, Scored, Stored, TextObjective
from gpt_jax.core.objectives.causal import Causal
from gpt_jax.core.objectives.loss import Batch, Loss, Mean, Params, Term
from gpt_jax.core.ranges import Positive, Weight, Whole
from gpt_jax.core.rows.rows import Keys, Rows
from gpt_jax.core.spec import UsageError
from gpt_jax.papers.bert.masked import Masked
from gpt_jax.papers.distilbert import soft_targets, teacher_outputs

# Losses of text that can be distilled.
TEXTS = {'causal': Causal, 'masked': Masked}


@dataclass(frozen=True)
class Distilled(Objective):
  """A teacher's soft targets, besides the loss of the text.

  With `top_k` the teacher is not loaded: its outputs come with the batch, and
  the KL is `soft_targets.top_divergence`. Held-out text has no such outputs:
  its loss is `hard` times the loss of the text.

  Attributes:
    temperature: T.
    soft: weight of the KL; this and the next two may be 0.
    hard: weight of the text's loss.
    cosine: weight of the last states' cosine distance, over all real tokens.
    text: the text's loss: 'masked' or 'causal', with its own arguments.
    places: the tokens with soft targets: 'real', all but padding (the released
      default), or 'chosen', those in the text's loss.
    layers: the teacher's layers that initialise the student's, along with all
      parameters outside the layers (released: 0, 2, 4, 7, 9, 11); (): the
      student starts at random.
    top_k: read the teacher's outputs from disk: the probabilities of its k most
      probable tokens and of the rest together, see
      `soft_targets.top_divergence`. Needs cosine=0.0, no layers, and a text
      with the same rows in each epoch. 0: the teacher is loaded.
  """

  temperature: Positive = 2.0
  soft: Weight = 5.0
  hard: Weight = 2.0
  cosine: Weight = 1.0
  text: str = 'masked'
  places: Literal['real', 'chosen'] = 'real'
  layers: tuple = ()
  top_k: Whole = 0

  def __post_init__(self):
    """Checks that the arguments fit together, and use the teacher."""
    _ = self._text
    if not self.soft and not self.cosine:
      raise UsageError(
        'objective.name: soft=0 and cosine=0 take nothing from the teacher; '
        f'raise one, or train on {self.text!r} alone'
      )
    if any(not isinstance(n, int) or isinstance(n, bool) for n in self.layers):
      raise UsageError(
        f'objective.name: layers={self.layers}: must be whole numbers, such as (0, 2, 4)'
      )
    if not self.top_k:
      return
    given = f'objective.name: top_k={self.top_k}'
    if self.cosine or self.layers or not self.soft:
      raise UsageError(
        f"{given}: reads the teacher's outputs from disk, and its states and "
        'layers are not there; give cosine=0.0, leave layers out, and give '
        'soft a weight'
      )
    if not self._stored.times:
      raise UsageError(
        f'{given}: text={self.text!r} masks other tokens each time, and there '
        'are no outputs for them on disk; give '
        "text='masked(static=1)', or more"
      )

  @property
  def _text(self) -> TextObjective:
    return spec.build('objective.name: text', self.text, TEXTS)

  @property
  def _stored(self) -> Stored:
    """The teacher outputs in a batch."""
    scored = self._text.needs.scored
    positions = _whole
    if scored and self.places == 'chosen':
      positions = scored.output
    # Causal rows are the same in each epoch.
    times = getattr(self._text, 'static', 1)
    return Stored(
      self.text,
      self.places,
      self.temperature,
      self.top_k,
      times,
      positions,
      lambda length: teacher_outputs.blank(positions(length), self.top_k),
    )

  @property
  def needs(self) -> Needs:
    """Needs of the text's loss, and the teacher or its outputs."""
    needs = self._text.needs._replace(pooler='relu')  # the released code
    # Positions that the student and the teacher score.
    own, real = needs.scored, self.places == 'real'
    if self.top_k:
      scored = Scored(_whole, _none) if real else own
      return needs._replace(scored=scored, stored=self._stored)
    both = own and Scored(_whole if real else own.output, own.heads)
    of_teacher = Scored((both.output if both else _whole) if self.soft else _none, _none)
    return needs._replace(
      scored=both if self.soft else own, parts={'teacher': Part(scored=of_teacher, frozen=True)}
    )

  @functools.cached_property
  def plain(self) -> TextObjective:
    """The loss of the text, bound to the student."""
    return self._text.bind(self.model, self.tokenizer)

  @property
  def teacher(self) -> Transformer:
    """The frozen model."""
    return self.parts['teacher']

  def check(self) -> None:
    """Checks that student and teacher are compatible."""
    model = self.model
    if not self.top_k:
      _check(model, self.teacher, self.cosine)
      if self.layers:
        check_layers(model, self.teacher, self.layers)
    elif self.top_k > model.vocab_size:
      raise UsageError(
        f'objective.name: top_k={self.top_k}: the model scores '
        f'{model.vocab_size} tokens; give no more'
      )
    self.plain.check()

  def make_batch(self, rows: Rows, keys: Keys) -> dict[str, np.ndarray]:
    return self.plain.make_batch(rows, keys)

  def init(self, key: jax.Array) -> Params:
    """Parameters of the student, and of the teacher unless it is on disk."""
    params = self.plain.init(key)
    if self.top_k:
      return params
    own = forward.init(self.teacher, jax.random.fold_in(key, 2))
    return {**params, 'parts': {'teacher': own}}

  def first_params(self, params: Params) -> Params:
    """The student, initialised with the teacher's `layers` if any."""
    if not self.layers:
      return params
    of_teacher = params['parts']['teacher']
    return copied(params, of_teacher, self.model, self.teacher, self.layers)

  def loss(self, params: Params, batch: Batch, key: jax.Array | None) -> Loss:
    """The loss at the top of this file."""
    trees, plain = self.needs.trees(params), self.plain
    ours, evaluating = trees[''], key is None
    chosen = self.places == 'chosen'
    seen = _read_by(self.model, batch)
    hidden, stats = forward.states(self.model, ours, seen, key)
    guide = None  # the teacher's states, if it is loaded
    if not self.top_k:
      read = _read_by(self.teacher, batch)
      guide, _ = forward.states(self.teacher, trees['teacher'], read, None)
    found = plain.loss_of_states(ours, hidden, seen, evaluating=evaluating)
    metrics = {**found.metrics, 'objective/hard_loss': found.means(plain.weights(batch))}
    terms = {name: Term(x.values, self.hard * x.factors) for name, x in found.terms.items()}
    if self.soft and not (self.top_k and evaluating):

      def at(states: jax.Array) -> jax.Array:
        return plain.chosen(states, batch) if chosen else states

      student = forward.scores(self.model, ours, at(hidden))
      weights = self._soft_weights(batch)
      if guide is None:
        divergence = soft_targets.top_divergence(
          student, batch['teacher_ids'], batch['teacher_log_probs'], weights, self.temperature
        )
      else:
        divergence = soft_targets.divergence(
          student,
          forward.scores(self.teacher, trees['teacher'], at(guide)),
          weights,
          self.temperature,
        )
      divergence = self.temperature**2 * divergence
      metrics['objective/soft_loss'] = Mean(divergence, jnp.sum(weights))
      terms['soft'] = Term(divergence, self.soft)
    if self.cosine and guide is not None:
      weights = plain.real(batch)
      distance = soft_targets.cosine_distance(hidden, guide, weights)
      metrics['objective/cosine_loss'] = Mean(distance, jnp.sum(weights))
      terms['cosine'] = Term(distance, self.cosine)
    total, penalty = self.hard * found.sum, self.hard * found.penalty
    return Loss(total, found.weight, penalty, metrics, terms, stats)

  def weights(self, batch: Batch) -> dict[str, jax.Array]:
    """Numbers of tokens of the text's loss and of each other loss."""
    plain = self.plain
    weights = {
      **plain.weights(batch),
      '': jnp.sum(plain.counted(batch)),
      'soft': jnp.sum(self._soft_weights(batch)),
    }
    if not self.top_k:
      weights['cosine'] = jnp.sum(plain.real(batch))
    return weights

  def _soft_weights(self, batch: Batch) -> jax.Array:
    plain = self.plain
    return (plain.counted if self.places == 'chosen' else plain.real)(batch)


def _read_by(model: Transformer, batch: Batch) -> Batch:
  """The batch, without token types if the model has none."""
  if ModelChoices.of(model).input.num_token_types:
    return batch
  return {name: x for name, x in batch.items() if name != 'token_types'}


def _whole(length: int) -> int:
  return length


def _none(length: int) -> int:
  del length
  return 0


def _check(model: Transformer, teacher: Transformer, cosine: float) -> None:
  """Checks that vocabularies and sizes of the two match."""
  for field, of in (('models.teacher', teacher), ('model', model)):
    forward.check_scores(of, 'distilled', field=field)
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


# Initialising a student with layers of its teacher.


def copied(
  params: Params,
  teacher_params: Params,
  model: Transformer,
  teacher: Transformer,
  layers: Sequence[int],
) -> Params:
  """The student's parameters, initialised with the teacher's.

  Layer i becomes the teacher's layer layers[i]; everything outside the layers
  (embeddings, norms, the output) is the teacher's. Parameters that only the
  teacher has (token types) are left out.

  Args:
    params: the student's parameters; its heads and parts are kept.
    layers: a layer of the teacher for each of the student's.
  """
  size, of_teacher = _period(model), _period(teacher)
  blocks = teacher_params['decoder']['periods']
  periods = {}
  for place in range(size):
    taken = [
      # `n=n` binds this iteration's layer.
      jax.tree.map(lambda x, n=n: x[n // of_teacher], block)
      for n in layers[place::size]
      for block in (blocks[f'block_{n % of_teacher}'],)
    ]
    periods[f'block_{place}'] = jax.tree.map(lambda *x: jnp.stack(x), *taken)
  own = {*parameter_shapes(model)} - {'decoder'}
  outside = {name: teacher_params[name] for name in own}
  return {**params, **outside, 'decoder': {'periods': periods}}


def check_layers(model: Transformer, teacher: Transformer, layers: Sequence[int]) -> None:
  """Checks that `layers` of the teacher can initialise the student."""
  given = f'objective.name: layers={tuple(layers)}'
  wrong = [n for n in layers if not 0 <= n < teacher.num_layers]
  if wrong:
    raise UsageError(
      f'{given}: the teacher has no layer {wrong[0]}; give layers from 0 to '
      f'{teacher.num_layers - 1}'
    )
  if len(layers) != model.num_layers:
    raise UsageError(
      f'{given}: are {len(layers)}, but model.num_layers={model.num_layers}; '
      'name one of the teacher for each, or none to start at random'
    )
  for field, shares in (('model', model.share), ('models.teacher', teacher.share)):
    if shares != 'none':
      raise UsageError(
        f'{field}.share={shares!r}: layers that share parameters are not '
        'copied one by one; leave layers out of objective.name'
      )
  ours, theirs = parameter_shapes(model), parameter_shapes(teacher)
  if missing := sorted(ours.keys() - theirs.keys()):
    raise UsageError(
      f'{given}: the teacher has no {missing[0]}; make model like '
      'models.teacher, or leave layers out'
    )
  found: Any = jax.eval_shape(lambda a, b: copied(a, b, model, teacher, layers), ours, theirs)
  theirs = flatten(found)
  for name, x in sorted(flatten(ours).items()):
    if x.shape != theirs[name].shape:
      raise UsageError(
        f'{given}: {name} is {x.shape} in the model and {theirs[name].shape} '
        'in the teacher; make model as wide as models.teacher, or leave '
        'layers out'
      )


def _period(model: Transformer) -> int:
  return len(ModelChoices.of(model).decoder)
