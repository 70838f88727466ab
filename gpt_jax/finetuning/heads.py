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
  spans                        ...ForQuestionAnswering
  tags                         ...ForTokenClassification

Of encoders, classification, entailment, similarity and regression are
...ForSequenceClassification, choice is ...ForMultipleChoice: both read the
pooled first token, or XLNet's last, of what the tokenizer makes of one or two
texts.

The ids of start, delimiter and extract, and the scale of scores, have no field
of their own in a config.json; they are in its `task_specific_params`.
"""

import json
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gpt_jax import config as config_lib
from gpt_jax import spec
from gpt_jax.config import Config
from gpt_jax.finetuning import examples as task_examples
from gpt_jax.finetuning import fields, setup
from gpt_jax.finetuning.predictions import RESULT
from gpt_jax.finetuning.sequences import Special, joined
from gpt_jax.finetuning.task_data import Scale
from gpt_jax.hf.heads import pretrained
from gpt_jax.spec import UsageError
from gpt_jax.tokenizers.tokenizer import Tokenizer


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
  """The step that predicted; None: the newest."""
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
  """
  call = spec.parse('objective.name', config.objective.name)[0]
  if call.name == 'tasks':
    raise UsageError(
      'finetune.tasks: no class of transformers has the heads of several '
      'tasks; fine-tune it on one of them, with finetune --init, and export '
      'that'
    )
  if heads is None or config.get('finetune') is None:
    return Exported(pretrained(heads), options, heads)
  if config.finetune.get('features'):
    raise UsageError(
      f'finetune.features={config.finetune.features!r}: its head reads layers '
      'as no class of transformers does; predict here, with finetune --predict'
    )
  if call.name == 'spans':
    return Exported('spans', options, heads)
  if call.name == 'tags':
    labels = _labelled(config.finetune.labels, heads['classifier']['bias'])
    return Exported('tokens', options | labels, heads)
  if 'score' not in heads:
    return _pooled(config, call.name, options, heads)
  return _extracting(config, call.name, options, heads, before)


def _pooled(
  config: Config, kind: str, options: dict[str, Any], heads: Any
) -> Exported:
  """What reads the pooled first token; its texts are as the tokenizer's own."""
  pooler = config.finetune.pooler or 'tanh'
  if kind == 'choice' and pooler != 'tanh':
    raise UsageError(
      f'finetune.pooler={pooler!r}: no ...ForMultipleChoice with it is '
      'written; predict here, with finetune --predict'
    )
  if kind == 'choice':
    return Exported(f'{_reads(config)}_choice', options, heads)
  names = ['LABEL_0'] if kind == 'regression' else config.finetune.labels
  options = options | _labelled(names, heads['classifier']['bias'])
  if kind == 'regression':
    options['task_specific_params'] = {kind: _scaled(config)}
  else:
    kind = 'single_label_classification'
  options['problem_type'] = kind
  read = _reads(config) if pooler == 'tanh' else pooler
  return Exported(f'{read}_classification', options, heads)


def _reads(config: Config) -> str:
  """How the kinds of `hf.heads` call the token that is pooled."""
  return 'last' if fields.forms(config.model) == 'last' else 'pooled'


def _extracting(
  config: Config,
  kind: str,
  options: dict[str, Any],
  heads: Any,
  before: tuple[int, ...],
) -> Exported:
  """What reads the extract token, whose id and others it tells."""
  tuned = config.finetune
  special = Special.after(tuned.vocab_size, before)
  told: dict[str, Any] = {
    'before_token_ids': [*before],
    'start_token_id': special.start[-1],
    'delimiter_token_id': special.delimiter[0],
    'extract_token_id': special.end[0],
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
    told |= _scaled(config)
    options['problem_type'] = kind
    options |= _labelled(['LABEL_0'], kernel)
  else:
    options['problem_type'] = 'single_label_classification'
    options |= _labelled(tuned.labels, kernel)
  options['task_specific_params'] = {kind: told}
  return Exported('classification', options, {'score': {'kernel': kernel}})


def sequence(config: Config, tokenizer: Tokenizer, text: str) -> list[int]:
  """A text as the head reads one, with what stands around it."""
  special = setup.special_of(config, tokenizer)
  length = config.finetune.length
  return joined([[tokenizer.encode(text)]], special, length).ids.tolist()


def _dense(kernel: np.ndarray, bias: np.ndarray) -> dict[str, np.ndarray]:
  return {'kernel': kernel, 'bias': bias}


def _labelled(names: Sequence[str], last: Any) -> dict[str, Any]:
  """The classes' names, as `finetune.labels` lists them, for config.json.

  `last` is a parameter of the head with an axis of classes at its end.
  """
  count = np.shape(last)[-1]
  if not len(names) == count == len({*names}):
    raise UsageError(
      f'finetune.labels={names!r}: the model has {count} classes; name each '
      'once in the config.json of the workdir, in the order of the classes'
    )
  return {
    'id2label': {str(i): name for i, name in enumerate(names)},
    'label2id': {name: i for i, name in enumerate(names)},
  }


def _scaled(config: Config) -> dict[str, float]:
  """What turns an output into a score."""
  scale = _scale(config)
  return {'score_mean': scale.mean, 'score_deviation': scale.deviation}


def _scale(config: Config) -> Scale:
  """Mean and deviation of the scores that were learned from."""
  if config.finetune.scores == 'raw':
    return Scale()
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
