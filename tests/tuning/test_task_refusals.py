# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What fine-tuning refuses: one line, and nothing is written."""

import json
import pathlib
import re
import shutil
from typing import Any

import numpy as np
import pytest

from configs.finetune import base as finetune_base
from gpt_jax.__main__ import main
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers import tokenizer as tokenizer_lib
from gpt_jax.tuning import exporting
from tests.support import tiny
from tests.support.golden_io import ROOT

CONFIGS = pathlib.Path(__file__).parents[2] / 'configs/finetune'
CLASSES = "classification('{}/t.tsv', '{}/t.tsv')"
ANSWERS = "choice('{}/t.jsonl', '{}/t.jsonl'"
TARGET = "target('{}/t.jsonl', '{}/t.jsonl')"
SPANS = "spans('{}/spans.jsonl', '{}/spans.jsonl'"
TAGS = "tags('{}/tags.conll', '{}/tags.conll'"
SIZES = {
  **{'model.num_layers': 2, 'model.d_model': 16, 'model.num_heads': 2},
  **{'model.context_length': 16, 'tokenizer.name': 'bytes'},
}
# The flags of each kind of run; {} is the folder of the tables and models.
RUNS = {
  'decoder': {'config': 'sst2.py', 'init': 'none', **SIZES},
  'encoder': {'config': 'base.py', 'init': '{}/bert'},
  'adapters': {
    **{'config': 'sst2.py', 'init': '{}/decoder'},
    'finetune.lora': "lora(rank=3, on='query, value')",
  },
  'several': {
    **{'config': 'mt_dnn.py', 'init': 'none', **SIZES},
    **{'model.attention': 'bidirectional', 'finetune.epochs': 1.0},
    'model.input': 'tokens(token_types=2, norm=True)',
    'tokenizer.name': 'wordpiece(vocab_size=21)',
    'tasks': f"{CLASSES}, {CLASSES[:-1]}, text='text')",
  },
  'views': {
    **{'config': '../cvt.py:cpu', 'init': 'none'},
    'tokenizer.name': 'words()',
    'finetune.task': f"{TAGS}, unlabelled='{{}}/sentences.txt')",
  },
}
# Further flags of a run, and what is said.
REFUSED = {
  'decoder': [
    ('init=/nowhere', '--init=/nowhere: holds no config.json'),
    ('config=rte.py:big', 'has one size'),
    ('finetune.task=sst2(7)', r"finetune.task='sst2.7.': folder"),
    ("finetune.task=rte('nowhere')", 'To get it: unpack RTE'),
    ("finetune.task=target('{}/two.jsonl', 'no.jsonl')",
     r"finetune.task=.target\(.*no\.jsonl: no such file; name another file in"),
    ('predict=no.tsv', r'no\.tsv: no such file; give another with --predict'),
    (f"finetune.task={ANSWERS}, labels='0, 1')",
     'labels names 2 answers, a question has 3; name as many'),
    (f"finetune.task={ANSWERS}, labels='0, 1, 2, 3')",
     'labels names 4 answers, a question has 3'),
    ("finetune.task=choice('{}/two.jsonl', '{}/t.jsonl')",
     r'two\.jsonl:2: has 2 answers, others 3; give all the same number'),
    (f'finetune.length=4; finetune.task={TARGET}',
     r'do not fit finetune.length=4; .* \(a target is never cut'),
    ('finetune.length=20', "must be from 8 to the model's context of 16"),
    ('finetune.length=8; finetune.too_long=refuse',
     r't\.tsv:2: is 1 tokens longer than finetune\.length=8; raise it'),
    ('finetune.too_long=drop', 'a task predicts all .*; give cut or refuse'),
    ('finetune.class_weights=weights(1, 2, 3)',
     'class_weights=.* has 3 weights for 2 classes; give 2'),
    ('finetune.transfer=some', 'unknown .some.; one of all, emb'),
    ('finetune.transfer=layers(3)',
     r"transfer='layers\(3\)': the model has 2 layers; give at most 2"),
    ('finetune.freeze=3', 'freeze=3: the model has 2 layers; give at most 2'),
    (f'finetune.backward=True; finetune.task={TARGET}',
     'none reads texts from right to left; give a task with a class or score'),
    ('average={}/w', 'average=.*/w: has no predictions/dev.tsv; finish that'),
    (f'average=w; finetune.task={TARGET}', 'classes, and target predicts none'),
    ('finetune.segment=70', 'an LSTM, and .*full.* has none; give 0'),
    (f'finetune.segment=7; finetune.task={TARGET}',
     'segment=7: cuts texts that get a class or a score, and .* give 0'),
    ('finetune.layer_decay=0', 'layer_decay=0.0: must be above 0'),
    ('finetune.layer_decay=0.5; model.share=ffn',
     'layer_decay=0.5: layers share parameters .*; give 1.0'),
    ('finetune.unfreeze=2; schedule.num_steps=6',
     'trained after 6 steps, and schedule.num_steps=6; give at most 1, or'),
    ('finetune.freeze=1; model.share=ffn',
     'share parameters with the lowest 1 .*; take whole groups'),
    ('finetune.transfer=layers(1); model.share=ffn',
     'share parameters with the lowest 1 .*; take whole groups'),
    ('model.vocab_size=259',
     'no room for the 3 new tokens .*; give at least 260, or leave it empty'),
    ('model.attention=bidirectional',
     r'--init: the tokenizer has no \[CLS\]'),
    ('finetune.lora=lora()', 'trained model, and --init=none has none'),
    ('optim.start=W', 'fine-tuning starts from --init; leave it empty'),
  ],
  # It has other heads, and no next token.
  'encoder': [
    ('finetune.head=extract', 'does not do this task .* or give first'),
    ('finetune.head=last', 'does not do this task .* or give first'),
    ('finetune.head=concat', 'does not do this task .* or give first'),
    ('finetune.head=end', "'end': unknown; leave it empty, or give first"),
    ('finetune.auxiliary=0.5', 'auxiliary=0.5: the loss of a language model'),
    (f'finetune.task={TARGET}', 'the next token, which an encoder sees'),
    ('finetune.features=concat(9)', r"'concat\(9\)': the model has 2 layers"),
    ('finetune.features=mean', "finetune.features='mean': unknown"),
    (f'finetune.too_long=refuse; finetune.task={SPANS}, max_question=2)',
     r'spans\.jsonl:1: is 4 tokens longer than'),
    (f'finetune.length=8; finetune.task={SPANS})',
     'question of 6 tokens leaves no room for the text in .*=8; raise it'),
  ],
  'adapters': [
    ('finetune.freeze=1', 'finetune.freeze=1 contradicts it; give 0'),
    ('finetune.layer_decay=0.5', 'layer_decay=0.5 contradicts it; give 1.0'),
    ('finetune.transfer=embeddings', "transfer='embeddings' contradicts it"),
    ('finetune.features=layer(-1)', 'finetune.features=.* contradicts it'),
    ('optim.trained=heads/*', "optim.trained='heads/.*' contradicts it"),
    ('finetune.lora=lora(rank=0)', 'rank=0'),
    ('finetune.lora=lora(rank=17)', 'rank=17: is more than a matrix 16 x 16'),
    ('finetune.lora=lora(alpha=-1.0)', 'alpha=-1.0'),
    ('finetune.lora=dora', "lora='dora': unknown .dora.; one of lora, none"),
    ("finetune.lora=lora(on='keys')", "no kernel is called 'keys'"),
  ],
  'several': [
    ('tasks=rte(), rte', r'rte\(\) is given twice; leave one out'),
    (f'tasks={TARGET}, rte', 'target is not among several tasks'),
    ('glue=/nowhere; tasks=rte, mrpc', 'To get it: unpack RTE'),
    ('predict=new.tsv', '--predict=new.tsv: give the table as test='),
    ('finetune.freeze=1', 'freeze=1: is not done with several tasks'),
    ('finetune.unfreeze=1', 'unfreeze=1: is not .* leave it at 0'),
    ('finetune.head=concat', "head='concat': is not done .* leave it empty"),
    ('finetune.mixing=even', r"mixing='even': unknown"),
    ('finetune.task_dropout={"rot": 0.3}', 'rot: there is no such'),
    ('optim.on_spike=rewind', "order of tasks counts steps; give 'skip'"),
    ('batch.size=ramp(0:8, 50k_steps:16)', 'must be one number'),
    ('schedule.num_steps=5k_tokens', 'is not a number of steps'),
  ],
  'views': [
    ('finetune.views=none', "alone; give finetune.views='cross_view', as"),
    ('finetune.views=cross_view(dropout=1.0)', 'dropout=1.0 must be below 1'),
    (f'finetune.task={CLASSES}', 'something else; give finetune.views=.none.'),
    ('finetune.features=layer(0)', r"features='layer\(0\)' is something else"),
    (f"finetune.task={TAGS}, unlabelled='{{}}/blank.txt')",
     r'blank\.txt: holds no sentences; give a text with one a line'),
    (f"finetune.task={TAGS}, unlabelled='{{}}/no.txt')", r'no\.txt: no such'),
    (f"finetune.task={TAGS}, labels='O, B-A')",
     r"tags\.conll:4: the tag 'S-A' is none of O, B-A"),
    ("finetune.task=tags('{}/half.conll', '{}/tags.conll')",
     r'half\.conll:2: has a word and no tag; mend or remove the line'),
    ('finetune.freeze=1', 'freeze=1: is not done with unlabelled text'),
    ('optim.vectors=no.txt', "optim.vectors='no.txt': no such file"),
    ('model.num_layers=4', r"take two 'lstm\(.*num_layers=2"),
    ('optim.on_spike=rewind', "order of tasks counts steps; give 'skip'"),
    ('batch.size=ramp(0:8, 50k_steps:16)', 'must be one number'),
  ],
}  # fmt: skip
# The row of the JSON lines.
ROW = {
  **{'label': 0, 'prompt': 'abc =', 'target': ' xyz', 'context': 'a'},
  **{'answers': ['b', 'c', 'd'], 'question': 'a b c d a b'},
}


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """The tables, a decoder's workdir, and an encoder of transformers."""
  folder = tmp_path_factory.mktemp('models')
  (folder / 't.tsv').write_text('text\tlabel\nabcdefg\ta\nx\tb\n')
  (folder / 'tags.conll').write_text('a B-A\nb O\n\nc S-A\n')
  (folder / 'half.conll').write_text('a O\nb\n')
  (folder / 'sentences.txt').write_text('a b\n\nc\n')
  (folder / 'blank.txt').write_text('\n \n')
  answer = {'text': 'b', 'answer_start': 2}
  span = {'context': 'a b', 'answers': [answer]}
  for name, *rows in (
    ('t', {}, {'label': 1}),
    ('two', {}, {'answers': ['b', 'c'], 'label': 1}),
    ('spans', span, span),
  ):
    text = ''.join(json.dumps({**ROW, **row}) + '\n' for row in rows)
    (folder / f'{name}.jsonl').write_text(text)
  shutil.copytree(ROOT / 'bert_pretraining', folder / 'bert')
  size = json.loads((folder / 'bert/config.json').read_text())['vocab_size']
  words = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *'abcdx']
  words += [f'w{i}' for i in range(size)]
  (folder / 'bert/vocab.txt').write_text('\n'.join(words[:size]) + '\n')
  sizes = {'head_size': 8, 'num_kv_heads': 2, 'd_ff': 64}
  fields = SIZES | {f'model.{name}': x for name, x in sizes.items()}
  tiny.save(folder / 'decoder', tokenizer_lib.build('bytes', []), **fields)
  return folder


@pytest.mark.parametrize(
  ('kind', 'changes', 'message'),
  [(kind, *case) for kind, cases in REFUSED.items() for case in cases],
)
def test_refusals(folder, tmp_path, capsys, kind, changes, message):
  given = {'workdir': tmp_path / 'w', 'finetune.task': CLASSES, **RUNS[kind]}
  given |= dict(change.split('=', 1) for change in changes.split('; '))
  given['config'] = CONFIGS / given['config']
  argv = [
    f'--config.{name}={value}' if '.' in name else f'--{name}={value}'
    for name, value in given.items()
  ]
  assert main(['finetune', *(x.replace('{}', str(folder)) for x in argv)]) == 2
  assert re.search(message, capsys.readouterr().err.strip().splitlines()[-1])
  assert not (tmp_path / 'w').exists()


TAGS = 'tags(num_labels=3, length=8)'
PAIR = "similarity('a.tsv', 'b.tsv')"


@pytest.mark.parametrize(
  ('objective', 'fields', 'message'),
  [
    ('classification(num_labels=2, length=8, sequences=2)',
     {'task': PAIR, 'sequences': 2},
     r'similarity.* no class of transformers does; .* entailment\('),
    ("choice(answers=2, length=8, read='first')", {'pooler': 'gelu'},
     "pooler='gelu': no ...ForMultipleChoice"),
    ("classification(num_labels=2, length=8, read='concat')",
     {'head': 'concat'}, "head='concat': no class of transformers has it"),
    (TAGS, {'features': 'concat(4)'}, r"features='concat\(4\)': its head"),
    (TAGS, {'labels': ['a', 'b']}, 'has 3 classes; name each once'),
    (TAGS, {'labels': ['a', 'b', 'b']}, 'has 3 classes; name each once'),
    ("tasks(cola:'classification(num_labels=2, length=8)')",
     {'tasks': 'cola'}, 'fine-tune it on one of them'),
  ],
)  # fmt: skip
def test_heads_that_no_class_of_transformers_has(objective, fields, message):
  config: Any = finetune_base.get_config().unlock()
  config.finetune.update({'vocab_size': 257, 'labels': [*'abc'], **fields})
  config.objective.name = objective
  name = 'score' if 'sequences' in objective else 'classifier'
  heads = {name: {'kernel': np.zeros((5, 3)), 'bias': np.zeros(3)}}
  with pytest.raises(UsageError, match=message):
    exporting.exported_head(config, heads, {'eos_token_id': 256})
