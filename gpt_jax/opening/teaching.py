# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Runs a teacher once over a token store and keeps its outputs on disk.

A large teacher then takes no memory from its students, and its forward pass is
paid for once. `papers.distilbert.teacher_outputs` has the folder's format,
`papers.distilbert.distilled` the loss.
"""

import hashlib
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.core import config as config_lib
from gpt_jax.core import sharding, spec
from gpt_jax.core.config import Config
from gpt_jax.core.files import files, progress
from gpt_jax.core.nn import params as params_lib
from gpt_jax.core.nn.build import ModelChoices
from gpt_jax.core.nn.transformer import Transformer, make_model
from gpt_jax.core.objectives import choices as objectives
from gpt_jax.core.objectives import forward
from gpt_jax.core.rows import row_makers, row_order
from gpt_jax.core.rows.rows import Keys
from gpt_jax.core.runtime.log import log
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers.tokenizer import Tokenizer
from gpt_jax.core.tokens.mixture import Place
from gpt_jax.core.tokens.store import TokenStore
from gpt_jax.core.training import device_check
from gpt_jax.core.training.past import RunInput
from gpt_jax.core.training.store_data import More
from gpt_jax.opening import models, teachers
from gpt_jax.papers.distilbert import distilled, soft_targets, teacher_outputs
from gpt_jax.papers.distilbert.teacher_outputs import OutputsManifest, TeacherOutputs, Writer

# Seconds between notes of the writer's progress.
_NOTE_SECONDS = 30.0


def opened(config: Config, store: TokenStore) -> More:
  """The teacher outputs that a run reads."""
  outputs = TeacherOutputs(config.objective.teacher, rows_of(config, store))
  scored = outputs.contents.vocab_size
  if config.model.vocab_size != scored:
    raise UsageError(
      f'model.vocab_size={config.model.vocab_size}: the teacher scored '
      f'{scored} tokens; give the model as many'
    )
  read = RunInput(
    'teacher',
    outputs.contents.fingerprint,
    "was taught by the outputs {}, and objective.teacher's are",
  )
  return More(outputs.batch, read)


def rows_of(config: Config, store: TokenStore) -> teacher_outputs.OutputRows:
  """The rows that a teacher reads for a run.

  Args:
    config: resolved.
    store: the training split.
  """
  stored = objectives.needs(config.objective.name).stored
  if stored is None:
    raise UsageError(
      f'objective.name={config.objective.name!r}: reads no outputs of a '
      "teacher; give distilled(top_k=64, cosine=0.0, text='causal')"
    )
  given = f'objective.name: top_k={stored.top_k}'
  lengths = sorted({s.length for s in config_lib.ramp(config).stages})
  if len(lengths) > 1:
    raise UsageError(
      f'batch.length={config.batch.length!r}: {given} reads outputs of rows '
      'of one length; give stages(N) with one N'
    )
  drawn = row_makers.kind(config.data.rows).func.holds == 'pairs'
  if drawn or store.mixture:
    field = 'data.source' if store.mixture else 'data.rows'
    raise UsageError(
      f'{field}: {given} needs rows that are the same in each epoch and of '
      "one source; take a plain source, and data.rows='full_sentences', "
      "'documents' or 'stream'"
    )
  (text,) = spec.parse('objective.name: text', stored.text)
  return teacher_outputs.OutputRows(
    store=store.manifest.fingerprint,
    rows=config.data.rows,
    length=lengths[0],
    text=stored.text,
    places=stored.places,
    temperature=stored.temperature,
    top_k=stored.top_k,
    times=stored.times,
    positions=stored.positions(lengths[0]),
    num_rows=row_makers.load(store, lengths[0]).num_rows,
    seed=config.seed if text.name == 'masked' else 0,
  )


def write(config: Config, store: TokenStore, teacher: str, folder: str) -> OutputsManifest:
  """Writes a teacher's outputs for a store; resumes an interrupted write.

  Outputs that are there are compared with their checksums.

  Args:
    config: resolved, of the student.
    store: the training split.
    teacher: a workdir, or a Hugging Face folder.
  """
  rows = rows_of(config, store)
  source = models.open_model(teacher, 'teach', '--teacher')
  tokenizer = store.tokenizer()
  teachers.check_tokenizer(source, tokenizer, config, '--teacher')
  assert source.model is not None, 'of a folder'
  model = make_model(**models.computed(source.model, config))
  _check(model, rows, teacher)
  params = teachers.parameters(source, model)
  assert params is not None, 'of the model beside it'
  about = {
    'teacher': source.name,
    'teacher_sha256': _sha256(params),
    'vocab_size': model.vocab_size,
  }
  wanted: dict[str, Any] = {'rows': vars(rows), **about}
  if (done := teacher_outputs.read(folder)) is not None:
    if (done.rows, done.teacher_sha256) != (rows, about['teacher_sha256']):
      raise UsageError(
        f'--out={folder}: holds outputs of other rows, or of another teacher; '
        'give another folder, or remove this one'
      )
    TeacherOutputs(folder, rows).verify()
    return done
  step = _Step(config, model, tokenizer, params)
  with files.exclusive(folder, 'unfinished'), progress.bar('rows') as report:
    writer = Writer(folder, wanted, model.vocab_size)
    total, noted = rows.num_rows * rows.times, time.monotonic()
    if writer.done:
      log.info('going on after %d of %d rows', writer.done, total)
    for outputs in step.batches(store, rows, writer.done):
      writer.add(*outputs)
      report('teacher', writer.done, total)
      if time.monotonic() - noted > _NOTE_SECONDS:
        writer.note()
        noted = time.monotonic()
    return writer.finish(rows, **about)


class _Step:
  """The teacher on the mesh."""

  def __init__(self, config: Config, model: Transformer, tokenizer: Tokenizer, params: Any):
    """Shards the parameters; traces nothing yet."""
    self._config = config
    self._mesh = device_check.mesh_of(config)
    self._rules = sharding.parse_rules(config.mesh.rules)
    stored = objectives.needs(config.objective.name).stored
    assert stored is not None
    text = spec.build('objective.name', stored.text, distilled.TEXTS)
    text = text.bind(model, tokenizer)
    self._make_batch = text.make_batch
    params = {name: x for name, x in params.items() if name in text.shapes}
    boxed = {name: text.shapes[name] for name in params}
    sharding.check_divisible(boxed, self._mesh, self._rules)
    self._params = jax.device_put(params, sharding.param_shardings(boxed, self._mesh, self._rules))

    def step(params, batch):
      hidden, _ = forward.states(model, params, batch, None)
      weights = text.real(batch)
      if stored.places == 'chosen':
        hidden, weights = text.chosen(hidden, batch), text.counted(batch)
      scored = forward.scores(model, params, hidden)
      ids, log_probs = soft_targets.most_probable(scored, stored.top_k, stored.temperature)
      return ids, log_probs.astype(jnp.float16), weights

    self._step = jax.jit(step, out_shardings=sharding.replicated(self._mesh))

  def batches(self, store: TokenStore, rows: teacher_outputs.OutputRows, start: int):
    """Yields arguments of `Writer.add`, from row number `start` on."""
    maker = row_makers.load(store, rows.length)
    size = device_check.eval_rows(self._config, self._mesh, dict(self._rules))
    total = rows.num_rows * rows.times

    def batch(i: int) -> dict[str, np.ndarray]:
      # The padding of the last batch is cut off below.
      numbers = np.minimum(start + i * size + np.arange(size), total - 1)
      row, epoch = np.divmod(numbers, rows.times)
      places = [Place('', e, r) for e, r in zip(epoch, row, strict=True)]
      keys = Keys(self._config.seed, numbers, row, epoch)
      return self._make_batch(maker.read(places, keys), keys)

    split = sharding.batch_sharding(self._mesh, self._rules)
    count = -(-(total - start) // size)
    with sharding.use(self._mesh, self._rules):
      for i, arrays in enumerate(row_order.prefetch(batch, 0, count)):
        put = sharding.put_batch(arrays, split, size)
        found = jax.device_get(self._step(self._params, put))
        left = total - start - i * size
        yield tuple(x[:left] for x in found)


def _check(model: Transformer, rows: teacher_outputs.OutputRows, folder: str) -> None:
  """Checks that a teacher can read the rows."""
  (text,) = spec.parse('objective.name: text', rows.text)
  causal = ModelChoices.of(model).causal
  if causal != (text.name == 'causal'):
    kind = 'decoder' if causal else 'encoder'
    raise UsageError(
      f'--teacher={folder}: is a{"n" * (not causal)} {kind}, and objective.'
      f"name has text={rows.text!r}; give text='causal' for a decoder, "
      "'masked(static=1)' for an encoder"
    )
  if model.context_length < rows.length:
    raise UsageError(
      f'--teacher={folder}: reads {model.context_length} tokens, and the rows '
      f'have {rows.length}; lower model.context_length, or batch.length'
    )
  if rows.top_k > model.vocab_size:
    raise UsageError(
      f'objective.name: top_k={rows.top_k}: the teacher scores '
      f'{model.vocab_size} tokens; give no more'
    )


def _sha256(params: Any) -> str:
  """The sha256 of the names, shapes and values of parameters."""
  digest = hashlib.sha256()
  for path, x in jax.tree_util.tree_leaves_with_path(params):
    value = np.asarray(x)
    name = params_lib.name_of(path)
    digest.update(f'{name} {value.dtype} {value.shape} '.encode())
    digest.update(value.tobytes())
  return digest.hexdigest()
