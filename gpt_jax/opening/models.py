# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Opens trained models.

`open_model` opens a workdir or a Hugging Face folder and checks that its model
suits the intended use; `load` puts a run's model onto the devices. Below: the
mean of the last checkpoints.
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

from gpt_jax import hf
from gpt_jax.core import config as config_lib
from gpt_jax.core import sharding
from gpt_jax.core.checkpoints import restore
from gpt_jax.core.checkpoints.checkpointer import Checkpointer
from gpt_jax.core.config import Config
from gpt_jax.core.costs.chips import GIB
from gpt_jax.core.files import buckets, files
from gpt_jax.core.nn import params as params_lib
from gpt_jax.core.nn.build import ModelChoices
from gpt_jax.core.objectives import choices as objectives
from gpt_jax.core.optim import train_state
from gpt_jax.core.optim.train_state import TrainState
from gpt_jax.core.rows import row_makers, sides
from gpt_jax.core.runtime import memory
from gpt_jax.core.runtime.log import log
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers import tokenizer as tokenizer_lib
from gpt_jax.core.tokenizers.tokenizer import Tokenizer
from gpt_jax.core.training import parts as parts_lib
from gpt_jax.core.training import workdir as workdir_lib
from gpt_jax.core.training.parts import Parts
from gpt_jax.decoding import constraints, fill, speculative
from gpt_jax.decoding.in_row import AfterPrefix, ByMask, InRow
from gpt_jax.decoding.programs import Decoder, for_decoding
from gpt_jax.decoding.speculative import Draft
from gpt_jax.decoding.texts import SourceFormat
from gpt_jax.hf import vocabulary
from gpt_jax.hf.heads import SCORING
from gpt_jax.papers.unilm import unified
from gpt_jax.papers.unilm.unified_order import SEQ2SEQ
from gpt_jax.tuning.objectives import adapters
from gpt_jax.tuning.objectives.task import TaskObjective, Tasks

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
    shapes: arrays in the shapes of the parameters, by name; reads none.
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
  shapes: Callable[[], Mapping[str, Any]] = dict


class Trained(NamedTuple):
  """A run read back from its workdir, on the devices.

  Attributes:
    parts: model, objective and mesh of the run.
    state: of the newest checkpoint.
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


def open_model(folder: str, use: Use = 'run', field: str = '--workdir') -> Pretrained:
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
        f"{field}='none': is not a model; give a workdir of train, or a Hugging Face folder"
      )
    path = os.path.join(hf.base_of(folder), 'config.json')
    try:
      remedy = f'restore it from a copy, or give another {field}'
      model_type = files.read_json(path, remedy=remedy).get('model_type')
    except OSError as e:
      raise UsageError(
        f'{field}={folder}: holds no config.json; give a workdir of train, '
        f'a Hugging Face folder{", or none" if use == "tune" else ""}'
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


def load(workdir: str, use: Use = 'run', average: int = 0, *, field: str = '--workdir') -> Trained:
  """Loads a run: its newest sound checkpoint, and its tokenizer.

  Args:
    workdir: the run's folder.
    use: what for: see `open_model`.
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
    tasks = {name: {**section, 'scores': tuned.scores} for name, section in tuned.each.items()}
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
    shapes=lambda: params_lib.flatten(parts_lib.param_shapes(built(workdir).objective)),
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
    raise UsageError(f'{what}: is an encoder-decoder; a teacher is a decoder or an encoder')
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
  found = vocabulary.of_checkpoint(folder, model_type)
  if found is None:
    raise UsageError(
      f'{field}={folder}: has neither tokenizer.json nor vocab.json and '
      'merges.txt nor tokenizer.model; put its vocabulary there'
    )
  name, tokenizer = found
  read = hf.HeaderSource(folder)
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
    buckets.shown(folder),
    fields,
    name,
    tokenizer,
    params,
    pooler,
    scores,
    shapes=lambda: read.shapes,
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
  if objectives.needs(name).decoder_start and not config.model.num_encoder_layers:
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
  reads = tokenizer.sources
  start: str = parts.objective.needs.decoder_start
  return SourceFormat(
    reads,
    row_makers.as_read(config.data.rows, reads.special),
    sides.start_ids(start, tokenizer.special),
  )


def load_draft(workdir: str, trained: Trained, num_tokens: int) -> Draft:
  """Loads a smaller run that proposes tokens to `trained`."""
  other = load(workdir, 'continue', field='--draft')
  rules = constraints.of(trained.tokenizer.special)
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
  """`workdir.read_config`, which says of GGUF what is read instead."""
  if not os.path.isfile(os.path.join(workdir, 'config.json')):
    hf.check_format(workdir)
  return workdir_lib.read_config(workdir, field)


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


class StoredModel(NamedTuple):
  """What a run's checkpoints hold, and how to get its model from that.

  Attributes:
    abstract: the state in the checkpoints, as `jax.ShapeDtypeStruct`s.
    full: from such a state to one of `built`: adapters are merged into the
      model that they belong to, and have no optimizer state.
  """

  abstract: TrainState
  full: Callable[[TrainState], TrainState] = lambda state: state


def stored(workdir: str, parts: Parts) -> StoredModel:
  """What the checkpoints of the run in a workdir hold.

  Args:
    parts: from `built`.

  Raises:
    UsageError: the devices have too little memory for its parameters.
  """
  own = parts_lib.abstract_state(parts)
  parts_lib.check_memory(
    parts,
    (own.params, own.ema),
    f'{workdir}: its parameters',
    'give more devices, or devices with more memory',
  )
  config = _on_these_devices(workdir)
  if adapters.of(config) is None:
    return StoredModel(own)
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
    given = adapters.given(config, given)
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

  return StoredModel(abstract._replace(params=saved), full)


def load_state(workdir: str, at_most: int | None = None) -> tuple[Parts, TrainState]:
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


def _newest(workdir: str, config: Config, reads: StoredModel, at_most: int | None) -> TrainState:
  """The newest sound checkpoint, as it is stored."""
  checkpointer = Checkpointer(workdir, read_only=True)
  state = checkpointer.restore(reads.abstract, at_most=at_most, moments=False)
  checkpointer.close()
  if state is None:
    raise _no_checkpoint(f'--workdir={workdir}', config)
  return state


def _no_checkpoint(what: str, config: Config) -> UsageError:
  return UsageError(
    f'{what}: holds no checkpoint yet; it is written after {config.checkpoint.every_steps} steps'
  )


def load_adapters(workdir: str, parts: Parts, at_most: int | None = None) -> tuple[int, Any]:
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
  reads: StoredModel

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


def _state_of(workdir: str, step: int, reads: StoredModel, flag: str) -> TrainState:
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
  workdir: str, number: int, reads: StoredModel
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
  log.info('the mean of the checkpoints of steps %s', ', '.join(map(str, steps)))
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


# How a model is computed is the run's choice, for its teacher too.
_COMPUTED = ('dtype', 'attention_backend', 'loop', 'pipeline', 'remat', 'dropout')


def computed(section: dict[str, Any], config: Config) -> dict[str, Any]:
  """A teacher's section, with the run's own choices of computation."""
  return section | {field: config.model[field] for field in _COMPUTED}
