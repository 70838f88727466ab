# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""`gpt-jax reward` and `gpt-jax dpo`, as a user would run them."""

import json
import pathlib
import shutil

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict

from configs.finetune import reward
from gpt_jax import hf
from gpt_jax.__main__ import main
from gpt_jax.core import config as config_lib
from gpt_jax.core.nn import params as params_lib
from gpt_jax.core.spec import FailedError, UsageError
from gpt_jax.core.tokenizers import tokenizer as tokenizer_lib
from gpt_jax.core.training import metrics
from gpt_jax.opening import models
from gpt_jax.tuning import best_of, method, preferences, records, rewards
from gpt_jax.tuning.dialogues import Encoder
from tests.support import tiny
from tests.support.tiny import one_device  # noqa: F401 (of eight, programs compile for longer)

ROOT = pathlib.Path(__file__).parents[2]
STEPS = 30


def ranked(path, count, seed, *, most=2):
  """Completions of letters; those with more of the letter z are better."""
  rng = np.random.default_rng(seed)
  with open(path, 'w', encoding='utf-8') as file:
    for _ in range(count):
      prompt = ''.join(rng.choice([*'abcdefgh'], 7)) + ':'
      size = int(rng.integers(2, most + 1))
      numbers = sorted(rng.choice(6, size, replace=False), reverse=True)
      texts = []
      for number in numbers:
        letters = [*'z' * number, *rng.choice([*'uvwxy'], 6 - number)]
        texts.append(''.join(rng.permutation(letters)))
      row = {'prompt': prompt, 'completions': texts}
      if size == 2:
        row = {'prompt': prompt, 'chosen': texts[0], 'rejected': texts[1]}
      file.write(json.dumps(row) + '\n')
  return str(path)


@pytest.fixture(scope='module')
def files(tmp_path_factory):
  folder = tmp_path_factory.mktemp('files')
  return (ranked(folder / 'train.jsonl', 61, 1, most=3), ranked(folder / 'dev.jsonl', 17, 2))


def flags(command, files, workdir, *more, init='none'):
  train, dev = files
  return [
    command,
    f'--config={ROOT}/configs/finetune/{command}.py',
    f'--init={init}',
    f'--workdir={workdir}',
    f'--train={train}',
    *([f'--dev={dev}'] if dev else []),
    *tiny.flags(
      model=dict(num_layers=1, d_model=32, num_heads=4, context_length=32, dtype='float32'),
      tokenizer=dict(name='bytes'),
      finetune=dict(peak='1e-2'),
      batch=dict(size=8),
      schedule=dict(num_steps=STEPS),
      eval=dict(every_steps=15, rows=8),
      checkpoint=dict(every_steps=10),
      log=dict(every_steps=5),
    ),
    *more,
  ]


def result_of(workdir):
  return json.loads((workdir / 'result.json').read_text())


@pytest.fixture(scope='module')
def runs(tmp_path_factory, files):
  """A finished workdir of each command."""
  folder = tmp_path_factory.mktemp('runs')
  for command in ('reward', 'dpo'):
    assert main(flags(command, files, folder / command)) == 0
  return {command: folder / command for command in ('reward', 'dpo')}


@pytest.mark.slow
def test_a_reward_model_learns_a_rule(runs, files):
  """It tells which completion has more of a letter, in prompts not seen."""
  dev = result_of(runs['reward'])['dev']
  assert (dev['examples'], dev['pairs'], dev['left_out']) == (17, 17, 0)
  assert dev['accuracy'] >= 0.8
  assert dev['accuracy_low'] <= dev['accuracy'] <= dev['accuracy_high']
  assert dev['margin'] > 0.5
  assert 'perplexity' not in dev
  lines = (runs['reward'] / 'predictions/dev.jsonl').read_text().splitlines()
  rewards = np.array([json.loads(line)['rewards'] for line in lines])
  margins = rewards[:, 0] - rewards[:, 1]
  np.testing.assert_allclose(margins.mean(), dev['margin'], rtol=1e-4)
  np.testing.assert_allclose(np.mean(margins > 0), dev['accuracy'])
  np.testing.assert_allclose(rewards[:, 0].mean(), dev['mean_best_reward'], rtol=1e-4)
  np.testing.assert_allclose(rewards.mean(), dev['mean_reward'], rtol=1e-4)
  assert json.loads(lines[3])['where'] == f'{files[1]}:4'
  train = result_of(runs['reward'])['train']
  rows = [*records.rankings(files[0])]
  pairs = [len(x.completions) * (len(x.completions) - 1) // 2 for x in rows]
  assert (train['examples'], train['pairs']) == (61, sum(pairs))


def test_dpo_raises_the_margin(runs, files):
  lines = metrics.read(str(runs['dpo']))
  logged = [m for m in lines if 'rewards/margins' in m]
  assert len(logged) == STEPS // 5
  assert 'logps/chosen' in logged[0]
  judged = [m for m in lines if 'eval/validation/rewards/margins' in m]
  assert [m['step'] for m in judged] == [15, STEPS]
  result = result_of(runs['dpo'])
  dev, first = result['dev'], result['first']
  assert first == {
    'step': 15,
    'loss': judged[0]['eval/validation/loss'],
    'rewards/accuracies': judged[0]['eval/validation/rewards/accuracies'],
    'rewards/margins': judged[0]['eval/validation/rewards/margins'],
  }
  assert method.told(result, 'done').splitlines()[1] == (
    f'from step 15 to step {STEPS}: '
    f'loss {first["loss"]:.4f} to {dev["loss"]:.4f}, '
    f'rewards/accuracies {first["rewards/accuracies"]:.4f} to '
    f'{dev["rewards/accuracies"]:.4f}, '
    f'rewards/margins {first["rewards/margins"]:.4f} to '
    f'{dev["rewards/margins"]:.4f}'
  )
  assert method.told({**result, 'first': {}}, 'done') == 'done'
  assert dev['rewards/margins'] > 0.1
  assert dev['loss'] < np.log(2)
  np.testing.assert_allclose(
    dev['rewards/margins'], dev['rewards/chosen'] - dev['rewards/rejected'], rtol=1e-6
  )


@pytest.mark.slow
@pytest.mark.parametrize('command', ['reward', 'dpo'])
def test_adapters_are_trained_beside_the_model(command, runs, files, tmp_path):
  """Of the merged model the adapted kernels differ, and the new head."""
  more = ["--config.finetune.lora=lora(rank=3, on='query')", '--config.schedule.num_steps=2']
  base, workdir = runs['dpo'], tmp_path / 'w'
  assert main(flags(command, files, workdir, *more, init=base)) == 0
  before, after = (
    {
      params_lib.name_of(where): x
      for where, x in jax.tree_util.tree_leaves_with_path(
        models.load_state(str(path))[1].eval_params
      )
    }
    for path in (base, workdir)
  )
  assert bool(after.keys() - before.keys()) == (command == 'reward')
  changed = {n for n, x in before.items() if not np.array_equal(x, after[n])}
  assert changed and all('query/kernel' in n for n in changed)


def test_the_reference_is_kept_and_checked(runs, files, tmp_path, capsys):
  """Computed once; a changed file is refused, and a missing one made again."""
  workdir = tmp_path / 'w'
  shutil.copytree(runs['dpo'], workdir)
  path = workdir / preferences.REFERENCE
  held = dict(np.load(path))
  assert held['train'].shape == (result_of(workdir)['train']['pairs'], 2)
  path.unlink()
  assert main(flags('dpo', files, workdir)) == 0
  for name, values in np.load(path).items():
    np.testing.assert_array_equal(values, held[name])
  np.savez(path, **{**held, 'train': held['train'] + 1})
  assert main(flags('dpo', files, workdir)) == 2
  assert 'reference.npz: is damaged' in capsys.readouterr().err
  np.savez(path, **{**held, 'run': 'another'})
  assert main(flags('dpo', files, workdir)) == 2
  assert 'is of another model or data' in capsys.readouterr().err


def test_the_first_step_is_at_the_reference(files, tmp_path):
  """Policy and reference are equal before the first update: log 2."""
  one = ['--config.schedule.num_steps=1', '--config.log.every_steps=1']
  assert main(flags('dpo', files, tmp_path / 'w', *one)) == 0
  lines = metrics.read(str(tmp_path / 'w'))
  (first,) = [m for m in lines if 'rewards/margins' in m]
  np.testing.assert_allclose(first['loss'], np.log(2), rtol=1e-5)
  margin = first['rewards/margins']
  np.testing.assert_allclose(margin, 0, atol=1e-5)


def test_a_file_alone_is_split_by_prompt(tmp_path):
  """The same split each time, and no prompt on both sides."""
  found = [records.RankedTexts(f'a:{i}', f'prompt {i % 13}', [f'x{i}', f'y{i}']) for i in range(40)]
  one, again, other = (records.split_by_prompt(found, 0.2, seed, 'a') for seed in (1, 1, 2))
  assert one == again != other
  sides = [{x.prompt for x in one[name]} for name in ('train', 'dev')]
  assert [len(side) for side in sides] == [10, 3]
  assert not sides[0] & sides[1]
  assert sum(map(len, one.values())) == 40
  records.check_apart(one['train'], one['dev'])


SYSTEM, USER = ({'role': r, 'content': r[0]} for r in ('system', 'user'))
SAID = [{'role': 'assistant', 'content': x} for x in ('one', 'two')]


@pytest.mark.parametrize(
  ('row', 'prompt', 'completions'),
  [
    ({'prompt': 'a', 'chosen': 'b', 'rejected': 'c'}, 'a', ['b', 'c']),
    # TRL leaves a space to the completions.
    ({'chosen': 'so I say', 'rejected': 'so I go'}, 'so I', [' say', ' go']),
    ({'chosen': 'x', 'rejected': 'y'}, '', ['x', 'y']),
    ({'chosen': [USER, SAID[0]], 'rejected': [USER, SAID[1]]}, [USER], [[SAID[0]], [SAID[1]]]),
    ({'prompt': 'a', 'completions': ['b', 'c', 'd']}, 'a', ['b', 'c', 'd']),
    # As ultrafeedback_binarized has them.
    (
      {'prompt': 'u', 'chosen': [USER, SAID[0]], 'rejected': [USER, SAID[1]]},
      [USER],
      [[SAID[0]], [SAID[1]]],
    ),
    (
      {
        'prompt': 'u',
        'chosen': [SYSTEM, USER, SAID[0], USER, SAID[0]],
        'rejected': [SYSTEM, USER, SAID[0], USER, SAID[1], USER, SAID[0]],
      },
      [SYSTEM, USER, SAID[0], USER],
      [[SAID[0]], [SAID[1], USER, SAID[0]]],
    ),
    ({'prompt': 'u', 'completions': [[USER, x] for x in SAID]}, [USER], [[SAID[0]], [SAID[1]]]),
  ],
)
def test_forms_of_rows(row, prompt, completions):
  found = records.ranking(records.Record('a:1', row))
  assert found == ('a:1', prompt, completions)


def test_what_is_left_out_is_told_with_reasons():
  """Of rankings whose completions begin after two tokens of a prompt."""
  ranked = [
    preferences.Ranked(
      f'f:{i}', [preferences.LearnedTokens(np.array(x), np.arange(len(x)) > 1) for x in pair]
    )
    for i, pair in enumerate(
      [
        ([1, 2, 3], [1, 2, 4]),
        ([1, 2, 3, 4, 5], [1, 2, 3, 4, 6]),
        ([1, 2], [1, 2, 3]),
        ([1, 2, 3, 4, 5], [1, 2, 3]),
      ]
    )
  ]
  config = ConfigDict({'finetune': {'too_long': 'cut', 'length': 4}})
  kept, figures, reasons = preferences.fit(config, 'f', ranked, 4)
  assert [x.where for x in kept] == ['f:0', 'f:3']
  said = '2 left out (1 with equal completions, 1 without a token of a comple'
  assert method.left_out(reasons).startswith(said)
  config.finetune.too_long = 'drop'
  kept, figures, reasons = preferences.fit(config, 'f', ranked, 4)
  assert figures['left_out'] == 3 and reasons['too long'] == 2
  assert method.left_out({}) == '0 left out'


def test_calibration_by_hand():
  """Confidences 0.5, 0.73, 0.88, 0.88; of the last two one is wrong."""
  margins = np.array([0.0, 1.0, 2.0, -2.0])
  sigma = 1 / (1 + np.exp(-np.abs(margins)))
  error, bins = preferences.calibration(margins)
  assert [x['pairs'] for x in bins] == [1, 1, 2]
  assert [x['accuracy'] for x in bins] == [0.5, 1.0, 0.5]
  np.testing.assert_allclose(error, (0 + (1 - sigma[1]) + 2 * (sigma[2] - 0.5)) / 4)


def test_length_is_told_apart_from_preference():
  """Rewards that are lengths correlate with them fully."""
  rng = np.random.default_rng(0)
  sizes = rng.integers(1, 9, (7, 2))

  def encoded(size):
    ids = np.arange(size + 2, dtype=np.int32)
    return preferences.LearnedTokens(ids, ids >= 2)

  rows = preferences.RankedRows(
    [preferences.Ranked('a', [encoded(n) for n in pair]) for pair in sizes], 2, 11
  )
  found = preferences.judged(2.0 * sizes, rows)
  np.testing.assert_allclose(found['length_correlation'], 1.0)
  longer = (1 + np.sign(sizes[:, 0] - sizes[:, 1])) / 2
  np.testing.assert_allclose(found['longer_accuracy'], longer.mean())
  np.testing.assert_allclose(found['mean_best_reward'], 2 * sizes[:, 0].mean())


def test_a_reward_model_scores_texts_here_and_in_transformers(runs, files, tmp_path):
  """As in predictions/dev.jsonl, less their mean; exported it scores alike."""
  rows = [*records.rankings(files[1])]
  lines = (runs['reward'] / 'predictions/dev.jsonl').read_text().splitlines()
  written = np.array([json.loads(line)['rewards'] for line in lines])
  score = rewards.open_reward(str(runs['reward']))
  texts = [[row.completions[i] for row in rows] for i in (0, 1)]
  prompts = [row.prompt for row in rows]
  found = np.stack([score(prompts, x) for x in texts], axis=1)
  np.testing.assert_allclose(found[:, 0].mean(), 0, atol=1e-4)
  np.testing.assert_allclose(found + score.mean, written, atol=1e-4)

  def ids(text):
    return np.array(score.tokenizer.encode(text), np.int32)

  eos = np.array([score.tokenizer.eos_id], np.int32)
  of_ids = score([ids(x) for x in prompts], [np.concatenate([ids(x), eos]) for x in texts[1]])
  np.testing.assert_allclose(of_ids, found[:, 1], atol=1e-5)
  folder = tmp_path / 'hf'
  argv = ['convert', f'--workdir={runs["reward"]}', f'--to_hf={folder}']
  assert main(argv) == 0
  config = json.loads((folder / 'config.json').read_text())
  assert config['architectures'] == ['GPT2ForSequenceClassification']
  exported = rewards.open_reward(str(folder))
  np.testing.assert_allclose(exported(prompts, texts[0]), found[:, 0], atol=1e-5)
  model, params = hf.load(str(folder))
  whole = np.concatenate([ids(prompts[0]), ids(texts[0][0]), eos])
  logits = hf.forward(model, params, input_ids=whole[None])['logits']
  np.testing.assert_allclose(logits[0, 0], written[0, 0], atol=1e-4)


@pytest.mark.slow
def test_generate_prints_the_samples_with_the_highest_rewards(runs, capsys):
  """Of texts and of a file, the best first, with their scores."""

  def generate(*more):
    argv = ['generate', f'--workdir={runs["dpo"]}', '--max_tokens=9']
    assert main([*argv, '--seed=3', '--temperature=1.5', *more]) == 0
    return capsys.readouterr().out

  prompt = 'abc:'
  given = json.loads(generate(f'--prompt={prompt}', '--num_samples=5', '--json'))
  texts = [x.removeprefix(prompt) for x in given['prompts'][0]['samples']]
  scores = rewards.open_reward(str(runs['reward']))([prompt] * 5, texts)
  order = np.argsort(-scores)[:2]
  reward = '--best_of=5', f'--reward={runs["reward"]}', '--num_samples=2'
  (best,) = json.loads(generate(f'--prompt={prompt}', *reward, '--json'))['prompts']
  assert best['samples'] == [prompt + texts[i] for i in order]
  np.testing.assert_allclose(best['scores'], scores[order], atol=1e-5)
  prompts, out = runs['dpo'] / 'in.jsonl', runs['dpo'] / 'out.jsonl'
  prompts.write_text(json.dumps({'prompt': prompt}) + '\n')
  generate(f'--prompts={prompts}', f'--out={out}', *reward)
  line = json.loads(out.read_text())
  assert [x['text'] for x in line['continuations']] == [texts[i] for i in order]


@pytest.mark.parametrize(
  ('flags', 'message'),
  [
    (['--best_of=3'], '--best_of and --reward go together'),
    (['--reward=R'], '--best_of and --reward go together'),
    (['--reward=R', '--best_of=2', '--num_samples=2'], 'give more'),
    (['--reward=R', '--best_of=2', '--stream'], 'give --prompt or --prompts'),
  ],
)
def test_what_best_of_refuses(flags, message, runs, capsys):
  argv = ['generate', f'--workdir={runs["dpo"]}', '--prompt=a', *flags]
  assert main(argv) == 2
  assert message in capsys.readouterr().err


def test_scores_that_are_not_finite():
  with pytest.raises(FailedError, match="reward model's scores are not finite"):
    best_of.rank(lambda *_: np.array([0.5, np.nan]), 'a', ['b', 'c'])


@pytest.mark.parametrize(
  ('folder', 'message'),
  [
    ('dpo', '--reward=.*: holds no reward model; give a workdir of gpt-jax'),
    ('nothing', '--reward=.*: holds no config.json'),
  ],
)
def test_what_is_no_reward_model(folder, message, runs, tmp_path):
  with pytest.raises(UsageError, match=message):
    rewards.open_reward(str(runs.get(folder, tmp_path / folder)))


def test_texts_that_are_too_long_to_score(runs):
  score = rewards.open_reward(str(runs['reward']))
  with pytest.raises(UsageError, match=r'has 66 tokens, .* from 1 to 32'):
    score(['a' * 32], ['b' * 33])


def test_the_hash_of_rankings_has_their_grouping(files, tmp_path):
  """Two pairs have the tokens of one ranking of four, and are other data."""
  found = []
  for rows in ([['b', 'c'], ['d', 'e']], [['b', 'c', 'd', 'e']]):
    path = tmp_path / f'{len(rows)}.jsonl'
    lines = [json.dumps({'prompt': 'a', 'completions': x}) for x in rows]
    path.write_text('\n'.join(lines))
    config = config_lib.unlocked(reward.get_config())
    config.model.context_length = 16
    encoder = Encoder(tokenizer_lib.build('bytes', []), lambda: pytest.fail('no chat'))
    prepared = preferences.Reward(str(path), files[1]).prepare(config, encoder)
    found.append(prepared.data)
  assert [x.partition(',')[0] for x in found] == ['4 train'] * 2
  assert found[0] != found[1]
