# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Sentinels and masks of a source are tokens, and an answer goes in."""

import pytest

from gpt_jax.decoding import files
from tests.support.sentinels import ids, tokenizer


@pytest.mark.parametrize(
  'text, expected',
  [
    ('Paris is', ['▁Paris', '▁is']),
    (
      'Paris <extra_id_0> the  <extra_id_1> France.',
      ['▁Paris', '<extra_id_0>', '▁the', '<extra_id_1>', '▁France.'],
    ),
    ('<mask> is<mask>', ['<mask>', '▁is', '<mask>']),
    # No blank of this tokenizer, and no end of a document: text.
    ('Paris <extra_id_2> of', ['▁Paris', '<unk>', '▁of']),
    ('Paris <mask> </s>', ['▁Paris', '<mask>', '<unk>', '<unk>']),
  ],
)
def test_names_of_blanks_are_tokens(text, expected):
  """As T5 reads them in training: a sentinel in the place of some pieces."""
  found = files.encode_blanks(tokenizer(), text).tolist()
  assert found == ids(*expected)
  assert files.has_blanks(tokenizer(), found) == ('<mask>' in text or '_0' in text)
  source = files.SourceEntry('--source', text)
  assert source.encoded(tokenizer()).tolist() == found


SOURCE = ids('▁Paris', '<extra_id_0>', '▁of', '<extra_id_1>', '</s>')
FIRST = ids('<extra_id_0>', '▁is', '▁the', '▁capital')


@pytest.mark.parametrize(
  'source, answer, expected',
  [
    (SOURCE, [*FIRST, *ids('<extra_id_1>', '▁France.')], 'Paris is the capital of France.'),
    # In another order, a blank left out, one said twice after other words.
    (SOURCE, [*ids('<extra_id_1>', '▁France.'), *FIRST], 'Paris is the capital of France.'),
    (SOURCE, FIRST, 'Paris is the capital of'),
    (SOURCE, [], 'Paris of'),
    (SOURCE, [*ids('▁x'), *FIRST, *ids('<extra_id_0>', '▁x')], 'Paris is the capital of'),
    # BART writes the whole text.
    (ids('▁Paris', '<mask>'), ids('▁Paris', '▁is'), 'Paris is'),
  ],
)
def test_an_answer_is_put_in(source, answer, expected):
  assert files.fill_blanks(tokenizer(), source, answer) == expected
