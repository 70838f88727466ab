# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A fine-tuned model becomes the class of transformers that gives the same."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from configs.finetune import base as finetune_base
from gpt_jax import hf
from gpt_jax.core import config as config_lib
from gpt_jax.core.checkpoints import checkpointer
from gpt_jax.core.nn.transformer import make_model
from gpt_jax.core.spec import UsageError
from gpt_jax.core.training import parts
from gpt_jax.opening.models import Pretrained
from gpt_jax.tuning import exporting, tasks
from gpt_jax.tuning.data import TaskEvaluation
from gpt_jax.tuning.recipe import read_task
from tests.support.golden_io import ROOT

LENGTH, BYTES = 24, 257
START, DELIMITER, EXTRACT = BYTES, BYTES + 1, BYTES + 2


def rows(count, seed):
  rng = np.random.default_rng(seed)
  texts = [''.join(rng.choice([*'abcxyz '], size=7)) for _ in range(2 * count)]
  return [
    {'a': a, 'b': b, 'label': str(x), 'score': float(x * 3.5 + 11)}
    for a, b, x in zip(texts[:count], texts[count:], rng.integers(2, size=count), strict=True)
  ]


@pytest.fixture(scope='module')
def tables(tmp_path_factory):
  folder = tmp_path_factory.mktemp('tables')
  for name, count, seed in (('train', 29, 1), ('dev', 11, 2)):
    lines = [json.dumps(row) for row in rows(count, seed)]
    (folder / f'{name}.jsonl').write_text('\n'.join(lines) + '\n')
  return folder


def finetuned(tables, workdir, form, options):
  """The workdir of a run from scratch before its first step.

  Returns:
    What our own evaluation computes for the dev split.
  """
  paths = f"'{tables}/train.jsonl', '{tables}/dev.jsonl'"
  return finetuned_on(f'{form}({paths}, {options})', workdir)


def exported(tables, folder, form, options):
  """What `finetuned` returns, and the run as it is in Hugging Face's form."""
  found = finetuned(tables, folder / 'w', form, options)
  exporting.to_hf(str(folder / 'w'), str(folder / 'out'))
  return found, json.loads((folder / 'out/config.json').read_text()), *hf.load(str(folder / 'out'))


def finetuned_on(task, workdir):
  config: Any = finetune_base.get_config().unlock()
  config.finetune.task = task
  config.finetune.length = LENGTH
  config.update_from_flattened_dict(
    {
      'model.num_layers': 2,
      'model.d_model': 24,
      'model.num_heads': 3,
      'model.context_length': 32,
      'model.dtype': 'float32',
      'model.init_weights': 'normal(stddev=0.2)',
      'tokenizer.name': 'bytes',
      'batch.size': 8,
      'eval.rows': 16,
    }
  )
  prepared = tasks.prepare(config.lock(), Pretrained('none'), str(workdir))
  built = parts.build(prepared.config)
  state = parts.initial_state(built)
  checkpointer.Checkpointer(str(workdir)).finish(state)
  (workdir / 'config.json').write_text(config_lib.to_json(built.config))
  prepared.tokenizer.save(str(workdir / 'tokenizer'))
  split = prepared.each[''].splits['dev']
  found = TaskEvaluation(built, {'': split}).outputs(state.params, '', split)
  assert found is not None
  return found


def sequence(*texts):
  """Start, texts with delimiters, extract."""
  ids = [START]
  for i, text in enumerate(texts):
    ids += [DELIMITER] * (i > 0) + [*text.encode()]
  return [*ids, EXTRACT]


def padded(sequences, pad):
  ids = np.full((len(sequences), LENGTH), pad)
  for row, found in zip(ids, sequences, strict=True):
    row[: len(found)] = found
  return ids


@pytest.mark.slow
def test_classification_is_read_at_the_extract_token(tables, tmp_path):
  options = "premise='a', hypothesis='b'"
  found, config, model, params = exported(tables, tmp_path, 'entailment', options)
  assert config['architectures'] == ['GPT2ForSequenceClassification']
  assert config['id2label'] == {'0': '0', '1': '1'}
  assert config['vocab_size'] == BYTES + 3
  told = config['task_specific_params']['classification']
  assert told['extract_token_id'] == EXTRACT
  ids = padded([sequence(r['a'], r['b']) for r in rows(11, 2)], config['pad_token_id'])
  logits = hf.forward(model, params, input_ids=ids)['logits']
  np.testing.assert_allclose(logits, found.raw, atol=1e-5)


@pytest.mark.slow
def test_scores_keep_their_scale(tables, tmp_path):
  options = "text='a', label='score', regression=True"
  found, config, model, params = exported(tables, tmp_path, 'classification', options)
  assert config['problem_type'] == 'regression'
  told = config['task_specific_params']['regression']
  scores = [row['score'] for row in rows(29, 1)]
  assert told['score_mean'] == pytest.approx(np.mean(scores))
  assert told['score_deviation'] == pytest.approx(np.std(scores))
  ids = padded([sequence(r['a']) for r in rows(11, 2)], config['pad_token_id'])
  logits = hf.forward(model, params, input_ids=ids)['logits'][:, 0]
  predicted = logits * told['score_deviation'] + told['score_mean']
  np.testing.assert_allclose(predicted, found.predictions, atol=1e-4)
  # Another table would give another scale.
  path = tables / 'train.jsonl'
  before = path.read_text()
  path.write_text(before + before.splitlines()[0] + '\n')
  with pytest.raises(UsageError, match='not those that the run learned from'):
    exporting.to_hf(str(tmp_path / 'w'), str(tmp_path / 'again'))
  path.write_text(before)


@pytest.mark.slow
def test_choices_have_two_heads(tables, tmp_path):
  options = "context='a', answers='a, b'"
  found, config, model, params = exported(tables, tmp_path, 'choice', options)
  assert config['architectures'] == ['GPT2DoubleHeadsModel']
  choices = [padded([sequence(r['a'], r[x]) for x in 'ab'], 0) for r in rows(11, 2)]
  ids = np.stack(choices)
  at = np.argmax(ids == EXTRACT, axis=-1)
  given = {'input_ids': ids, 'mc_token_ids': at}
  scores = hf.forward(model, params, **given)['mc_logits']
  np.testing.assert_allclose(scores, found.raw, atol=1e-5)


@pytest.mark.parametrize(
  'name, kind, classes',
  [
    ("classification(num_labels=2, length=8, read='first')", 'pooled_class', 2),
    ("choice(answers=2, length=8, read='first')", 'pooled_choice', 1),
    ('tags(num_labels=2, length=8)', 'tokens', 2),
    ('spans(length=8)', 'spans', 0),
  ],
)
def test_an_encoders_heads_have_classes(name, kind, classes):
  config: Any = finetune_base.get_config().unlock()
  config.finetune.update(labels=['no', 'yes'], vocab_size=BYTES)
  config.objective.name = name
  last = {'kernel': np.zeros((5, classes)), 'bias': np.zeros(classes)}
  given = {'classifier': last} if classes else {'spans': last}
  found = exporting.exported_head(config, given, {'pad_token_id': 7})
  assert found.kind.startswith(kind) and found.heads is given
  assert found.options['pad_token_id'] == 7
  named = {'0': 'no', '1': 'yes'} if classes == 2 else None
  assert found.options.get('id2label') == named
  config.finetune.pooler = 'gelu'
  if kind == 'pooled_class':
    assert exporting.exported_head(config, given, {}).kind == 'gelu_classification'


CLASSES = (
  ['0', '1'],
  ['no', 'no, yes', 'yes, no', 'yes,no'],
  ['très bien', 'ça va', '不好', 'e\u0301', 'é', '😀'],
  ['a', ' a', 'a ', 'a\tb', 'a\nb', '"a"', "it's"],
  ['LABEL_1', 'LABEL_0', '7'],
)


def labelled(folder, form, names):
  """A table of each class, and the config of its task."""
  row = {
    'classification': lambda name: {'text': 'x', 'label': name},
    'tags': lambda name: {'words': ['x', 'y'], 'tags': [name, name]},
  }[form]
  path = folder / 't.jsonl'
  path.write_text(''.join(json.dumps(row(name)) + '\n' for name in names))
  metrics = ", metrics='accuracy'"
  config: Any = finetune_base.get_config().unlock()
  config.finetune.task = f'{form}({str(path)!r}, {str(path)!r}{metrics})'
  return config


@pytest.mark.parametrize('form', ['classification', 'tags'])
@pytest.mark.parametrize('names', CLASSES)
def test_classes_have_the_names_of_the_table(tmp_path, form, names):
  if form == 'tags':  # spaces separate them in predictions
    names = [''.join(name.split()) or name for name in names]
    names = [*dict.fromkeys(names)]
  config = labelled(tmp_path, form, names)
  task, _ = read_task(config)
  config.finetune.labels = [*task.labels]
  config = config_lib.from_json(config_lib.to_json(config)).unlock()
  count = len(names)
  arguments = f'num_labels={count}, length=8'
  arguments += ", read='first'" * (form == 'classification')
  config.objective.name = f'{form}({arguments})'
  last = {'kernel': np.zeros((5, count)), 'bias': np.zeros(count)}
  found = exporting.exported_head(config, {'classifier': last}, {}).options
  expected = sorted(names)
  assert found['id2label'] == {str(i): n for i, n in enumerate(expected)}
  assert found['label2id'] == {n: i for i, n in enumerate(expected)}


@pytest.mark.slow
def test_names_of_classes_come_back(tmp_path):
  names = CLASSES[1]
  task = labelled(tmp_path, 'classification', names).finetune.task
  w, out, again = (str(tmp_path / name) for name in ('w', 'out', 'again'))
  (tmp_path / 'w').mkdir()
  finetuned_on(task, tmp_path / 'w')
  exporting.to_hf(w, out, with_tokenizer=False)
  model, params = hf.load(out)
  assert isinstance(model, hf.Imported)
  told = {str(i): name for i, name in enumerate(sorted(names))}
  assert model.options.get('id2label') == told
  hf.save(again, model, params)
  first, second = (json.loads(Path(folder, 'config.json').read_text()) for folder in (out, again))
  assert first == second and first['id2label'] == told
  assert first['label2id'] == {name: int(i) for i, name in told.items()}


def test_the_step_that_predicted_is_exported(tmp_path):
  config: Any = finetune_base.get_config().unlock()
  assert exporting.best_step(config, str(tmp_path)) is None
  config.finetune.select = 'best'
  with pytest.raises(UsageError, match='has not selected a step yet'):
    exporting.best_step(config, str(tmp_path))
  (tmp_path / 'result.json').write_text('{"step": 17}')
  assert exporting.best_step(config, str(tmp_path)) == 17


def test_a_family_without_the_head_is_refused(tmp_path):
  model, params = hf.load(str(ROOT / 'llama_mha'))
  fields = {f: getattr(model, f) for f in hf.transformer_fields()}
  plain = make_model(**fields)
  with pytest.raises(UsageError, match='is a llama, which has no class'):
    hf.save(str(tmp_path / 'out'), plain, params, kind='double')
