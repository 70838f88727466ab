# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Compares a workdir with a Hugging Face folder on a text.

transformers runs the folder in PyTorch (extra `hf`), with its own tokenizer. Of
a language model the logits of each position are compared; of a masked one, a
name of its mask in the text is the mask, and the logits of a head for two texts
are compared, too; of an encoder-decoder those of the text with itself as the
source; of a fine-tuned head its outputs at the last token.
"""

import importlib
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gpt_jax import hf
from gpt_jax.core.config import Config
from gpt_jax.core.files import files, lines
from gpt_jax.core.nn.transformer import Transformer
from gpt_jax.core.rows import sides
from gpt_jax.core.spec import FailedError, UsageError, install
from gpt_jax.core.tokenizers import special
from gpt_jax.core.tokenizers import tokenizer as tokenizer_lib
from gpt_jax.core.training.parts import Parts
from gpt_jax.opening import importing
from gpt_jax.opening import models as trained_lib

# A folder with a tokenizer has one of these; without them, transformers may
# make up an empty tokenizer.
_VOCABULARIES = ('tokenizer.json', 'vocab.json', 'vocab.txt', 'tokenizer.model', 'spiece.model')

# Names in transformers of the outputs of a head for two texts.
PAIRS = ('seq_relationship_logits', 'sop_logits')


class Reference(NamedTuple):
  """The results of transformers for a text."""

  logits: np.ndarray  # float32 [L, V], or [1, K] of a fine-tuned head
  ids: list[int] | None  # of the text; None if there is no tokenizer
  why: str = ''  # the reason then
  # float32 [2], logits of a head for two texts; None: there is none.
  pair: np.ndarray | None = None


def run_reference(
  folder: str, text: str, ids: list[int], written: list[int] | None = None
) -> Reference:
  """Runs a Hugging Face folder's model on `ids`, its tokenizer on `text`.

  `written` are ids for the decoder of an encoder-decoder.
  """
  torch, transformers = library('torch'), library('transformers')
  config = files.read_json(
    os.path.join(folder, 'config.json'), remedy='copy the folder again', needs=('architectures',)
  )
  name = config['architectures'][0]
  if not hasattr(transformers, name):
    raise UsageError(
      f'{folder}: transformers {transformers.__version__} has no {name}; install a release that has'
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
    return Reference(logits.numpy(), None, why, pair)
  try:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **local)
    found = tokenizer(text)['input_ids']
  except Exception as e:  # whatever transformers raises for these files
    line = str(e).strip().partition('\n')[0]
    why = f'{type(e).__name__}: {line}'
    return Reference(logits.numpy(), None, why, pair)
  return Reference(logits.numpy(), [*found], '', pair)


def library(name: str) -> Any:
  """A library of the extra `hf`."""
  try:
    return importlib.import_module(name)
  except ImportError as e:
    raise UsageError(f'--check: needs {name}, which is missing; run {install("hf")}') from e


# The ids that a fine-tuned head reads, from a config, its tokenizer and a text.
Sequence = Callable[[Config, tokenizer_lib.Tokenizer, str], list[int]]


class Agreement(NamedTuple):
  """How far two sets of logits differ."""

  differences: np.ndarray  # float32 [L], the largest at each position
  ours: np.ndarray  # int [L], our most probable next tokens, or the class
  theirs: np.ndarray  # the same of transformers


def check(workdir: str, folder: str, text: str, tolerance: float, *, sequence: Sequence) -> None:
  """Prints how far a workdir and a Hugging Face folder differ on a text.

  Args:
    text: or the name of a file of it.
    tolerance: the most that logits may differ.

  Raises:
    FailedError: they differ by more, or in their token ids.
  """
  for name in ('torch', 'transformers'):
    library(name)  # an error before any work
  if os.path.isfile(text):
    text = lines.whole(text)
  tokenizer = tokenizer_lib.load(os.path.join(workdir, 'tokenizer'))
  parts, state = trained_lib.load_state(workdir)
  if parts.config.models:
    raise UsageError(
      f'--workdir={workdir}: has several models, which --check does not '
      'compare; use gpt_jax.hf.forward'
    )
  model, params = importing.model_of(parts, workdir), state.eval_params
  ids, tuned = encoded(parts, tokenizer, text), parts.config.get('finetune')
  pair, written, expected = None, (), ids
  if tuned and 'heads' in params:
    run = expected = sequence(parts.config, tokenizer, text)
    ours = head(parts, params, run)
  elif model.num_encoder_layers:
    run = ids[: model.context_length]
    written = (_written(parts, tokenizer, run),)
    ours = encoder_decoder(model, params, run, *written)
  else:
    run = ids[: model.context_length]
    ours, pair = language_model(_named(model, params, folder), params, run)
  others = run_reference(folder, text, run, *written)
  found = compared(ours, others.logits)
  if not (tuned and 'heads' in params):
    _print_positions(tokenizer, *written or (run,), found)
  failed = _print_conclusions(found, tolerance, len(run), len(expected))
  if pair is not None and others.pair is not None:
    largest = float(np.abs(pair - others.pair).max())
    print(f'two texts: logits differ by at most {largest:.2e}')
    failed += ['logits of two texts'] * (not largest <= tolerance)
  if others.ids is None:
    print(f'token ids: not compared ({others.why})')
  elif max(expected) >= tokenizer.vocab_size:
    print('token ids: not compared (fine-tuning added tokens to the rows)')
  else:
    same = others.ids == expected
    shown = 'the same' if same else f'{others.ids}, not {expected}'
    print(f'token ids: {shown}')
    failed += ['token ids'] * (not same)
  if failed:
    raise FailedError(f'{workdir} and {folder} differ in {", ".join(failed)}')


def _print_positions(tokenizer: tokenizer_lib.Tokenizer, ids: list[int], found: Agreement) -> None:
  print(f'{"position":8}  {"difference":>10}  token -> next: ours, theirs')
  for i, (token, difference) in enumerate(zip(ids, found.differences, strict=True)):
    shown = [repr(tokenizer.decode([int(t)])) for t in (token, found.ours[i], found.theirs[i])]
    print(f'{i:8}  {difference:10.2e}  {shown[0]} -> {shown[1]}, {shown[2]}')


def _print_conclusions(found: Agreement, tolerance: float, num_run: int, num_ids: int) -> list[str]:
  """Prints how far they agree; returns what differs too much."""
  if num_run < num_ids:
    print(f'the first {num_run} of {num_ids} tokens: the context has no more')
  at = int(found.differences.argmax())
  largest = float(found.differences[at])
  same = int((found.ours == found.theirs).sum())
  print(f'logits: differ by at most {largest:.2e}, at position {at} (tolerance {tolerance:g})')
  print(f'most likely: the same at {same} of {len(found.ours)} positions')
  return ['logits'] * (not largest <= tolerance)


def encoded(parts: Parts, tokenizer: tokenizer_lib.Tokenizer, text: str) -> list[int]:
  """The ids of a text as the model reads them."""
  needs = parts.objective.needs
  if needs.encoder:
    ids = sides.source_ids(tokenizer.encode(text), tokenizer.special)
    return ids.tolist()
  if 'mask' not in needs.tokens:
    return tokenizer.special.prompt(tokenizer.encode(text))
  ids = special.with_masks(tokenizer, text).tolist()
  ends = tokenizer.special.cls_id, tokenizer.special.sep_id
  return [i for i in (ends[0], *ids, ends[1]) if i is not None]


def _written(parts: Parts, tokenizer: tokenizer_lib.Tokenizer, source: list[int]) -> list[int]:
  """Ids for the decoder: its start token, then the source."""
  starts = parts.objective.needs.decoder_start
  first_id = sides.start_id(starts, tokenizer.special)
  return sides.decoder_inputs(np.array([source]), first_id)[0].tolist()


def _named(model: Transformer, params: Any, folder: str) -> Transformer:
  """The model with the origin that names its heads' outputs."""
  if isinstance(model, hf.Imported) or 'heads' not in params:
    return model
  fields = {name: getattr(model, name) for name in hf.transformer_fields()}
  return hf.imported(fields, hf.HeaderSource(folder).model.origin)


def language_model(
  model: Transformer, params: Any, ids: list[int]
) -> tuple[np.ndarray, np.ndarray | None]:
  """Our logits, float32 [L, V], and those of a head for two texts, [2]."""
  out = hf.forward(model, params, input_ids=np.array([ids]))
  logits = out['prediction_logits' if 'prediction_logits' in out else 'logits']
  pairs = [np.asarray(out[n][0], np.float32) for n in PAIRS if n in out]
  return np.asarray(logits[0], np.float32), pairs[0] if pairs else None


def encoder_decoder(
  model: Transformer, params: Any, source: list[int], written: list[int]
) -> np.ndarray:
  """Our logits of the decoder's ids given a source, float32 [L, V]."""
  out = hf.forward(
    model, params, input_ids=np.array([source]), decoder_input_ids=np.array([written])
  )
  if 'logits' not in out:
    raise UsageError(
      '--check: the folder is a body, whose class in transformers scores no '
      'vocabulary; use gpt_jax.hf.forward'
    )
  return np.asarray(out['logits'][0], np.float32)


def head(parts: Parts, params: Any, ids: list[int]) -> np.ndarray:
  """The outputs of a fine-tuned head for one sequence, float32 [1, K]."""
  batch = {
    'inputs': np.array([[ids]], np.int32),
    'lengths': np.array([[len(ids)]], np.int32),
    'labels': np.zeros(1, np.int32),
    'weights': np.ones(1, np.float32),
  }
  return np.asarray(parts.objective.outputs(params, batch), np.float32)


def compared(ours: np.ndarray, others: np.ndarray) -> Agreement:
  """How far two sets of logits differ."""
  if ours.shape != others.shape:
    raise UsageError(
      f'--check: our logits are {list(ours.shape)}, theirs '
      f'{list(others.shape)}: these are two models; give a workdir and its own '
      'folder'
    )
  differences = np.max(np.abs(ours - others), axis=-1)
  # NaN counts as a difference.
  differences = np.where(np.isnan(differences), np.inf, differences)
  return Agreement(differences, ours.argmax(-1), others.argmax(-1))
