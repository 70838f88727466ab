# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A calculator, a retriever and a translator."""

import math

import pytest

from gpt_jax.__main__ import main
from gpt_jax.core.spec import UsageError
from gpt_jax.tuning import tools
from tests.commands.test_sources import made


@pytest.mark.parametrize(
  ('query', 'value'),
  [
    ('1736271 + 284617183', '286353454'),
    ('184,624 - 18,371 =', '166253'),
    ('(2 + 3) * -4 / 2', '-10'),
    ('7 / 2', '3.5'),
    ('17 // 5 + 17 % 5', '5'),
    ('1 / 0', None),
    ('1e400', None),
    ('2 ** 9999', None),
    ('abs(3)', None),
    ('__import__("os")', None),
    ('True + 1', None),
    ('how many?', None),
    ('', None),
    ('-' * 199 + '1', '-1'),
    ('1+' * 100 + '1', None),
    ('0.1 + 0.2', '0.3'),
    ('0.3 % 0.1', '0'),
    ('1.1 * 3 - 3.3', '0'),
    ('1 / 3', '0.333333333333333'),
    ('2 / 3 * 3', '2'),
    ('1234567890.125 + 1', '1234567891.125'),
    ('-0.0 * 5', '0'),
    ('999999999999 * 999999999999', '999999999998000000000001'),
    ('1e20 + 1', '1e+20'),
    ('2.5e3', '2500'),
    ('1,234,567.5 * 2', '2469135'),
    ('1,000 + 1,000', '2000'),
    ('1,2', None),
    ('1,2 + 3', None),
    ('12,34', None),
    ('1,0000', None),
    ('1,000,00', None),
    ('0,123', None),
    ('1.000,5', None),
    ('.1,000', None),
    ('1_2', None),
    ('1e308 * 10', None),
    ('1e308 * 10 - 1e308 * 10', '0'),
    ('-1e300 * 1e300', None),
    ('1e308 / 1e-308', None),
    ('1e-300 / 1e300', '0'),
    ('9' * 200, '9' * 200),
    ('1if 1else 2', None),
    ('5 % 0', None),
    ('1j * 1j', None),
  ],
)
def test_the_calculator(query, value):
  assert tools.calculator(query) == ([] if value is None else [value])


TEXTS = {
  'a.txt': 'The cat sat on the\nred mat.\n\n  A dog barked at the cat.\n\n\n',
  'b.txt': 'Paris is in France.',
  'c.md': 'A whale is no fish.',
}
PARAGRAPHS = ['The cat sat on the red mat.', 'A dog barked at the cat.', 'Paris is in France.']


@pytest.fixture
def folder(tmp_path):
  for name, text in TEXTS.items():
    (tmp_path / name).write_text(text)
  return tmp_path


def bm25(query):
  """Equation 3.15 of each paragraph, word by word."""
  words = [p.lower().rstrip('.').split() for p in PARAGRAPHS]
  mean = sum(map(len, words)) / len(words)
  scores = []
  for own in words:
    score = 0.0
    for word in query.split():
      n = sum(word in other for other in words)
      tf = own.count(word)
      weight = math.log(1 + (len(words) - n + 0.5) / (n + 0.5))
      length = 0.25 + 0.75 * len(own) / mean
      score += weight * tf * 2.2 / (tf + 1.2 * length)
    scores.append(score)
  return scores


def test_the_best_paragraph_by_bm25(folder):
  retriever = tools.Retriever(str(folder))
  assert retriever.paragraphs == PARAGRAPHS
  for query in ('the cat', 'a red cat', 'is france', 'dog', 'the the cat'):
    scores = bm25(query)
    assert retriever(query) == [PARAGRAPHS[scores.index(max(scores))]]
    found = retriever._scores_PW @ retriever._words.transform([query]).T
    assert found.toarray()[:, 0].tolist() == pytest.approx(scores)
  assert retriever('a whale?') == [PARAGRAPHS[1]]  # for its `a`
  assert retriever('whales, fish!') == []


def test_texts_without_words(tmp_path):
  (tmp_path / 'a.txt').write_text('?!\n')
  with pytest.raises(UsageError, match=r'--retrieve=.*: holds no words'):
    tools.Retriever(str(tmp_path))
  with pytest.raises(UsageError, match=r'^--retrieve: no file matches'):
    tools.Retriever(str(tmp_path / 'none'))


@pytest.mark.slow
def test_the_translator_answers_its_own_queries(tmp_path, capsys):
  workdir = made(
    tmp_path / 'T',
    **{'model.num_encoder_layers': 1},
    **{'objective.name': "continuation(start='eos')"},
  )
  translate = tools.translator(str(workdir))
  flags = ['--source=Ein Hund.', '--temperature=0']
  assert main(['generate', f'--workdir={workdir}', *flags]) == 0
  assert translate('translate: Ein Hund.') == [capsys.readouterr().out.strip()]
  assert translate('Ein Hund.') == translate('translate:') == []


def test_a_decoder_is_no_translator(tmp_path):
  with pytest.raises(UsageError, match=r'--translator=.*: holds no model that'):
    tools.translator(str(made(tmp_path / 'W')))
