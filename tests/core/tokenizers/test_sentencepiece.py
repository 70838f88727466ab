# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""SentencePiece models of others: their ids are the library's own."""

import io

import numpy as np
import pytest
import sentencepiece as spm

from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers import tokenizer

WORDS = ['the cat sat on the mat', 'a cat and a dog 2026', 'Élan vital']
TEXTS = ['', ' ', '  the  cat\n\tsat ', '</s><s> x', '\u2581 \0 漢 ﬁ', '2026', 'the cat ' * 999]

# As different models have them: LLaMA's kind, T5's kind, one without eos.
LLAMA = {'byte_fallback': True, 'vocab_size': 290, 'model_type': 'bpe'}
LLAMA |= {'normalization_rule_name': 'identity'}
T5 = {'pad_id': 0, 'eos_id': 1, 'unk_id': 2, 'bos_id': -1, 'vocab_size': 30}
NO_EOS = {'eos_id': -1, 'vocab_size': 30, 'control_symbols': ['<sep>']}


def write(path, options):
  """Trains a model as others do; returns what it gives for `TEXTS`."""
  written = io.BytesIO()
  spm.SentencePieceTrainer.Train(
    sentence_iterator=iter(WORDS * 3),
    model_writer=written,
    hard_vocab_limit=False,
    minloglevel=2,
    **options,
  )
  path.write_bytes(written.getvalue())
  return spm.SentencePieceProcessor(model_proto=written.getvalue())


@pytest.mark.parametrize(
  ('options', 'arguments', 'eos_id'),
  [(LLAMA, '', 2), (T5, '', 1), (NO_EOS, ", eos='<sep>'", 2), (T5, ", eos='<pad>'", 0)],
)
def test_ids_are_those_of_the_library(tmp_path, options, arguments, eos_id):
  path = tmp_path / 'foreign.model'
  library = write(path, options)
  made = tokenizer.build(f'sentencepiece_file({str(path)!r}{arguments})', [])
  assert (made.vocab_size, made.eos_id) == (library.vocab_size(), eos_id)
  made.save(str(tmp_path / 'saved'))
  loaded = tokenizer.load(str(tmp_path / 'saved'))
  assert loaded.fingerprint == made.fingerprint
  assert loaded.eos_id == eos_id
  for text, ids in zip(TEXTS, made.encode_batch(TEXTS), strict=True):
    np.testing.assert_array_equal(ids, library.encode(text))
    np.testing.assert_array_equal(loaded.encode(text), ids)
    assert made.decode([*ids, eos_id]) == library.decode(ids.tolist())
    assert eos_id not in ids


def test_what_cannot_be_read_is_named(tmp_path):
  path = tmp_path / 'x.model'
  call = f'sentencepiece_file({str(path)!r})'
  write(path, NO_EOS)
  with pytest.raises(UsageError, match=r"end of a document .*eos='<unk>'"):
    tokenizer.build(call, [])
  with pytest.raises(UsageError, match="has no piece '<eot>'"):
    tokenizer.build(f"{call[:-1]}, eos='<eot>')", [])
