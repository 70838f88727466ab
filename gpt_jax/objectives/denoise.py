# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A text is restored from what corruptions have left of it (BART, section 2).

  L = -sum_t log P(x_t | x_<t, noise(x))

  objective.name = "denoise('permute, infill(0.3, 3)')"

The encoder reads the corrupted row; the decoder writes all of the row as it
was, <s> and </s> too, and starts with </s>. Documents of a row are corrupted
one by one, and the special tokens between them stay.
"""

from collections.abc import Sequence

import numpy as np

from gpt_jax import spec
from gpt_jax.data import sides
from gpt_jax.data.rows import MASKING, Keys, Rows
from gpt_jax.data.tokenizers.tokenizer import Tokenizer
from gpt_jax.nn.transformer import Transformer
from gpt_jax.objectives import encoder_decoder
from gpt_jax.objectives.base import Declared, Needs, Objective
from gpt_jax.objectives.noise import NOISES, Piece, Step, Vocabulary
from gpt_jax.spec import UsageError

_START = 'eos'


def denoise(noise: str = 'permute, infill') -> Declared:
  """Restoring of texts.

  Args:
    noise: a comma list of `NOISES`, done in this order: mask(rate),
      delete(rate), infill(rate=0.3, mean=3.0, random=0.0), permute, rotate.
      The default is the paper's, whose permutation comes first in its code.
  """
  field = 'objective.name: noise'
  steps = spec.build_all(field, noise, NOISES)
  by_sentence = 'permute' in [call.name for call in spec.parse(field, noise)]
  needs = Needs(
    attention='causal',
    encoder=True,
    starts=_START,
    rows=('stream', 'full_sentences', 'doc_sentences'),
    tokens=('mask',),
  )

  def build(model: Transformer, tokenizer: Tokenizer | None) -> Objective:
    vocabulary = vocabulary_of(tokenizer) if tokenizer else None
    if vocabulary and by_sentence and vocabulary.stop_id is None:
      raise UsageError(
        f'{field}={noise!r}: permute takes sentences apart at full stops, of '
        'which the tokenizer has no token; leave it out, or prepare the text '
        'with another tokenizer.name'
      )

    def make_batch(rows: Rows, keys: Keys) -> dict[str, np.ndarray]:
      if tokenizer is None or vocabulary is None:
        # Batches are made for their shapes alone.
        assert not rows.real.any(), 'rows of text need their tokenizer'
        return _batch(rows, rows.tokens, rows.real, 0)
      return denoising_batch(rows, keys, steps, tokenizer, vocabulary)

    return encoder_decoder.objective(model, make_batch)

  return Declared(needs, build)


def vocabulary_of(tokenizer: Tokenizer) -> Vocabulary:
  """What corruptions know of a tokenizer with a [MASK]."""
  mask_id = tokenizer.special.mask_id
  assert mask_id is not None, 'see choices.build'
  # As it stands at the end of a word.
  last = int(tokenizer.encode('a.')[-1])
  stop_id = last if tokenizer.decode([last]).strip() == '.' else None
  return Vocabulary(tokenizer.vocab_size, mask_id, stop_id)


def denoising_batch(
  rows: Rows,
  keys: Keys,
  steps: Sequence[Step],
  tokenizer: Tokenizer,
  vocabulary: Vocabulary,
) -> dict[str, np.ndarray]:
  """A batch whose sources are corrupted rows: see `encoder_decoder`.

  Args:
    rows: B rows of L tokens; the sources are as long.
    keys: of the rows.
    steps: corruptions, one after another.
    tokenizer: of the rows.
    vocabulary: of the tokenizer.
  """
  special = tokenizer.special
  open_BL = rows.real & (rows.tokens != special.eos_id)
  if rows.special is not None:
    open_BL &= ~rows.special
  starts_BL = tokenizer.word_starts(rows.tokens)
  sources_BM = np.full_like(rows.tokens, special.pad_id)
  mask_BM = np.zeros_like(rows.real)
  for i, generator in enumerate(keys.generators(MASKING)):
    real = rows.real[i]
    source = corrupted(
      *(rows.tokens[i, real], starts_BL[i, real], open_BL[i, real]),
      steps,
      generator,
      vocabulary,
    )
    sources_BM[i, : len(source)] = source
    mask_BM[i, : len(source)] = True
  first_id = sides.start_id(_START, special)
  return _batch(rows, sources_BM, mask_BM, first_id)


def _batch(
  rows: Rows, sources_BM: np.ndarray, mask_BM: np.ndarray, first_id: int
) -> dict[str, np.ndarray]:
  return {
    'sources': sources_BM,
    'source_mask': mask_BM,
    'inputs': sides.decoder_inputs(rows.tokens, first_id),
    'targets': rows.tokens,
    'weights': rows.real.astype(np.float32),
  }


def corrupted(
  tokens: np.ndarray,
  starts: np.ndarray,
  is_open: np.ndarray,
  steps: Sequence[Step],
  generator: np.random.Generator,
  vocabulary: Vocabulary,
) -> np.ndarray:
  """Corrupts each text of a row by itself; int32 [M], M at most L.

  Args:
    tokens: int32 [L], without padding.
    starts: bool [L], which tokens begin a word.
    is_open: bool [L], tokens of texts; the others stay in their places.
    steps: one after another.
    generator: of all choices.
    vocabulary: of the tokenizer.
  """
  cuts = np.flatnonzero(is_open[1:] != is_open[:-1]) + 1
  parts = [np.split(x, cuts) for x in (tokens, starts, is_open)]
  out = [np.zeros(0, np.int32)]
  for ids, first, inside in zip(*parts, strict=True):
    piece = Piece(ids, first)
    for step in steps if inside.any() else ():
      # Whatever was before it, the first token begins a word.
      piece.starts[:1] = True
      piece = step(piece, generator, vocabulary)
    out.append(piece.ids)
  return np.concatenate(out)
