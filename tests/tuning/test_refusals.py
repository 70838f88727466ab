# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What post-training refuses: one line, and nothing is written."""

import json
import pathlib
import re

import pytest

from gpt_jax.__main__ import main
from gpt_jax.tuning.method import METHODS
from tests.support import tiny

ROOT = pathlib.Path(__file__).parents[2]


def chat(*roles, said='x'):
  return {'messages': [{'role': role, 'content': said} for role in roles]}


def said(*messages):
  return {'messages': [{'role': r, 'content': c} for r, c in messages]}


GOOD = chat('user', 'assistant')
VICUNA = "sft('{train}', '{train}', template='vicuna')"
ALL = "sft('{train}', '{train}', loss_on='all')"

PAIR = {'prompt': 'a', 'chosen': 'b', 'rejected': 'c'}
REWARD = "reward('{train}')"
DPO = "dpo('{train}', template='vicuna')"
USER, SAYS = ({'role': r, 'content': 'x'} for r in ('user', 'assistant'))
OTHER = {**SAYS, 'content': 'y'}
CALLS = {'role': 'assistant', 'tool_calls': [{'function': {'name': 'f', 'arguments': {}}}]}

PROMPT = {'prompt': 'b', 'answer': 1}
GRPO = "grpo('{train}', '{folder}/r.py:good', max_completion_length=4)"
PPO = "ppo('{train}', '{folder}/r.py:good', max_completion_length=4)"
REWARDS = """
good = lambda prompts, completions: [0.0 for _ in completions]
answers = lambda prompts, completions, answer: answer
"""


def rewarded(name):
  return GRPO.replace('good', name)


# A second line of the file, the task, further flags; what the line says.
CASES = [
  (PROMPT, rewarded('other'), [], 'has no function other; name one of good'),
  (PROMPT, rewarded('answers'), [], "train.jsonl:1: has no column 'answer'"),
  (PROMPT, GRPO.replace('r.py', 's.py'), [], 's.py does not load'),
  (PROMPT, GRPO.replace('.py:good', ''), [], 'names no function and no folder'),
  ({'prompt': [SAYS]}, GRPO, [], "'assistant', and 'user' is due"),
  (
    {'prompt': [USER, SAYS]},
    GRPO.replace('4)', "4, template='vicuna')"),
    [],
    "train.jsonl:2: the prompt ends with the role 'assistant'",
  ),
  ({'prompt': ' '}, GRPO, [], 'train.jsonl:2: prompt is empty'),
  (
    {'prompt': [USER]},
    GRPO,
    [],
    r"train.jsonl:2: finetune.task=.*template='': the model has no chat",
  ),
  ({'text': 'x'}, PPO, [], "train.jsonl:2: has no column 'prompt'"),
  (PROMPT, GRPO, ['batch.size=12'], 'num_generations=8: .* = 12 completions'),
  (PROMPT, GRPO, ['finetune.length=4'], 'max_completion_length=4 of them'),
  (
    {'prompt': 'x' * 99},
    PPO,
    ['finetune.too_long=refuse'],
    'train.jsonl:2: has .* tokens, of which 60 fit; raise',
  ),
  (PROMPT, PPO, ['batch.size=ramp(0:8, 1_steps:16)'], 'grows, and a rollout'),
  (PROMPT, PPO, ['optim.on_spike=rewind'], 'completions are sampled anew'),
  (PROMPT, PPO, ['finetune.patience=2'], 'ppo does not use it'),
  (PROMPT, PPO.replace('4)', '4, ptx=2.0)'), [], 'give both, or neither'),
  ('{"messages": [', VICUNA, [], r'train.jsonl:2: is not JSON'),
  ([1], VICUNA, [], r'train.jsonl:2: is not a JSON object'),
  ({'a': 1}, VICUNA, [], r"train.jsonl:2: has neither messages.*but 'a'"),
  (chat('assistant'), VICUNA, [], r"message 0 has the role 'assistant', and"),
  (chat('user', 'user'), VICUNA, [], "message 1 has .*'user', and 'assistant'"),
  (
    chat('user', 'system', 'assistant'),
    VICUNA,
    [],
    "message 1 has the role 'system'.*system comes first",
  ),
  (chat('user', 'function'), VICUNA, [], r"\[1\]: role='function' is unknown"),
  (chat('user', 'tool'), VICUNA, [], "'tool', and 'assistant' is due"),
  (
    chat('user', 'assistant', 'system'),
    VICUNA,
    [],
    "message 2 has the role 'system', and 'user' or 'tool' is due",
  ),
  (
    chat('user', 'assistant', 'tool', 'tool', 'user'),
    VICUNA,
    [],
    "message 4 has the role 'user', and 'assistant' or 'tool' is due",
  ),
  (
    chat('user', 'assistant', 'tool', 'assistant'),
    VICUNA,
    [],
    r"train.jsonl:2: template='vicuna' does not know the role 'tool' of m.* 2;",
  ),
  (
    chat('user', 'assistant', 'tool', 'assistant'),
    VICUNA.replace('vicuna', 'llama2'),
    [],
    "template='llama2' does not know the role 'tool'",
  ),
  (
    {'messages': [USER, CALLS]},
    VICUNA.replace('vicuna', 'zephyr'),
    [],
    "template='zephyr' does not write the tool_calls of message 1;",
  ),
  (
    {'messages': [USER, {**CALLS, 'tool_calls': [{'function': 'f'}]}]},
    VICUNA,
    [],
    r"train.jsonl:2: message 1: tool_calls=\[{'function': 'f'}\] is not a list",
  ),
  (
    {'messages': [{**CALLS, 'role': 'user'}, SAYS]},
    VICUNA,
    [],
    r"messages\[0\]: has tool_calls and the role 'user'",
  ),
  (chat('user'), VICUNA, [], 'has no message of the assistant'),
  (said(('user', 'x'), ('assistant', ' ')), VICUNA, [], r'messages\[1\]: the answer is empty'),
  ({'messages': [7]}, VICUNA, [], r'messages\[0\]=7 is not a message'),
  ({'messages': []}, VICUNA, [], r'messages=\[\] is neither a text nor'),
  ({'messages': 'x'}, VICUNA, [], "messages='x' is a text"),
  (
    {'messages': [{'role': 'user', 'content': None}]},
    VICUNA,
    [],
    r'messages\[0\]: content=None is not a text',
  ),
  ({'prompt': 'x'}, VICUNA, [], "has no column 'completion'"),
  ({'prompt': 'x', 'completion': ''}, VICUNA, [], 'completion is empty'),
  (
    {'prompt': 'x', 'completion': chat('assistant')['messages']},
    VICUNA,
    [],
    'one is a text and one a list',
  ),
  (
    {
      'prompt': chat('user', 'assistant')['messages'],
      'completion': chat('user', 'assistant')['messages'],
    },
    VICUNA,
    [],
    "completion begins with the role 'user'",
  ),
  ({'text': 'x'}, VICUNA, [], "a text contains no answer.*'all'"),
  ({'text': ['x']}, ALL, [], r"text=\['x'\]|text\[0\]='x' is not a message"),
  (
    GOOD,
    VICUNA.replace("'vicuna'", "'vicuna', loss_on='completion'"),
    [],
    'the row has no completion',
  ),
  (GOOD, "sft('{train}', '{train}')", [], "template='': the model has no chat"),
  (
    GOOD,
    VICUNA.replace('vicuna', 'chatml'),
    [],
    r'no <\|im_end\|>, which it writes; take one of zephyr',
  ),
  (GOOD, VICUNA.replace('vicuna', 'none'), [], 'none of chatml.* no file'),
  (
    GOOD,
    VICUNA.replace("'vicuna'", "'vicuna', loss_on='user'"),
    [],
    "loss_on='user' is unknown; one of assistant",
  ),
  (GOOD, "sst2('{train}')", [], 'give that, or run gpt-jax finetune'),
  (GOOD, "sft('{train}', 'a.json')", [], 'a.json: .* rename it to .jsonl'),
  (
    GOOD,
    "sft('{train}', 'nothing.jsonl')",
    [],
    'nothing.jsonl: no such file; give another with --dev, or as dev in fin',
  ),
  (GOOD, "sft('', '{train}')", [], "train='': names no file; give one with --t"),
  (
    PAIR,
    "dpo('{train}', 'nothing.jsonl')",
    [],
    'nothing.jsonl: no such file; give another with --dev',
  ),
  (
    PROMPT,
    GRPO.replace('{train}', 'nothing.jsonl'),
    [],
    'nothing.jsonl: no such file; give another with --prompts',
  ),
  (
    PROMPT,
    PPO.replace('4)', "4, ptx=1.0, ptx_text='no.jsonl')"),
    [],
    'no.jsonl: no such file; give another as ptx_text in finetune.task',
  ),
  (
    PROMPT,
    PPO.replace('r.py', 's.py'),
    [],
    r's.py does not load \(no such file\); give another with --reward',
  ),
  (
    {'prompt': 'x', 'chosen': [SAYS], 'rejected': [OTHER]},
    DPO,
    [],
    'train.jsonl:2: prompt is a text, and chosen and rejected are '
    'conversations that do not begin with the same message; give prompt as',
  ),
  (
    {'prompt': 'x', 'chosen': [USER, SAYS], 'rejected': [USER]},
    REWARD,
    [],
    'train.jsonl:2: rejected has nothing after the beginning',
  ),
  (
    {'prompt': [USER], 'chosen': 'x', 'rejected': 'y'},
    REWARD,
    [],
    'of prompt and completion, one is a text and one a list',
  ),
  (GOOD, VICUNA, ['finetune.length=99'], 'length=99: must be from 2 to the mod'),
  (
    GOOD,
    VICUNA,
    ['finetune.length=9', 'finetune.too_long=refuse'],
    r'train.jsonl:1: has \d+ tokens, of which 10 fit; raise',
  ),
  (GOOD, VICUNA, ['finetune.length=5'], 'nothing is left to learn in rows'),
  (GOOD, VICUNA, ['finetune.dropout=0.2'], 'sft does not use it; leave it at'),
  (GOOD, VICUNA, ['finetune.head=spans'], 'finetune.head=.*sft does not use it'),
  (GOOD, VICUNA, ['model.attention=bidirectional'], 'holds an encoder .* give a decoder'),
  (
    GOOD,
    VICUNA,
    ['model.output=adaptive', 'model.input=adaptive((5,), 17)'],
    'take tied or untied',
  ),
  (GOOD, VICUNA, ['tokenizer.name=words(9)'], 'is trained on text, and post'),
  ({'a': 1}, REWARD, [], "train.jsonl:2: has neither chosen .*but 'a'"),
  ({'chosen': 'x'}, DPO, [], r"train.jsonl:2: has no column 'rejected'"),
  ({'chosen': 'x', 'completions': ['x', 'y']}, REWARD, [], "train.jsonl:2: has no column 'prompt'"),
  ({**PAIR, 'rejected': 'b'}, DPO, [], 'chosen and rejected are equal'),
  ({**PAIR, 'rejected': ' '}, REWARD, [], 'rejected is empty'),
  ({'chosen': 'x', 'rejected': 'xy'}, DPO, [], 'chosen has nothing after'),
  (
    {'prompt': 'x', 'completions': ['y']},
    REWARD,
    [],
    r"completions=\['y'\] is not a list of two or more",
  ),
  (
    {'prompt': 'x', 'completions': ['a', 'b', 'a']},
    REWARD,
    [],
    r'completions\[0\] and completions\[2\] are equal',
  ),
  ({**PAIR, 'chosen': [SAYS]}, DPO, [], 'some of chosen, rejected are texts'),
  (
    {'prompt': [USER], 'chosen': [SAYS], 'rejected': [USER]},
    DPO,
    [],
    "message 1 has the role 'user', and 'assistant' is due",
  ),
  (
    {'prompt': [USER], 'chosen': [SAYS], 'rejected': [{**SAYS, 'content': 'y'}]},
    REWARD,
    [],
    "template='': the model has no chat",
  ),
  (PAIR, REWARD, [], 'has 1 prompts, so none is left to evaluate on'),
  (
    {**PAIR, 'prompt': 'b'},
    "dpo('{train}', '{train}')",
    [],
    'train.jsonl:1: has the prompt of .*train.jsonl:1, which is trained on',
  ),
  (
    {**PAIR, 'prompt': 'b' * 70},
    REWARD,
    ['finetune.too_long=refuse'],
    'train.jsonl:2: has 72 tokens, of which 64 fit; raise',
  ),
  ({**PAIR, 'prompt': 'b' * 70}, DPO, [], 'no ranking fits into 65 tokens; raise'),
  (
    {**PAIR, 'prompt': 'b'},
    "dpo('{train}', loss_type='ipo', label_smoothing=0.1)",
    [],
    "label_smoothing=0.1: loss_type='ipo' has none",
  ),
  (PAIR, "dpo('{train}', beta=0.0)", [], 'beta=0.0 must be above 0'),
  (PAIR, "reward('{train}', dev_share=1.0)", [], 'dev_share=1.0 must be below'),
  (
    {**PAIR, 'prompt': 'b'},
    REWARD,
    ['model.attention=bidirectional'],
    'holds an encoder .* give a decoder',
  ),
  (
    {**PAIR, 'prompt': 'b'},
    DPO,
    ['model.output=adaptive', 'model.input=adaptive((5,), 17)'],
    'take tied or untied',
  ),
]


@pytest.mark.parametrize(
  ('line', 'task', 'fields', 'message'), CASES, ids=[case[3] for case in CASES]
)
def test_refusals(line, task, fields, message, tmp_path, capsys):
  train = tmp_path / 'train.jsonl'
  second = line if isinstance(line, str) else json.dumps(line)
  command = task.partition('(')[0]
  command = command if command in METHODS else 'sft'
  good = GOOD if command == 'sft' else PAIR
  if command in ('grpo', 'ppo'):
    good = {'prompt': 'a'}
  (tmp_path / 'r.py').write_text(REWARDS)
  train.write_text(json.dumps(good) + '\n' + second + '\n')
  workdir = tmp_path / 'w'
  code = main(
    [
      command,
      f'--config={ROOT}/configs/finetune/{command}.py',
      '--init=none',
      f'--workdir={workdir}',
      *tiny.flags(
        finetune=dict(task=task.format(train=train, folder=tmp_path)),
        model=dict(num_layers=1, d_model=32, num_heads=4, context_length=64),
        tokenizer=dict(name='bytes'),
        schedule=dict(num_steps=2),
      ),
      *(f'--config.{field}' for field in fields),
    ]
  )
  error = capsys.readouterr().err.strip().splitlines()[-1]
  assert code == 2
  assert error.startswith(f'gpt-jax {command}: ')
  assert re.search(message, error), error
  assert not workdir.exists()
