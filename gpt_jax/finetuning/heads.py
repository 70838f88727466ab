# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A fine-tuned model as a class of transformers: what an export writes.

  classification, entailment   ...ForSequenceClassification, which reads each
                               row's last token that is not padding: ours is
                               the extract token, and any other token pads
  regression                   the same, with one output
  choice                       ...DoubleHeadsModel, with `mc_token_ids` at the
                               extract tokens
  target                       a language model

The ids of start, delimiter and extract, and the scale of scores, have no field
of their own in a config.json; they are in its `task_specific_params`.
"""

import json
import os
from typing import Any, NamedTuple

import numpy as np

from gpt_jax import config as config_lib
from gpt_jax import spec
from gpt_jax.config import Config
from gpt_jax.data.tokenizers.tokenizer import Tokenizer
from gpt_jax.finetuning import examples as task_examples
from gpt_jax.finetuning.predictions import RESULT
from gpt_jax.finetuning.sequences import Special, joined
from gpt_jax.finetuning.task_data import Scale
from gpt_jax.runtime.log import log
from gpt_jax.spec import UsageError


class Exported(NamedTuple):
  """What `hf.save` is given for a fine-tuned model.

  Attributes:
    kind: of `hf.heads.KINDS`.
    options: of config.json.
    heads: `params['heads']`, of NumPy arrays; None: there are none.
  """

  kind: str
  options: dict[str, Any]
  heads: Any = None


def best_step(config: Config, workdir: str) -> int | None:
  """The step that predicted; None: the newest.

  Raises:
    UsageError: the run that is to select it has not ended.
  """
  tuned = config.get('finetune')
  if tuned is None or tuned.select == 'last':
    return None
  try:
    with open(os.path.join(workdir, RESULT), encoding='utf-8') as f:
      return json.load(f)['step']
  except FileNotFoundError as e:
    raise UsageError(
      f'--workdir={workdir}: finetune.select={tuned.select!r}, and the run has '
      'not selected a step yet; let finetune end first'
    ) from e


def exported(
  config: Config,
  heads: Any,
  options: dict[str, Any],
  *,
  before: tuple[int, ...] = (),
) -> Exported:
  """What to write of a fine-tuned model, or of any other.

  Args:
    config: of the run, resolved.
    heads: `params['heads']`; None: there are none.
    options: of config.json for any model of ours: `eos_token_id` pads.
    before: ids that the tokenizer puts before a text.

  Raises:
    UsageError: no class of transformers computes this.
  """
  call = spec.parse('objective.name', config.objective.name)[0]
  if heads is None:
    return Exported('lm', options)
  tuned, kind = config.finetune, call.name
  special = Special.after(tuned.vocab_size, before)
  told: dict[str, Any] = {
    'before_token_ids': [*special.before],
    'start_token_id': special.start,
    'delimiter_token_id': special.delimiter,
    'extract_token_id': special.extract,
  }
  kernel = np.asarray(heads['score']['kernel'])
  if kind == 'choice':
    bias = np.zeros(1, np.float32)  # W_y has none
    options = options | {
      'summary_type': 'cls_index',
      'summary_use_proj': True,
      'summary_activation': None,
      'summary_proj_to_labels': True,
      'summary_first_dropout': tuned.dropout,
      'task_specific_params': {kind: told},
    }
    return Exported('double', options, {'choice': _dense(kernel, bias)})
  if tuned.sequences > 1:
    raise UsageError(
      f'finetune.task={tuned.task!r}: adds the states of both orders of two '
      'texts, which no class of transformers does; fine-tune it as an '
      'entailment(...), or predict here, with finetune --predict'
    )
  options = options | {'pad_token_id': options['eos_token_id']}
  if kind == 'regression':
    scale = _scale(config)
    told |= {'score_mean': scale.mean, 'score_deviation': scale.deviation}
    names = ['LABEL_0']
  else:
    names = _labels(tuned.labels, kernel.shape[1])
    kind = 'single_label_classification'
  options = options | {
    'problem_type': kind,
    'id2label': {str(i): name for i, name in enumerate(names)},
    'label2id': {name: i for i, name in enumerate(names)},
    'task_specific_params': {call.name: told},
  }
  return Exported('classification', options, {'score': {'kernel': kernel}})


def sequence(config: Config, tokenizer: Tokenizer, text: str) -> list[int]:
  """A text as the head reads one: start, text, extract."""
  special = Special.after(
    config.finetune.vocab_size, tokenizer.special.prompt_start
  )
  ids, _ = joined([[tokenizer.encode(text)]], special, config.finetune.length)
  return ids.tolist()


def _dense(kernel: np.ndarray, bias: np.ndarray) -> dict[str, np.ndarray]:
  return {'kernel': kernel, 'bias': bias}


def _labels(text: str, count: int) -> list[str]:
  """The classes' names, as `finetune.labels` lists them."""
  names = text.split(', ')
  if len(names) == count == len({*names}):
    return names
  log.warning(
    'finetune.labels=%r: not %d names; exported as LABEL_0, ...', text, count
  )
  return [f'LABEL_{i}' for i in range(count)]


def _scale(config: Config) -> Scale:
  """Mean and deviation of the scores that were learned from.

  Raises:
    UsageError: the train split is not there, or is another.
  """
  before = config.finetune.data
  config = config_lib.unlocked(config)
  _, examples = task_examples.read(config)
  if config.finetune.data != before:
    raise UsageError(
      f'finetune.task={config.finetune.task!r}: its tables are not those that '
      'the run learned from, whose scores give the scale; put them back'
    )
  labels = [example.label or 0 for example in examples['train']]
  return Scale.of(np.array(labels, np.float32))
