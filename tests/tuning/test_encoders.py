# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Fine-tuning an encoder, as a user would run it, and what is exported."""

import csv
import json
import pathlib
import shutil

import jax
import numpy as np
import pytest

from gpt_jax import hf
from gpt_jax.__main__ import main
from gpt_jax.opening import models as trained_lib
from gpt_jax.tuning import exporting
from tests.support import tiny
from tests.support.golden_io import ROOT

CONFIGS = pathlib.Path(__file__).parents[2] / 'configs'
CLS, SEP, FIRST = 2, 3, 5
WORDS = [f'{a}{b}' for a in 'bdfgklmnprst' for b in 'aeiou']


@pytest.fixture(scope='module')
def bert(tmp_path_factory):
  """A random BERT with a pooler, and a vocabulary of words."""
  folder = tmp_path_factory.mktemp('bert') / 'hf'
  shutil.copytree(ROOT / 'bert_pretraining', folder)
  size = json.loads((folder / 'config.json').read_text())['vocab_size']
  names = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *WORDS]
  names += [f'x{i}' for i in range(size)]
  (folder / 'vocab.txt').write_text('\n'.join(names[:size]) + '\n')
  return folder


def sentence(rng, most=9):
  """Words without those that mean something."""
  return [*rng.choice(WORDS[5:], size=rng.integers(3, most))]


def example(form, rng):
  """What a tiny model learns: which of the words begin with b?"""
  words = sentence(rng)
  at = int(rng.integers(len(words) + 1))
  if form == 'choice':
    answers = [' '.join(sentence(rng, 5)) for _ in range(3)]
    right = int(rng.integers(3))
    answers[right] += ' ba'
    row = {'context': 'da', 'answers': answers, 'label': right}
  elif form == 'tags':
    found = [*words[:at], 'ba', 'be', *words[at:]]
    names = {'ba': 'B-X', 'be': 'I-X'}
    row = {'words': found, 'tags': [names.get(w, 'O') for w in found]}
  else:
    before = ' '.join([*words[:at], ''])
    answer = {'text': 'ba be', 'answer_start': len(before)}
    context = before + ' '.join(['ba be', *words[at:]])
    row = {'question': 'da', 'context': context, 'answers': [answer]}
  return {n: int(x) if isinstance(x, np.integer) else x for n, x in row.items()}


def finetuned(bert, folder, form, *more, steps=60):
  """The result of a run in folder/w."""
  paths = []
  for name, count, seed in (('train', 512, 1), ('dev', 41, 2)):
    rng = np.random.default_rng(seed)
    rows = [json.dumps(example(form, rng)) + '\n' for _ in range(count)]
    (folder / f'{name}.jsonl').write_text(''.join(rows))
    paths.append(f"'{folder}/{name}.jsonl'")
  options = ', stride=3' if form == 'spans' else ''
  argv = [
    'finetune',
    f'--config={CONFIGS}/finetune/base.py',
    f'--init={bert}',
    f'--workdir={folder}/w',
    f'--config.finetune.task={form}({", ".join(paths)}{options})',
    '--config.finetune.model.dropout=none',
    *tiny.flags(
      finetune=dict(peak='3e-3', warmup='0.1'),
      batch=dict(size=32),
      schedule=dict(num_steps=steps),
      eval=dict(rows=16, every_steps=30),
      checkpoint=dict(every_steps=30),
    ),
    *more,
  ]
  assert main(argv) == 0
  return json.loads((folder / 'w/result.json').read_text())


def predictions(folder):
  with open(folder / 'w/predictions/dev.tsv', newline='') as f:
    return list(csv.DictReader(f, delimiter='\t'))


def inputs_of(text, pair=None, length=40):
  """BERT's row of one or two texts, by hand."""
  ids = [CLS, *(FIRST + WORDS.index(w) for w in text.split()), SEP]
  types = [0] * len(ids)
  if pair is not None:
    more = [*(FIRST + WORDS.index(w) for w in pair.split()), SEP]
    ids, types = ids + more, types + [1] * len(more)
  blank = [0] * (length - len(ids))
  return ids + blank, types + blank, [1] * len(ids) + blank


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize('form', ['choice', 'spans'])
def test_a_task_is_learned_and_exported(bert, tmp_path, form):
  more = ['--config.finetune.length=12'] if form == 'spans' else []
  result = finetuned(bert, tmp_path, form, *more)
  metric = result['metrics'][0]
  assert result['dev']['examples'] == 41
  assert result['dev'][metric] > 0.8
  said = predictions(tmp_path)
  assert len(said) == 41
  exporting.to_hf(str(tmp_path / 'w'), str(tmp_path / 'hf'))
  model, params = hf.load(str(tmp_path / 'hf'))
  lines = (tmp_path / 'dev.jsonl').read_text().splitlines()
  rows = [*map(json.loads, lines)]
  if form == 'choice':
    given = [[inputs_of(r['context'], a) for a in r['answers']] for r in rows]
  else:
    given = [inputs_of(r['question'], r['context']) for r in rows]
  ids, types, mask = np.moveaxis(np.array(given), -2, 0)
  out = hf.forward(model, params, input_ids=ids, token_type_ids=types, attention_mask=mask)
  if form == 'spans':
    assert out['start_logits'].shape == (41, 40)
    return
  best = np.argmax(np.asarray(out['logits']), axis=-1)
  assert [str(i) for i in best] == [x['prediction'] for x in said]


@pytest.mark.long
@pytest.mark.slow
def test_features_leave_the_model_alone(bert, tmp_path):
  mixed = '--config.finetune.features=weighted_sum(2)'
  finetuned(bert, tmp_path, 'tags', mixed)
  _, state = trained_lib.load_state(str(tmp_path / 'w'))
  _, before = hf.load(str(bert))
  after = jax.device_get(state.params)
  for name in before.keys() - {'heads'}:
    jax.tree.map(np.testing.assert_array_equal, before[name], after[name])
  layers = after['heads']['layers']
  expected = np.exp(layers['weights']) / np.sum(np.exp(layers['weights']))
  mix = json.loads((tmp_path / 'w/result.json').read_text())['layers']
  np.testing.assert_allclose(mix['shares'], expected, atol=1e-4)
  assert mix['scale'] == pytest.approx(float(layers['scale'][0]), abs=1e-4)
  assert expected.max() > 0.5
