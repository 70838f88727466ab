# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What transformers makes of a text, in PyTorch; the extra `hf` has both."""

import importlib
import os
from typing import Any, NamedTuple

import numpy as np

from gpt_jax.data import json_file
from gpt_jax.spec import UsageError, install

# One of them is in a folder with a tokenizer; without, transformers may make up
# an empty one.
_VOCABULARIES = (
  *('tokenizer.json', 'vocab.json', 'vocab.txt'),
  *('tokenizer.model', 'spiece.model'),
)

# What transformers calls the outputs of a head of two texts.
PAIRS = ('seq_relationship_logits', 'sop_logits')


class Theirs(NamedTuple):
  """What transformers makes of a text.

  Attributes:
    logits: float32 [L, V], or [1, K] of a head.
    ids: of the text; None: there is no tokenizer.
    why: there is none.
    pair: float32 [2], of a head of two texts; None: there is none.
  """

  logits: np.ndarray
  ids: list[int] | None
  why: str = ''
  pair: np.ndarray | None = None


def theirs(
  folder: str, text: str, ids: list[int], written: list[int] | None = None
) -> Theirs:
  """Runs the folder's own class, and its tokenizer.

  Args:
    folder: of Hugging Face.
    text: for the tokenizer.
    ids: for the model.
    written: for the decoder of an encoder-decoder; None: it is none.

  Raises:
    UsageError: torch or transformers is missing, or the folder holds nothing
      that they run.
  """
  torch, transformers = library('torch'), library('transformers')
  config = json_file.read(
    os.path.join(folder, 'config.json'),
    remedy='copy the folder again',
    needs=('architectures',),
  )
  name = config['architectures'][0]
  if not hasattr(transformers, name):
    raise UsageError(
      f'{folder}: transformers {transformers.__version__} has no {name}; '
      'install a release that has'
    )
  local = {'local_files_only': True}
  made = getattr(transformers, name).from_pretrained(folder, **local)
  model, given, pair = made.float().eval(), torch.tensor([ids]), None
  with torch.inference_mode():
    if name.endswith('DoubleHeadsModel'):
      at = torch.tensor([[len(ids) - 1]])
      logits = model(given[None], mc_token_ids=at).mc_logits
    elif name.endswith('ForSequenceClassification'):
      logits = model(given).logits
    elif name.endswith('ForPreTraining'):
      out = model(given)
      logits = out.prediction_logits[0]
      pair = next(out[n][0].numpy() for n in PAIRS if n in out)
    elif written is not None:
      decoded = torch.tensor([written])
      logits = model(given, decoder_input_ids=decoded).logits[0]
    else:
      logits = model(given).logits[0]
  if not any(os.path.exists(os.path.join(folder, n)) for n in _VOCABULARIES):
    why = f'{folder} has no tokenizer'
    return Theirs(logits.numpy(), None, why, pair)
  try:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **local)
    found = tokenizer(text)['input_ids']
  except Exception as e:  # whatever transformers raises for these files
    line = str(e).strip().partition('\n')[0]
    why = f'{type(e).__name__}: {line}'
    return Theirs(logits.numpy(), None, why, pair)
  return Theirs(logits.numpy(), [*found], '', pair)


def library(name: str) -> Any:
  """A library of the extra `hf`.

  Raises:
    UsageError: it is missing.
  """
  try:
    return importlib.import_module(name)
  except ImportError as e:
    raise UsageError(
      f'--check: needs {name}, which is missing; run {install("hf")}'
    ) from e
