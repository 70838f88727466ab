# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Exports runs to Hugging Face; fine-tuned ones as classes of transformers.

  classification, entailment   ...ForSequenceClassification, which reads each
                               row's last token that is not padding: ours is
                               the extract token, and another token is padding
  regression                   the same, with one output
  choice                       ...DoubleHeadsModel, with `mc_token_ids` at the
                               extract tokens
  target                       a language model
  reward                       ...ForSequenceClassification with one label
  spans                        ...ForQuestionAnswering
  tags                         ...ForTokenClassification

For encoders, classification, entailment, similarity and regression become
...ForSequenceClassification, and choice ...ForMultipleChoice: both read the
pooled first token, or XLNet's last, of one or two texts as the tokenizer
encodes them.

config.json has no fields for the ids of start, delimiter and extract, nor for
the scale of scores or the mean of rewards; they are in its
`task_specific_params`.
"""

import json
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from gpt_jax import hf
from gpt_jax.core import config as config_lib
from gpt_jax.core.config import Config
from gpt_jax.core.files import files, progress
from gpt_jax.core.nn import params as params_lib
from gpt_jax.core.nn.build import ModelChoices
from gpt_jax.core.objectives import choices as objectives
from gpt_jax.core.objectives.base import Objective
from gpt_jax.core.rows import sides
from gpt_jax.core.runtime.log import log
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers import saved
from gpt_jax.core.tokenizers import tokenizer as tokenizer_lib
from gpt_jax.core.tokenizers.special import BESIDE, GENERATION, SPECIAL, Special
from gpt_jax.core.tokenizers.tokenizer import Tokenizer
from gpt_jax.core.training import parts as parts_lib
from gpt_jax.decoding import chat, constraints
from gpt_jax.hf.base import choice
from gpt_jax.hf.heads import pretrained
from gpt_jax.hf_tokenizers import export, generation
from gpt_jax.opening import importing, streaming
from gpt_jax.opening import models as trained_lib
from gpt_jax.tuning import recipe
from gpt_jax.tuning.kinds import ScoreScale
from gpt_jax.tuning.objectives import adapters
from gpt_jax.tuning.objectives.policy import Ppo
from gpt_jax.tuning.objectives.preference import RewardModel
from gpt_jax.tuning.objectives.task import Choice, Classification, Regression, Spans, Tags, Tasks
from gpt_jax.tuning.rows import Frame, joined
from gpt_jax.tuning.run import RESULT


class Exported(NamedTuple):
  """Arguments of `hf.save` for a fine-tuned model.

  Attributes:
    kind: a key of `hf.heads.KINDS`.
    options: of config.json.
    heads: `params['heads']` as NumPy arrays; None if there are none.
  """

  kind: str
  options: dict[str, Any]
  heads: Any = None


def best_step(config: Config, workdir: str) -> int | None:
  """The step that made the predictions; None: the newest."""
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


def exported_head(
  config: Config,
  heads: Any,
  options: dict[str, Any],
  *,
  before: tuple[int, ...] = (),
  pad: int | None = None,
  reward_mean: float = 0.0,
) -> Exported:
  """What to export of a model, fine-tuned or not.

  Args:
    config: of the run, resolved.
    heads: `params['heads']`; None if there are none.
    options: of config.json, common to all models.
    before: ids that the tokenizer puts before a text.
    pad: the tokenizer's padding.
    reward_mean: see `reward_mean`.
  """
  objective = objectives.unbound(config.objective.name)
  if isinstance(objective, Tasks):
    raise UsageError(
      'finetune.tasks: no class of transformers has the heads of several '
      'tasks; fine-tune it on one of them, with finetune --init, and export '
      'that'
    )
  if isinstance(objective, Ppo):  # the value head served training alone
    heads = None
  export = _HEADS.get(type(objective))
  if heads is None or export is None or config.get('finetune') is None:
    return Exported(pretrained(heads), options, heads)
  if config.finetune.get('features'):
    raise UsageError(
      f'finetune.features={config.finetune.features!r}: its head reads layers '
      'as no class of transformers does; predict here, with finetune --predict'
    )
  if 'concat' in (config.finetune.head, recipe.forms(config.model)):
    raise UsageError(
      "finetune.head='concat': no class of transformers has it; predict here, "
      'with finetune --predict'
    )
  return export(_Tuned(objective, config, heads, options, before, pad, reward_mean))


class _Tuned(NamedTuple):
  """A fine-tuned model: its objective, and the arguments of `exported_head`."""

  objective: Objective
  config: Config
  heads: Any
  options: dict[str, Any]
  before: tuple[int, ...]
  pad: int | None
  reward_mean: float

  @property
  def extracts(self) -> bool:
    """Whether the head reads the extract token; else a pooled one."""
    return 'score' in self.heads

  @property
  def padding(self) -> int:
    """The token that pads rows: without one for that, the first that ends."""
    return self.ends[0] if self.pad is None else self.pad

  @property
  def ends(self) -> list[int]:
    """The tokens that end a text."""
    ends = self.options['eos_token_id']
    return ends if isinstance(ends, list) else [ends]

  @property
  def reads(self) -> str:
    """Which token is pooled, by its name in `hf.heads`."""
    forms = recipe.forms(self.config.model)
    return 'last' if forms == 'last' else 'pooled'

  @property
  def ids(self) -> dict[str, Any]:
    """The ids around texts whose extract token is read."""
    special = Frame.after(self.config.finetune.vocab_size, self.before)
    return {
      'before_token_ids': [*self.before],
      'start_token_id': special.start[-1],
      'delimiter_token_id': special.delimiter[0],
      'extract_token_id': special.end[0],
    }

  def labelled(self, names: Sequence[str], last: Any) -> dict[str, Any]:
    """The options, with the names of classes as in `finetune.labels`.

    The last axis of `last`, a parameter of the head, is that of the classes.
    """
    count = np.shape(last)[-1]
    if not len(names) == count == len({*names}):
      raise UsageError(
        f'finetune.labels={names!r}: the model has {count} classes; name each '
        'once in the config.json of the workdir, in the order of the classes'
      )
    return {
      **self.options,
      'id2label': {str(i): name for i, name in enumerate(names)},
      'label2id': {name: i for i, name in enumerate(names)},
    }


def _sequence(tuned: _Tuned) -> Exported:
  """A class or a score, read at the extract token or at a pooled one."""
  section, heads, kind = tuned.config.finetune, tuned.heads, 'classification'
  names, problem = section.labels, 'single_label_classification'
  beside: dict[str, Any] = {}
  if isinstance(tuned.objective, Regression):
    kind, scale = 'regression', _scale(tuned.config)
    names, problem = ['LABEL_0'], kind
    beside = {'score_mean': scale.mean, 'score_deviation': scale.deviation}
  if tuned.extracts:
    if section.sequences > 1:
      raise UsageError(
        f'finetune.task={section.task!r}: adds the states of both orders of '
        'two texts, which no class of transformers does; fine-tune it as an '
        'entailment(...), or predict here, with finetune --predict'
      )
    kernel, beside = np.asarray(heads['score']['kernel']), tuned.ids | beside
    options = tuned.labelled(names, kernel)
    # Any token but the extract token, which is a new one.
    options['pad_token_id'] = tuned.padding
    heads, read = {'score': {'kernel': kernel}}, ''
  else:
    options = tuned.labelled(names, heads['classifier']['bias'])
    pooler = section.pooler or 'tanh'
    read = f'{tuned.reads if pooler == "tanh" else pooler}_'
  options['problem_type'] = problem
  if beside:
    options['task_specific_params'] = {kind: beside}
  return Exported(f'{read}classification', options, heads)


def _choice(tuned: _Tuned) -> Exported:
  """A score for each answer, read at the extract token or at a pooled one."""
  section = tuned.config.finetune
  if not tuned.extracts:
    if section.pooler not in (None, '', 'tanh'):
      raise UsageError(
        f'finetune.pooler={section.pooler!r}: no ...ForMultipleChoice with it '
        'is written; predict here, with finetune --predict'
      )
    return Exported(f'{tuned.reads}_choice', tuned.options, tuned.heads)
  options = tuned.options | {
    'summary_type': 'cls_index',
    'summary_use_proj': True,
    'summary_activation': None,
    'summary_proj_to_labels': True,
    'summary_first_dropout': section.dropout,
    'task_specific_params': {'choice': tuned.ids},
  }
  kernel = np.asarray(tuned.heads['score']['kernel'])
  bias = np.zeros(1, np.float32)  # W_y has none
  heads = {'choice': {'kernel': kernel, 'bias': bias}}
  return Exported('double', options, heads)


def _spans(tuned: _Tuned) -> Exported:
  return Exported('spans', tuned.options, tuned.heads)


def _tags(tuned: _Tuned) -> Exported:
  labels = tuned.config.finetune.labels
  options = tuned.labelled(labels, tuned.heads['classifier']['bias'])
  return Exported('tokens', options, tuned.heads)


def _reward(tuned: _Tuned) -> Exported:
  """A reward model, whose score is read at the last token."""
  options = tuned.labelled(['LABEL_0'], tuned.heads['score']['kernel'])
  options['problem_type'] = 'regression'
  options['task_specific_params'] = {'reward': {'mean_best_reward': tuned.reward_mean}}
  # A text ends with the end of a document: as padding it would not be read.
  if tuned.padding not in tuned.ends:
    options['pad_token_id'] = tuned.padding
  else:
    options['pad_token_id'] = None
    log.warning(
      'the tokenizer has no padding but the end of a document, so transformers '
      'scores one text at a time: set pad_token_id in config.json'
    )
  return Exported('classification', options, tuned.heads)


# A model of another objective is a language model.
_HEADS = {
  Classification: _sequence,
  Regression: _sequence,
  Choice: _choice,
  Spans: _spans,
  Tags: _tags,
  RewardModel: _reward,
}


def reward_mean(workdir: str) -> float:
  """The mean reward of the dev split's best completions; 0: not known."""
  path = os.path.join(workdir, RESULT)
  if not os.path.exists(path):
    return 0.0
  with open(path, encoding='utf-8') as file:
    return json.load(file).get('dev', {}).get('mean_best_reward', 0.0)


def sequence(config: Config, tokenizer: Tokenizer, text: str) -> list[int]:
  """The ids of a text as the head reads it, special tokens included."""
  tuned = config.finetune
  special = recipe.frame_of(config.model, tuned, tokenizer)
  length = tuned.length
  return joined([[tokenizer.encode(text)]], special, length).ids.tolist()


def _scale(config: Config) -> ScoreScale:
  """Mean and standard deviation of the training scores."""
  if config.finetune.scores == 'raw':
    return ScoreScale()
  _, examples = recipe.read_task(config)
  if recipe.digest(examples) != config.finetune.data:
    raise UsageError(
      f'finetune.task={config.finetune.task!r}: its tables are not those that '
      'the run learned from, whose scores give the scale; put them back'
    )
  labels = [example.label or 0 for example in examples['train']]
  return ScoreScale.of(np.array(labels, np.float32))


# Exporting a workdir.


# Files of an imported tokenizer -> Hugging Face's names.
_VOCABULARIES = {
  'vocabulary.json': 'vocab.json',
  'merges.txt': 'merges.txt',
  'sentencepiece.model': 'tokenizer.model',
  'hf_tokenizer.json': 'tokenizer.json',
  **{name: name for name in BESIDE},
}


def to_hf(
  workdir: str,
  folder: str,
  shard_bytes: int = hf.SHARD_BYTES,
  part: str | None = None,
  *,
  with_tokenizer: bool = True,
) -> None:
  """Writes a workdir's checkpoint for Hugging Face, fine-tuned heads included.

  Args:
    folder: output.
    shard_bytes: see `hf.save`.
    part: a name in `config.models`; None: the run's own model.
    with_tokenizer: whether to write the tokenizer, for AutoTokenizer.
  """
  if os.path.exists(os.path.join(folder, 'config.json')):
    raise UsageError(f'--to_hf={folder}: holds a model; give a new folder')
  parts = trained_lib.built(workdir)
  if part is not None and part not in parts.config.models:
    known = ', '.join(parts.config.models)
    raise UsageError(
      f'--part={part}: the run has no such model; '
      + (f'one of {known}' if known else 'leave it out')
    )
  path = os.path.join(workdir, 'tokenizer')
  tokenizer, vocabulary = None, {}
  if os.path.isdir(path):
    tokenizer = tokenizer_lib.load(path)
    if with_tokenizer:
      vocabulary = _vocabulary(parts.config, tokenizer, path)
  needs = parts.objective.needs
  best = best_step(parts.config, workdir)
  adapted = adapters.of(trained_lib.read_config(workdir)) is not None
  with progress.bar() as report:
    if adapted:  # merged in memory
      state = trained_lib.load_state(workdir, at_most=best)[1]
      step, params = int(state.step), jax.device_get(state.eval_params)
      arrays = params_lib.flatten(params)
    else:
      step, arrays = streaming.opened(
        workdir,
        parts_lib.abstract_state(parts),
        at_most=best,
        report=progress.counted(report, 'checked', None),
      )
    params = needs.merged(hf.nest(arrays), lambda x, y: np.asarray(x) + np.asarray(y))
    params = needs.trees(params)[part or '']
    model, options = importing.model_of(parts, workdir), {}
    if part is not None:
      model = config_lib.transformer(parts.config, part)
    if tokenizer and not isinstance(model, hf.Imported):
      options = _token_ids(parts.config, tokenizer)
    tuned = exported_head(
      parts.config,
      params.get('heads'),
      options,
      before=tokenizer.special.prompt_start if tokenizer else (),
      pad=tokenizer.special.pad_id if tokenizer else None,
      reward_mean=reward_mean(workdir),
    )
    params = {name: x for name, x in params.items() if name != 'heads'}
    if tuned.heads is not None:
      params['heads'] = tuned.heads
    unread = None
    if isinstance(model, hf.Imported):
      unread = files.read(workdir, importing.UNREAD)
    rules = _generation(workdir, tokenizer, tuned.options)
    hf.save(
      folder,
      model,
      params,
      kind=tuned.kind,
      options=tuned.options,
      besides=vocabulary | rules,
      unread=unread,
      shard_bytes=shard_bytes,
      progress=progress.counted(report, 'written', hf.num_bytes(model, params)),
    )
  log.info('%s: exported step %d', folder, step)
  if not vocabulary:
    log.warning('%s: has no tokenizer', folder)


def to_peft(workdir: str, folder: str) -> None:
  """Writes a run's adapters in PEFT's format, without the model.

  Args:
    folder: output.
  """
  lora = adapters.of(trained_lib.read_config(workdir))
  if lora is None:
    raise UsageError(
      f"--adapter: --workdir={workdir} trained no adapters (finetune.lora is 'none'); leave it out"
    )
  if os.path.exists(os.path.join(folder, hf.ADAPTER)):
    raise UsageError(f'--to_hf={folder}: holds an adapter; give a new folder')
  parts = trained_lib.built(workdir)
  step, params = trained_lib.load_adapters(workdir, parts, at_most=best_step(parts.config, workdir))
  if 'new_rows' in params:
    raise UsageError(
      '--adapter: the run added tokens to the table, which an adapter of PEFT '
      'does not hold; leave it out, to export the merged model'
    )
  tuned = exported_head(parts.config, params.get('heads'), {})
  base = adapters.read(workdir).folder
  known = files.read(base, 'config.json') if os.path.isdir(base) else None
  of_hf = known is not None and 'model_type' in json.loads(known)
  hf.save_adapter(
    folder,
    parts.model,
    params['adapters'],
    tuned.heads,
    kind=tuned.kind,
    options=tuned.options,
    alpha=lora.alpha,
    rslora=lora.rslora,
    dropout=lora.dropout,
    base=base if of_hf else None,
  )
  log.info('%s: exported the adapters of step %d', folder, step)
  if not of_hf:
    log.warning(
      '%s: export its base, %s, too, and name that export in base_model_name_or_path of %s',
      folder,
      base,
      hf.ADAPTER,
    )


def _generation(
  workdir: str, tokenizer: tokenizer_lib.Tokenizer | None, options: dict[str, Any]
) -> dict[str, bytes]:
  """generation_config.json: the import's, or one with its rules.

  `options` are those of config.json, with the ids of special tokens; an import
  has no further ones.
  """
  if tokenizer is None:
    data = files.read(workdir, GENERATION)
  else:
    _, contents = saved.read(os.path.join(workdir, 'tokenizer'))
    data = contents.get(GENERATION)
  ids = {n: i for n, i in options.items() if n.endswith('_token_id')}
  if data is not None:
    values = files.parse(data, GENERATION, remedy='import the model again')
    start = 'decoder_start_token_id'
    if None in (ids.get(start), values.get(start)):
      return {GENERATION: data}
    new = values | {start: ids[start]}
    return {GENERATION: data if new == values else _json(new)}
  rules = generation.written(constraints.of(tokenizer.special)) if tokenizer else {}
  if not rules or not options:
    return {}
  return {GENERATION: _json({**ids, **rules})}


def _json(values: dict[str, Any]) -> bytes:
  return (json.dumps(values, indent=2) + '\n').encode()


def _vocabulary(
  config: config_lib.Config, tokenizer: tokenizer_lib.Tokenizer, path: str
) -> dict[str, bytes]:
  """The files of the tokenizer saved at `path`."""
  _, contents = saved.read(path)
  if SPECIAL in contents:  # imported: exported unchanged
    names = _VOCABULARIES.keys() & contents.keys() - {GENERATION}
    return {_VOCABULARIES[name]: contents[name] for name in names}
  needs = objectives.needs(config.objective.name)
  sentinels = needs.sentinels(config.model.context_length)
  ids = _token_ids(config, tokenizer)
  roles = {
    f'{role}_token': ids[f'{role}_token_id']
    for role in ('bos', 'eos', 'pad')
    if f'{role}_token_id' in ids
  }
  special = tokenizer.special
  if not _is_decoder(config):
    more = ('cls', special.cls_id), ('sep', special.sep_id)
    more = (*more, ('mask', special.mask_id))
    roles |= {f'{role}_token': i for role, i in more if i is not None}
  roles.setdefault('pad_token', special.pad_id)
  template = {name: x for name, x in contents.items() if name == chat.FILE}
  # A chat template writes special tokens by name.
  names = 'mask' in needs.tokens or bool(sentinels or template)
  try:
    files = export.files(tokenizer, _template(config, special), roles, names=names)
  except UsageError as e:
    raise UsageError(
      f'tokenizer.name={config.tokenizer.name!r}: {e}; give '
      '--tokenizer=false to export the model alone'
    ) from e
  if texts := export.approximate(tokenizer):
    log.warning('AutoTokenizer gives other ids than this run to %s', texts)
  return files | template


def _is_decoder(config: config_lib.Config) -> bool:
  model = config.model
  return not model.num_encoder_layers and ModelChoices.of(model).causal


def _template(config: config_lib.Config, special: Special) -> export.Template:
  """The special tokens that the model reads around a text."""
  model, tuned = config.model, config.get('finetune')
  before = special.prompt_start
  if model.num_encoder_layers:
    return export.Template(before, None, (special.eos_id,))
  forms = recipe.forms(model)
  lacking = special.cls_id is None or special.sep_id is None
  # XLNet is trained on a stream of text.
  if _is_decoder(config) or lacking or (forms == 'last' and not tuned):
    return export.Template(before)
  found = Frame.of_encoder(special, forms)
  types = choice(model, 'input').kwargs.get('token_types', 0)
  return export.Template(
    found.start, found.delimiter, found.end, types > 1 or forms == 'last', forms == 'last'
  )


def _token_ids(config: config_lib.Config, tokenizer: tokenizer_lib.Tokenizer) -> dict[str, Any]:
  """The special tokens' ids in config.json: an import's, or the tokenizer's."""
  special, eos_id = tokenizer.special, tokenizer.eos_id
  starts = objectives.needs(config.objective.name).decoder_start
  if special.model_ids is not None:
    ids = dict(special.model_ids)
    if starts or _is_decoder(config):
      ids.setdefault('eos_token_id', eos_id)
  else:
    ids = _own_ids(config, special)
  if starts:  # what the decoder was trained to start with
    ids['decoder_start_token_id'] = sides.start_id(starts, special)
  return ids


def _own_ids(config: config_lib.Config, special: Special) -> dict[str, int]:
  """The ids of a tokenizer that was not imported; an encoder has a [CLS]."""
  first, last, pad_id = special.cls_id, special.sep_id, special.pad_id
  if config.model.num_encoder_layers:
    # BART's texts begin with <s>; T5's have no start token.
    first, last = special.first_id if first is None else first, special.eos_id
  elif first is None or last is None or _is_decoder(config):
    first, last = special.first_id, special.eos_id
    if pad_id == last:
      return {'bos_token_id': first, 'eos_token_id': last}
  return {'bos_token_id': first, 'eos_token_id': last, 'pad_token_id': pad_id}
