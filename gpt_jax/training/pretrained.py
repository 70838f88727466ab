# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A model from before: a workdir, a folder of Hugging Face, or nothing."""

import os
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax import config as config_lib
from gpt_jax import hf, sharding, spec
from gpt_jax.checkpoints.checkpointer import Checkpointer
from gpt_jax.config import Config
from gpt_jax.config import lengths as config_tasks
from gpt_jax.files import buckets, files
from gpt_jax.hf import vocabulary
from gpt_jax.hf.base import FOR_TRAINING
from gpt_jax.hf.heads import SCORING
from gpt_jax.nn import paths
from gpt_jax.nn.transformer import Transformer, parameter_shapes
from gpt_jax.objectives import choices as objectives
from gpt_jax.optim.train_state import TrainState
from gpt_jax.rows import teacher_outputs
from gpt_jax.runtime.log import log
from gpt_jax.spec import UsageError
from gpt_jax.tokenizers import tokenizer as tokenizer_lib
from gpt_jax.tokenizers.tokenizer import Tokenizer
from gpt_jax.training import parts as parts_lib
from gpt_jax.training import state as state_lib
from gpt_jax.training import trained as trained_lib
from gpt_jax.training.parts import Parts


class Pretrained(NamedTuple):
  """A model from before, to fine-tune or to learn from.

  Attributes:
    name: how config.json calls it.
    model: fields of `Transformer`; None: those of the config.
    tokenizer_name: for config.json; '': that of the config.
    tokenizer: None: the config's, made of the task's texts where it is trained.
    params: reads the parameters; None: there are none.
    pooler: what its pooled first token goes through: 'tanh' (BERT), 'gelu'
      (ELECTRA), 'relu' (DistilBERT).
    scores: whether it was trained to score the vocabulary.
    tasks: of several that it was fine-tuned on, by name, what config.json says
      of each: see `config.tasks`; and `scores`, how scores were learned. Their
      heads are `parts` of the parameters.
  """

  name: str
  model: dict[str, Any] | None = None
  tokenizer_name: str = ''
  tokenizer: Tokenizer | None = None
  params: Callable[[], Any] | None = None
  pooler: str = 'tanh'
  scores: bool = True
  tasks: Mapping[str, Mapping[str, Any]] = MappingProxyType({})


def pretrained(
  init: str, field: str = '--init', *, whole: bool = False
) -> Pretrained:
  """Looks up a model from before; reads none of our parameters yet.

  Args:
    init: the folder, or 'none'.
    field: what names it, for errors.
    whole: of any model all parameters, with heads and parts; else of a decoder
      or an encoder what can be fine-tuned or learned from.
  """
  if init == 'none':
    return Pretrained('none')
  path = os.path.join(init, 'config.json')
  try:
    remedy = f'restore it from a copy, or give another {field}'
    found = files.read_json(path, remedy=remedy)
  except OSError as e:
    raise UsageError(
      f'{field}={init}: holds no config.json; give a workdir that train left, '
      'a folder of Hugging Face, or none'
    ) from e
  if 'model_type' in found:
    return _from_hf(init, found['model_type'], field, whole)
  config: Any = trained_lib.read_config(init)
  if config.model.num_encoder_layers and not whole:
    raise UsageError(
      f'{field}={init}: an encoder-decoder; only decoders and encoders are '
      'fine-tuned or learned from'
    )
  steps = Checkpointer(init, read_only=True).steps()
  if not steps:
    raise UsageError(f'{field}={init}: holds no checkpoint yet; train it first')
  folder = os.path.join(init, 'tokenizer')
  tasks = _tasks_of(config)
  needs = objectives.needs(config.objective.name)

  def params() -> Any:
    _, state = trained_lib.restore(init)
    params = needs.merged(state.eval_params)
    params = params if whole else _pretrained_part(params, tasks)
    # The mesh of the run may have the devices in another order.
    return params if jax.process_count() > 1 else jax.device_get(params)

  return Pretrained(
    f'{buckets.shown(init)}, step {steps[-1]}',
    config.model.to_dict(),
    config.tokenizer.name,
    tokenizer_lib.load(folder),
    params,
    _pooler_of(config),
    _scores(config),
    tasks,
  )


def _from_hf(
  folder: str, model_type: str, field: str, whole: bool
) -> Pretrained:
  found = vocabulary.read(folder, model_type)
  if found is None:
    raise UsageError(
      f'{field}={folder}: has neither tokenizer.json nor vocab.json and '
      'merges.txt nor tokenizer.model; put its vocabulary there'
    )
  name, tokenizer = found
  model = hf.Source(folder).model

  def params() -> Any:
    params = hf.load(folder)[1]
    return params if whole else _pretrained_part(params)

  fields = {f: getattr(model, f) for f in hf.transformer_fields()}
  pooler = model.family.pooler
  scores = model.origin.kind in SCORING
  return Pretrained(
    *(buckets.shown(folder), fields, name, tokenizer, params, pooler, scores)
  )


def _pooler_of(config: Any) -> str:
  """That of a fine-tuned model, or what goes with a pre-trained one."""
  if tuned := config.get('finetune'):
    return tuned.pooler or 'tanh'
  return objectives.needs(config.objective.name).pooler


def _scores(config: Any) -> bool:
  needs = objectives.needs(config.objective.name)
  if needs.scored is not None:
    return needs.scored.output(config.model.context_length) > 0
  tuned = config.get('finetune') is not None
  name = spec.parse('objective.name', config.objective.name)[0].name
  return name == 'target' or not tuned


def _tasks_of(config: Any) -> dict[str, dict[str, Any]]:
  """See `Pretrained.tasks`."""
  if not config_tasks.several(config):
    return {}
  tuned = config.finetune
  return {
    name: {**section, 'scores': tuned.scores}
    for name, section in tuned.each.items()
  }


def _pretrained_part(params: Any, tasks: Collection[str] = ()) -> Any:
  """The run's model and a pooler: what a task has learned stays behind.

  The heads of several `tasks` do not: one of them may be gone on with.
  """
  left = ('heads',) if tasks else ('heads', 'parts')
  kept = {name: part for name, part in params.items() if name not in left}
  heads = params.get('heads', {})
  if 'pooler' in heads:
    kept['heads'] = {'pooler': heads['pooler']}
  return kept


# The model that a run learns from: `objective.teacher`.
#
# Its folder is read when a run starts, once. From then on its section is in the
# run's config.json and its parameters are in the run's checkpoints, so that a
# resume needs the folder no more. Of a teacher whose outputs are on disk, see
# `teaching`.


_PART = 'teacher'
# How a model is computed: the run's choice, whatever its teacher was.
_COMPUTED = ('dtype', 'attention_backend', 'loop', 'remat', 'dropout')


def described(config: Config, workdir: str) -> Config:
  """The config with the section of its teacher as the folder has it.

  A config that says something else of it (for `inspect` and `plan`) was made
  for another teacher; what differs is logged.

  Args:
    config: as given, not resolved.
    workdir: of the run, whose config.json comes first where it has one.
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
    known = trained_lib.read_config(workdir)
  if known is not None and _PART in known.models:
    section = known.models[_PART].to_dict()
  else:
    section = found(folder).model
  assert section is not None, 'see found'
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
  """Checks that a run with a teacher says where it is."""
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


def first_state_of_teacher(parts: Parts, tokenizer: Tokenizer) -> TrainState:
  """The first state of a run, with its teacher where it has one.

  Args:
    parts: what is trained.
    tokenizer: of the run.
  """
  if not parts.objective.frozen:
    return parts_lib.init_state(parts)
  folder = parts.config.objective.teacher
  source = found(folder)
  check_tokenizer(source, tokenizer, parts.config)
  key = jax.random.key(parts.config.seed)
  teacher = config_lib.transformer(parts.config, _PART)
  params = parameters(source, teacher)
  if params is None:
    raise UsageError(
      f'objective.teacher={folder}: holds other parameters than models.teacher '
      'describes; start again with another --workdir'
    )

  def init(key: jax.Array, params: Any) -> TrainState:
    made = state_lib.init_params(parts.objective, key)
    made = {**made, 'parts': {**made['parts'], _PART: params}}
    if parts.objective.start:
      made = parts.objective.start(made)
    return state_lib.make_init(
      parts.objective._replace(init=lambda _: made),
      parts.optimizer,
      parts.precision,
      parts.average,
    )(key)

  with sharding.use(parts.mesh, parts.rules):
    state = jax.jit(init, out_shardings=parts.shardings)(key, params)
  log.info('the teacher is %s', source.name)
  return state


def parameters(source: Pretrained, model: Transformer) -> Any:
  """What the model scores the vocabulary by; None: others are there."""
  assert source.params is not None, 'see found'
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
  """A teacher's section, computed as the run computes its own model."""
  return section | {field: config.model[field] for field in _COMPUTED}


def found(folder: str, field: str = 'objective.teacher') -> Pretrained:
  """The model in a folder, which scores the vocabulary.

  Args:
    folder: a workdir, or one of Hugging Face.
    field: what names it, for errors.
  """
  if folder == 'none':
    raise UsageError(
      f"{field}='none': holds no model; give a workdir that train left, or a "
      'folder of Hugging Face'
    )
  source = pretrained(folder, field)
  if not source.scores:
    raise UsageError(
      f'{field}={folder}: was not trained to score the vocabulary; give a '
      'causal or a masked language model'
    )
  return source


# Where a new run starts: at random, or from another's parameters.
#
# `optim.start` names a workdir or a folder of Hugging Face. What is not taken
# from there is drawn, and only what `optim.drawn` names is. A run that goes on
# reads its own checkpoints, and needs the folder no more.


# The tables of the vocabulary: rows are tokens.
_TABLES = ('embed', 'head')


def check(config: Config, workdir: str) -> None:
  """Checks, before text is prepared, that there is what a run starts from.

  Args:
    config: resolved.
    workdir: of the run; one that holds a run needs nothing.
  """
  optim = config.optim
  if optim.drawn and not optim.start:
    raise UsageError(
      f'optim.drawn={optim.drawn!r}: without optim.start all parameters are '
      'drawn; say whose are taken, or leave it empty'
    )
  if not optim.start:
    return
  if objectives.needs(config.objective.name).frozen:
    raise UsageError(
      f'optim.start={optim.start!r}: objective.name={config.objective.name!r} '
      'starts from its teacher, or at random; leave it empty'
    )
  if objectives.needs(config.objective.name).adds:
    raise UsageError(
      f'optim.start={optim.start!r}: objective.name={config.objective.name!r} '
      "keeps the model's tables as differences, which no other run has; leave "
      "it empty, or share by 'es' or 'nes'"
    )
  if not os.path.exists(os.path.join(workdir, 'config.json')):
    _look_up(optim.start)


def first_state(parts: Parts, tokenizer: Tokenizer) -> TrainState:
  """The first state of a run.

  Args:
    parts: what is trained.
    tokenizer: of the run.
  """
  optim = parts.config.optim
  if not optim.start:
    return first_state_of_teacher(parts, tokenizer)
  source, key = _look_up(optim.start), jax.random.key(parts.config.seed)
  shapes = parts_lib.abstract_state(parts).params
  paths.check(shapes, optim.drawn, 'optim.drawn')
  drawn = paths.matching(shapes, optim.drawn)
  _check_tokenizer(parts, source, tokenizer, drawn)
  given = _taken(optim.start, source, shapes, drawn)

  def init(key: jax.Array, given: dict[str, jax.Array]) -> TrainState:
    def place(path: Any, made: jax.Array, mask: np.ndarray) -> jax.Array:
      found = given.get(paths.name_of(path))
      if found is None:
        return made
      return jnp.where(mask, made, found.astype(made.dtype))

    made = state_lib.init_params(parts.objective, key)
    made = jax.tree_util.tree_map_with_path(place, made, drawn)
    return state_lib.make_init(
      parts.objective._replace(init=lambda _: made),
      parts.optimizer,
      parts.precision,
      parts.average,
    )(key)

  with sharding.use(parts.mesh, parts.rules):
    state = jax.jit(init, out_shardings=parts.shardings)(key, given)
  _tell(parts, source, drawn)
  return state


def _look_up(start: str) -> Pretrained:
  """The model in a folder."""
  found = pretrained(start, 'optim.start', whole=True)
  if found.params is None:
    raise UsageError(
      "optim.start='none': leave it empty to draw all parameters"
    )
  return found


def _check_tokenizer(
  parts: Parts, source: Pretrained, tokenizer: Tokenizer, drawn: Any
) -> None:
  """Refuses tables whose rows are other tokens than the run's."""
  assert source.tokenizer is not None, 'see pretrained'
  if _same_ids(source.tokenizer, tokenizer, drawn):
    return
  tables = [x for n in _TABLES for x in jax.tree.leaves(drawn.get(n, {}))]
  if all(mask.all() for mask in tables):
    return
  raise UsageError(
    f'optim.start={parts.config.optim.start!r}: its tokenizer, '
    f"{source.tokenizer_name}, is not the run's, "
    f"{parts.config.tokenizer.name}; give its tokenizer, or add 'embed/*' to "
    'optim.drawn'
  )


def _same_ids(theirs: Tokenizer, ours: Tokenizer, drawn: Any) -> bool:
  """Whether what is not drawn reads the same tokens."""
  if theirs.fingerprint == ours.fingerprint:
    return True
  # An encoder of sources that is drawn as a whole may read any.
  new = 'source' in drawn and all(
    m.all() for m in jax.tree.leaves(drawn['source'])
  )
  one, other = (tokenizer_lib.of_targets(made) for made in (theirs, ours))
  return new and one.fingerprint == other.fingerprint


def _taken(
  start: str, source: Pretrained, shapes: Any, drawn: Any
) -> dict[str, Any]:
  """What is taken from there, by name."""
  assert source.params is not None, 'see _look_up'
  found = {
    paths.name_of(path): x
    for path, x in jax.tree_util.tree_leaves_with_path(source.params())
  }
  masks, taken, problems = jax.tree.leaves(drawn), {}, []
  leaves = jax.tree_util.tree_leaves_with_path(shapes)
  for (path, leaf), mask in zip(leaves, masks, strict=True):
    name = paths.name_of(path)
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
      f'optim.start={start!r}: {problems[0]}{more}; name in optim.drawn what '
      'is to be drawn, or give the model of that run'
    )
  if found:
    left = sorted({name.split('/')[0] for name in found})
    log.warning(
      'optim.start=%s: %d of its arrays have no place in this model, in %s',
      *(start, len(found), ', '.join(left)),
    )
  return taken


def _tell(parts: Parts, source: Pretrained, drawn: Any) -> None:
  """Says what the run starts from, and how the models differ."""
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
