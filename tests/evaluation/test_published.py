# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Files as their authors publish them, and the prompts of GPT-3."""

import json
import math

import pytest

from gpt_jax.evaluation import likelihood
from gpt_jax.tasks.texts import PUBLISHED
from tests.support.tasks import Believer, build, measure, write


def asked(tasks_dir, call, shots=0, **kwargs):
  """Context and choices of each example, as a model reads them."""
  scorer = Believer(**kwargs)
  measure(tasks_dir, call, shots=(shots,), scorer=scorer)
  out = {}
  for request in scorer.seen:
    out.setdefault(request.context, []).append(request.continuation)
  return out


def put(path, text):
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(text, encoding='utf-8')


def test_lambada_with_a_blank(tmp_path):
  write(
    tmp_path / 'lambada' / 'lambada_test.jsonl',
    {'text': 'Alice was friends with Bob. Alice went to visit her friend Bob'},
    {'text': 'George bought a ball, a glove, and a\nbat '},
  )
  call = "lambada(form='blank')"
  alice = 'Alice was friends with Bob. Alice went to visit her friend ____. ->'
  george = 'George bought a ball, a glove, and a ____. ->'
  lead = 'Fill in blank:\n\n'
  assert asked(tmp_path, call) == {lead + alice: [' Bob'], lead + george: [' bat']}
  assert asked(tmp_path, call, shots=1) == {
    f'{lead}{george} bat\n\n{alice}': [' Bob'],
    f'{lead}{alice} Bob\n\n{george}': [' bat'],
  }
  # Without room the other goes, and what is to be done stays.
  room = len(f'{lead}{alice} Bob') + 1
  short = asked(tmp_path, call, shots=1, context_length=room)
  assert [*short] == [lead + alice, lead + george]
  (task,) = build(tmp_path, call)
  assert task.task.texts()[1][1] == 'George bought a ball, a glove, and a\nbat '


def test_lambada_as_its_authors_have_it(tmp_path):
  path = tmp_path / 'lambada' / 'lambada_test_plain_text.txt'
  put(path, 'he said " no\n\nshe saw the zoo\n')
  assert asked(tmp_path, 'lambada') == {'he said "': [' no'], 'she saw the': [' zoo']}


ARTICLES = {
  'middle/7.txt': {
    'article': 'It rains.',
    'questions': ['Wet?', 'Why _ ?', 'When?'],
    'options': [['yes', 'no'], ['rain', 'sun'], ['now', 'then']],
    'answers': ['A', 'A', 'B'],
    'id': 'middle7.txt',
  },
  'middle/31.txt': {
    'article': 'It is dry.',
    'questions': ['Wet?'],
    'options': [['yes', 'no']],
    'answers': ['B'],
    'id': 'middle31.txt',
  },
  'high/2.txt': {
    'article': 'Snow.',
    'questions': ['Cold?'],
    'options': [['so', 'no']],
    'answers': ['A'],
    'id': 'high2.txt',
  },
}


@pytest.fixture
def articles(tmp_path):
  for name, article in ARTICLES.items():
    put(tmp_path / 'RACE' / 'test' / name, json.dumps(article))
  return tmp_path


def test_race_from_its_folders(articles):
  found = measure(articles, "race, race(level='high')")
  assert found['eval/race/examples'] == 4
  assert found['eval/race/level_high/examples'] == 1
  (high,) = build(articles, "race(level='high')")
  assert high.task.texts() == [
    (str(articles / 'RACE' / 'test' / 'high' / '2.txt'), 'Article: Snow.\n\nQ: Cold?\n\nA: so')
  ]


def test_race_shows_questions_of_the_same_article(articles):
  call = "race(shown='article', name='race')"
  rain, dry = 'Article: It rains.\n\n', 'Article: It is dry.\n\n'
  wet, why, when = 'Q: Wet?\n\nA:', 'Q: Why _ ?\n\nA:', 'Q: When?\n\nA:'

  def prompts(shots, **kwargs):
    found = asked(articles, call, shots, **kwargs)
    assert len(found.pop('A:')) == 8
    return [*found]

  alone = [dry + wet, rain + wet, rain + why, rain + when]
  assert prompts(0) == alone
  assert prompts(9) == [
    dry + wet,
    f'{rain}{why} rain\n\n{when} then\n\n{wet}',
    f'{rain}{when} then\n\n{wet} yes\n\n{why}',
    f'{rain}{wet} yes\n\n{why} rain\n\n{when}',
  ]
  assert prompts(1) == [
    dry + wet,
    f'{rain}{when} then\n\n{wet}',
    f'{rain}{wet} yes\n\n{why}',
    f'{rain}{why} rain\n\n{when}',
  ]
  # A model without room for more than the article and the question.
  room = len(f'{rain}{why} rain') + 1
  assert prompts(1, context_length=room) == alone
  found = measure(articles, call, shots=(2,))
  assert found['eval/race/2_shots/shots_shown'] == (0 + 2 + 2 + 2) / 4
  (named,) = build(articles, call)
  assert named.task.texts()[0][1] == f'{dry}{wet} no'
  # The first questions; those shown are still all others of the article.
  found = measure(articles, call, shots=(0, 2), limit=2)
  assert found['eval/race/examples'] == 2
  assert found['eval/race/2_shots/shots_shown'] == (0 + 2) / 2


STORY = (
  'InputStoryid,InputSentence1,InputSentence2,InputSentence3,InputSentence4,'
  'RandomFifthSentenceQuiz1,RandomFifthSentenceQuiz2,AnswerRightEnding\n'
  '138d,Bob went out.,"It rained, so",he ran.,He felt good.,He sang.,'
  '"He ""slept"".",{right}\n'
)


@pytest.mark.parametrize(
  ('file', 'call'),
  [
    ('cloze_test_test__spring2016 - cloze_test_ALL_test.csv', 'story_cloze'),
    ('cloze_test_test__spring2016.csv', 'story_cloze'),
    (
      'cloze_test_val__winter2018-cloze_test_ALL_val - 1 - 1.csv',
      "story_cloze('val', year='2018')",
    ),
  ],
)
def test_story_cloze_by_its_own_names(tmp_path, file, call):
  path = tmp_path / 'story_cloze' / file
  put(path, STORY.format(right=2))
  story = 'Bob went out. It rained, so he ran. He felt good.'
  assert asked(tmp_path, call) == {story: [' He sang.', ' He "slept".']}
  (task,) = build(tmp_path, call)
  assert task.task.texts() == [(f'{path}:2', f'{story} He "slept".')]


def test_a_story_under_two_names_counts_once(tmp_path):
  folder = tmp_path / 'story_cloze'
  put(folder / 'cloze_test_test__spring2016.csv', STORY.format(right=2))
  put(folder / 'cloze_test_test__spring2016 - a.csv', STORY.format(right=2))
  (task,) = build(tmp_path, 'story_cloze')
  assert len(task.task.texts()) == 1


def test_hellaswag_as_published(tmp_path):
  """The texts are those of lm-eval 0.4's task `hellaswag`."""
  record = {
    'ind': 24,
    'activity_label': 'Roof shingle removal',
    'ctx_a': 'A man is sitting on a roof [header] in Rome.',
    'ctx_b': 'he and Ann',
    'ctx': 'A man is sitting on a roof [header] in Rome. he and Ann',
    'split': 'val',
    'split_type': 'indomain',
    'label': 3,
    'endings': ['use [title] Go', 'rip  it.', 'hold it. ', '[step] pull.'],
    'source_id': 'activitynet~v_-JhWjGDPHMY',
  }
  write(tmp_path / 'hellaswag' / 'hellaswag_val.jsonl', record)
  assert asked(tmp_path, 'hellaswag') == {
    'Roof shingle removal: A man is sitting on a roof in Rome. He and ann': [
      ' use. Go',
      ' rip it.',
      ' hold it.',
      '  pull.',
    ]
  }


@pytest.mark.parametrize(
  ('file', 'record'),
  [
    (
      'boolq/dev.jsonl',
      {'question': 'is snow cold', 'title': 'Snow', 'answer': True, 'passage': 'It is ice.'},
    ),
    (
      'BoolQ/val.jsonl',
      {'question': 'is snow cold?', 'passage': 'Snow -- It is ice.', 'idx': 0, 'label': True},
    ),
  ],
)
def test_boolq_as_published(tmp_path, file, record):
  write(tmp_path / file, record)
  prompt = 'Snow -- It is ice.\nquestion: is snow cold?\nanswer:'
  assert asked(tmp_path, 'boolq') == {prompt: [' no', ' yes']}
  found = measure(tmp_path, 'boolq')
  assert found['eval/boolq/accuracy'] == 0  # ' yes' is the longer
  label = next(name for name in record if name in ('answer', 'label'))
  write(tmp_path / file, record | {label: False})
  assert measure(tmp_path, 'boolq')['eval/boolq/accuracy'] == 1


def test_piqa_as_its_leaderboard_has_it(tmp_path):
  folder = tmp_path / 'physicaliqa-train-dev'
  write(folder / 'dev.jsonl', {'goal': 'Go', 'sol1': 'a', 'sol2': 'b'})
  put(folder / 'dev-labels.lst', '1\n')
  assert measure(tmp_path, 'piqa')['eval/piqa/accuracy'] == 0
  put(tmp_path / 'own.lst', '0\n')
  call = "piqa(labels='own.lst', name='piqa')"
  assert measure(tmp_path, call)['eval/piqa/accuracy'] == 1


def test_wikitext_as_it_is_unpacked(tmp_path):
  put(tmp_path / 'wikitext-2-raw' / 'wiki.test.raw', ' = A = \n b\n')
  assert measure(tmp_path, 'wikitext2')['eval/wikitext2/words'] == 6


def test_perplexity_is_of_the_words_before_detokenizing(tmp_path):
  text = " it was n't <unk> 's \n it was $ N \n"
  put(tmp_path / 'simple-examples' / 'data' / 'ptb.test.txt', text)
  put(tmp_path / 'mine.txt', text)
  shown = "it wasn't <unk>'s\nit was $N\n"
  calls = "ptb(detokenize=True, name='a'), text('mine.txt', detokenizer='ptb')"
  found = measure(tmp_path, calls)
  for name in ('a', 'text/mine-detokenizer_ptb'):
    values = {key.removeprefix(f'eval/{name}/'): value for key, value in found.items()}
    total = sum(shown.encode()) / 1000
    assert values['words'] == 5 + 4 + 2
    assert values['bytes'] == len(text) and values['tokens'] == len(shown)
    assert values['word_perplexity'] == pytest.approx(math.exp(total / 11))
    bits = total / len(text) / math.log(2)
    assert values['bits_per_character'] == pytest.approx(bits)
    assert values['kept_words'] == 0
    assert values['context'] == 1000
  plain = measure(tmp_path, 'ptb')
  assert plain['eval/ptb/tokens'] == len(text)
  assert 'eval/ptb/kept_words' not in plain


def test_bits_of_uniform_bytes(tmp_path, monkeypatch):
  class Uniform(Believer):
    def _score(self, ids):
      return super()._score(ids)._replace(log_prob=-len(ids) * math.log(256))

  text = 'a\nbé€ and more'
  put(tmp_path / 'enwik8', text)
  found = measure(tmp_path, 'enwik8', scorer=Uniform())
  assert found['eval/enwik8/bits_per_byte'] == pytest.approx(8)
  bits = 8 * len(text.encode()) / len(text)
  assert found['eval/enwik8/bits_per_character'] == pytest.approx(bits)
  # The last bytes cut the sign of the euro, whose rest is left out.
  row = PUBLISHED['enwik8']._replace(last_bytes=11)
  monkeypatch.setitem(PUBLISHED, 'enwik8', row)
  ((_, line),) = likelihood.published('enwik8')()(str(tmp_path)).texts()
  assert line == ' and more'
