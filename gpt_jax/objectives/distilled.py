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

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from gpt_jax import spec
from gpt_jax.nn.build import build, period
from gpt_jax.nn.transformer import Transformer, parameter_shapes
from gpt_jax.objectives import forward, soft_targets
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
from gpt_jax.objectives.causal import causal
from gpt_jax.objectives.masked import masked
from gpt_jax.ranges import Positive, Weight, Whole
from gpt_jax.spec import UsageError
from gpt_jax.tokenizers.tokenizer import Tokenizer

# A student that starts as some layers of its teacher.


def copied(
  params: Params,
  teacher_params: Params,
  model: Transformer,
  teacher: Transformer,
  layers: Sequence[int],
) -> Params:
  """A model's parameters with those of a teacher in their places.

  All that stands outside the layers (embeddings, norms, the output) is the
  teacher's, and layer i is the teacher's layer layers[i]. What only the
  teacher has (token types) is left out.

  Args:
    params: of the model, maybe with heads and parts, which stay.
    model: the student.
    layers: one for each of the model's.
  """
  size, of_teacher = _period(model), _period(teacher)
  blocks = teacher_params['decoder']['periods']
  periods = {}
  for place in range(size):
    taken = [
      # Bound now: the layer of one turn of the loop.
      jax.tree.map(lambda x, n=n: x[n // of_teacher], block)
      for n in layers[place::size]
      for block in (blocks[f'block_{n % of_teacher}'],)
    ]
    periods[f'block_{place}'] = jax.tree.map(lambda *x: jnp.stack(x), *taken)
  own = {*parameter_shapes(model)} - {'decoder'}
  outside = {name: teacher_params[name] for name in own}
  return {**params, **outside, 'decoder': {'periods': periods}}


def check(
  model: Transformer, teacher: Transformer, layers: Sequence[int]
) -> None:
  """Checks that a student can start as layers of its teacher."""
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
  for field, shares in (
    ('model', model.share),
    ('models.teacher', teacher.share),
  ):
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
  found: Any = jax.eval_shape(
    lambda a, b: copied(a, b, model, teacher, layers), ours, theirs
  )
  if differs := _difference(ours, found):
    raise UsageError(
      f'{given}: {differs} in the teacher; make model as wide as '
      'models.teacher, or leave layers out'
    )


def _difference(ours: Params, found: Params) -> str:
  """The first parameter that is another one than the model's."""
  shapes = [
    {
      jax.tree_util.keystr(path, simple=True, separator='/'): x.shape
      for path, x in jax.tree_util.tree_leaves_with_path(tree)
    }
    for tree in (ours, found)
  ]
  for name in sorted({*shapes[0], *shapes[1]}):
    a, b = (s.get(name, 'missing') for s in shapes)
    if a != b:
      return f'{name} is {a} in the model and {b}'
  return ''


def _period(model: Transformer) -> int:
  return len(period(model.attention, model.ffn, model.share))


# A student of a teacher that is not there: its outputs come with the batch.
#
#   L = soft * mean of T^2 KL(teacher || student) over k tokens and the rest
#     + hard * the loss of the text itself
#
# See `soft_targets.top_divergence` for the KL, and `distilled` for the loss
# with a teacher at hand. Held-out text has no outputs: there the loss is `hard`
# times that of the text alone.


def taught(
  declared: Declared,
  needs: Needs,
  stored: Stored,
  *,
  soft: float,
  hard: float,
) -> Declared:
  """See `distilled`, whose arguments these are.

  Args:
    declared: the text's own loss.
    stored: the teacher's outputs.
    soft: weight of the KL.
    hard: of the text's loss.
  """

  def build(model: Transformer, tokenizer: Tokenizer | None) -> Objective:
    if stored.top_k > model.vocab_size:
      raise UsageError(
        f'objective.name: top_k={stored.top_k}: the model scores '
        f'{model.vocab_size} tokens; give no more'
      )
    plain = declared(model, tokenizer)
    assert plain.text is not None, 'see distilled.TEXTS'
    student = _Student(model, plain.balance, plain.text, stored, soft, hard)
    return plain._replace(
      loss=student.loss, balance=student.balance, every_token=False, text=None
    )

  return Declared(needs._replace(stored=stored), build)


class _Student(NamedTuple):
  """The rest is as in `taught`."""

  model: Transformer
  plain_balance: Callable[[Batch], Batch] | None
  text: Text
  stored: Stored
  soft: float
  hard: float

  def loss(self, params: Params, batch: Batch, key: jax.Array | None) -> Loss:
    """The loss at the top of this file."""
    hidden, routers = forward.states(self.model, params, batch, key)
    found = self.text.loss(params, hidden, batch, key is None)
    metrics: dict[str, Mean | Means] = {
      **(found.metrics or {}),
      'objective/hard_loss': found.means,
    }
    found = found.times(self.hard)
    if key is not None:
      weights, T = self._weights(batch), self.stored.temperature
      if self.stored.places == 'chosen':
        hidden = self.text.chosen(hidden, batch)
      summed = T**2 * soft_targets.top_divergence(
        forward.scores(self.model, params, hidden),
        *(batch['teacher_ids'], batch['teacher_log_probs'], weights, T),
      )
      metrics['objective/soft_loss'] = Mean(summed, jnp.sum(weights))
      added = self.soft * jnp.max(batch['soft_factor']) * summed
      found = found._replace(sum=found.sum + added)
    found = found._replace(metrics=metrics)
    return forward.add_routers(found, routers, training=key is not None)

  def balance(self, batch: Batch) -> Batch:
    """See `distilled`: each loss is a mean of the whole batch."""
    if self.plain_balance:
      batch = self.plain_balance(batch)
    counted = jnp.sum(self.text.counted(batch))
    share = counted / jnp.maximum(jnp.sum(self._weights(batch)), 1)
    rows = jnp.ones(len(batch['inputs']), jnp.float32)
    return {**batch, 'soft_factor': rows * share}

  def _weights(self, batch: Batch) -> jax.Array:
    chosen = self.stored.places == 'chosen'
    return (self.text.counted if chosen else self.text.real)(batch)


# Losses of text that there can be a teacher for.
TEXTS = {'causal': causal, 'masked': masked}


def distilled(
  temperature: Positive = 2.0,
  soft: Weight = 5.0,
  hard: Weight = 2.0,
  cosine: Weight = 1.0,
  text: str = 'masked',
  places: Literal['real', 'chosen'] = 'real',
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
    return taught(declared, needs, stored, soft=soft, hard=hard)
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
      check(model, teacher, layers)
    plain = declared(model, tokenizer)
    assert plain.text is not None, 'see TEXTS'
    pair = _Pair(
      *(model, teacher, plain, plain.text, needs),
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
  needs: Needs
  temperature: float
  soft: float
  hard: float
  cosine: float
  places: str
  layers: tuple[int, ...]

  def init(self, key: jax.Array) -> Params:
    """Parameters of both."""
    own = forward.init(self.teacher, jax.random.fold_in(key, 2))
    return {**self.plain.init(key), 'parts': {'teacher': own}}

  def start(self, params: Params) -> Params:
    """The student as its teacher's layers."""
    return copied(
      params,
      params['parts']['teacher'],
      *(self.model, self.teacher, self.layers),
    )

  def loss(self, params: Params, batch: Batch, key: jax.Array | None) -> Loss:
    """The loss at the top of this file."""
    trees = self.needs.trees(params)
    ours, theirs = trees[''], trees['teacher']
    seen = _read_by(self.model, batch)
    hidden, routers = forward.states(self.model, ours, seen, key)
    guide, _ = forward.states(
      self.teacher, theirs, _read_by(self.teacher, batch), None
    )
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
        forward.scores(self.model, ours, at(hidden, batch)),
        forward.scores(self.teacher, theirs, at(guide, batch)),
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
    return forward.add_routers(found, routers, training=key is not None)

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
  if build(model, 'input').num_token_types:
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
  """Checks that all a student needs of its teacher are outputs."""
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
  """Checks that the two go together."""
  for field, of in (('models.teacher', teacher), ('model', model)):
    if build(of, 'output').own is not None:
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
