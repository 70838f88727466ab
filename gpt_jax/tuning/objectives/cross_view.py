# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Cross-view training of taggers (Clark et al., 2018: Semi-Supervised Sequence
Modeling with Cross-View Training), sections 2 and 3.

The model has two layers of LSTMs in both directions. Of h1, the first layer's
states, those to the right have seen no later token, those to the left no
earlier one:

  full      p(y_t | x) = softmax(U relu(W [h1_t, h2_t] + b) + c)
  forward   reads right h1_t      future   reads right h1_{t-1}
  backward  reads left h1_t       past     reads left h1_{t+1}

The four auxiliary modules are such networks of their own. A batch is labelled
or unlabelled, and is minimised alone:

  labelled    the cross-entropy of the full module, with smoothed labels
  unlabelled  the mean over tokens of sum_j KL(p(y | x) || p_j(y | x)) over the
              auxiliary modules j; p is a constant, without dropout

So the labels train the full module, and the unlabelled text trains the four
auxiliary ones, the embeddings and the first layer. The modules of the other
kind of batch keep their moments too. The released code has another module
beside the four, with a linear view of all states; the paper does not.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.core import spec
from gpt_jax.core.nn.build import ModelChoices
from gpt_jax.core.nn.choices import DROPOUTS, PATTERNS
from gpt_jax.core.nn.stack import layer_outputs
from gpt_jax.core.nn.transformer import Transformer
from gpt_jax.core.objectives import forward
from gpt_jax.core.objectives.base import Needs, Objective
from gpt_jax.core.objectives.loss import Batch, Loss, Mean, Params
from gpt_jax.core.ranges import Count, Fraction
from gpt_jax.core.spec import UsageError
from gpt_jax.papers.bert.task_heads import View
from gpt_jax.tasks.task import UNLABELLED
from gpt_jax.tuning.objectives.task import EachTokenTask, TaskScores

# The kinds of batches, as tasks of `Objective.tasks`.
LABELLED = 'labelled'
# The auxiliary modules.
VIEWS = ('forward', 'backward', 'future', 'past')


@dataclass(frozen=True)
class CrossView(EachTokenTask):
  """Tags from two layers of LSTMs, also learned from unlabelled text.

  Attributes:
    num_labels: number of tags.
    length: tokens of a row.
    smoothing: of the labels: fraction that all tags share.
    dropout: in unlabelled batches, wherever the model has dropout.
    unlabelled: whether there are unlabelled batches, and auxiliary modules.
  """

  num_labels: Count
  length: Count
  smoothing: Fraction = 0.1
  dropout: Fraction = 0.2
  unlabelled: bool = True
  features = ''

  @property
  def needs(self) -> Needs:
    return Needs(attention='bidirectional', rows=())

  def check(self) -> None:
    """Rejects other models than two layers of LSTMs in both directions."""
    choices = ModelChoices.of(self.model)
    both_ways = [not p.causal for p in choices.attention if p.recurrent]
    if both_ways != [True, True] or self.model.num_layers != 2:
      raise UsageError(
        f'model.attention={self.model.attention!r}, model.num_layers='
        f"{self.model.num_layers}: finetune.views='cross_view' reads two "
        "layers of LSTMs in both directions; take two 'lstm(..., "
        "directions='both')' and num_layers=2"
      )

  @property
  def tasks(self) -> Mapping[str, Objective]:
    """The objective of each kind of batch, if there are two."""
    if not self.unlabelled:
      return {}
    return {
      LABELLED: _Turn(self, frozen='views', loss=self.loss),
      UNLABELLED: _Turn(self, frozen='full', loss=self.loss_of_views),
    }

  def init(self, key: jax.Array) -> Params:
    """Parameters of the model and, as parts, of the modules."""
    first, second = (x.width for x in ModelChoices.of(self.model).recurrent)
    inputs = {'full': first + second, **dict.fromkeys(VIEWS, first // 2)}
    modules: dict[str, Any] = {}
    for i, (name, width) in enumerate(inputs.items(), start=1):
      modules[name] = self._view.init(jax.random.fold_in(key, i), jnp.zeros((1, 1, width)))[
        'params'
      ]
    parts = {'full': modules.pop('full')}
    parts |= {'views': modules} if self.unlabelled else {}
    return {**forward.init(self.model, key), 'parts': parts}

  @property
  def _view(self) -> View:
    kernel = ModelChoices.of(self.model).init_weights.kernel
    return View(self.num_labels, self.model.d_model // 2, kernel)

  def scores(self, params: Params, batch: Batch, key: jax.Array | None) -> TaskScores:
    """The full module's logits, [B, L K]."""
    states_BLD, sown = self._states(self.model, params, batch, key)
    logits_BLK = self._logits(params['parts']['full'], states_BLD)
    flat = logits_BLK.reshape(len(logits_BLK), -1)
    return TaskScores(flat, states_BLD, sown)

  def _states(
    self, model: Transformer, params: Params, batch: Batch, key: Any
  ) -> tuple[jax.Array, Any]:
    """[h1, h2] of all tokens, and what the model sows."""
    _, sown = forward.apply(model, params, self.row(batch, key), key, sow=('intermediates',))
    layers = layer_outputs(sown['intermediates'])
    return jnp.concatenate(layers, axis=-1), sown

  def _logits(self, params: Params, states_BLD: jax.Array) -> jax.Array:
    logits: Any = self._view.apply({'params': params}, states_BLD)
    return logits

  def losses(self, outputs_BK: jax.Array, labels: jax.Array) -> jax.Array:
    """Sums over a row's words of the cross-entropy with smoothed labels."""
    log_probs = _log_probs(outputs_BK, self.num_labels)
    chosen = jnp.maximum(labels, 0)[..., None]
    right_BL = jnp.take_along_axis(log_probs, chosen, axis=-1)[..., 0]
    even_BL = jnp.mean(log_probs, axis=-1)
    each_BL = -(1 - self.smoothing) * right_BL - self.smoothing * even_BL
    return jnp.sum(jnp.where(labels >= 0, each_BL, 0), axis=1)

  def loss_of_views(self, params: Params, batch: Batch, key: jax.Array | None) -> Loss:
    """The loss of an unlabelled batch; words have labels of 0."""
    target = self.scores(jax.lax.stop_gradient(params), batch, None).outputs_BK
    target_BLK = _log_probs(target, self.num_labels)
    weights_BL = batch['weights'][:, None] * (batch['labels'] >= 0)
    metrics, total = {}, jnp.zeros(())
    for name, logits_BLK in self.views(params, batch, key).items():
      found_BLK = jax.nn.log_softmax(logits_BLK, axis=-1)
      kl_BL = jnp.sum(jnp.exp(target_BLK) * (target_BLK - found_BLK), axis=-1)
      mean = Mean.of(kl_BL, weights_BL)
      metrics[f'objective/{name}_kl'] = mean
      total += mean.sum
    return Loss(total, jnp.sum(weights_BL), metrics=metrics)

  def views(self, params: Params, batch: Batch, key: jax.Array | None) -> dict[str, jax.Array]:
    """The auxiliary modules' logits by name, [B, L, K]."""
    model = with_dropout(self.model, self.dropout)
    states_BLD, _ = self._states(model, params, batch, key)
    first, _ = ModelChoices.of(self.model).recurrent
    right_BLP, left_BLP, _ = jnp.split(states_BLD, (first.width // 2, first.width), axis=-1)
    read = {
      'forward': right_BLP,
      'backward': left_BLP,
      'future': _moved(right_BLP, 1),
      'past': _moved(left_BLP, -1),
    }
    modules = params['parts']['views']
    return {name: self._logits(modules[name], x) for name, x in read.items()}


def _log_probs(outputs_BK: jax.Array, num_labels: int) -> jax.Array:
  """Log-probabilities [B, L, K] of logits [B, L K]."""
  logits_BLK = outputs_BK.reshape(len(outputs_BK), -1, num_labels)
  return jax.nn.log_softmax(logits_BLK, axis=-1)


def _moved(x_BLP: jax.Array, distance: int) -> jax.Array:
  """Each token gets the state `distance` tokens before it, or behind it if < 0.

  At the edge that is 0, which an LSTM begins with, as is its output at padding.
  """
  pads = [(0, 0), (max(distance, 0), max(-distance, 0)), (0, 0)]
  start, length = max(-distance, 0), x_BLP.shape[1]
  return jnp.pad(x_BLP, pads)[:, start : start + length]


def with_dropout(model: Transformer, rate: float) -> Transformer:
  """The model with another rate wherever its LSTMs or inputs have dropout."""

  def written(field: str, choices: Mapping[str, Callable], names: tuple[str, ...]) -> str:
    calls = spec.bind_all(f'model.{field}', getattr(model, field), choices)
    return ', '.join(
      spec.written(
        call._replace(
          kwargs={
            name: rate if name in names and value else value for name, value in call.kwargs.items()
          }
        )
      )
      for call in calls
    )

  return model.clone(
    attention=written('attention', PATTERNS, ('dropout', 'input_dropout')),
    dropout=written('dropout', DROPOUTS, ('embedding',)),
  )


class _Turn(Objective):
  """The objective of one kind of batch."""

  def __init__(self, whole: CrossView, *, frozen: str, loss: Callable[..., Loss]):
    self._whole, self._frozen, self._loss = whole, frozen, loss

  @property
  def needs(self) -> Needs:
    return self._whole.needs

  @property
  def frozen(self) -> tuple[str, ...]:
    """The modules that learn from the other kind of batch."""
    return (self._frozen,)

  @property
  def example(self) -> dict[str, np.ndarray] | None:
    return self._whole.example

  def init(self, key: jax.Array) -> Params:
    return self._whole.init(key)

  def loss(self, params: Params, batch: Batch, key: jax.Array | None) -> Loss:
    return self._loss(params, batch, key)


# The values of `finetune.views`.


class CrossViewSettings(NamedTuple):
  """Cross-view training: views of a tagger learn from unlabelled text.

  Args:
    smoothing: of the labels: the fraction that all tags share.
    dropout: in unlabelled batches, wherever the model has dropout.
  """

  smoothing: Fraction = 0.1
  dropout: Fraction = 0.2


def none() -> None:
  """Tags from the last states of any model, by a linear head."""
