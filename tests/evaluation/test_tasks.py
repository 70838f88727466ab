# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Prompts and figures of the tasks, on files written here."""

import json
import math
import re

import numpy as np
import pytest

from gpt_jax.core.spec import UsageError
from gpt_jax.evaluation import figures, likelihood, suite
from gpt_jax.evaluation.score import Score
from gpt_jax.tasks.prompts import Prompt
from tests.support.tasks import Believer, build, measure, write


def test_lambada_asks_for_the_last_word(tmp_path):
  path = tmp_path / 'lambada' / 'lambada_test.jsonl'
  write(path, {'text': 'In a day\n\nHe said "no'}, {'text': 'She saw the zoo'})
  write(path.with_name('x.jsonl'), {'text': 'a no'})
  scorer = Believer()
  found = measure(tmp_path, 'lambada', scorer=scorer)
  assert [(r.context, r.continuation) for r in scorer.seen] == [
    ('In a day\n\nHe said', ' "no'),
    ('She saw the', ' zoo'),
  ]
  losses = [sum(b' "no') / 1000, sum(b' zoo') / 1000]
  assert found['eval/lambada/accuracy'] == 0.5  # 'z' is 122
  assert found['eval/lambada/accuracy_stderr'] == pytest.approx(
    np.std([0, 1], ddof=1) / math.sqrt(2)
  )
  assert found['eval/lambada/perplexity'] == pytest.approx(math.exp(np.mean(losses)))
  assert found['eval/lambada/majority'] == 0.5


def test_blimp_counts_each_paradigm_once(tmp_path):
  def pair(good, bad, name):
    return {'sentence_good': good, 'sentence_bad': bad, 'UID': name}

  write(
    tmp_path / 'blimp' / 'a.jsonl',
    *[pair('aa', 'ab', 'a'), pair('ac', 'ad', 'a'), pair('b', 'a', 'a')],
    pair('ba', 'ab', 'a'),  # a tie is not right
  )
  write(tmp_path / 'blimp' / 'b.jsonl', pair('a', 'b', 'b'))
  found = measure(tmp_path, 'blimp', shots=(0, 3))
  assert found['eval/blimp/accuracy/a'] == 0.5
  assert found['eval/blimp/accuracy'] == 0.75
  error = np.std([1, 1, 0, 0], ddof=1) / 2 / 2
  assert found['eval/blimp/accuracy_stderr'] == pytest.approx(error)
  assert found['eval/blimp/accuracy/a_stderr'] == pytest.approx(error * 2)
  assert not any('shots' in key for key in found)


def test_a_limit_takes_the_first_examples_of_each_group(tmp_path):
  path = tmp_path / 'blimp' / 'a.jsonl'
  pairs = [
    {'sentence_good': good, 'sentence_bad': bad, 'UID': name}
    for name, good, bad in [
      *[('a', 'a', 'b'), ('a', 'b', 'a'), ('a', 'c', 'a'), ('b', 'a', 'c')],
      ('b', 'd', 'a'),
    ]
  ]
  write(path, *pairs)
  found = measure(tmp_path, 'blimp', limit=1)
  assert found['eval/blimp/examples'] == 2
  assert found['eval/blimp/accuracy'] == 1
  assert measure(tmp_path, 'blimp', limit=2)['eval/blimp/accuracy'] == 0.5
  lines = ['One line.', 'Another,', 'the last']
  (tmp_path / 'mine.txt').write_text('\n'.join(lines))
  found = measure(tmp_path, "text('mine.txt')", limit=2)
  assert found['eval/text/mine/bytes'] == len('One line.\nAnother,\n')
  questions = [{'question': f'{i}?', 'answers': [str(i)]} for i in range(5)]
  write(tmp_path / 'a' / 'qa.jsonl', *questions)
  found = measure(tmp_path, "qa('a/qa.jsonl')", limit=3)
  assert found['eval/qa/qa/examples'] == 3


def test_scores_of_a_part_are_kept_apart(tmp_path):
  path = tmp_path / 'lambada' / 'lambada_test.jsonl'
  write(path, *({'text': f'In a day {i}'} for i in range(5)))

  class Keeper(Believer):
    def requests(self, requests, journal, report):
      journal.start(str(len(requests)))
      journal.add({0: [1.0, 0]})
      return super().requests(requests, journal, report)

  folder = tmp_path / 'evaluations'
  for limit in (None, 2, 3, None):
    measure(tmp_path, 'lambada', scorer=Keeper(), limit=limit, folder=str(folder))
  heads = {p.name: p.read_text().split('\n')[0] for p in folder.iterdir()}
  assert len(heads) == 3
  for part, rows in (('limit-2', '2'), ('limit-3', '3'), ('lambada-0', '5')):
    (head,) = [head for name, head in heads.items() if part in name]
    assert json.loads(head)['rows'] == rows


def test_race_takes_answers_less_what_they_are_in_general(tmp_path):
  write(
    tmp_path / 'race' / 'test_middle.jsonl',
    {
      'article': 'Text.',
      'questions': ['Why?', 'Who _ ?'],
      'options': [['zz', 'a'], ['b', 'c']],
      'answers': ['B', 'B'],
    },
  )
  scorer = Believer()
  call = "race('race/*.jsonl', shown='', name='race')"
  found = measure(tmp_path, call, shots=(0,), scorer=scorer)
  prompt = 'Article: Text.\n\nQ: Why?\n\nA:'
  assert [(r.context, r.continuation) for r in scorer.seen[:4]] == [
    *[(prompt, ' zz'), ('A:', ' zz'), (prompt, ' a'), ('A:', ' a')]
  ]
  assert found['eval/race/accuracy'] == 0.5
  # The context changes nothing here: all are equal, and none is the answer.
  assert found['eval/race/accuracy_over_general'] == 0
  assert found['eval/race/chance'] == 0.5
  assert found['eval/race/majority'] == 1
  assert found['eval/race/examples'] == 2


def test_choices_are_compared_per_token_and_per_byte_too(tmp_path):
  write(
    tmp_path / 'mine.jsonl',
    # ' b' has the greater sum; ' aaaa' is the more probable per token.
    {'context': 'x', 'choices': ['b', 'aaaa'], 'label': 1},
    {'context': 'y', 'choices': ['a', 'é', 'c'], 'label': 0},
  )
  found = measure(tmp_path, "multiple_choice('mine.jsonl')")
  name = 'eval/multiple_choice/mine'
  assert found[f'{name}/accuracy'] == 0.5
  mean = sum(b' aaaa') / 5 < sum(b' b') / 2
  assert found[f'{name}/accuracy_per_token'] == (0.5 + 0.5 * mean)
  assert found[f'{name}/chance'] == pytest.approx((1 / 2 + 1 / 3) / 2)


def test_white_space_behind_a_choice_counts_as_in_lm_eval():
  examples = [Prompt('x:1', 'a', (' ab ', ' abcd'), 0)]
  scores = [[Score(-3.0, 1, 0, 0), Score(-4.4, 1, 0, 0)]]
  found = likelihood.accuracies(examples, scores)
  # lm-eval's acc_norm divides by len('ab ') and len('abcd').
  assert found['accuracy_per_character'] == 1


@pytest.mark.parametrize('shown', ['rest', 'mine.jsonl'])
def test_shots_are_other_examples_by_the_seed(tmp_path, caplog, shown):
  records = [{'context': f'c{i}', 'choices': [f'r{i}', f'w{i}'], 'label': 0} for i in range(7)]
  write(tmp_path / 'mine.jsonl', *records)
  call = f"multiple_choice('mine.jsonl', shown={shown!r}, name='mine')"
  told = []

  def prompts(**kwargs):
    scorer = Believer(kwargs.pop('context_length', 1000))
    found = measure(tmp_path, call, shots=(3,), scorer=scorer, **kwargs)
    told.append(found['eval/mine/3_shots/shots_shown'])
    return [r.context for r in scorer.seen[::2]]

  first = prompts()
  assert told == [3]
  for i, prompt in enumerate(first):
    shown = re.findall(r'c(\d) r(\d)\n\n', prompt)
    assert len({a for a, _ in shown} - {str(i)}) == 3
    assert all(a == b for a, b in shown)
    assert prompt.endswith(f'\n\nc{i}')
  assert len(set(first)) == 7
  assert prompts() == first != prompts(seed=1)
  assert not caplog.records
  # As many as there is room for: one is 7 bytes, the example itself 5.
  short = prompts(context_length=1 + 5 + 2 * 7)
  assert all(p.count('\n\n') == 2 for p in short)
  assert told[-1] == 2
  assert ': 2.00 of 3 solved examples were' in caplog.text
  for whole, part in zip(first, short, strict=True):
    assert whole.endswith(part)


def test_examples_that_exceed_the_context_are_counted(tmp_path):
  write(
    tmp_path / 'mine.jsonl',
    {'context': '', 'choices': ['a', 'b'], 'label': 0},
    {'context': '', 'choices': ['aaaa', 'b'], 'label': 0},
  )
  call = "multiple_choice('mine.jsonl')"
  found = measure(tmp_path, call, scorer=Believer(4))
  assert found['eval/multiple_choice/mine/examples'] == 1
  assert found['eval/multiple_choice/mine/left_out'] == 1
  assert found['eval/multiple_choice/mine/accuracy'] == 1


def test_piqa_and_its_labels(tmp_path):
  folder = tmp_path / 'piqa'
  pairs = [{'goal': 'Go', 'sol1': 'a', 'sol2': 'b'}] * 3
  write(folder / 'valid.jsonl', *pairs)
  (folder / 'valid-labels.lst').write_text('0\n1\n0\n')
  found = measure(tmp_path, 'piqa')
  assert found['eval/piqa/accuracy'] == pytest.approx(2 / 3)
  assert found['eval/piqa/majority'] == pytest.approx(2 / 3)


def test_hellaswag_without_what_wikihow_left(tmp_path):
  write(
    tmp_path / 'hellaswag' / 'hellaswag_val.jsonl',
    {
      'activity_label': 'Baking',
      'ctx': 'First [header] mix. [title] Then you',
      'endings': ['stir [step] it.', 'zzz'],
      'label': 0,
    },
  )
  scorer = Believer()
  measure(tmp_path, 'hellaswag', scorer=scorer)
  assert scorer.seen[0].context == 'Baking: First mix.. Then you'
  assert scorer.seen[0].continuation == ' stir it.'


def test_closed_book_answers_by_exact_match(tmp_path):
  write(
    tmp_path / 'q.jsonl',
    {'question': 'Where? it', 'answers': ['An It!', 'x']},
    {'question': 'Where? at', 'answers': 'no'},
  )
  scorer = Believer()
  found = measure(tmp_path, "qa('q.jsonl')", scorer=scorer, shots=(0, 1))
  assert scorer.seen[0] == 'Q: Where? it\nA:'
  assert found['eval/qa/q/exact_match'] == 0.5
  for shown in ('rest', 'q.jsonl'):
    scorer = Believer()
    call = f"qa('q.jsonl', shown={shown!r}, name='qa')"
    for seed in range(3):
      found = measure(tmp_path, call, (1,), scorer, seed=seed)
      assert found['eval/qa/1_shots/shots_shown'] == 1
    questions = 'Q: Where? it\nA:', 'Q: Where? at\nA:'
    assert scorer.seen[::2] == [f'{questions[1]} no\n\n{questions[0]}'] * 3
    assert scorer.seen[1::2] == [f'{questions[0]} An It!\n\n{questions[1]}'] * 3
  # No room for the one before the longer answer.
  found = measure(tmp_path, call, (1,), Believer(len(scorer.seen[0]) + 32 + 1))
  assert found['eval/qa/1_shots/shots_shown'] == 0.5


@pytest.mark.parametrize('stride', [1, 3, 7])
def test_every_token_is_predicted_once(stride):
  for num in (2, 5, 8, 9, 29):
    ids = np.arange(num, dtype=np.int32)
    rows = [*likelihood.windows(ids, 7, stride)]
    scored = np.concatenate([r.ids[-r.num_scored :] for r in rows])
    np.testing.assert_array_equal(scored, ids[1:])
    assert all(len(r.ids) <= 8 for r in rows)
    # With what came before: at least 7 - stride tokens after the first.
    assert all(len(r.ids) - r.num_scored > 7 - stride for r in rows[1:])


def test_perplexity_per_token_byte_and_word(tmp_path):
  text = ' \n = Title = \n \n One two <é> . \n'
  (tmp_path / 't.txt').write_text(text, encoding='utf-8')
  found = measure(tmp_path, "text('t.txt', stride=2, name='text')", scorer=Believer(5))
  total = sum(text.encode()) / 1000
  assert found['eval/text/words'] == 3 + 4 + 4
  assert found['eval/text/loss'] == pytest.approx(total / len(text.encode()))
  assert found['eval/text/word_perplexity'] == pytest.approx(math.exp(total / 11))
  assert found['eval/text/bits_per_byte'] == pytest.approx(total / len(text.encode()) / math.log(2))
  # The windows of 5, then 2 tokens: a ratio's error from what each differs.
  ids = text.encode()
  parts = [ids[:5], *(ids[i : i + 2] for i in range(5, len(ids), 2))]
  rest = [sum(p) / 1000 - total / len(ids) * len(p) for p in parts]
  assert sum(rest) == pytest.approx(0)
  error = np.std(rest, ddof=1) * math.sqrt(len(parts)) / len(ids)
  for name, expected in {
    'loss': error,
    'perplexity': error * found['eval/text/perplexity'],
    'bits_per_byte': error / math.log(2),
    'byte_perplexity': error * found['eval/text/byte_perplexity'],
    'word_perplexity': error * len(ids) / 11 * math.exp(total / 11),
  }.items():
    assert found[f'eval/text/{name}_stderr'] == pytest.approx(expected)


def test_an_untrained_models_perplexity_of_few_long_words(tmp_path):
  (tmp_path / 't.txt').write_text('antidisestablishmentarianism')
  found = measure(tmp_path, "text('t.txt')", scorer=Believer(unit=1))
  assert found['eval/text/t/byte_perplexity'] > 1e40
  assert 'eval/text/t/word_perplexity' not in found


def test_the_error_of_a_ratio_is_that_of_the_jackknife():
  rng = np.random.default_rng(0)
  counts = rng.integers(1, 99, 499)
  sums = 3.0 * counts + rng.normal(size=499) * counts
  found = figures.ratio('x', sums, counts)
  without = (sums.sum() - sums) / (counts.sum() - counts)
  variance = 498 / 499 * np.square(without - without.mean()).sum()
  assert found['x_stderr'] == pytest.approx(math.sqrt(variance), rel=0.01)
  alike = figures.ratio('x', sums, [7] * 499)
  assert alike == pytest.approx(figures.mean('x', sums / 7))


@pytest.mark.parametrize('count', [3, 6, 7, 10])
def test_equal_figures_have_no_error(count):
  assert figures.mean('x', [0.1] * count)['x_stderr'] == 0


def test_all_files_are_read_before_anything_is_measured(tmp_path):
  write(tmp_path / 'a.jsonl', {'text': 'a b'}, {'text': 'c d'})
  write(tmp_path / 'q.jsonl', {'question': 'a', 'answers': 'b'})

  def check(calls, **kwargs):
    suite.check('--tasks', build(tmp_path, calls), **kwargs)

  calls = "lambada('a.jsonl', shown='none.jsonl'), text('a.jsonl')"
  check(calls)
  with pytest.raises(UsageError, match=r'none\.jsonl: no such file'):
    check(calls, shots=(0, 1))
  check("lambada('a.jsonl')", shots=(1,))
  with pytest.raises(UsageError, match='only 1 examples'):
    check("lambada('a.jsonl')", shots=(0, 2))
  with pytest.raises(UsageError, match='only 0 examples'):
    check("qa('q.jsonl', shown='q.jsonl')", shots=(0, 1))
  with pytest.raises(UsageError, match=r'^--tasks: text is a set of'):
    check("text('a.jsonl', name='text')", sets={'text': "text('x')"})


def test_labels_may_be_texts(tmp_path):
  write(tmp_path / 'a.jsonl', {'context': 'a', 'choices': ['b', 'c'], 'label': '1'})
  found = measure(tmp_path, "multiple_choice('a.jsonl')")
  assert found['eval/multiple_choice/a/accuracy'] == 0
