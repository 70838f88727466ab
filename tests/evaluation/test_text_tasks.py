# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tasks of written texts: what is measured of texts that are given."""

import json

import numpy as np
import pytest

from gpt_jax.core import config as config_lib
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers.simple import Bytes
from gpt_jax.decoding.settings import BeamSettings
from gpt_jax.evaluation import in_loop, suite, text_tasks
from gpt_jax.evaluation.results import read_calls
from gpt_jax.evaluation.score import GeneratedTexts
from gpt_jax.evaluation.suite import TASKS
from tests.support import tiny
from tests.support.tables import put


class Pretender:
  """Writes what it is given; keeps what it was asked."""

  tokenizer = Bytes()
  context_length = 99

  def __init__(self, texts):
    self._texts = texts

  def texts(self, sources, max_tokens, journal, report, beam):
    del journal, report
    self.beam = beam
    self.sources, self.max_tokens = sources, max_tokens
    return GeneratedTexts(self._texts[: len(sources)], 0, len(sources))


def measured(call, folder, texts, **options):
  tasks = suite.build(read_calls('--tasks', call, TASKS), str(folder))
  suite.check('--tasks', tasks)
  writes = Pretender(texts)
  quiet = {'report': lambda *_: None}
  return suite.measure(tasks, writes, **quiet, **options), writes, tasks


def test_translations_are_compared_line_by_line(tmp_path):
  put(tmp_path, 'test.en.gz', 'a cat\n\nno end')
  put(tmp_path, 'test.de', 'eine Katze ruht hier .\n\nohne Ende')
  texts = ['eine Katze ruht hier .', '', 'Ende ohne']
  call = "seq2seq('test.en.gz', 'test.de', prefix='to German: ')"
  out = str(tmp_path / 'step-7-')
  found, writes, tasks = measured(call, tmp_path, texts, outputs=out)
  key = 'eval/seq2seq/test-prefix_to_German/'
  assert writes.sources == ['to German: a cat', 'to German: ', 'to German: no end']
  assert writes.max_tokens == 0 and found[f'{key}examples'] == 3
  # Words 7 of 7, pairs 4 of 5, triples 3 of 3, quadruples 2 of 2.
  assert found[f'{key}bleu'] == pytest.approx(100 * (4 / 5) ** 0.25)
  assert 50 < found[f'{key}chrf'] < 100
  (line,) = suite.lines(found, tasks)
  assert ' (nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:' in line
  (written,) = tmp_path.glob('step-7-*.jsonl')
  rows = [json.loads(x) for x in written.read_text().splitlines()]
  assert [row['text'] for row in rows] == texts
  assert rows[2] == {
    'where': f'{tmp_path}/test.en.gz:3',
    'source': 'to German: no end',
    'text': 'Ende ohne',
    'reference': 'ohne Ende',
  }
  perfect = rows[0]['reference'], '', rows[2]['reference']
  call = "seq2seq('test.en.gz', 'test.de', name='x', metrics='exact_match')"
  found, *_ = measured(call, tmp_path, perfect)
  assert found['eval/x/exact_match'] == 1
  call = "seq2seq('test.en.gz', 'test.de', first=1, name='x')"
  assert measured(call, tmp_path, texts)[0]['eval/x/examples'] == 1


def test_answers_of_classes(tmp_path):
  rows = [(0, 'a'), (1, 'b'), (1, 'c'), (0, 'd'), (1, 'e')]
  table = ''.join(f'g\t{y}\t*\t{text}\n' for y, text in rows)
  put(tmp_path, 'glue/CoLA/dev.tsv', table)
  said = ['unacceptable', 'acceptable', 'rubbish', 'acceptable', ' acceptable']
  found, writes, _ = measured('cola', tmp_path, said)
  assert writes.sources[0] == 'cola sentence: a'
  assert writes.max_tokens == len('unacceptable') + 1
  assert found['eval/cola/accuracy'] == 3 / 5
  assert found['eval/cola/invalid'] == 1
  assert found['eval/cola/majority'] == 3 / 5
  # 'rubbish' is a class of its own: 0, 1, -1, 1, 1 against 0, 1, 1, 0, 1; 3
  # of 5 right, sum p t = 1 * 2 + 3 * 3 (Gorodkin, 2004, equation 8).
  right, both = 3 * 5 - 11, (25 - (1 + 9 + 1)) * (25 - (4 + 9))
  matthews = right / np.sqrt(both)
  assert found['eval/cola/matthews'] == pytest.approx(matthews)
  nothing, *_ = measured('cola', tmp_path, [''] * 5)
  assert nothing['eval/cola/accuracy'] == nothing['eval/cola/matthews'] == 0
  assert nothing['eval/cola/invalid'] == 5


def test_f1_of_answers_that_say_nothing(tmp_path):
  head = 'Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n'
  rows = [f'{y}\t1\t2\tx\ty\n' for y in (1, 1, 0)]
  put(tmp_path, 'MRPC/dev.tsv', head + ''.join(rows))
  said = ['equivalent', 'equal', 'neither']
  found, *_ = measured('mrpc', tmp_path, said)
  # One hit, one missed, and what should be 0 counts as 1: 2 / (2 + 1 + 1).
  assert found['eval/mrpc/f1'] == pytest.approx(0.5)
  assert found['eval/mrpc/invalid'] == 2


def test_similarities(tmp_path):
  rows = [f'x\ty\t{y}\n' for y in (0.3, 2.57, 4.9, 1.0)]
  put(tmp_path, 'STS-B/dev.tsv', 'sentence1\tsentence2\tscore\n' + ''.join(rows))
  found, writes, _ = measured('stsb', tmp_path, ['0.4', '2.6', '9', '1.0'])
  assert writes.max_tokens == len('0.0') + 1
  assert found['eval/stsb/invalid'] == 1
  said, right = [0.4, 2.6, -1.0, 1.0], [0.3, 2.57, 4.9, 1.0]
  assert found['eval/stsb/pearson'] == pytest.approx(np.corrcoef(said, right)[0, 1])
  ranks = [np.argsort(np.argsort(x)) for x in (said, right)]
  assert found['eval/stsb/spearman'] == pytest.approx(np.corrcoef(*ranks)[0, 1])
  # What is constant explains nothing.
  assert measured('stsb', tmp_path, [''] * 4)[0]['eval/stsb/pearson'] == 0


def test_the_flags_are_a_task_of_files(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  assert text_tasks.with_files(None, '', '', None) == 'validation'
  assert text_tasks.with_files('rte', '', '', None) == 'rte'
  call = f"seq2seq('{tmp_path}/a.en', '{tmp_path}/a.de')"
  files = 'a.en', 'a.de'
  assert text_tasks.with_files(None, *files, None) == call
  assert text_tasks.with_files('rte', *files, None) == f'rte, {call}'
  beam = BeamSettings(4, 0.6, 'gnmt', min_tokens=2)
  searched = text_tasks.with_files(None, *files, beam)
  (named,) = suite.build(read_calls('--tasks', searched, TASKS), '')
  assert named.task.beam == beam and named.name != 'seq2seq/a'
  (read,) = read_calls('--tasks', call, TASKS)
  assert read.name == 'seq2seq/a'
  with pytest.raises(UsageError, match='go together'):
    text_tasks.with_files(None, 'a.en', '', None)


@pytest.mark.parametrize(
  'changes, words',
  [
    ({'model.num_encoder_layers': 3}, 'text/a scores texts with a decoder'),
    ({'model.attention': 'bidirectional'}, 'the model is an encoder'),
    ({'objective.name': "prefix(text='seq2seq()')"}, 'trained it on sources followed by'),
  ],
)
def test_tasks_while_training_suit_the_model(tmp_path, changes, words):
  put(tmp_path, 'a.txt', 'x\n')
  config = tiny.config(
    **{
      'eval.tasks': "seq2seq('a.txt', 'a.txt'), text('a.txt')",
      'eval.tasks_dir': str(tmp_path),
      'data.holdout': 'tail(fraction=0.1)',
      **changes,
    }
  )
  assert config_lib.flatten(config)['eval.tasks']
  with pytest.raises(UsageError, match=words):
    in_loop.tasks(config)
  config = config.copy_and_resolve_references().unlock()
  config.eval.tasks = "seq2seq('a.txt', 'a.txt')"
  if 'model.num_encoder_layers' in changes:
    assert [t.name for t in in_loop.tasks(config)] == ['seq2seq/a']
