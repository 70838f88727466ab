# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rows of sentences in a run: hosts, the ledger, and what is refused."""

from typing import Any

import pytest

from configs import base
from gpt_jax.__main__ import main
from gpt_jax.core import config as config_lib
from gpt_jax.core.rows import batch_rows, ledger, row_order
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokens import prepare
from gpt_jax.core.training import workdir
from tests.support.sentence_store import EOS, store_of
from tests.support.sentence_store import corpus as random_corpus


@pytest.mark.parametrize('rows', ['doc_sentences', 'full_sentences', 'pairs'])
def test_the_ledger_names_documents_and_sentences(rows):
  documents = random_corpus(31)
  store = store_of(documents, rows)
  arguments: Any = dict(seed=5, start=0, stop=7, rows=batch_rows.even(5, 19))
  batches = row_order.batches(store, **arguments, make_batch=lambda rows, keys: rows._asdict())
  flat = [[t for s in d for t in s] + [EOS] for d in documents]
  sentences = [s for d in documents for s in d or [[]]]
  for step, batch in zip(ledger.steps(store, **arguments), batches, strict=True):
    for i, row in enumerate(step.rows):
      real = batch['real'][i] & ~batch['special'][i]
      tokens = batch['tokens'][i][real].tolist()
      claimed = [
        [t for d, start, stop in part for t in flat[d][start:stop] if t != EOS]
        for part in (row.spans, row.second)
      ]
      assert claimed[0] + claimed[1] == tokens
      assert len(row.sentences) == 2 if rows == 'pairs' else not row.second
      for text, (first, stop) in zip(claimed, row.sentences, strict=False):
        assert text[0] in sentences[first]
        assert text[-1] in sentences[stop - 1]
      if rows == 'pairs':
        assert row.pair == batch['pair'][i]
        other = row.spans[0].document != row.second[0].document
        assert other == bool(row.pair)


def test_a_config_whose_parts_do_not_fit_is_refused():
  config: Any = base.get_config().unlock()
  config.data.rows = 'pairs'
  with pytest.raises(UsageError, match=r"data.rows='pairs': .*='terminal'"):
    config_lib.resolve(config)
  config.data.sentences = 'terminal'
  config.tokenizer.name = 'bytes'
  with pytest.raises(UsageError, match=r"'bytes': has no \[CLS\].*data.rows="):
    workdir.check_tokenizer(config)
  config.model.attention = 'bidirectional'
  config.objective.name = "masked(pair='order')"
  with pytest.raises(UsageError, match=r"data.rows='pairs'.*pair='order'.*\"pairs\('order'\)\""):
    config_lib.check_objective(config)
  config.data.rows = "pairs('order')"
  config_lib.check_objective(config)


def test_inspect_names_both_texts_of_a_row(corpus, capsys):
  pieces = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', 'alpha', '##1']
  (corpus / 'vocab.txt').write_text('\n'.join(pieces))
  config: Any = base.get_config().unlock()
  config.data.update(source="text('docs/*.txt')", rows='pairs', holdout='none')
  config.data.sentences = 'lines'
  config.tokenizer.name = "wordpiece_file('vocab.txt')"
  config.model.update(context_length=31, vocab_size=len(pieces))
  config.model.update(attention='bidirectional')
  config.objective.name = "masked(pair='next')"
  config.schedule.num_steps = 9
  config = config_lib.resolve(config)
  store = prepare.ensure(config, 'W/data')
  (corpus / 'W' / 'config.json').write_text(config_lib.to_json(config))
  main(['inspect', '--workdir=W', '--steps=4', '--text'])
  lines = capsys.readouterr().out.splitlines()
  size = config.batch.size
  (step,) = ledger.steps(store, seed=config.seed, start=3, stop=4, rows=batch_rows.even(size, 31))
  made = store.tokenizer()
  for i, row in enumerate(step.rows):
    head, *sentences, text, second = lines[i * 5 : i * 5 + 5]
    a, b = row.spans[0], row.second[0]
    joint = 'not followed by' if row.pair else 'followed by'
    assert head.endswith(
      f': documents {a.document} [{a.start}:{a.stop}], {joint} {b.document} [{b.start}:{b.stop}]'
    )
    assert sentences == [f'sentences {p} to {q - 1}' for p, q in row.sentences]
    for shown, tokens in zip((text, second), row.texts, strict=True):
      assert shown == made.decode(store.tokens(tokens.start, tokens.stop))
  assert len(lines) == 5 * size
