# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""lm-eval's command line on a workdir, offline, with a task written here.

Runs where lm-eval is installed: `make lm_eval` makes such an environment.
"""

import json
import math
import pathlib
import subprocess
import sys
import types

import jax
import numpy as np
import pytest

pytest.importorskip('lm_eval', reason="needs lm-eval: pip install '.[eval]'")

from gpt_jax.__main__ import main
from gpt_jax.evaluation.lm_eval import GptJax
from gpt_jax.opening import models as trained_lib
from tests.support import tiny

ROOT = pathlib.Path(__file__).parents[2]


def documents(count: int) -> list[dict]:
  """Questions; some too long for the context, some with equal choices.

  Some letters are several bytes.
  """
  rng = np.random.default_rng(0)
  words = ['ash', 'Öl', 'été', '水', 'a river', 'stone', 'in', 'of', '12']

  def text(most: int) -> str:
    return ' '.join(rng.choice(words, rng.integers(1, most)))

  out = []
  for i in range(count):
    choices = [text(4) for _ in range(3)]
    if i % 5 == 0:
      choices[2] = choices[1]
    label = int(rng.integers(3))
    out.append({'q': text(13), 'choices': choices, 'label': label})
  return out


DOCUMENTS = documents(61)
MULTIPLE_CHOICE = """
task: local_choices
dataset_path: json
dataset_kwargs: {{data_files: {{test: {path}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "Q: {{{{q}}}}\\nA:"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: label
metric_list: [{{metric: acc}}, {{metric: acc_norm}}, {{metric: acc_bytes}}]
"""
PERPLEXITY = """
task: local_perplexity
dataset_path: json
dataset_kwargs: {{data_files: {{test: {path}}}}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{{{q}}}}"
metric_list: [{{metric: byte_perplexity}}]
"""
GENERATION = """
task: local_generation
dataset_path: json
dataset_kwargs: {{data_files: {{test: {path}}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{q}}}}"
doc_to_target: "{{{{choices[label]}}}}"
generation_kwargs: {{until: ["\\n"], max_gen_toks: 5}}
metric_list: [{{metric: exact_match}}]
"""


@pytest.fixture(scope='module')
def workdir(tmp_path_factory):
  workdir = tmp_path_factory.mktemp('trained') / 'w'
  code = main(
    [
      'train',
      *tiny.SMOKE,
      *tiny.flags(
        model=dict(num_layers=2, d_model=48, context_length=61),
        schedule=dict(num_steps=3),
        log=dict(sample_tokens=20),
      ),
      f'--workdir={workdir}',
    ]
  )
  assert code == 0
  return workdir


def test_tasks_of_lm_eval_run_on_a_workdir(workdir, tmp_path, capsys):
  data = tmp_path / 'test.jsonl'
  data.write_text(''.join(json.dumps(d) + '\n' for d in DOCUMENTS))
  tasks = {'choices': MULTIPLE_CHOICE, 'perplexity': PERPLEXITY}
  tasks['generation'] = GENERATION
  for name, text in tasks.items():
    (tmp_path / f'{name}.yaml').write_text(text.format(path=data))
  out = tmp_path / 'out.json'
  names = [f'local_{name}' for name in tasks]
  subprocess.run(
    [
      sys.executable,
      '-m',
      'gpt_jax.evaluation.lm_eval',
      'run',
      '--model',
      'gpt_jax',
      '--model_args',
      f'workdir={workdir}',
      '--tasks',
      ','.join(names),
      '--include_path',
      str(tmp_path),
      '--output_path',
      str(out),
    ],
    check=True,
    cwd=ROOT,
  )
  (written,) = [*tmp_path.glob('out*.json')]
  results = json.loads(written.read_text())['results']

  # What `evaluate` finds on the same rows.
  rows = [{**d, 'context': f'Q: {d["q"]}\nA:'} for d in DOCUMENTS]
  own = tmp_path / 'own.jsonl'
  own.write_text(''.join(json.dumps(row) + '\n' for row in rows))
  task = f"--tasks=multiple_choice('{own}', name='own')"
  assert main(['evaluate', f'--workdir={workdir}', task, '--json']) == 0
  found = json.loads(capsys.readouterr().out)
  assert found['eval/own/cut'] > 0
  names = {'acc': '', 'acc_norm': '_per_character', 'acc_bytes': '_per_byte'}
  for theirs, ours in names.items():
    value = results['local_choices'][f'{theirs},none']
    assert found[f'eval/own/accuracy{ours}'] == value
    assert 0 < value < 1

  # The same from the model itself.
  trained = trained_lib.load(str(workdir))
  variables = {'params': trained.state.eval_params}

  @jax.jit
  def run(inputs):
    model = trained.parts.model
    hidden = model.apply(variables, inputs).hidden_BLD
    return model.apply(variables, hidden, method='logits')

  def log_prob(context: str, continuation: str) -> float:
    ids = np.array([256, *(context + continuation).encode()])[-62:]
    count = len(continuation.encode())
    # Padded on the right, which changes nothing before.
    inputs = np.zeros((1, 61), np.int32)
    inputs[0, : len(ids) - 1] = ids[:-1]
    logits = np.asarray(run(inputs), np.float64)[0, len(ids) - 1 - count :][:count]
    picked = logits[range(count), ids[-count:]]
    return float((picked - np.log(np.exp(logits).sum(-1))).sum())

  right = [
    np.argmax([log_prob(f'Q: {d["q"]}\nA:', f' {c}') for c in d['choices']]) == d['label']
    for d in DOCUMENTS
  ]
  assert results['local_choices']['acc,none'] == pytest.approx(np.mean(right))
  short = [d['q'] for d in DOCUMENTS if len(d['q'].encode()) <= 61]
  assert len(short) == len(DOCUMENTS)
  total = sum(log_prob('', q) for q in short)
  expected = math.exp(-total / sum(len(q.encode()) for q in short))
  assert results['local_perplexity']['byte_perplexity,none'] == pytest.approx(expected, rel=1e-4)
  assert 'exact_match,none' in results['local_generation']


def test_answers_are_drawn_as_lm_eval_asks(workdir, caplog):
  model = GptJax(str(workdir))

  def answers(count=2, **options):
    request = types.SimpleNamespace(args=('The cat', options))
    return model.generate_until([request] * count)

  # lm-eval repeats a request to get several answers; the same ones each time.
  drawn = answers(temperature=1.0, max_gen_toks=7)
  assert drawn[0] != drawn[1]
  assert drawn == answers(do_sample=True, max_gen_toks=7)
  greedy = answers(max_gen_toks=7)
  assert greedy[0] == greedy[1]
  assert greedy == answers(do_sample=False, temperature=1.0, max_gen_toks=7)
  # Of one token to draw from, or of one that is likely enough.
  assert greedy == answers(temperature=1.0, top_k=1, max_gen_toks=7)
  assert greedy == answers(temperature=1.0, top_p=1e-9, max_gen_toks=7)
  assert drawn == answers(temperature=1.0, top_k=-1, top_p=1, max_gen_toks=7)
  for name in ('max_new_tokens', 'max_tokens', 'max_completion_tokens'):
    assert answers(**{name: 7}) == greedy
  ours = [r for r in caplog.records if r.name == 'gpt_jax']
  assert not ours
  answers(max_tokens=31)
  ours = [r for r in caplog.records if r.name == 'gpt_jax']
  assert [r.getMessage() for r in ours] == [
    'max_gen_toks=31: half of the context of 61 tokens is the prompt, answers end after 30'
  ]
