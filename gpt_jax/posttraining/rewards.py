# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A trained reward model as a function of prompts and completions."""

import contextlib
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import numpy as np

from gpt_jax import hf, sharding, spec
from gpt_jax.files import files
from gpt_jax.finetuning.exporting import best_step, reward_mean
from gpt_jax.nn.transformer import Transformer
from gpt_jax.objectives.preference import RewardModel
from gpt_jax.posttraining.dialogues import Encoder
from gpt_jax.posttraining.records import Content, Example
from gpt_jax.rows.row_order import Batch
from gpt_jax.spec import UsageError
from gpt_jax.tokenizers import chat
from gpt_jax.training import models

# Lengths are rounded up to this times a power of 2: few programs are compiled.
_LEAST_LENGTH = 32
# Rows of a batch of a model in a Hugging Face folder.
_ROWS = 16

# A text, the messages of a conversation, or token ids.
Text = Content | np.ndarray


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
    rows: int = _ROWS,
    put: Callable[[Batch, int], Any] = lambda batch, rows: batch,
    around: Callable[[], AbstractContextManager] = contextlib.nullcontext,
  ):
    """Sets up the function; programs are compiled when they are needed.

    Args:
      model: a decoder.
      params: with `heads/score`.
      encoder: by the model's tokenizer and chat template.
      mean: see the class.
      rows: of a batch.
      put: puts the arrays of a batch and their number of rows on the devices.
      around: what the model runs within.
    """
    self.tokenizer, self.mean = encoder.tokenizer, mean
    self._encoder, self._context = encoder, model.context_length
    self._params, self._rows, self._put = params, rows, put
    self._around = around
    objective = RewardModel(1, model.context_length).bind(model)
    self._step = jax.jit(objective.outputs)

  def __call__(
    self, prompts: Sequence[Text], completions: Sequence[Text]
  ) -> np.ndarray:
    """The scores of completions of prompts, one each, float32 [N].

    Texts and messages are encoded as in training, with the end of a document
    after a text. Ids, int [n], are those of this model's tokenizer, and are
    taken as they are; the score is read at the last one.
    """
    each = [self._ids(*pair) for pair in zip(prompts, completions, strict=True)]
    found = np.zeros(len(each), np.float32)
    # Rows of similar lengths share a batch.
    order = sorted(range(len(each)), key=lambda i: len(each[i]))
    for start in range(0, len(order), self._rows):
      numbers = order[start : start + self._rows]
      length = _LEAST_LENGTH
      while length < len(each[numbers[-1]]):
        length *= 2
      shape = self._rows, 1, min(length, self._context)
      batch = {
        'inputs': np.zeros(shape, np.int32),
        'lengths': np.ones(shape[:2], np.int32),
      }
      for row, number in enumerate(numbers):
        batch['inputs'][row, 0, : len(each[number])] = each[number]
        batch['lengths'][row] = len(each[number])
      with self._around():
        scores = self._step(self._params, self._put(batch, self._rows))
      found[numbers] = np.asarray(scores)[: len(numbers), 0] - self.mean
    return found

  def _ids(self, prompt: Text, completion: Text) -> np.ndarray:
    if isinstance(prompt, np.ndarray) and isinstance(completion, np.ndarray):
      ids = np.concatenate([prompt, completion])
    else:
      assert not isinstance(prompt, np.ndarray), 'both are ids, or none is'
      assert not isinstance(completion, np.ndarray), 'both are ids, or none is'
      example = Example('a text to score', prompt, completion)
      ids = self._encoder.encode(example, 'completion').ids
    if not 0 < len(ids) <= self._context:
      raise UsageError(
        f'a text to score has {len(ids)} tokens, of which the reward model '
        f'reads from 1 to {self._context}; shorten the completion, or take a '
        'reward model with a longer context'
      )
    return ids


def open_reward(
  folder: str, field: str = '--reward', template: str = ''
) -> RewardFunction:
  """Opens the reward model in a folder.

  Args:
    folder: a workdir of `gpt-jax reward`, or a Hugging Face folder of a
      decoder that classifies with one label.
    field: the flag or field that names the folder, for errors.
    template: the chat template for messages: see `chat.choose`.
  """
  path = os.path.join(folder, 'config.json')
  try:
    found = files.read_json(path, remedy=f'give another {field}')
  except OSError as e:
    raise UsageError(
      f'{field}={folder}: holds no config.json; give a workdir of gpt-jax '
      'reward, or a Hugging Face folder'
    ) from e
  wrong = UsageError(
    f'{field}={folder}: holds no reward model; give a workdir of gpt-jax '
    'reward, or a Hugging Face folder of a decoder that classifies '
    '(...ForSequenceClassification) with one label'
  )
  if 'model_type' in found:
    return _of_hf(folder, field, template, found, wrong)
  config = models.read_config(folder, field)
  name = spec.parse('objective.name', config.objective.name)[0].name
  if name != 'reward':
    raise wrong
  source = models.open_model(folder, 'run', field)
  parts, state = models.load_state(folder, best_step(config, folder))
  return RewardFunction(
    parts.model,
    state.eval_params,
    _encoder(source, os.path.join(folder, 'tokenizer'), template),
    reward_mean(folder),
    rows=parts.eval_rows,
    put=parts.put,
    around=lambda: sharding.use(parts.mesh, parts.rules),
  )


def _of_hf(
  folder: str,
  field: str,
  template: str,
  found: dict[str, Any],
  wrong: UsageError,
) -> RewardFunction:
  model = hf.Source(folder).model
  if model.origin.kind != 'classification':
    raise wrong
  source = models.open_model(folder, 'start', field)
  params = hf.load(folder)[1]
  if params['heads']['score']['kernel'].shape[1] != 1:
    raise wrong
  exported = (found.get('task_specific_params') or {}).get('reward', {})
  return RewardFunction(
    model,
    params,
    _encoder(source, folder, template),
    exported.get('mean_best_reward', 0.0),
  )


def _encoder(source: models.Pretrained, folder: str, template: str) -> Encoder:
  tokenizer = source.tokenizer
  assert tokenizer is not None, 'of a folder'
  return Encoder(tokenizer, lambda: chat.choose(template, tokenizer, folder))
