# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The page of docs/hugging-face.md, run as it is printed."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys

import openai
import pytest

from gpt_jax import hf
from gpt_jax.__main__ import main
from gpt_jax.core.nn.transformer import make_model
from gpt_jax.hf import vocabulary
from tests.support import tiny
from tests.support.golden_io import ROOT as GOLDEN
from tests.support.golden_io import tensors
from tests.support.stdin import stdin_of
from tests.support.tasks import write
from tests.test_docs import ROOT, fenced

TOKENIZER = ROOT / 'tests/hf_tokenizers/golden/smollm2'
TASKS = ['lambada', 'piqa', 'hellaswag', 'race', 'boolq']


def commands():
  """The command lines of the page, in order."""
  text = (ROOT / 'docs/hugging-face.md').read_text(encoding='utf-8')
  section = text.partition('## On one page\n')[2].partition('\n## ')[0]
  block = section.split('```\n')[1]
  assert block in fenced(ROOT / 'docs/hugging-face.md')
  return [shlex.split(line)[1:] for line in block.splitlines()]


@pytest.fixture
def here(tmp_path, monkeypatch):
  """A folder with a chat model as Hugging Face keeps it, and five tasks."""
  monkeypatch.chdir(tmp_path)
  imported, _ = hf.load(str(GOLDEN / 'llama_gqa'))
  fields = {name: getattr(imported, name) for name in hf.transformer_fields()}
  fields |= {'vocab_size': 293, 'context_length': 131}
  model = make_model(**fields)
  hf.save('HF_FOLDER', model, tiny.params(model))
  for path in TOKENIZER.iterdir():
    shutil.copy(path, 'HF_FOLDER')
  tasks = tmp_path / 'tasks'
  tasks.mkdir()
  number = range(211)
  texts = [f'The cat spoke {n} words and then the dog spoke' for n in number]
  write(tasks / 'lambada/lambada_test.jsonl', *({'text': f'{text} back'} for text in texts))
  write(
    tasks / 'piqa/valid.jsonl', *({'goal': text, 'sol1': 'a cat', 'sol2': 'two'} for text in texts)
  )
  (tasks / 'piqa/valid-labels.lst').write_text('0\n1\n' * 105 + '0\n')
  write(
    tasks / 'hellaswag/hellaswag_val.jsonl',
    *(
      {
        'activity_label': 'Talk',
        'ctx': text,
        'ctx_a': text,
        'ctx_b': '',
        'endings': ['up.', 'down.', 'in.', 'out.'],
        'label': n % 4,
      }
      for n, text in enumerate(texts)
    ),
  )
  for n, text in enumerate(texts):
    article = {
      'article': text,
      'questions': ['Who spoke?'],
      'options': [['A cat.', 'A cow.', 'Tom.', 'None.']],
      'answers': ['A'],
      'id': f'high{n}.txt',
    }
    for level in ('high', 'middle'):
      folder = tasks / 'RACE/test' / level
      folder.mkdir(parents=True, exist_ok=True)
      (folder / f'{n}.txt').write_text(json.dumps(article))
  write(
    tasks / 'boolq/dev.jsonl',
    *(
      {'question': 'did it', 'passage': text, 'answer': bool(n % 2)} for n, text in enumerate(texts)
    ),
  )
  return tmp_path


@pytest.mark.slow
def test_the_page(here, monkeypatch, capsys):
  convert, chat, serve, evaluate, back = commands()
  assert main(convert) == 0

  monkeypatch.setattr('sys.stdin', stdin_of('Hello\n/exit\n'))
  capsys.readouterr()
  assert main([*chat, '--max_tokens=5', '--temperature=0']) == 0
  said = capsys.readouterr().out

  server = subprocess.Popen(
    [sys.executable, '-m', 'gpt_jax', *serve[:-1], '0', '--warm_up_seconds=0'],
    stdout=subprocess.PIPE,
    text=True,
    env={**os.environ, 'PYTHONPATH': str(ROOT)},
  )
  try:
    assert server.stdout is not None
    for line in server.stdout:
      if found := re.search(r'http://\S+/v1\b', line):
        break
    with openai.OpenAI(base_url=found[0], api_key='none') as client:
      answer = client.chat.completions.create(
        model='W', messages=[{'role': 'user', 'content': 'Hello'}], max_tokens=5, temperature=0
      )
  finally:
    server.send_signal(signal.SIGTERM)
    server.communicate()
  assert server.returncode == 0
  # The same model, template and tokens, in a conversation and in a request.
  assert answer.usage.completion_tokens == 5
  assert answer.choices[0].message.content.strip() in said

  assert main([*evaluate, '--json']) == 0
  figures = json.loads(capsys.readouterr().out.splitlines()[-1])
  assert [figures[f'eval/{task}/examples'] for task in TASKS] == [200] * 5

  assert main(back) == 0
  before, after = tensors(here / 'HF_FOLDER'), tensors(here / 'HF_FOLDER2')
  assert {*before} == {*after}
  for name, tensor in before.items():
    assert (after[name] == tensor).all(), name
  for path in TOKENIZER.iterdir():
    copy = here / 'HF_FOLDER2' / path.name
    # As the class reads it that tokenizer_config.json names.
    same = path.name == 'tokenizer.json'
    assert same or copy.read_bytes() == path.read_bytes(), path.name
  of_both = (
    vocabulary.of_checkpoint(str(here / folder), 'llama') for folder in ('HF_FOLDER', 'HF_FOLDER2')
  )
  assert len({found[1].fingerprint for found in of_both}) == 1
