# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rollouts: the policy's completions of prompts, as the data of a run.

A rollout happens at the steps where a window of updates begins, each of which
takes a minibatch of its completions. In order: the decoder samples completions
with the parameters of that step, a reward function or model scores them, the
training program computes their log-probabilities by the policy and by the
reference, and `estimate` makes advantages of all this.

A rollout follows from the seed, the step and the parameters at that step. A
run that resumes within a window would have newer parameters, so the rollout is
kept in WORKDIR/rollouts/STEP.npz as long as a checkpoint may need it.

Of several processes each samples a share of the completions with a copy of the
model on its own devices; all the rest they do together.
"""

import collections
import functools
import hashlib
import json
import os
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from gpt_jax.core import malloc, sharding
from gpt_jax.core.checkpoints import restore
from gpt_jax.core.files import arrays as arrays_lib
from gpt_jax.core.files import records
from gpt_jax.core.objectives import forward
from gpt_jax.core.optim.train_state import TrainState
from gpt_jax.core.rows.batch_rows import BatchRows, RowsOfStep
from gpt_jax.core.rows.row_order import Batch
from gpt_jax.core.runtime import preemption, watchdog
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers.tokenizer import Tokenizer
from gpt_jax.core.training import metrics
from gpt_jax.core.training.parts import Parts
from gpt_jax.decoding.constraints import ANY
from gpt_jax.decoding.engine import generate
from gpt_jax.decoding.programs import Decoder
from gpt_jax.decoding.requests import Request
from gpt_jax.decoding.settings import Sampler
from gpt_jax.decoding.texts import TextStream
from gpt_jax.tuning.dialogues import Encoder
from gpt_jax.tuning.objectives import adapters, lora
from gpt_jax.tuning.objectives.policy import Policy
from gpt_jax.tuning.records import Content, check_roles, content

# Prompts.


class RolloutPrompt(NamedTuple):
  """A prompt.

  Attributes:
    where: 'file:line'.
    content: a text, or messages.
    ids: as the model reads it.
    columns: the other entries of the line, for reward functions; lines may
      differ in them.
  """

  where: str
  content: Content
  ids: list[int]
  columns: dict[str, Any]


def read_prompts(path: str, encoder: Encoder) -> list[RolloutPrompt]:
  """Reads JSON lines with `prompt`: a text, or messages to be answered."""
  prompts = []
  for record in records.read(path):
    prompt = content(record, 'prompt')
    if not isinstance(prompt, str):
      check_roles(record.where, prompt)
      if prompt[-1]['role'] not in ('user', 'tool'):
        raise UsageError(
          f'{record.where}: the prompt ends with the role '
          f'{prompt[-1]["role"]!r}, and the assistant must answer; end it with '
          'the message of a user or of a tool'
        )
    columns = {n: x for n, x in record.fields.items() if n != 'prompt'}
    try:
      ids = encoder.prompt(prompt).tolist()
    except UsageError as e:
      raise UsageError(f'{record.where}: {e}') from e
    prompts.append(RolloutPrompt(record.where, prompt, ids, columns))
  if not prompts:
    raise UsageError(f'{path}: has no rows; give another file')
  return prompts


def column_counts(prompts: Sequence[RolloutPrompt]) -> dict[str, int]:
  """The columns of all prompts, and how many prompts have each."""
  return collections.Counter(n for one in prompts for n in one.columns)


def shuffled(count: int, seed: int) -> Callable[[int], int]:
  """The item at a place, counted over epochs that are each shuffled."""

  @functools.lru_cache(maxsize=2)
  def order(epoch: int) -> np.ndarray:
    return np.random.default_rng([seed, epoch]).permutation(count)

  return lambda place: int(order(place // count)[place % count])


def digest(prompts: Sequence[RolloutPrompt]) -> str:
  """The number of prompts, and a hash of their tokens and columns."""
  hashed = hashlib.sha256()
  for prompt in prompts:
    line = json.dumps([prompt.ids, prompt.columns], sort_keys=True)
    hashed.update(line.encode() + b'\n')
  return f'{len(prompts)} prompts, sha256 {hashed.hexdigest()[:16]}'


# Scores.

# (prompts, completions, columns by name) -> float32 [N]; each argument has an
# entry per completion, None where the line of its prompt lacks a column.
Reward = Callable[[Sequence[Content], Sequence[Content], Mapping[str, list[Any]]], np.ndarray]


# Rollouts.


class Rollout(NamedTuple):
  """Completions with what was computed of them; N is their number.

  Attributes:
    arrays: `inputs`, `targets`, `mask` and `old_log_probs` of a batch, and
      what else `Policy.outputs` and the reference gave, each [N, L].
    scores_N: of the reward function or model.
    ended_N: whether a completion ended by itself.
  """

  arrays: Batch
  scores_N: np.ndarray
  ended_N: np.ndarray


class Estimate(Protocol):
  """From scores to what is learned."""

  def __call__(self, rollout: Rollout) -> tuple[Batch, dict[str, float]]:
    """Returns a batch's arrays [N, ...], and metrics."""
    ...


@dataclass(frozen=True)
class Plan:
  """A method's rollouts, before anything is built.

  Attributes:
    prompts: to complete.
    reward: scores completions.
    estimate: makes advantages of the scores.
    num_generations: completions of each prompt.
    minibatches: in a rollout, each for one update.
    epochs: passes over a rollout.
    max_tokens: the most tokens of a completion.
    reference: whether the reference's log-probabilities are needed.
    decode_rows: completions that are decoded at a time.
    text: rows of pre-training text for each batch; None: none.
  """

  prompts: list[RolloutPrompt]
  reward: Reward
  estimate: Estimate
  num_generations: int
  minibatches: int
  epochs: int
  max_tokens: int
  temperature: float
  reference: bool
  decode_rows: int
  text: Any = None

  def __len__(self) -> int:
    """Rows of a pass over all prompts: each completion, in all epochs."""
    return len(self.prompts) * self.num_generations * self.epochs

  @property
  def window(self) -> int:
    """Number of updates of a rollout."""
    return self.minibatches * self.epochs


class Costs:
  """What the parts of a window take: seconds, and once the peak of memory.

  On Linux CPUs the peak of the process's resident memory is measured from the
  updates of this process's first window to the rollout of its second, when all
  programs have been compiled. Freed memory is given back before each part, or
  it would have the peak of those before.
  """

  def __init__(self):
    """No window was made yet."""
    self._figures: dict[str, float] = {}
    self._windows, self._since = 0, 0.0
    resets = os.access('/proc/self/clear_refs', os.W_OK)
    self._can = resets and jax.default_backend() == 'cpu'

  def begin(self) -> None:
    """Begins a part."""
    if self._measures:
      malloc.give_back()
      malloc.reset_peak()
    self._since = time.perf_counter()

  def end(self, name: str) -> float:
    """Ends it; returns its seconds."""
    seconds = time.perf_counter() - self._since
    self._figures[f'time/{name}'] = seconds
    if self._measures:
      self._figures[f'memory/{name}'] = malloc.peak_bytes()
    return seconds

  def of_window(self) -> dict[str, float]:
    """The figures since the last window was made."""
    self._windows += 1
    figures, self._figures = self._figures, {}
    return figures

  @property
  def _measures(self) -> bool:
    return self._can and self._windows == 1


class Rollouts:
  """The completions of a run as its data: see `training.run.Data`."""

  def __init__(
    self,
    plan: Plan,
    parts: Parts,
    tokenizer: Tokenizer,
    first: Callable[[], TrainState],
    workdir: str,
  ):
    """Sets up the rollouts; the first one takes the reference's parameters.

    `first` makes the initial state, for a run that resumes.
    """
    objective = parts.objective
    self._plan, self._parts, self._tokenizer = plan, parts, tokenizer
    self._folder = os.path.join(workdir, 'rollouts')
    self._workdir = workdir
    self._rows, self._first = parts.ramp.rows(0), first
    # From the present parameters to the reference's, in the model's own tree.
    self._reference: Callable[[Any], Any] | None = None
    whole = sharding.replicated(parts.mesh)
    jit = functools.partial(jax.jit, out_shardings=whole)
    self._outputs = jit(objective.outputs)
    assert isinstance(objective, Policy)
    self._log_probs, self._length = jit(objective.log_probs), objective.length
    # Of all prompts: which of them are in a rollout changes no argument.
    self._columns = [*column_counts(plan.prompts)]
    self._order = shuffled(len(plan.prompts), parts.config.seed)
    self._text_order = None
    if plan.text is not None:
      self._text_order = shuffled(len(plan.text), parts.config.seed + 1)
    self._costs = Costs()
    self._figures: list[dict[str, float]] = []
    self.rows_per_epoch = len(plan)

  # The order: which completions are in a window, and in a batch of it.

  @property
  def _size(self) -> int:
    """Completions of a window."""
    return self._rows * self._plan.minibatches

  def _window_of(self, step: int) -> int:
    """The step at which the window of a step begins."""
    return step - step % self._plan.window

  def _prompts(self, window: int) -> list[int]:
    """The number of each completion's prompt."""
    each = self._plan.num_generations
    count = self._size // each
    start = window // self._plan.window * count
    return [self._order(start + i // each) for i in range(self._size)]

  def _rows_of(self, step: int) -> np.ndarray:
    """Which completions of the window are in the batch of a step."""
    window = self._window_of(step)
    epoch, batch = divmod(step - window, self._plan.minibatches)
    key = [self._parts.config.seed, window, epoch]
    order = np.random.default_rng(key).permutation(self._size)
    return order[batch * self._rows : (batch + 1) * self._rows]

  def row_numbers(self, rows: BatchRows) -> list[int]:
    """The numbers of the prompts of a batch."""
    step = rows.offset // self._rows
    prompts = self._prompts(self._window_of(step))
    return [prompts[i] for i in self._rows_of(step)]

  def epochs(self, rows: BatchRows) -> dict[str, float]:
    """Passes over the prompts, and means over the rollouts since the last."""
    figures, self._figures = self._figures, []
    names = dict.fromkeys(name for one in figures for name in one)
    means = {name: float(np.mean([one[name] for one in figures if name in one])) for name in names}
    return {'epochs': rows.index / self.rows_per_epoch, **means}

  def batches(
    self, parts: Parts, start: int, rows: RowsOfStep, state: Callable[[], TrainState]
  ) -> Generator[Batch]:
    """See `training.run.Data`."""
    del rows  # of a store
    batch: Batch = {}
    if self._plan.reference:
      self._take_reference(start, state)
    for step in range(start, parts.config.schedule.num_steps):
      if step == start or step == self._window_of(step):
        jax.block_until_ready(state().params)
        if batch:
          self._costs.end('update')
        window = self._window(self._window_of(step), start, state)
        if window is None:
          return
        batch = window
        self._costs.begin()
      chosen = self._rows_of(step)[parts.host_rows(self._rows)]
      yield {**{name: x[chosen] for name, x in batch.items()}, **self._text(step)}

  def _take_reference(self, start: int, state: Callable[[], TrainState]) -> None:
    """Keeps the parameters of step 0, which the first update overwrites.

    Adapters start at 0, so their reference is the base, held once.
    """
    if adapters.of(self._parts.config) is not None:
      self._reference = lora.unadapted
    elif self._reference is None:
      params = (self._first() if start else state()).params
      # The update donates the state.
      reference = params if start else jax.tree.map(jnp.copy, params)
      self._reference = lambda params: reference

  def _text(self, step: int) -> Batch:
    if self._text_order is None:
      return {}
    places = range(step * self._rows, (step + 1) * self._rows)
    places = places[self._parts.host_rows(self._rows)]
    rows = self._plan.text.batch([self._text_order(i) for i in places])
    names = ('inputs', 'targets', 'weights')
    return {f'ptx_{name}': rows[name] for name in names}

  # A window: read, or made and kept.

  def _window(self, window: int, start: int, state: Callable[[], TrainState]) -> Batch | None:
    """The arrays [N, ...] of a window; None if SIGTERM came meanwhile.

    Only a window that began before this process did is read: a later file is
    of a run that was ahead, and may be of other parameters.

    Args:
      window: the step at which it begins.
      start: the first step of this process.
      state: the present one.
    """
    path = os.path.join(self._folder, f'{window}.npz')
    if window < start:
      return self._read(path, window)
    batch_and_figures = self._make(window, state().params)
    if batch_and_figures is None:
      return None
    batch, figures = batch_and_figures
    self._figures.append(figures | self._costs.of_window())
    if self._plan.window > 1:
      self._keep(path, batch)
    return batch

  def _read(self, path: str, window: int) -> Batch:
    try:
      return arrays_lib.read(path)
    except (OSError, ValueError) as e:
      raise UsageError(
        f'{path}: is missing or damaged ({e}), and updates of its rollout are '
        'left; restore it from a copy, or delete the checkpoints after step '
        f'{window}'
      ) from e

  def _keep(self, path: str, batch: Batch) -> None:
    """Writes a window, and deletes those that no checkpoint needs.

    A save in the background is of a later step than the newest checkpoint, so
    the windows from that one's on are kept.
    """
    if jax.process_index() > 0:
      return
    # Listed, not opened: a save in the background may delete one meanwhile.
    steps = restore.steps(restore.folder_of(self._workdir))
    os.makedirs(self._folder, exist_ok=True)
    arrays_lib.write(path, batch)
    needed = {self._window_of(step) for step in steps}
    for name in os.listdir(self._folder):
      window = int(name.removesuffix('.npz'))
      if window < max(needed, default=0) and window not in needed:
        os.remove(os.path.join(self._folder, name))

  def _make(self, window: int, params: Any) -> tuple[Batch, dict[str, float]] | None:
    """Draws, scores and weighs completions; None if SIGTERM came meanwhile."""
    plan, costs = self._plan, self._costs
    prompts = [plan.prompts[i] for i in self._prompts(window)]
    costs.begin()
    with preemption.with_ahead('ending the rollout, then saving'):
      completions = self._draw(window, prompts, params)
    if completions is None:
      return None
    seconds = costs.end('rollout')
    costs.begin()
    # A reward model has its own mesh.
    scores = self._score(prompts, completions)
    costs.end('scoring')
    costs.begin()
    with sharding.use(self._parts.mesh, self._parts.rules):
      arrays = self._arrays(prompts, completions)
      arrays |= self._measured(arrays, params)
    costs.end('log_probs')
    stops = self._tokenizer.special.stop_ids
    ended = np.array([ids[-1] in stops for ids in completions])
    batch, figures = plan.estimate(Rollout(arrays, scores, ended))
    lengths = np.array([len(ids) for ids in completions])
    figures |= {
      'completions/mean_length': float(lengths.mean()),
      'completions/min_length': int(lengths.min()),
      'completions/max_length': int(lengths.max()),
      'completions/clipped_ratio': float(1 - ended.mean()),
      'rollout/tokens_per_second': float(lengths.sum() / seconds),
    }
    return batch, figures

  def _draw(self, window: int, prompts: list[RolloutPrompt], params: Any) -> list[list[int]] | None:
    """The ids of completions, with the token that ends each."""
    stops = self._tokenizer.special.stop_ids
    parts, count = self._parts, jax.process_count()
    mesh, full = parts.mesh, parts.objective.full(params)
    own_params = {n: x for n, x in full.items() if n not in ('heads', 'parts')}
    if count > 1:
      boxed = jax.eval_shape(functools.partial(forward.init, parts.model), jax.random.key(0))
      mesh, own_params = sharding.copy_per_process(
        own_params, {n: boxed[n] for n in own_params}, parts.rules, parts.model.d_model
      )
    decoder = Decoder.of(self._parts.model, own_params, self._tokenizer)
    # What the files of an imported model forbid is no part of the policy.
    decoder = decoder._replace(constraints=ANY)
    seeds = np.random.SeedSequence([self._parts.config.seed, window])
    requests = [
      Request(
        ids=prompt.ids,
        max_tokens=self._plan.max_tokens,
        sampler=Sampler(temperature=self._plan.temperature),
        seed=int(seed),
      )
      for prompt, seed in zip(prompts, seeds.generate_state(len(prompts)), strict=True)
    ][jax.process_index() :: count]
    share = -(-len(prompts) // count), self._plan.max_tokens
    ids_NL = np.full(share, -1, np.int32)
    polls = preemption.Polls(ids_NL.size)
    with sharding.use(mesh, parts.rules):
      for number, ids in generate(
        decoder,
        requests,
        # A process may have no share, of few completions.
        rows=max(min(self._plan.decode_rows, len(requests)), 1),
        stop_when=lambda ids: polls() or ids[-1] in stops,
      ):
        ids_NL[number, : len(ids)] = ids
        watchdog.enter(watchdog.now().name)  # restarts the phase's deadline
    if polls.finish():
      return None
    # The shares of the processes, [process, place, token].
    shares = np.reshape(multihost_utils.process_allgather(ids_NL), (-1, *share))
    tokens = shares.swapaxes(0, 1).reshape(-1, self._plan.max_tokens)
    return [ids[ids >= 0].tolist() for ids in tokens[: len(prompts)]]

  def _score(self, prompts: list[RolloutPrompt], tokens: list[list[int]]) -> np.ndarray:
    """The reward of each completion."""
    stops, completions = self._tokenizer.special.stop_ids, []
    for prompt, ids in zip(prompts, tokens, strict=True):
      inside = ids[:-1] if ids[-1] in stops else ids
      stream = TextStream(self._tokenizer, Request(prompt.ids, 1))
      text = ''.join(map(stream.push, inside)) + stream.finish()
      message = [{'role': 'assistant', 'content': text}]
      completions.append(text if isinstance(prompt.content, str) else message)
    columns = {name: [prompt.columns.get(name) for prompt in prompts] for name in self._columns}
    contents = [prompt.content for prompt in prompts]
    return self._plan.reward(contents, completions, columns)

  def _arrays(self, prompts: list[RolloutPrompt], tokens: list[list[int]]) -> dict[str, np.ndarray]:
    """The rows: a prompt, its completion, and padding."""
    shape = len(tokens), self._length + 1
    ids, mask = np.zeros(shape, np.int32), np.zeros(shape, np.float32)
    for i, (prompt, new) in enumerate(zip(prompts, tokens, strict=True)):
      start, stop = len(prompt.ids), len(prompt.ids) + len(new)
      ids[i, :stop] = [*prompt.ids, *new]
      mask[i, start:stop] = 1
    return {'inputs': ids[:, :-1], 'targets': ids[:, 1:], 'mask': mask[:, 1:]}

  def _measured(self, arrays: Batch, params: Any) -> Batch:
    """The figures of policy and reference for the completions."""
    figures: dict[str, list[np.ndarray]] = {}
    for start in range(0, self._size, self._rows):
      part = slice(start, start + self._rows)
      rows = {n: arrays[n][part] for n in ('inputs', 'targets')}
      batch = self._parts.put_whole(rows, self._rows)
      outputs = np.asarray(self._outputs(params, batch))
      log_probs, values = np.split(outputs, [self._length], axis=1)
      named = {'old_log_probs': log_probs}
      if values.size:
        named['old_values'] = values
      if self._reference is not None:
        ref_log_probs = self._log_probs(self._reference(params), batch)
        named['ref_log_probs'] = np.asarray(ref_log_probs)
      for name, x in named.items():
        figures.setdefault(name, []).append(x)
    mask = arrays['mask']
    return {n: np.concatenate(x) * mask for n, x in figures.items()}


def last_means(workdir: str) -> dict[str, float]:
  """The metrics of the last logged rollouts of a run."""
  lines = [x for x in metrics.read(workdir) if 'completions/mean_length' in x]
  if not lines:
    return {}
  names = ('reward', 'completions/', 'objective/', 'frac_reward')
  means = {n: x for n, x in lines[-1].items() if n.startswith(names)}
  measured = [line for line in lines if 'memory/rollout' in line][-1:]
  memory = {n: x for x in measured for n, x in x.items() if n.startswith('memory/')}
  return means | memory
