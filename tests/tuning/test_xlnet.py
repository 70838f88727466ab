# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""XLNet's head on the last token, as fine-tuned and as exported."""

import csv
import json
import pathlib
import shutil

import numpy as np
import pytest

from gpt_jax import hf
from gpt_jax.__main__ import main
from gpt_jax.tuning import exporting
from tests.support import tiny
from tests.support.golden_io import ROOT
from tests.tuning.test_encoders import WORDS, example

CONFIGS = pathlib.Path(__file__).parents[2] / 'configs'
CLS, SEP, FIRST = 2, 3, 5


def left_padded(text, pair, length=30):
  """A row as the released code makes it, with padding of type 3."""
  a, b = ([FIRST + WORDS.index(w) for w in x.split()] for x in (text, pair))
  ids = [*a, SEP, *b, SEP, CLS]
  types = [0] * (len(a) + 1) + [1] * (len(b) + 1) + [2]
  left = length - len(ids)
  mask = [0] * left + [1] * len(ids)
  return [0] * left + ids, [3] * left + types, mask


@pytest.mark.long
@pytest.mark.slow
def test_a_task_is_learned_and_exported(tmp_path):
  """What it predicts is what the export does of rows padded on the left."""
  init = tmp_path / 'xlnet'
  shutil.copytree(ROOT / 'xlnet_lm', init)
  names = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *WORDS]
  names += [f'x{i}' for i in range(112)]
  (init / 'vocab.txt').write_text('\n'.join(names[:112]) + '\n')
  (init / 'tokenizer_config.json').write_text('{"tokenizer_class": "BertTokenizer"}')
  paths = []
  for name, count, seed in (('train', 512, 1), ('dev', 41, 2)):
    rng = np.random.default_rng(seed)
    rows = [json.dumps(example('choice', rng)) + '\n' for _ in range(count)]
    (tmp_path / f'{name}.jsonl').write_text(''.join(rows))
    paths.append(f"'{tmp_path}/{name}.jsonl'")
  argv = [
    'finetune',
    f'--config={CONFIGS}/finetune/base.py',
    f'--init={init}',
    f'--workdir={tmp_path}/w',
    f'--config.finetune.task=choice({", ".join(paths)})',
    '--config.finetune.model.dropout=none',
    *tiny.flags(
      finetune=dict(peak='3e-3', warmup='0.1'),
      batch=dict(size=32),
      schedule=dict(num_steps=60),
      eval=dict(rows=16, every_steps=60),
      checkpoint=dict(every_steps=60),
    ),
  ]
  assert main(argv) == 0
  result = json.loads((tmp_path / 'w/result.json').read_text())
  assert result['dev'][result['metrics'][0]] > 0.8
  with open(tmp_path / 'w/predictions/dev.tsv', newline='') as f:
    said = [x['prediction'] for x in csv.DictReader(f, delimiter='\t')]
  exporting.to_hf(str(tmp_path / 'w'), str(tmp_path / 'hf'))
  model, params = hf.load(str(tmp_path / 'hf'))
  assert model.origin.kind == 'last_choice'
  lines = (tmp_path / 'dev.jsonl').read_text().splitlines()
  given = [
    [left_padded(row['context'], answer) for answer in row['answers']]
    for row in map(json.loads, lines)
  ]
  ids, types, mask = np.moveaxis(np.array(given), -2, 0)
  out = hf.forward(model, params, input_ids=ids, token_type_ids=types, attention_mask=mask)
  best = np.argmax(np.asarray(out['logits']), axis=-1)
  assert [str(i) for i in best] == said
