# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tasks from sets that TensorFlow Datasets has prepared, made here."""

import types

import numpy as np
import pytest

from gpt_jax.core.files import tfds
from gpt_jax.core.spec import UsageError
from tests.support.tasks import Believer, build, measure

library = pytest.importorskip('tensorflow_datasets', reason='needs the extra tfds')


def prepare(folder, name, config, features, **splits):
  """Writes a set as TFDS does, with the features of the published one."""
  one = library.core.BuilderConfig(name=config) if config else None
  fields = {
    'name': name,
    'VERSION': library.core.Version('1.0.0'),
    'BUILDER_CONFIGS': [one] if one else [],
    '_info': lambda self: library.core.DatasetInfo(
      builder=self, features=library.features.FeaturesDict(features)
    ),
    '_split_generators': lambda self, manager: {
      split: self._generate_examples(rows) for split, rows in splits.items()
    },
    '_generate_examples': lambda self, rows: enumerate(rows),
  }
  base = library.core.GeneratorBasedBuilder
  made = types.new_class(
    name, (base,), {'skip_registration': True}, lambda body: body.update(fields)
  )
  with tfds._quiet():
    made(data_dir=str(folder), file_format='array_record').download_and_prepare()


@pytest.fixture
def sets(tmp_path, monkeypatch):
  monkeypatch.setenv('TFDS_DATA_DIR', str(tmp_path))
  text = library.features.Text()
  texts = library.features.Sequence(library.features.Text())
  stories = [
    {'context': 'It rained.', 'endings': ['He ran.', 'He sat.'], 'label': n} for n in (1, 2)
  ]
  prepare(
    tmp_path,
    'story_cloze',
    '2016',
    {'context': text, 'endings': texts, 'label': np.int32},
    test=stories,
    validation=[{**stories[0], 'context': 'It snowed.'}],
  )
  names = ('question', 'passage', 'title')
  prepare(
    tmp_path,
    'bool_q',
    '',
    {**dict.fromkeys(names, text), 'answer': np.bool_},
    validation=[{'question': 'is it', 'passage': 'Yes.', 'title': 'T', 'answer': True}],
  )
  names = ('id', 'goal', 'sol1', 'sol2')
  prepare(
    tmp_path,
    'piqa',
    '',
    {**dict.fromkeys(names, text), 'label': library.features.ClassLabel(num_classes=2)},
    validation=[{'id': '', 'goal': 'Go', 'sol1': 'b', 'sol2': 'é', 'label': 1}],
  )
  prepare(
    tmp_path,
    'web_questions',
    '',
    {'url': text, 'question': text, 'answers': texts},
    test=[{'url': '', 'question': 'Where? it', 'answers': ['x', 'it']}],
  )
  return tmp_path


def prompts(folder, call, shots=0):
  scorer = Believer()
  found = measure(folder, call, shots=(shots,), scorer=scorer)
  return [(r.context, r.continuation) for r in scorer.seen], found


def test_published_tasks_are_read_from_their_sets(sets):
  story = 'It rained.'
  seen, found = prompts('tfds:', 'story_cloze')
  assert seen == [(story, ' He ran.'), (story, ' He sat.')] * 2
  assert found['eval/story_cloze/accuracy'] == 0.5  # the labels are 1 and 2
  seen, found = prompts('tfds:', "story_cloze(name='s')", shots=1)
  assert seen[0] == (f'It snowed. He ran.\n\n{story}', ' He ran.')
  prompt = 'T -- Yes.\nquestion: is it?\nanswer:'
  seen, found = prompts('tfds:', 'boolq')
  assert seen == [(prompt, ' no'), (prompt, ' yes')]
  assert found['eval/boolq/accuracy'] == 0
  seen, found = prompts('tfds:', 'piqa')
  assert seen == [('Go', ' b'), ('Go', ' é')]
  assert found['eval/piqa/accuracy'] == 0


def test_a_set_is_named_in_place_of_a_file(sets):
  (named,) = build('nowhere', "piqa('tfds:piqa:validation', shown='')")
  assert named.name == 'piqa/tfds_piqa_validation-shown_none'
  assert named.task.texts() == [("tfds('piqa'): validation:0", 'Go é')]
  (sets / 'a.txt').write_text('abc')
  found = measure('x', "qa('tfds:web_questions:test', name='qa')")
  assert found['eval/qa/exact_match'] == 1
  found = measure('tfds:', f"text('{sets}/a.txt')")
  assert found['eval/text/a/bytes'] == 3


def test_a_set_that_is_not_there(sets):
  for call, error in {
    'hellaswag': r'hellaswag.*tfds build hellaswag .*\. Or fetch .*rowanz',
    'wikitext2': r'^--tasks_dir=tfds:: TensorFlow Datasets does not hold '
    r'wikitext2/test\.raw\.txt; fetch WikiText-2',
    'blimp': 'does not hold blimp/.* fetch the 67 files',
    "qa('tfds:web_questions')": "write a set and a split: 'tfds:",
    "piqa('tfds:piqa:test')": "split='test'.*it has validation",
  }.items():
    with pytest.raises(UsageError, match=error):
      measure('tfds:', call)


def test_race_and_its_lists_of_lists(monkeypatch):
  """As TFDS gives them: writing them needs TensorFlow."""

  class Examples(list):
    def __getitems__(self, numbers):
      return [self[number] for number in numbers]

  options = np.empty(2, object)
  options[:] = [np.array([b'a', b'b'], object), np.array([b'c'], object)]
  example = {
    'article': b'Text.',
    'questions': np.array([b'Why?', b'Who?'], object),
    'answers': np.array([b'B', b'A'], object),
    'options': options,
  }
  asked = []
  builder = types.SimpleNamespace(as_data_source={'test': Examples([example])}.get)

  def find(name, folder):
    asked.append(name)
    return builder

  monkeypatch.setattr(tfds, 'by_name', find)
  (named,) = build('tfds:', "race(level='high')")
  assert [text for _, text in named.task.texts()] == [
    'Article: Text.\n\nQ: Why?\n\nA: b',
    'Article: Text.\n\nQ: Who?\n\nA: c',
  ]
  assert asked == ['race/high']


def test_the_sets_have_the_columns_that_are_read():
  """By TFDS's own builders, of which HellaSwag's needs TensorFlow."""
  for name, columns in {
    'lambada': {'passage'},
    'piqa': {'goal', 'sol1', 'sol2', 'label'},
    'story_cloze/2016': {'context', 'endings', 'label'},
    'race/middle': {'article', 'questions', 'options', 'answers'},
    'bool_q': {'question', 'passage', 'title', 'answer'},
  }.items():
    with tfds._quiet():
      builder = library.builder(name, try_gcs=False)
    assert columns <= {*builder.info.features}, name
