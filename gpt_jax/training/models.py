# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Opens trained models, and sets where a new run starts.

`open_model` opens a workdir or a Hugging Face folder and checks that its model
suits the intended use; `load` puts a run's model onto the devices. Below: the
mean of the last checkpoints, a run's teacher (`objective.teacher`) and its
initial parameters (`optim.start`).
"""

import functools
import hashlib
import math
import os
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from gpt_jax import config as config_lib
from gpt_jax import hf, sharding, spec
from gpt_jax.checkpoints import restore
from gpt_jax.checkpoints.checkpointer import Checkpointer
from gpt_jax.config import Config
from gpt_jax.costs.chips import GIB
from gpt_jax.decoding import fill, speculative
from gpt_jax.decoding.in_row import AfterPrefix, ByMask, InRow
from gpt_jax.decoding.programs import Decoder, for_decoding
from gpt_jax.decoding.speculative import Draft
from gpt_jax.decoding.texts import SourceFormat
from gpt_jax.files import buckets, files, vectors
from gpt_jax.hf import vocabulary
from gpt_jax.hf.base import FOR_TRAINING
from gpt_jax.hf.heads import SCORING
from gpt_jax.nn import params as params_lib
from gpt_jax.nn.build import ModelChoices
from gpt_jax.nn.transformer import Transformer, parameter_shapes
from gpt_jax.objectives import choices as objectives
from gpt_jax.objectives import unified
from gpt_jax.objectives.task import TaskObjective, Tasks
from gpt_jax.optim import train_state
from gpt_jax.optim.train_state import TrainState
from gpt_jax.rows import row_makers, sides, teacher_outputs
from gpt_jax.rows.unified_order import SEQ2SEQ
from gpt_jax.runtime import memory
from gpt_jax.runtime.log import log
from gpt_jax.spec import UsageError
from gpt_jax.tokenizers import tokenizer as tokenizer_lib
from gpt_jax.tokenizers.simple import WordList
from gpt_jax.tokenizers.tokenizer import Tokenizer
from gpt_jax.training import adapters
from gpt_jax.training import parts as parts_lib
from gpt_jax.training.parts import Parts

# The remedy for a damaged file of a run, in errors.
RESTORE = 'restore it from a copy, or start again with another --workdir'
# What a model is opened for. From a workdir, 'run' takes any model, 'continue'
# a decoder, 'write' also a model that answers sources, 'fill' one trained to
# predict [MASK]. From a workdir or a Hugging Face folder, 'tune' and 'teach'
# take decoders and encoders, 'start' any model.
Use = Literal['run', 'continue', 'write', 'fill', 'tune', 'teach', 'start']
_BODY = ('tune', 'teach')  # drop the heads of an earlier task


class Pretrained(NamedTuple):
  """A model in a folder: a run's workdir or a Hugging Face folder.

  Attributes:
    name: its name in config.json.
    model: fields of `Transformer`; None: those of the config.
    tokenizer_name: for config.json; '': that of the config.
    tokenizer: None: the config's, trained on the task's texts if need be.
    params: reads the parameters; None: there are none. For fine-tuning and for
      teachers they lack the heads of an earlier task.
    pooler: activation of the pooled first token: 'tanh' (BERT), 'gelu'
      (ELECTRA), 'relu' (DistilBERT).
    scores: whether it was trained to score the vocabulary.
    folder: where it was opened; '': nowhere.
    backward: whether it reads texts from right to left.
    tasks: if it was fine-tuned on several, the entry of each in config.json, by
      name (see `config.tasks`), with `scores`, how scores were learned. Their
      heads are in `parts` of the parameters.
  """

  name: str
  model: dict[str, Any] | None = None
  tokenizer_name: str = ''
  tokenizer: Tokenizer | None = None
  params: Callable[[], Any] | None = None
  pooler: str = 'tanh'
  scores: bool = True
  tasks: Mapping[str, Mapping[str, Any]] = MappingProxyType({})
  folder: str = ''
  backward: bool = False


class Trained(NamedTuple):
  """A run read back from its workdir, on the devices.

  Attributes:
    parts: model, objective and mesh of the run.
    state: the newest.
    tokenizer: of the run.
    averaged: the steps whose mean the parameters are; (): the newest only.
  """

  parts: Parts
  state: TrainState
  tokenizer: Tokenizer
  averaged: tuple[int, ...] = ()

  def decoder(self, weights: str = 'float') -> Decoder:
    """The decoder of the model.

    Args:
      weights: 'float', or 'int8' to decode with weights in 8 bits: see
        `for_decoding`.

    Returns:
      The model as `TextGenerator` takes it.

    Raises:
      ValueError: `weights` is neither.
    """
    needs = self.parts.objective.needs
    # Without auxiliary models trained beside it, and without its teacher.
    own = needs.trees(self.state.eval_params)['']
    model, params = for_decoding(self.parts.model, own, weights)
    in_row_ = in_row(self.parts, self.tokenizer)
    return Decoder.of(model, params, self.tokenizer, in_row_)

  def in_int8(self) -> 'Trained':
    """The run with a model that computes in int8, for scoring texts."""
    decoder = self.decoder('int8')
    return self._replace(
      parts=self.parts._replace(model=decoder.model),
      state=self.state._replace(params=decoder.params, ema=None),
    )


def open_model(
  folder: str, use: Use = 'run', field: str = '--workdir'
) -> Pretrained:
  """Opens a model; does not read a run's parameters yet.

  Args:
    folder: a workdir, a Hugging Face folder, or one of PEFT, whose adapter is
      merged into its base; 'none' to fine-tune from scratch.
    use: a model that does not suit it is refused.
    field: the flag or field that names the folder, for errors.
  """
  model_type = None
  if use in ('tune', 'teach', 'start'):
    if folder == 'none':
      if use == 'tune':
        return Pretrained('none')
      raise UsageError(
        f"{field}='none': is not a model; give a workdir of train, or a "
        'Hugging Face folder'
      )
    path = os.path.join(hf.base_of(folder), 'config.json')
    try:
      remedy = f'restore it from a copy, or give another {field}'
      model_type = files.read_json(path, remedy=remedy).get('model_type')
    except OSError as e:
      raise UsageError(
        f'{field}={folder}: holds no config.json; give a workdir of train, '
        'a Hugging Face folder, or none'
      ) from e
  if model_type is None:
    source = _from_workdir(folder, field, use)
  else:
    source = _from_hf(folder, model_type, field, use)
  source = source._replace(folder=folder)
  if use == 'teach' and not source.scores:
    raise UsageError(
      f'{field}={folder}: was not trained to score the vocabulary; give a '
      'causal or a masked language model'
    )
  return source


def load(
  workdir: str,
  use: Use = 'run',
  average: int = 0,
  *,
  field: str = '--workdir',
) -> Trained:
  """Loads a run: its newest sound checkpoint, and its tokenizer.

  Args:
    workdir: the run's folder.
    use: as in `open_model`.
    average: take the mean of this many checkpoints: see `average_last`; 0:
      none.
    field: the flag or field that names the workdir, for errors.

  Returns:
    The run, on the devices of this process.

  Raises:
    UsageError: the folder holds no run, no sound checkpoint, or a model that
      does not suit the use.
  """
  tokenizer = open_model(workdir, use, field).tokenizer
  assert tokenizer is not None, 'of a workdir'
  if average:
    parts = built(workdir)
    state, steps = average_last(workdir, average, stored(workdir, parts))
    return Trained(parts, state, tokenizer, steps)
  return Trained(*load_state(workdir), tokenizer)


def _from_workdir(workdir: str, field: str, use: Use) -> Pretrained:
  config: Any = read_config(workdir, field)
  _check_use(config, use, f'{field}={workdir}')
  folder = os.path.join(workdir, 'tokenizer')
  if use == 'fill':
    fill.special_of(tokenizer_lib.load(folder))
  steps = Checkpointer(workdir, read_only=True).steps()
  if not steps:
    raise _no_checkpoint(f'{field}={workdir}', config)
  tokenizer = tokenizer_lib.load(folder)
  tuned = config.get('finetune')
  tasks = {}
  if tuned and tuned.get('tasks'):
    tasks = {
      name: {**section, 'scores': tuned.scores}
      for name, section in tuned.each.items()
    }
  needs = objectives.needs(config.objective.name)

  def params() -> Any:
    _, state = load_state(workdir)
    params = needs.merged(state.eval_params)
    params = _without_task(params, tasks) if use in _BODY else params
    # The run's mesh may order the devices differently.
    return params if jax.process_count() > 1 else jax.device_get(params)

  if needs.scored is not None:
    scores = needs.scored.output(config.model.context_length) > 0
  else:
    of_task = objectives.unbound(config.objective.name)
    scores = not isinstance(of_task, TaskObjective | Tasks)
  return Pretrained(
    f'{buckets.shown(workdir)}, step {steps[-1]}',
    config.model.to_dict(),
    config.tokenizer.name,
    tokenizer,
    params,
    needs.pooler if tuned is None else tuned.pooler or 'tanh',
    scores,
    tasks,
    backward=bool(tuned.backward) if tuned else needs.backward,
  )


def _check_use(config: Config, use: Use, what: str) -> None:
  """Refuses a run whose model does not suit the use."""
  model, name = config.model, config.objective.name
  needs = objectives.needs(name)
  causal = ModelChoices.of(model).causal
  if use == 'write' and answers_sources(config):
    return
  if use in ('continue', 'write'):
    check_reads(what, config)
    if model.num_encoder_layers or not causal:
      raise UsageError(
        f'{what}: is not a decoder (model.attention={model.attention!r}, '
        f'model.num_encoder_layers={model.num_encoder_layers}), and only '
        'decoders continue a text; give another'
      )
  if use == 'teach' and model.num_encoder_layers:
    raise UsageError(
      f'{what}: is an encoder-decoder; a teacher is a decoder or an encoder'
    )
  if use != 'fill':
    return
  if model.num_encoder_layers or causal:
    raise UsageError(
      f'{what}: is not an encoder (model.attention={model.attention!r}), and '
      'only encoders fill a [MASK]; give another'
    )
  if config.get('finetune') is not None:
    raise UsageError(
      f'{what}: was fine-tuned on {config.finetune.task} and can no longer '
      'predict a [MASK]; give the model that it was fine-tuned from'
    )
  if needs.num_predicted(model.context_length):
    raise UsageError(
      f'{what}: the model of objective.name={name!r} has no [MASK]: it '
      'predicts tokens by a second stream; give a masked language model'
    )
  if needs.scored is not None and not needs.scored.output(model.context_length):
    raise UsageError(
      f'{what}: the model of objective.name={name!r} scores no vocabulary; '
      'export its generator with convert --to_hf FOLDER --part generator, '
      'import that, and fill with it'
    )


def _from_hf(folder: str, model_type: str, field: str, use: Use) -> Pretrained:
  found = vocabulary.read(hf.base_of(folder), model_type)
  if found is None:
    raise UsageError(
      f'{field}={folder}: has neither tokenizer.json nor vocab.json and '
      'merges.txt nor tokenizer.model; put its vocabulary there'
    )
  name, tokenizer = found
  read = hf.Source(folder)
  model = read.model

  def params() -> Any:
    needed = 4 * sum(math.prod(x.shape) for x in read.shapes.values())
    if needed > (limit := memory.of_host()):
      raise UsageError(
        f'{field}={folder}: its parameters take {needed / GIB:.2f} GiB in '
        f'float32, of the {limit / GIB:.2f} GiB of this machine; give a '
        'machine with more memory, or a smaller model'
      )
    params = hf.load(folder)[1]
    return _without_task(params) if use in _BODY else params

  fields = {f: getattr(model, f) for f in hf.transformer_fields()}
  pooler = model.family.pooler
  scores = model.origin.kind in SCORING
  return Pretrained(
    *(buckets.shown(folder), fields, name, tokenizer, params, pooler, scores)
  )


def _without_task(params: Any, tasks: Collection[str] = ()) -> Any:
  """The parameters of the run's model and a pooler, without a task's head.

  The heads of several `tasks` stay: fine-tuning may continue with one.
  """
  left = ('heads',) if tasks else ('heads', 'parts')
  kept = {name: part for name, part in params.items() if name not in left}
  heads = params.get('heads', {})
  if 'pooler' in heads:
    kept['heads'] = {'pooler': heads['pooler']}
  return kept


def check_reads(what: str, config: Config) -> None:
  """Checks that a decoder reads a text as a beginning to continue.

  Args:
    what: the start of the message.
  """
  name = config.objective.name
  if objectives.needs(name).backward:
    raise UsageError(
      f'{what}: objective.name={name!r} reads texts from right to left, and so '
      'continues or scores none; fine-tune it, or give a forward model'
    )
  if (
    objectives.needs(name).decoder_start and not config.model.num_encoder_layers
  ):
    raise UsageError(
      f'{what}: objective.name={name!r} trained it on sources followed by '
      'their targets, not on text to continue or score; give '
      'sources (--source), or train with a causal objective'
    )


def answers_sources(config: Config) -> bool:
  """Whether a run's model answers sources (sequence to sequence)."""
  needs = objectives.needs(config.objective.name)
  return bool(config.model.num_encoder_layers or needs.in_row)


def in_row(parts: Parts, tokenizer: tokenizer_lib.Tokenizer) -> InRow | None:
  """How a decoder answers a source in its own row; None: not trained to."""
  how = parts.objective.needs.in_row
  if parts.config.model.num_encoder_layers or not how:
    return None
  if how != 'mask':
    return AfterPrefix(how == 'prefix')
  first, second = unified.types_of(parts.model, SEQ2SEQ).tolist()
  assert tokenizer.special.mask_id is not None, 'see Needs.tokens'
  return ByMask(tokenizer.special.mask_id, (first, second))


def source_format(parts: Parts, tokenizer: Tokenizer) -> SourceFormat:
  """How a run's model reads a source and starts its answer."""
  config = parts.config
  reads = tokenizer_lib.of_sources(tokenizer)
  start: str = parts.objective.needs.decoder_start
  return SourceFormat(
    reads,
    row_makers.as_read(config.data.rows, reads.special),
    sides.start_ids(start, tokenizer.special),
  )


def load_draft(workdir: str, trained: Trained, num_tokens: int) -> Draft:
  """Loads a smaller run that proposes tokens to `trained`."""
  other = load(workdir, 'continue', field='--draft')
  rules = trained.tokenizer.special.constraints
  speculative.check(trained.parts.model, other.parts.model, rules)
  if other.tokenizer.fingerprint != trained.tokenizer.fingerprint:
    raise UsageError(
      f'--draft={workdir}: its tokenizer, '
      f"{other.parts.config.tokenizer.name}, is not the model's, "
      f'{trained.parts.config.tokenizer.name}, of the same vocabulary; give a '
      'draft that was trained with the same tokenizer'
    )
  return Draft(other.parts.model, other.state.eval_params, num_tokens)


def config_key(workdir: str) -> str:
  """The sha256 of the config of the run in a workdir."""
  with open(os.path.join(workdir, 'config.json'), 'rb') as file:
    return hashlib.sha256(file.read()).hexdigest()


def read_config(workdir: str, field: str = '--workdir') -> Config:
  """The resolved config of the run in a workdir."""
  path = os.path.join(workdir, 'config.json')
  try:
    found = files.read_json(path, remedy=RESTORE, needs=('model', 'tokenizer'))
  except (FileNotFoundError, NotADirectoryError) as e:
    raise UsageError(
      f'{field}={workdir}: holds no run (no config.json); train one first'
    ) from e
  try:
    config = ConfigDict(found).lock()
    config_lib.check_resolved(config)
  except (ValueError, TypeError, LookupError, AttributeError) as e:
    # From `finetune.each`, whose fields have names chosen by the user.
    raise UsageError(f'{path}: is damaged: {e}; {RESTORE}') from e
  return config


def built(workdir: str) -> Parts:
  """The parts of a workdir's run, on the present devices, without adapters."""
  return parts_lib.build(_on_these_devices(workdir, lora='none'))


def _on_these_devices(workdir: str, lora: str | None = None) -> Config:
  """The config of a run, for devices that need not be those it trained on.

  `lora` replaces `finetune.lora`, if there is such a section.
  """
  config = config_lib.unlocked(read_config(workdir))
  config.mesh.update({**dict.fromkeys(sharding.AXES, 1), 'fsdp': -1})
  for model in (config.model, *config.models.values()):
    model.attention_backend = 'auto'
  if lora and config.get('finetune'):
    config.finetune.lora = lora
  return config.lock()


class Stored(NamedTuple):
  """What a run's checkpoints hold, and how to get its model from that.

  Attributes:
    abstract: the state in the checkpoints, as `jax.ShapeDtypeStruct`s.
    full: from such a state to one of `built`: adapters are merged into the
      model that they belong to, and have no optimizer state.
  """

  abstract: TrainState
  full: Callable[[TrainState], TrainState] = lambda state: state


def stored(workdir: str, parts: Parts) -> Stored:
  """What the checkpoints of the run in a workdir hold.

  Args:
    parts: from `built`.

  Raises:
    UsageError: the devices have too little memory for its parameters.
  """
  own = parts_lib.abstract_state(parts)
  parts_lib.check_memory(
    *(parts, (own.params, own.ema), f'{workdir}: its parameters'),
    'give more devices, or devices with more memory',
  )
  config = _on_these_devices(workdir)
  if adapters.of(config) is None:
    return Stored(own)
  adapting = parts_lib.build(config)
  objective = adapting.objective
  abstract = parts_lib.abstract_state(adapting)
  saved = train_state.trained(abstract.params, objective.unsaved)

  @functools.cache
  def base() -> Any:
    known = adapters.read(workdir)
    what = f'{os.path.join(workdir, "base.json")}: folder={known.folder}'
    source = open_model(known.folder, 'tune', f'{what}: the base')
    assert source.params is not None, 'of a folder'
    given = params_lib.flatten(source.params())
    adapters.check_names(abstract.params, given, what)
    params = parts_lib.initial_state(adapting, given).params
    adapters.check(adapters.fingerprint(params), known, what)
    return params

  def merged(params: Any) -> Any:
    whole = train_state.with_frozen(params, base(), objective.unsaved)
    with sharding.use(parts.mesh, parts.rules):
      shardings = parts.shardings.params
      return jax.jit(objective.full, out_shardings=shardings)(whole)

  def full(state: TrainState) -> TrainState:
    ema = None if state.ema is None else merged(state.ema)
    return TrainState(state.step, merged(state.params), (), ema)

  return Stored(abstract._replace(params=saved), full)


def load_state(
  workdir: str, at_most: int | None = None
) -> tuple[Parts, TrainState]:
  """Loads the newest sound checkpoint of a workdir, split over all devices.

  The optimizer's state stays on disk. `at_most` is the last acceptable step;
  None: any.
  """
  parts = built(workdir)
  reads = stored(workdir, parts)
  state = _newest(workdir, parts.config, reads, at_most)
  if state.ema is not None:
    ema = parts.config.optim.ema
    log.info('using the average of the weights, optim.ema=%s', ema)
  return parts, reads.full(state)


def _newest(
  workdir: str, config: Config, reads: Stored, at_most: int | None
) -> TrainState:
  """The newest sound checkpoint, as it is stored."""
  checkpointer = Checkpointer(workdir, read_only=True)
  state = checkpointer.restore(reads.abstract, at_most=at_most, moments=False)
  checkpointer.close()
  if state is None:
    raise _no_checkpoint(f'--workdir={workdir}', config)
  return state


def _no_checkpoint(what: str, config: Config) -> UsageError:
  return UsageError(
    f'{what}: holds no checkpoint yet; it is written after '
    f'{config.checkpoint.every_steps} steps'
  )


def load_adapters(
  workdir: str, parts: Parts, at_most: int | None = None
) -> tuple[int, Any]:
  """The newest step of a run with adapters, and its trained parameters.

  Args:
    parts: from `built`.
    at_most: the last acceptable step; None: any.
  """
  state = _newest(workdir, parts.config, stored(workdir, parts), at_most)
  return int(state.step), jax.device_get(state.eval_params)


# The checkpoints that a run has kept, one after the other.


class Kept(NamedTuple):
  """A run whose kept checkpoints are loaded one after the other."""

  workdir: str
  parts: Parts
  tokenizer: Tokenizer
  reads: Stored

  def at(self, step: int) -> Trained:
    """The run as it was at a step."""
    flag = f'--steps={step}'
    state = _state_of(self.workdir, step, self.reads, flag)
    return Trained(self.parts, state, self.tokenizer)


def kept_steps(workdir: str, asked: str) -> list[int]:
  """The steps of `--steps`: 'all' that a run has kept, or some of them."""
  checkpointer = Checkpointer(workdir, read_only=True)
  kept = checkpointer.steps()
  checkpointer.close()
  if asked == 'all' and kept:
    return kept
  names = {name.strip() for name in asked.split(',')}
  if not names <= {*map(str, kept)}:
    raise UsageError(
      f'--steps={asked}: --workdir={workdir} keeps the checkpoints of steps '
      f'{", ".join(map(str, kept)) or "none"}; give all, or a comma list of '
      'them (train with checkpoint.keep_every_steps to keep more)'
    )
  return sorted(map(int, names))


def open_kept(workdir: str, use: Use) -> Kept:
  """Opens the kept checkpoints of a run; `use`: see `open_model`."""
  tokenizer = open_model(workdir, use).tokenizer
  assert tokenizer is not None, 'of a workdir'
  parts = built(workdir)
  return Kept(workdir, parts, tokenizer, stored(workdir, parts))


def _state_of(workdir: str, step: int, reads: Stored, flag: str) -> TrainState:
  """The state of one checkpoint; `flag` is named where it is damaged."""
  folder = restore.absolute(restore.folder_of(workdir)) / str(step)
  found = restore.read(folder, reads.abstract, moments=False)
  if found.state is None:
    raise UsageError(
      f'{flag}: {folder} is damaged ({found.reason}); restore it from a copy, '
      'or name fewer checkpoints'
    )
  return reads.full(found.state)


# The mean of the last checkpoints (Vaswani et al., 2017, section 6.1).
#
# It is taken after training, over the checkpoints that a run has kept.
# `optim.ema` is another average, over all steps, which the run itself keeps; it
# is ignored here.


def average_last(
  workdir: str, number: int, reads: Stored
) -> tuple[TrainState, tuple[int, ...]]:
  """A state to evaluate, not to train from, and the steps it averages.

  It is the newest state, without `ema`, with the mean of the parameters of
  `number` checkpoints, summed in float32.
  """
  checkpointer = Checkpointer(workdir, read_only=True)
  kept = checkpointer.steps()
  checkpointer.close()
  if len(kept) < number:
    raise UsageError(
      f'--average={number}: --workdir={workdir} keeps {len(kept)} checkpoints'
      + (f', of steps {", ".join(map(str, kept))}' if kept else '')
      + f'; train with checkpoint.keep={number} or more, or average fewer'
    )
  steps, total, state = tuple(kept[-number:]), None, None
  for step in steps:
    state = None  # frees its memory
    state = _state_of(workdir, step, reads, f'--average={number}')
    total = _sum(total, state.params)
  assert state is not None
  log.info(
    'the mean of the checkpoints of steps %s', ', '.join(map(str, steps))
  )
  params = _mean(total, state.params, number)
  return state._replace(params=params, ema=None), steps


@jax.jit
def _sum(total, params):
  params = jax.tree.map(lambda x: x.astype(jnp.float32), params)
  return params if total is None else jax.tree.map(jnp.add, total, params)


@jax.jit
def _mean(total, params, number):
  """The mean, in the dtype that parameters are stored in."""
  return jax.tree.map(lambda x, y: (x / number).astype(y.dtype), total, params)


# The teacher of a run: `objective.teacher`.
#
# Its folder is read once, when a run starts. From then on its section is in the
# run's config.json and its parameters are in the run's checkpoints, so a resume
# does not need the folder. For a teacher whose outputs are on disk, see
# `training.teaching`.


_PART = 'teacher'
# How a model is computed is the run's choice, for its teacher too.
_COMPUTED = (
  *('dtype', 'attention_backend', 'loop', 'pipeline', 'remat', 'dropout'),
)


def described(config: Config, workdir: str) -> Config:
  """The config with its teacher's section filled in from the folder.

  If the config describes another teacher (for `inspect` and `plan`), the
  differences are logged.

  Args:
    config: as given, not resolved.
    workdir: of the run; if it has a config.json, that takes precedence.
  """
  folder = config.get('objective', {}).get(_PART)
  if not folder:
    return config
  needs = objectives.needs(config.objective.name)
  outputs = teacher_outputs.read(folder) if needs.stored else None
  if outputs and config.model.vocab_size is None:
    config = config_lib.unlocked(config)
    config.model.vocab_size = outputs.vocab_size
    return config.lock()
  if not needs.frozen:
    return config
  config = config_lib.unlocked(config)
  known = None
  if os.path.exists(os.path.join(workdir, 'config.json')):
    known = read_config(workdir)
  if known is not None and _PART in known.models:
    section = known.models[_PART].to_dict()
  else:
    section = open_model(folder, 'teach', f'objective.{_PART}').model
  assert section is not None, 'of a folder'
  given = {**config.model, **config.models.get(_PART, {})}
  section = computed(section, config)
  if config.models.get(_PART):
    differs = [
      f'{field}: {given[field]!r} -> {value!r}'
      for field, value in section.items()
      if given[field] is not None and given[field] != value
    ]
    if differs:
      log.info('models.teacher is as in %s: %s', folder, '; '.join(differs))
  config.models[_PART] = section
  if config.model.vocab_size is None:
    config.model.vocab_size = section['vocab_size']
  return config.lock()


def check_teacher(config: Config) -> None:
  """Checks that a run with a teacher names the teacher's folder."""
  name = config.objective.name
  needs = objectives.needs(name)
  if (needs.frozen or needs.stored) and not config.objective.teacher:
    give = (
      'a folder that gpt-jax teach wrote'
      if needs.stored
      else 'a workdir that train left, or a folder of Hugging Face'
    )
    raise UsageError(
      f'objective.teacher is empty: objective.name={name!r} learns from one; '
      f'give {give}'
    )


def parameters(source: Pretrained, model: Transformer) -> Any:
  """The parameters of the language model; None: the tree does not match."""
  assert source.params is not None, 'of a folder'
  wanted = jax.tree.map(lambda x: x.shape, parameter_shapes(model))
  params = {name: x for name, x in source.params().items() if name in wanted}
  same = jax.tree.map(lambda x: x.shape, params) == wanted
  return params if same else None


def check_tokenizer(
  source: Pretrained,
  tokenizer: Tokenizer,
  config: Config,
  field: str = 'objective.teacher',
) -> None:
  """Checks that a teacher reads the run's tokens."""
  if source.tokenizer is None or (
    source.tokenizer.fingerprint != tokenizer.fingerprint
  ):
    raise UsageError(
      f'{field}={source.name}: its tokenizer, {source.tokenizer_name}, is not '
      f"the run's, {config.tokenizer.name}; give the teacher's tokenizer, or "
      'the token store that it was trained on as data.store'
    )


def computed(section: dict[str, Any], config: Config) -> dict[str, Any]:
  """A teacher's section, with the run's own choices of computation."""
  return section | {field: config.model[field] for field in _COMPUTED}


# Where a new run starts: at random, or from parameters of others.
#
# `optim.start` names a workdir or a Hugging Face folder. All parameters come
# from there but those that `optim.drawn` names. `optim.vectors` names a file of
# word vectors, for the table of tokens. A resumed run reads its own checkpoints
# and needs neither.


# The tables of the vocabulary: rows are tokens.
_TABLES = ('embed', 'head')


def check_start(config: Config, workdir: str) -> None:
  """Checks, before text is prepared, that the start of a run exists.

  Args:
    config: resolved.
    workdir: of the run; nothing is checked if it holds a run already.
  """
  optim = config.optim
  if optim.drawn and not optim.start:
    raise UsageError(
      f'optim.drawn={optim.drawn!r}: without optim.start all parameters are '
      'drawn at random; set optim.start, or leave optim.drawn empty'
    )
  new = not os.path.exists(os.path.join(workdir, 'config.json'))
  if optim.vectors:
    _check_vectors(config)
    if new and not os.path.isfile(optim.vectors):
      raise UsageError(
        f'optim.vectors={optim.vectors!r}: no such file; name a file of word '
        'vectors'
      )
  if not optim.start:
    return
  needs = objectives.needs(config.objective.name)
  if needs.frozen:
    raise UsageError(
      f'optim.start={optim.start!r}: objective.name={config.objective.name!r} '
      'starts from its teacher, or at random; leave it empty'
    )
  if needs.adds:
    raise UsageError(
      f'optim.start={optim.start!r}: objective.name={config.objective.name!r} '
      "stores the model's tables as differences, which no other run has; leave "
      "it empty, or share by 'es' or 'nes'"
    )
  if new:
    open_model(optim.start, 'start', 'optim.start')


def first_state(parts: Parts, tokenizer: Tokenizer) -> TrainState:
  """The first state of a run: drawn, or taken from what `optim` names."""
  if parts.config.optim.start:
    return _from_start(parts, tokenizer)
  if parts.config.optim.vectors:
    return _from_vectors(parts, tokenizer)
  if not parts.objective.frozen:
    return parts_lib.initial_state(parts)
  folder = parts.config.objective.teacher
  source = open_model(folder, 'teach', f'objective.{_PART}')
  check_tokenizer(source, tokenizer, parts.config)
  params = parameters(source, config_lib.transformer(parts.config, _PART))
  if params is None:
    raise UsageError(
      f'objective.teacher={folder}: holds other parameters than models.teacher '
      'describes; start again with another --workdir'
    )
  log.info('the teacher is %s', source.name)
  given = params_lib.flatten({'parts': {_PART: params}})
  return parts_lib.initial_state(parts, given)


def _check_vectors(config: Config) -> None:
  """Checks the fields that word vectors do not work with."""
  optim, given = config.optim, f'optim.vectors={config.optim.vectors!r}'
  if optim.start:
    raise UsageError(
      f'{given}: optim.start={optim.start!r} gives the table of tokens too; '
      'leave one of them empty'
    )
  if objectives.needs(config.objective.name).frozen:
    raise UsageError(
      f'{given}: objective.name={config.objective.name!r} starts from its '
      'teacher, or at random; leave it empty'
    )
  if ModelChoices.of(config.model).input.clusters:
    raise UsageError(
      f'{given}: model.input={config.model.input!r} has several tables; take '
      "'tokens'"
    )
  call = tokenizer_lib.single(config.tokenizer.name)[-1]
  name = spec.parse('tokenizer.name', call)[0].name
  if name not in ('words', 'words_file', 'saved'):
    raise UsageError(
      f'{given}: the tokens of tokenizer.name={call!r} are not words; take '
      "'words' or 'words_file'"
    )


def _from_vectors(parts: Parts, tokenizer: Tokenizer) -> TrainState:
  """The drawn state, with the vectors of words in the table that reads them."""
  path, sources = (
    parts.config.optim.vectors,
    tokenizer_lib.of_sources(tokenizer),
  )
  if not isinstance(sources, WordList):
    raise UsageError(
      f'optim.vectors={path!r}: the tokens of tokenizer.name='
      f"{parts.config.tokenizer.name!r} are not words; take 'words' or "
      "'words_file'"
    )
  tables = params_lib.flatten(parts_lib.abstract_state(parts).params)
  names = 'source/embed', 'encoder_embed', 'embed'
  name = next(n for n in (f'{name}/embedding' for name in names) if n in tables)
  table = tables[name]
  found = vectors.read(path, sources.listed, table.shape[1])
  log.info(
    'optim.vectors=%s: has the vectors of %d of %d tokens; the others are '
    'drawn',
    *(path, found.found_V.sum(), len(found.found_V)),
  )
  more = (0, table.shape[0] - len(found.found_V))
  return parts_lib.initial_state(
    parts,
    {name: np.pad(found.values_VD, (more, (0, 0)))},
    {name: np.pad(found.found_V, more)[:, None]},
  )


def _from_start(parts: Parts, tokenizer: Tokenizer) -> TrainState:
  optim = parts.config.optim
  source = open_model(optim.start, 'start', 'optim.start')
  shapes = parts_lib.abstract_state(parts).params
  params_lib.check(shapes, optim.drawn, 'optim.drawn')
  drawn = params_lib.matching(shapes, optim.drawn)
  _check_tokenizer(parts, source, tokenizer, drawn)
  given = _taken(optim.start, source, shapes, drawn)
  _tell(parts, source, drawn)
  taken = {name: ~mask for name, mask in params_lib.flatten(drawn).items()}
  return parts_lib.initial_state(parts, given, taken)


def _check_tokenizer(
  parts: Parts, source: Pretrained, tokenizer: Tokenizer, drawn: Any
) -> None:
  """Refuses token tables whose rows are not the run's tokens."""

  def are_drawn(name: str) -> bool:
    return all(mask.all() for mask in jax.tree.leaves(drawn.get(name, {})))

  theirs = source.tokenizer
  assert theirs is not None, 'of a folder'
  if theirs.fingerprint == tokenizer.fingerprint or all(
    map(are_drawn, _TABLES)
  ):
    return
  # An encoder of sources that is drawn as a whole may read any tokens.
  one, other = (tokenizer_lib.of_targets(x) for x in (theirs, tokenizer))
  if (
    'source' in drawn
    and are_drawn('source')
    and one.fingerprint == other.fingerprint
  ):
    return
  raise UsageError(
    f'optim.start={parts.config.optim.start!r}: its tokenizer, '
    f"{source.tokenizer_name}, is not the run's, "
    f"{parts.config.tokenizer.name}; give its tokenizer, or add 'embed/*' to "
    'optim.drawn'
  )


def _taken(
  start: str, source: Pretrained, shapes: Any, drawn: Any
) -> dict[str, Any]:
  """The parameters that are taken from the start, by name."""
  assert source.params is not None, 'of a folder'
  found = params_lib.flatten(source.params())
  masks, taken, problems = params_lib.flatten(drawn), {}, []
  for name, leaf in sorted(params_lib.flatten(shapes).items()):
    mask = masks[name]
    if mask.all():
      found.pop(name, None)
    elif name not in found:
      problems.append(f'lacks {name}')
    elif np.shape(found[name]) != leaf.shape:
      theirs = np.shape(found[name])
      problems.append(f'has {name} as {theirs}, not as {leaf.shape}')
    else:
      taken[name] = found.pop(name)
  if problems:
    more = f' and {len(problems) - 1} others' if problems[1:] else ''
    raise UsageError(
      f'optim.start={start!r}: {problems[0]}{more}; name the parameters to '
      'draw in optim.drawn, or take the model of that run'
    )
  if found:
    left = sorted({name.split('/')[0] for name in found})
    log.warning(
      'optim.start=%s: %d of its arrays have no place in this model, in %s',
      *(start, len(found), ', '.join(left)),
    )
  return taken


def _tell(parts: Parts, source: Pretrained, drawn: Any) -> None:
  """Logs what the run starts from, and how the models differ."""
  config = parts.config
  masks = jax.tree.leaves(drawn)
  log.info(
    'the parameters are those of %s; %d of %d arrays are drawn, at least in '
    'part',
    *(source.name, sum(bool(m.any()) for m in masks), len(masks)),
  )
  differs = [
    f'{field}: {theirs!r} -> {config.model[field]!r}'
    for field, theirs in (source.model or {}).items()
    if field not in FOR_TRAINING and _other(field, theirs, config.model[field])
  ]
  if differs:
    log.warning(
      'optim.start=%s: its model is another one: %s',
      *(config.optim.start, '; '.join(differs)),
    )


def _other(field: str, one: Any, other: Any) -> bool:
  if isinstance(one, str) and isinstance(other, str):
    return spec.parse(field, one) != spec.parse(field, other)
  return one != other
