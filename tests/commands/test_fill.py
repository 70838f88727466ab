# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""`gpt-jax fill`: fillers, against the scores of the whole row; bad input."""

import json
import re
from typing import Any

import jax
import numpy as np
import pytest

from configs import base
from gpt_jax import hf
from gpt_jax.__main__ import main
from gpt_jax.commands.fill import shown
from gpt_jax.core import config as config_lib
from gpt_jax.core import sharding
from gpt_jax.core.checkpoints import checkpointer
from gpt_jax.core.config import defaults
from gpt_jax.core.tokenizers import tokenizer as tokenizer_lib
from gpt_jax.core.training import parts
from gpt_jax.decoding import constraints, files, fill
from gpt_jax.opening import models as trained_lib
from tests.support import sentinels, tiny
from tests.support.decoding import generate
from tests.support.golden_io import ROOT
from tests.support.stdin import stdin_of

WORDS = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', '.', 'paris', 'is', 'the']
WORDS += ['of', 'france', 'capital', '##s', *(f'w{i}' for i in range(99))]
TEXT = 'Paris is the [MASK] of France.'


def write(folder, tokenizer='wordpiece', **fields):
  """A workdir of an imported BERT; without a checkpoint if it has fields."""
  model, params = hf.load(str(ROOT / 'bert_pretraining'))
  config: Any = base.get_config().unlock()
  for field in hf.transformer_fields():
    config.model[field] = getattr(model, field)
  config.model.dtype = 'float32'
  config.optim.name = 'none'
  config.objective.name = 'masked'
  if 'finetune.task' in fields:
    config.finetune = defaults.optional('finetune')
  config.update_from_flattened_dict(fields)
  folder.mkdir()
  (folder / 'vocab.txt').write_text('\n'.join(WORDS[: model.vocab_size]) + '\n')
  if tokenizer == 'wordpiece':
    tokenizer = f"wordpiece_file('{folder}/vocab.txt')"
  made = tokenizer_lib.build(tokenizer, [])
  made.save(str(folder / 'tokenizer'))
  config.tokenizer.name = tokenizer
  if not fields:
    config = config_lib.resolve(config.lock())
    built = parts.build(config)
    body = {n: x for n, x in params.items() if n != 'heads'}
    state = parts.initial_state(built)
    # On the devices, as the state is.
    state = state._replace(params=jax.device_put(body, built.shardings.params))
    checkpointer.Checkpointer(str(folder)).finish(state)
  (folder / 'config.json').write_text(config_lib.to_json(config))
  return model, params, made


@pytest.fixture(scope='module')
def ready(tmp_path_factory):
  """A workdir, and what is in it."""
  folder = tmp_path_factory.mktemp('fill') / 'w'
  return folder, *write(folder)


def test_each_mask_is_filled(ready, capsys, monkeypatch):
  folder, model, params, tokenizer = ready
  second = 'the [MASK] [MASK] . of the capitals of paris is the capitals of w3'
  monkeypatch.setattr('sys.stdin', stdin_of(f'{second}\n\n'))
  more = ['--text=-', '--top=3', '--json']
  argv = ['fill', f'--workdir={folder}', f'--text={TEXT}', *more]
  assert main(argv) == 0
  found = json.loads(capsys.readouterr().out)['texts']
  assert [x['text'] for x in found] == [TEXT, second]
  ids = [2, *(WORDS.index(w) for w in ('paris', 'is', 'the'))]
  ids += [4, WORDS.index('of'), WORDS.index('france'), 5, 3]
  rows = [np.array(ids), np.array([2, 8, 4, 4, *tokenizer.encode(second[18:]), 3])]
  padded = np.zeros((2, max(map(len, rows))), int)
  for to, row in zip(padded, rows, strict=True):
    to[: len(row)] = row
  # No row has [PAD], which is 0.
  given = {'input_ids': padded, 'attention_mask': padded > 0}
  scores = np.asarray(hf.forward(model, params, **given)['prediction_logits'])
  for row, logits, said in zip(rows, scores, found, strict=True):
    logits = np.asarray(logits, np.float64)
    for place, fillers in zip(np.flatnonzero(row == 4), said['masks'], strict=True):
      shares = np.exp(logits[place] - logits[place].max())
      shares /= shares.sum()
      best = np.argsort(-shares)[:3]
      assert [f['id'] for f in fillers] == best.tolist()
      np.testing.assert_allclose([f['probability'] for f in fillers], shares[best], rtol=1e-4)
      assert [f['token'] for f in fillers] == [tokenizer.decode([i]).strip() for i in best]
  masks = [[fill.Filler('a', 7, 0.25), fill.Filler('b', 8, 0.125)]] * 2
  assert shown('x', masks) == ['x', *['  a 0.2500, b 0.1250'] * 2]


@pytest.mark.parametrize(
  'fields, tokenizer, text, why',
  [
    ({'seed': 1}, 'bytes', TEXT, r'the tokenizer has no \[CLS\]'),
    ({'model.attention': 'full'}, 'wordpiece', TEXT, 'is not an encoder'),
    ({'finetune.task': 'sst2()'}, 'wordpiece', TEXT, r'fine-tuned on sst2\(\)'),
    ({}, 'wordpiece', 'Paris is.', r"'Paris is.': has no \[MASK\]"),
    ({}, 'wordpiece', TEXT + ' w1' * 40, 'holds 40: 9 too many;'),
    ({}, 'wordpiece', None, '--text is missing'),
  ],
)
def test_bad_input_is_one_line(ready, tmp_path, capsys, fields, tokenizer, text, why):
  folder = ready[0]
  if fields:
    folder = tmp_path / 'w'
    write(folder, tokenizer, **fields)
  argv = ['fill', f'--workdir={folder}', *[f'--text={text}'] * bool(text)]
  assert main(argv) == 2
  (line,) = capsys.readouterr().err.strip().splitlines()[-1:]
  assert re.search(why, line)


@pytest.fixture(scope='module')
def writer(tmp_path_factory):
  """A workdir of an encoder-decoder with sentinels."""
  folder = tmp_path_factory.mktemp('writer')
  tokenizer = sentinels.tokenizer()
  sizes = {'num_layers': 1, 'num_encoder_layers': 1, 'context_length': 19}
  sizes |= {'init_weights': 'normal(stddev=0.5)'}
  sizes |= {'vocab_size': tokenizer.vocab_size + 6}
  sizes = {f'model.{name}': size for name, size in sizes.items()}
  start = {'objective.name': "continuation(start='pad')"}
  built = parts.build(config_lib.resolve(tiny.config(**sizes, **start)))
  checkpointer.Checkpointer(str(folder)).finish(parts.initial_state(built))
  (folder / 'config.json').write_text(config_lib.to_json(built.config))
  tokenizer.save(str(folder / 'tokenizer'))
  return folder


@pytest.mark.slow
def test_an_encoder_decoder_fills_its_sentinels(writer, capsys):
  """With one hypothesis: each word the most probable one, put in its place."""
  texts = ['Paris <extra_id_0> the <extra_id_1> France.', 'x <mask> of']
  argv = ['fill', f'--workdir={writer}', '--json']
  argv += [f'--text={text}' for text in texts]
  assert main([*argv, '--top=1']) == 0
  found = json.loads(capsys.readouterr().out)['texts']
  trained = trained_lib.load(str(writer))
  tokenizer, sources = sentinels.tokenizer(), []
  for text in texts:
    names = text.replace('> ', '> ▁').split(' ')
    names = [n if n[0] in '<▁' else '▁' + n for n in names]
    sources.append(sentinels.ids(*names, '</s>'))
  with sharding.use(trained.parts.mesh, trained.parts.rules):
    answers = generate(
      *trained.decoder()[:2],
      [[tokenizer.special.pad_id]] * 2,
      sources=sources,
      max_tokens=18,
      stop_ids=tokenizer.special.stop_ids,
      never_V=constraints.never_drawn(tokenizer, trained.parts.model.vocab_size),
    )
  for text, source, answer, said in zip(texts, sources, answers, found, strict=True):
    (filled,) = said['filled']
    assert said['text'] == text and filled['score'] < 0
    assert filled['text'] == files.fill_blanks(tokenizer, source, answer)
  assert found[0]['filled'][0]['text'].startswith('Paris')
  assert main([*argv[:2], argv[3], '--top=3']) == 0
  first, *lines = capsys.readouterr().out.splitlines()
  assert first == texts[0] and len(lines) == 3
  scores = [float(line.rpartition(' ')[2]) for line in lines]
  assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize(
  'text, why',
  [
    ('Paris is France.', "'Paris is France.': has no blank; put <extra_id_0>"),
    ('Paris <extra_id_0>' + ' x' * 20, 'context of 19 tokens, by 4; shorten'),
  ],
)
def test_what_an_encoder_decoder_cannot_fill(writer, capsys, text, why):
  assert main(['fill', f'--workdir={writer}', f'--text={text}']) == 2
  assert why in capsys.readouterr().err
