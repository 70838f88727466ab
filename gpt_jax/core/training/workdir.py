# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A run's folder: its lock, the checks before a start, its first files."""

import contextlib
import os
import secrets
import shutil

import filelock
import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from gpt_jax.core import config as config_lib
from gpt_jax.core.checkpoints import restore
from gpt_jax.core.config import Config
from gpt_jax.core.files import buckets, files
from gpt_jax.core.files.buckets import write_atomically
from gpt_jax.core.nn.build import ModelChoices
from gpt_jax.core.objectives import choices as objectives
from gpt_jax.core.rows import row_makers
from gpt_jax.core.runtime import hosts
from gpt_jax.core.runtime.log import log
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers import special
from gpt_jax.core.tokenizers import tokenizer as tokenizer_lib
from gpt_jax.core.tokenizers.tokenizer import Tokenizer
from gpt_jax.core.tokens import manifest, mixture
from gpt_jax.core.training import metrics
from gpt_jax.core.training.past import known_skips

# A file in the folder of a run; it stays when the run has ended.
LOCK = '.lock'
# In the folder of an imported model, which has no training data: where it is
# from.
ORIGIN = 'hf.json'
# The remedy for a damaged file of a run, in errors.
RESTORE = 'restore it from a copy, or start again with another --workdir'


def read_config(workdir: str, field: str = '--workdir') -> Config:
  """The resolved config of the run in a workdir."""
  path = os.path.join(workdir, 'config.json')
  try:
    fields = files.read_json(path, remedy=RESTORE, needs=('model', 'tokenizer'))
  except (FileNotFoundError, NotADirectoryError) as e:
    raise UsageError(f'{field}={workdir}: holds no run (no config.json); train one first') from e
  remedy = f'{RESTORE}, or, if you changed it, remove its sha256'
  fields = files.unsealed(fields, path, remedy=remedy)
  try:
    config = ConfigDict(fields).lock()
    config_lib.check_resolved(config)
  except (ValueError, TypeError, LookupError, AttributeError) as e:
    # From `finetune.each`, whose fields have names chosen by the user.
    raise UsageError(f'{path}: is damaged: {e}; {RESTORE}') from e
  return config


def is_import(workdir: str) -> bool:
  """Whether the model of a workdir was imported."""
  return files.read(workdir, ORIGIN) is not None


@contextlib.contextmanager
def locked(workdir: str):
  """Creates a workdir, and locks it against other training processes.

  The system frees the lock when the process dies, however it dies. Of several
  hosts the first holds it. If the body refuses its input, the folders created
  here are removed.
  """
  if buckets.is_copy(workdir):
    with contextlib.ExitStack() as stack:
      if hosts.index() == 0:
        stack.enter_context(buckets.leased(workdir))
      hosts.broadcast_from_host0(None)  # who had it may have written till now
      buckets.refetched(workdir)
      yield
    return
  if hosts.index() != 0:
    yield
    return
  files.check_path(workdir)
  created, path = [], os.path.abspath(workdir)
  while not os.path.lexists(path):
    created.append(path)
    path = os.path.dirname(path)
  os.makedirs(workdir, exist_ok=True)
  file = os.path.join(workdir, LOCK)
  is_new, lock = not os.path.exists(file), filelock.FileLock(file)
  try:
    lock.acquire(blocking=False)
  except filelock.Timeout as e:
    raise UsageError(
      f'--workdir={workdir}: another process is training in it; wait for its '
      'end, or give another --workdir'
    ) from e
  try:
    yield
  except UsageError:
    if is_new:
      os.unlink(file)
    for folder in created:
      with contextlib.suppress(OSError):  # something was left in it
        os.rmdir(folder)
    raise
  finally:
    lock.release()


@contextlib.contextmanager
def untouched_if_refused(*folders: str):
  """Removes new files from folders if the body refuses its input.

  A finished token store stays: it may have taken days, and it serves the
  corrected command as well.
  """
  before = {
    folder: set(os.listdir(folder)) if os.path.isdir(folder) else None for folder in folders
  }
  try:
    yield
  except UsageError:
    for folder, names in before.items():
      _discard_new(folder, names)
    raise


def _discard_new(folder: str, before: set[str] | None) -> None:
  """Removes files that were not there before; None: nor was the folder."""
  if not os.path.isdir(folder) or manifest.exists(folder):
    return
  for name in set(os.listdir(folder)) - (before or set()):
    path = os.path.join(folder, name)
    if not os.path.isdir(path):
      os.unlink(path)
    elif not manifest.exists(path):
      shutil.rmtree(path, ignore_errors=True)
  if before is None and not os.listdir(folder):
    os.rmdir(folder)


def check_same_run(config: Config, workdir: str) -> None:
  """Refuses a workdir that holds a run of another config."""
  path = os.path.join(workdir, 'config.json')
  newest = restore.newest(workdir)
  if not os.path.exists(path):
    if newest:
      raise UsageError(
        f'{path}: is missing, and there is a checkpoint of step {newest.step}; {RESTORE}'
      )
    return
  old = read_config(workdir)
  new = config_lib.unlocked(config)
  if new.model.vocab_size is None:
    new.model.vocab_size = old.model.vocab_size
  # The weights of a mixture may change at a token not reached yet.
  logged = max((line['step'] for line in metrics.read(workdir)), default=0)
  done = max(logged, newest.step if newest else 0)
  order = config_lib.order(config_lib.ramp(old))
  rows = known_skips(workdir).shifted(order)(done)
  tokens = rows.index * rows.length
  if mixture.extends(old.data.source, new.data.source, tokens):
    new.data.source = old.data.source
  why = ''
  if old.schedule.num_steps != new.schedule.num_steps:
    why = _other_past(old, new, done)
    if not why:
      new.schedule.num_steps = old.schedule.num_steps
  changed = config_lib.differences(old, new)
  if changed:
    raise UsageError(
      f'--workdir={workdir}: its config.json is of another config ('
      + '; '.join(changed)
      + (f'; {why}' if why else '')
      + '); give the same values, or another --workdir'
      + _start_from(workdir, old, changed)
    )


def _other_past(old: Config, new: Config, done: int) -> str:
  """Why the steps done would differ under a new number of steps; '': equal.

  Args:
    new: the old config but for `schedule.num_steps`.
    done: number of steps done.
  """
  if old.get('finetune') is not None:
    return 'a fine-tuning has the steps that it began with'
  if done > new.schedule.num_steps:
    return f'{done:,} steps are done'
  if objectives.needs(old.objective.name).progress:
    return f'objective.name={old.objective.name!r} depends on the last step'
  outer = config_lib.outer(old)
  ends = (old.schedule.num_steps, new.schedule.num_steps)
  if outer and done in ends and done % outer.steps:
    return (
      f'step {done:,}, which is done, ends a round of optim.outer='
      f'{old.optim.outer!r} only as the last one'
    )
  ramps = [config_lib.ramp(c).between(0, done) for c in (old, new)]
  if ramps[0] != ramps[1]:
    return f'batch.size or batch.length of the {done:,} steps done would differ'
  rates = [np.asarray(jax.vmap(config_lib.schedule(c))(jnp.arange(done))) for c in (old, new)]
  differs = np.flatnonzero(rates[0] != rates[1])
  if differs.size:
    return (
      f'with schedule.name={new.schedule.name!r} the learning rate of step '
      f'{differs[0] + 1:,}, which is done, would differ'
    )
  return ''


def _start_from(workdir: str, old: Config, changed: list[str]) -> str:
  """Advice on starting a new run from the weights, if the changes allow it."""
  fields = ('schedule.', 'optim.', 'batch.', 'data.', 'seed')
  needs = objectives.needs(old.objective.name)
  tuned = old.get('finetune') is not None
  if tuned or needs.frozen or needs.adds:
    return ''
  if not all(text.startswith(fields) for text in changed):
    return ''
  return f', where --config.optim.start={workdir} starts from its weights'


def check_store_folder(config: Config) -> None:
  """Checks that `data.store` can be a folder."""
  path = config.data.store
  if not path or not files.is_local(path):
    return
  there = os.path.abspath(path)
  try:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
      os.lstat(there)
  except OSError as e:
    raise UsageError(
      f'data.store={path!r}: {os.strerror(e.errno or 0).lower()}; name another'
    ) from e
  while not os.path.lexists(there):
    there = os.path.dirname(there)
  if not os.path.isdir(there):
    raise UsageError(
      f'data.store={path!r}: {there} is not a folder; give a folder, which is made if it is missing'
    )


def check_tokenizer(config: Config) -> None:
  """Checks a tokenizer, as far as possible before the data are prepared."""
  name = config.tokenizer.name
  maker = tokenizer_lib.maker(name)
  tokenizer = None if maker.learned else maker.make([])
  names = frozenset(tokenizer.special.names) if tokenizer else maker.special
  objective, rows = config.objective.name, config.data.rows
  needed = dict.fromkeys(objectives.needs(objective).tokens, f'objective.name={objective!r}')
  if row_makers.of_sentences(rows):
    needed |= dict.fromkeys(('cls', 'sep'), f'data.rows={rows!r}')
  for role in sorted(needed):
    if tokenizer:
      lacks = getattr(tokenizer.special, f'{role}_id') is None
    else:
      lacks = special.usual(role, dict.fromkeys(names, 0)) is None
    if lacks:
      token = f'[{role.upper()}]'
      raise UsageError(
        f'tokenizer.name={name!r}: has no {token}, which {needed[role]} '
        'needs; take wordpiece, byte_bpe or a '
        f'sentencepiece with {token} among its special tokens'
      )
  objectives.check_sentinels(
    names, objectives.needs(objective).sentinels(config.model.context_length), objective
  )
  # Tokens that sources have of their own are known once there is a store.
  of_sources = None if maker.sources else 0
  if tokenizer:
    of_sources = tokenizer.source_vocab_size or of_sources
    config_lib.set_vocab_size(config, tokenizer.vocab_size, name, of_sources)
    check_prompt(config, tokenizer)
    return
  if maker.vocab_size:
    config_lib.set_vocab_size(config, maker.vocab_size, name, of_sources)
  context = config.model.context_length
  if draws_sample(config) and config.log.sample_tokens >= context:
    raise UsageError(
      f'log.sample_tokens={config.log.sample_tokens}: does not fit the context '
      f'of {context} with log.sample_prompt; lower it, or empty the prompt'
    )


def warn_of_spare_rows(config: Config, tokenizer: Tokenizer) -> None:
  """Warns of token tables that are much larger than their tokenizer.

  Rounding up to a multiple of 128, or by up to a tenth, is deliberate.

  Args:
    config: with the vocabulary size set.
  """
  size = tokenizer.vocab_size
  _warn_of_spare_rows(config, size, tokenizer.sources.vocab_size)


def warn_of_planned_rows(config: Config) -> None:
  """Like `warn_of_spare_rows`, of a tokenizer that need not be trained yet."""
  maker = tokenizer_lib.maker(config.tokenizer.name)
  size = tokenizer_lib.planned_size(maker)
  of_sources = tokenizer_lib.planned_size(maker.sources or maker)
  if size and of_sources:
    _warn_of_spare_rows(config, size, of_sources)


def _warn_of_spare_rows(config: Config, size: int, of_sources: int) -> None:
  """Warns, by the number of tokens of targets and of sources."""
  sections = {f'models.{name}': part for name, part in config.models.items()}
  tables = {
    f'{name}.vocab_size': (section.vocab_size, size)
    for name, section in {'model': config.model, **sections}.items()
  }
  tables['model.source_vocab_size'] = config.model.source_vocab_size, of_sources
  for field, (rows, tokens) in tables.items():
    if rows > max(-(-tokens // 128) * 128, tokens * 1.1):
      log.warning(
        '%s=%d: tokenizer.name=%r has %d tokens, so %d rows of the table are '
        'never read, and their ids never generated; %s',
        field,
        rows,
        config.tokenizer.name,
        tokens,
        rows - tokens,
        "leave the field empty (None) to take the tokenizer's number"
        if field != 'model.source_vocab_size'
        else "set the field to 0 to take the tokenizer's number",
      )


def draws_sample(config: Config) -> bool:
  """Whether the run ends with a sample: if its decoder continues texts."""
  log, model = config.log, config.model
  needs = objectives.needs(config.objective.name)
  return bool(
    log.sample_prompt
    and log.sample_tokens
    and not (needs.decoder_start or needs.backward)
    and not model.num_encoder_layers
    and ModelChoices.of(model).causal
  )


def check_prompt(config: Config, tokenizer: Tokenizer) -> None:
  """Checks before training that the sample after it can be written."""
  prompt, context = config.log.sample_prompt, config.model.context_length
  if not draws_sample(config):
    return
  try:
    num_tokens = len(tokenizer.encode(prompt))
  except UsageError as e:
    raise UsageError(f'log.sample_prompt={prompt!r}: {e}') from e
  if num_tokens + config.log.sample_tokens > context:
    raise UsageError(
      f'log.sample_prompt={prompt!r}: its {num_tokens} tokens and '
      f'log.sample_tokens={config.log.sample_tokens} do not fit the context '
      f'of {context}; lower log.sample_tokens, or empty log.sample_prompt'
    )


def start(config: Config, workdir: str, tokenizer: Tokenizer) -> None:
  """Writes the config, and a copy of the tokenizer, once."""
  os.makedirs(workdir, exist_ok=True)
  folder = os.path.join(workdir, 'tokenizer')
  if not os.path.exists(folder):
    temporary = f'{folder}.{secrets.token_hex(8)}.tmp'
    os.mkdir(temporary)
    tokenizer.save(temporary)
    os.replace(temporary, folder)
  write_atomically(os.path.join(workdir, 'config.json'), files.sealed(config.to_dict()))
