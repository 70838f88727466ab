# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A run whose token table starts from word vectors: `optim.vectors`.

A resumed run reads its own checkpoints, and does not need the file.
"""

import os

import numpy as np

from gpt_jax.core.config import Config
from gpt_jax.core.nn import params as params_lib
from gpt_jax.core.nn.build import ModelChoices
from gpt_jax.core.objectives import choices as objectives
from gpt_jax.core.optim.train_state import TrainState
from gpt_jax.core.runtime.log import log
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers import tokenizer as tokenizer_lib
from gpt_jax.core.tokenizers.simple import WordList
from gpt_jax.core.tokenizers.tokenizer import Tokenizer
from gpt_jax.core.training import parts as parts_lib
from gpt_jax.core.training.origins import Origin
from gpt_jax.core.training.parts import Parts
from gpt_jax.opening import vectors


def _check(config: Config, workdir: str) -> None:
  """Checks the file, and the fields that word vectors do not work with."""
  optim, given = config.optim, f'optim.vectors={config.optim.vectors!r}'
  if optim.start:
    raise UsageError(
      f'{given}: optim.start={optim.start!r} gives the table of tokens too; leave one of them empty'
    )
  if objectives.needs(config.objective.name).frozen:
    raise UsageError(
      f'{given}: objective.name={config.objective.name!r} starts from its '
      'teacher, or at random; leave it empty'
    )
  choice = ModelChoices.of(config.model).input
  if choice.embedding and not choice.reader:
    raise UsageError(
      f"{given}: model.input={config.model.input!r} has several tables; take 'tokens'"
    )
  call = tokenizer_lib.single(config.tokenizer.name)[-1]
  if call.name not in ('words', 'words_file', 'saved'):
    raise UsageError(
      f'{given}: the tokens of tokenizer.name={config.tokenizer.name!r} are '
      "not words; take 'words' or 'words_file'"
    )
  is_new = not os.path.exists(os.path.join(workdir, 'config.json'))
  if is_new and not os.path.isfile(optim.vectors):
    raise UsageError(f'optim.vectors={optim.vectors!r}: no such file; name a file of word vectors')


def _first_state(parts: Parts, tokenizer: Tokenizer) -> TrainState:
  """The first state, with the vectors of words in the table that reads them."""
  path, sources = parts.config.optim.vectors, tokenizer.sources
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
    'optim.vectors=%s: has the vectors of %d of %d tokens; the others are drawn',
    path,
    found.found_V.sum(),
    len(found.found_V),
  )
  more = (0, table.shape[0] - len(found.found_V))
  return parts_lib.initial_state(
    parts,
    {name: np.pad(found.values_VD, (more, (0, 0)))},
    {name: np.pad(found.found_V, more)[:, None]},
  )


VECTORS = Origin(_check, _first_state)
