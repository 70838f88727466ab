# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Trained models as functions of prompts and completions.

A reward model gives its score, a classifier the probability of a class.
"""

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from gpt_jax import hf
from gpt_jax.core import sharding, spec
from gpt_jax.core.files import files
from gpt_jax.core.nn.transformer import Transformer
from gpt_jax.core.objectives import choices as objectives
from gpt_jax.core.objectives.base import Objective
from gpt_jax.core.rows.row_order import Batch
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers.tokenizer import Tokenizer
from gpt_jax.core.training.parts import Parts
from gpt_jax.decoding import chat
from gpt_jax.opening import models
from gpt_jax.tasks import task as tasks
from gpt_jax.tasks.registry import TUNED
from gpt_jax.tuning import rows as rows_lib
from gpt_jax.tuning.dialogues import Encoder
from gpt_jax.tuning.exporting import best_step, reward_mean
from gpt_jax.tuning.kinds import TaskSplit, probabilities
from gpt_jax.tuning.objectives.preference import RewardModel
from gpt_jax.tuning.objectives.task import Classification
from gpt_jax.tuning.recipe import frame_of
from gpt_jax.tuning.records import Content, TextExample

# Lengths are rounded up to this times a power of 2: few programs are compiled.
_LEAST_LENGTH = 32
# Rows of a batch of a model in a Hugging Face folder.
_ROWS = 16

_WHERE = 'a text to score'

# A text, the messages of a conversation, or token ids.
Text = Content | np.ndarray


def _too_long(count: int, model: str, most: int) -> str:
  return (
    f'{_WHERE} has {count} tokens, of which {model} reads from 1 to {most}; '
    'shorten the completion, or take a model that reads longer texts'
  )


class RewardFunction:
  """Scores completions by a reward model.

  Attributes:
    tokenizer: of the reward model.
    mean: is subtracted from each score: the mean that the best completions of
      the dev split had, which then score 0 on average (Ouyang et al., 2022,
      section 3.5).
  """

  def __init__(
    self,
    model: Transformer,
    params: Any,
    encoder: Encoder,
    mean: float = 0.0,
    *,
    parts: Parts | None = None,
  ):
    """Sets up the function; programs are compiled when they are needed.

    Args:
      model: a decoder.
      params: with `heads/score`.
      encoder: by the model's tokenizer and chat template.
      mean: see the class.
      parts: of a run, whose mesh parameters and batches are on; None: they
        are on one device of each process.
    """
    self.tokenizer, self.mean = encoder.tokenizer, mean
    self._encoder, self._context = encoder, model.context_length
    objective = RewardModel(1, model.context_length).bind(model)
    if parts is None:
      step = jax.jit(objective.outputs)
      self._rows, self._outputs = _ROWS, functools.partial(step, params)
    else:
      self._rows = parts.eval_rows
      self._outputs = _on_mesh(parts, objective, params)

  def __call__(self, prompts: Sequence[Text], completions: Sequence[Text]) -> np.ndarray:
    """The scores of completions of prompts, one each, float32 [N].

    Texts and messages are encoded as in training, with the end of a document
    after a text. Ids, int [n], are those of this model's tokenizer, and are
    taken as they are; the score is read at the last one.
    """
    each = [self._ids(*pair) for pair in zip(prompts, completions, strict=True)]
    scores_N = np.zeros(len(each), np.float32)
    # Rows of similar lengths share a batch.
    order = sorted(range(len(each)), key=lambda i: len(each[i]))
    for start in range(0, len(order), self._rows):
      numbers = order[start : start + self._rows]
      length = _LEAST_LENGTH
      while length < len(each[numbers[-1]]):
        length *= 2
      shape = self._rows, 1, min(length, self._context)
      batch = {'inputs': np.zeros(shape, np.int32), 'lengths': np.ones(shape[:2], np.int32)}
      for row, number in enumerate(numbers):
        batch['inputs'][row, 0, : len(each[number])] = each[number]
        batch['lengths'][row] = len(each[number])
      scores = np.asarray(self._outputs(batch))
      scores_N[numbers] = scores[: len(numbers), 0] - self.mean
    return scores_N

  def _ids(self, prompt: Text, completion: Text) -> np.ndarray:
    if isinstance(prompt, np.ndarray) and isinstance(completion, np.ndarray):
      ids = np.concatenate([prompt, completion])
    else:
      assert not isinstance(prompt, np.ndarray), 'both are ids, or none is'
      assert not isinstance(completion, np.ndarray), 'both are ids, or none is'
      example = TextExample(_WHERE, prompt, completion)
      ids = self._encoder.encode(example, 'completion').ids
    if not 0 < len(ids) <= self._context:
      raise UsageError(_too_long(len(ids), 'the reward model', self._context))
    return ids


class ClassProbability:
  """Scores completions by a fine-tuned classifier of texts with two classes.

  The score is the probability of the second class, such as SST-2's positive, of
  prompt and completion as one text.
  """

  def __init__(self, parts: Parts, params: Any, tokenizer: Tokenizer):
    """Sets up the function of a run of `gpt-jax finetune`."""
    self._parts, self._tokenizer = parts, tokenizer
    config = parts.config
    self._special = frame_of(config.model, config.finetune, tokenizer)
    self._outputs = _on_mesh(parts, parts.objective, params)

  def __call__(self, prompts: Sequence[Content], completions: Sequence[Content]) -> np.ndarray:
    """The scores of completions of prompts, which are texts; float32 [N]."""
    examples = []
    for prompt, completion in zip(prompts, completions, strict=True):
      if not isinstance(prompt, str) or not isinstance(completion, str):
        raise UsageError(
          'the reward is a classifier, which reads texts, and the prompts are '
          'messages; give texts, or a reward model of gpt-jax reward'
        )
      examples.append(tasks.Example(_WHERE, (prompt + completion,), None))
    tuned, special = self._parts.config.finetune, self._special
    tokens = rows_lib.encode(examples, self._tokenizer, backward=bool(tuned.backward))
    length = tuned.length
    longest = rows_lib.longest(_ONE_TEXT, tokens, special)
    if longest > length:
      raise UsageError(_too_long(longest, 'the classifier', length))
    encoded = rows_lib.EncodedExamples(
      _ONE_TEXT, examples, tokens, self._tokenizer, special, length
    )
    split, rows, outputs = TaskSplit.of(encoded), self._parts.eval_rows, []
    for start in range(0, len(examples), rows):
      # The last batch is padded with the last example.
      numbers = np.arange(start, start + rows).clip(max=len(examples) - 1)
      outputs.append(self._outputs(split.batch(numbers.tolist())))
      sharding.wait_for_earlier(outputs)
    raw = np.concatenate(jax.device_get(outputs))[: len(examples)]
    return probabilities(raw)[:, 1].astype(np.float32)


def _on_mesh(parts: Parts, objective: Objective, params: Any) -> Callable[[Batch], jax.Array]:
  """From a batch of `eval_rows` rows to the outputs, whole on every device."""
  whole = sharding.replicated(parts.mesh)
  step = jax.jit(objective.outputs, out_shardings=whole)

  def outputs(batch: Batch) -> jax.Array:
    with sharding.use(parts.mesh, parts.rules):
      return step(params, parts.put_whole(batch, parts.eval_rows))

  return outputs


_ONE_TEXT = tasks.Task('classification', {}, ('text',))

# What `open_reward` opens.
Scorer = RewardFunction | ClassProbability


def open_reward(folder: str, field: str = '--reward', template: str = '') -> Scorer:
  """Opens the model in a folder that scores completions.

  Args:
    folder: a workdir of `gpt-jax reward`, a Hugging Face folder of a decoder
      that classifies with one label, or a workdir of `gpt-jax finetune` on a
      task that puts one text into one of two classes.
    field: the flag or field that names the folder, for errors.
    template: the chat template for messages: see `chat.choose`.
  """
  path = os.path.join(folder, 'config.json')
  try:
    fields = files.read_json(path, remedy=f'give another {field}')
  except OSError as e:
    raise UsageError(
      f'{field}={folder}: holds no config.json; give a workdir of gpt-jax '
      'reward, or a Hugging Face folder'
    ) from e
  wrong = UsageError(
    f'{field}={folder}: holds no reward model; give a workdir of gpt-jax '
    'reward, a Hugging Face folder of a decoder that classifies '
    '(...ForSequenceClassification) with one label, or a workdir of gpt-jax '
    'finetune on a task with one text and two classes, such as sst2'
  )
  if 'model_type' in fields:
    return _of_hf(folder, field, template, fields, wrong)
  config = models.read_config(folder, field)
  objective = objectives.unbound(config.objective.name)
  classifies = isinstance(objective, Classification)
  if classifies:
    task = spec.build('finetune.task', config.finetune.task, TUNED)
    two = len(config.finetune.labels) == 2
    if task.form != 'classification' or len(task.texts) != 1 or not two:
      raise wrong
  elif not isinstance(objective, RewardModel):
    raise wrong
  source = models.open_model(folder, 'run', field)
  parts, state = models.load_state(folder, best_step(config, folder))
  if classifies:
    assert source.tokenizer is not None, 'of a folder'
    return ClassProbability(parts, state.eval_params, source.tokenizer)
  return RewardFunction(
    parts.model,
    state.eval_params,
    _encoder(source, os.path.join(folder, 'tokenizer'), template),
    reward_mean(folder),
    parts=parts,
  )


def _of_hf(
  folder: str, field: str, template: str, fields: dict[str, Any], wrong: UsageError
) -> RewardFunction:
  model = hf.HeaderSource(folder).model
  if model.origin.kind != 'classification':
    raise wrong
  source = models.open_model(folder, 'start', field)
  params = hf.load(folder)[1]
  if params['heads']['score']['kernel'].shape[1] != 1:
    raise wrong
  exported = (fields.get('task_specific_params') or {}).get('reward', {})
  return RewardFunction(
    model, params, _encoder(source, folder, template), exported.get('mean_best_reward', 0.0)
  )


def _encoder(source: models.Pretrained, folder: str, template: str) -> Encoder:
  tokenizer = source.tokenizer
  assert tokenizer is not None, 'of a folder'
  return Encoder(tokenizer, lambda: chat.choose(template, tokenizer, folder))
