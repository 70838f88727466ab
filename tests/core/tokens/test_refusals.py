# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What preparing refuses: the config, the error; no store is written."""

import pytest

from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokens import mixture, prepare
from gpt_jax.core.tokens.mixture import Order

SOURCES = {
  **{'low': "text('docs/0*.txt')", 'high': "text('docs/[123]*.txt')"},
  'unused': "text('gone')",
}
REFUSED = [
  *(('data.source', value, message) for value, message in (
    ("text('gone')", 'no file'),
    ("jsonl('docs')", 'data.source'),
    ('mixture(low:0.5, high:0.4)', 'data.source.*sum to 0.9'),
    ('mixture(low:1.5, high:-0.5)', 'positive'),
    ('mixture(low:0.5, low:0.5)', 'one weight'),
    ('mixture', 'one weight'),
    ("mixture(low:'x')", 'one weight'),
    ('mixture(low:True)', 'one weight'),
    ('mixture(low:1e999)', 'one weight'),
    ('mixture(low:0.99999, high:0.00001)', 'below 5e-05'),
    ('mixture(low:0.5, wide:0.5)',
     "has no 'wide', it has .*low.*; set data.sources.wide to"),
    ('mixture(low:1.0, from_token=5)', r'begin at tokens \[5\].*first'),
    ('mixture(low:1.0), stdlib', 'unknown.*stdlib|stdlib.*unknown'),
    ('mixture(low:0.5, unused:0.5)', 'data.sources.unused.*no file'),
    ('mixture(low:0.6, high:0.4, limit=7)', 'limit=7: limits the examples'),
    ("mixture(low:1, high:0, shares='examples')", 'give positive ones$'),
  )),
  *(('data.holdout', value, message) for value, message in (
    ("text('gone')", 'data.holdout.*no file'),
    ('documents(fraction=1e-9)', r'evaluation.*tail\(fraction=0.1\)'),
    ('documents(0.9999)', r'train.*tail\(fraction=0.1\)'),
  )),
  ('data.clean', "decontaminate('gone')", 'no file'),
  # Named held-out sets, and their words.
  *(('eval.sets', {name: value}, message) for name, value, message in (
    ('a/b', 'stdlib', 'eval.sets.a/b: is not a name'),
    ('validation', 'stdlib', 'eval.sets.validation: is not a name'),
    ('a', 'text(', r"eval.sets.a='text\('"),
    ('a', "text('none*')", r"eval.sets.a=.*no file matches 'none\*'"),
  )),
  ('eval.words', {'b': 3}, 'eval.words.b: eval.sets has no b'),
  ('eval.words', {'a': 0}, 'eval.words.a=0: give the number'),
  ('eval.words', {'a': 'many'}, "eval.words.a='many'"),
]  # fmt: skip


@pytest.mark.parametrize(('field', 'value', 'message'), REFUSED)
def test_configs(corpus, make_config, field, value, message):
  config = make_config(sources=SOURCES).unlock()
  if value not in ({'b': 3},) and field == 'eval.words':
    config.eval.sets = {'a': "text('docs/03.txt')"}
  section, name = field.split('.')
  config[section][name] = value
  with pytest.raises(UsageError, match=message) as error:
    prepare.ensure(config, 'D')
  assert '\n' not in str(error.value)
  assert not (corpus / 'D/manifest.json').exists()


def test_the_tail_of_a_mixture(make_config, corpus):
  config = make_config('mixture(low:0.5, high:0.5)', 'tail(fraction=0.1)', sources=SOURCES)
  with pytest.raises(UsageError, match='last source of a mixture'):
    prepare.ensure(config, 'D')


@pytest.mark.parametrize(
  ('call', 'rows', 'message'),
  [
    ('mixture(none:1.0)', {}, r'data.sources.none: .*one row of 14'),
    (
      "mixture(web:0.999, books:0.001, shares='tokens')",
      {'web': 997, 'books': 31},
      r'0\.001 of books is that of',
    ),
  ],
)
def test_orders(call, rows, message):
  tokens = {'web': 997, 'books': 31 * 13 * 10}
  with pytest.raises(UsageError, match=message):
    Order(mixture.phases(call), rows, length=13, seed=0, tokens=tokens)


def test_files_are_looked_at_before_a_tokenizer_is_trained(corpus, make_config, monkeypatch):
  def train(*args):
    raise AssertionError('begins to train')

  monkeypatch.setattr('gpt_jax.core.tokens.encode.start', train)
  (corpus / 'docs' / '99.txt').write_bytes(b'abc\n\xe9')
  config = make_config("text('docs/*.txt')").unlock()
  message = "99.txt:2: is not UTF-8: byte 0; .*on_error='skip' in the call"
  with pytest.raises(UsageError, match=message):
    prepare.ensure(config, 'D')
  config.data.source = "text('docs/0*.txt')"
  config.eval.sets = {'a': "text('docs/99.txt')"}
  with pytest.raises(UsageError, match=message):
    prepare.ensure(config, 'D')
  assert not (corpus / 'D').exists()


@pytest.mark.parametrize(
  'source, out',
  [
    ("text('docs/*.txt')", 'docs'),
    ("text('docs/0*.txt')", '.'),
    ('passages("text(\'docs/**/*.txt\')")', 'docs/../docs'),
    ("text('docs/*.txt')", 'link'),
  ],
)
def test_the_folder_of_the_corpus(corpus, make_config, source, out):
  (corpus / 'link').symlink_to(corpus / 'docs')
  before = sorted(corpus.rglob('*'))
  with pytest.raises(UsageError, match=r'holds .*docs/.*\.txt, from which the'):
    prepare.ensure(make_config(source), out)
  assert sorted(corpus.rglob('*')) == before
  store = prepare.ensure(make_config(source), 'docs/store')
  assert len(store)
