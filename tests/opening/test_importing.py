# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Encoder-decoders become workdirs that go on, and come back."""

import json
import shutil

import numpy as np
import pytest
import tokenizers
from safetensors.numpy import save_file

from gpt_jax import hf
from gpt_jax.core import config as config_lib
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers import tokenizer as tokenizer_lib
from gpt_jax.opening import importing
from gpt_jax.opening import models as trained_lib
from gpt_jax.tuning import exporting
from tests.commands.test_convert import TOKENIZERS, initial
from tests.support.golden_io import ROOT, config, tensors

# Fixtures, and the token that their decoders start with.
STARTS = {
  't5_v10': 'pad',
  't5_v11': 'pad',
  'switch_lm': 'pad',
  'bart_lm': 'eos',
  'mbart_lm': 'eos',
  'marian_lm': 'pad',
}


OTHERS = 't5_v11', 'bart_lm', 'mbart_lm'


def same(source, out):
  before, after = tensors(source), tensors(out)
  assert {*before} == {*after}
  for name, value in before.items():
    np.testing.assert_array_equal(after[name], value, name, strict=True)
  assert config(out) == config(source)


@pytest.mark.parametrize(
  'name',
  [
    # test_a_body_scores_by_its_table has BART there and back.
    pytest.param(n, marks=[pytest.mark.slow] * (n in OTHERS))
    for n in STARTS
  ],
)
def test_there_and_back(tmp_path, name):
  workdir, out = tmp_path / 'w', tmp_path / 'out'
  importing.from_hf(str(ROOT / name), str(workdir))
  made = config_lib.from_json((workdir / 'config.json').read_text())
  assert made.objective.name == f'seq2seq(start={STARTS[name]!r})'
  assert made.data.rows == 'parallel'
  config_lib.check_objective(made)
  exporting.to_hf(str(workdir), str(out))
  same(ROOT / name, out)


def test_a_changed_origin_is_named(tmp_path):
  importing.from_hf(str(ROOT / 'marian_lm'), str(tmp_path / 'w'))
  path = tmp_path / 'w/hf.json'
  text = path.read_text()
  place = text.index('d_model') + len('d_model\\": ')
  path.write_text(f'{text[:place]}9{text[place + 1 :]}')
  with pytest.raises(UsageError, match=r'hf.json: is damaged.*; convert the checkpoint again'):
    exporting.to_hf(str(tmp_path / 'w'), str(tmp_path / 'out'))


def write(folder, values, weights):
  folder.mkdir()
  (folder / 'config.json').write_text(json.dumps(values))
  save_file(weights, folder / 'model.safetensors', metadata={'format': 'pt'})


def test_a_body_scores_by_its_table(tmp_path):
  """facebook/bart-base names a class without scores; it is complete for one."""
  values = config(ROOT / 'bart_lm') | {'architectures': ['BartModel']}
  weights = tensors(ROOT / 'bart_lm')
  del weights['final_logits_bias']
  bare = {n.removeprefix('model.'): x for n, x in weights.items()}
  write(tmp_path / 'hf', values, bare)
  importing.from_hf(str(tmp_path / 'hf'), str(tmp_path / 'w'))
  assert trained_lib.read_config(str(tmp_path / 'w')).model.output == 'tied'
  exporting.to_hf(str(tmp_path / 'w'), str(tmp_path / 'out'))
  same(tmp_path / 'hf', tmp_path / 'out')
  # T5's lacks the table of 1.1, and the scale of 1.0.
  values = config(ROOT / 't5_v10') | {'architectures': ['T5Model']}
  write(tmp_path / 't5', values, tensors(ROOT / 't5_v10'))
  with pytest.raises(UsageError, match='is a T5Model, and a workdir'):
    importing.from_hf(str(tmp_path / 't5'), str(tmp_path / 'w2'))


def test_another_start_is_refused(tmp_path):
  values = config(ROOT / 'marian_lm') | {'decoder_start_token_id': 7}
  write(tmp_path / 'hf', values, tensors(ROOT / 'marian_lm'))
  with pytest.raises(UsageError, match='decoder_start_token_id=7: is neither'):
    importing.from_hf(str(tmp_path / 'hf'), str(tmp_path / 'w'))
  assert not (tmp_path / 'w').exists()


@pytest.mark.slow
@pytest.mark.parametrize('start', ['pad', 'eos'])
def test_an_encoder_decoder_trained_here(tmp_path, start):
  """BART, or Marian; config.json has the tokenizer's ids."""
  workdir, out, text = tmp_path / 'w', tmp_path / 'out', tmp_path / 'text'
  shutil.copytree(TOKENIZERS / 'byte_bpe', text)
  files = [str(text / name) for name in ('vocab.json', 'merges.txt')]
  name = f'byte_bpe_file({files[0]!r}, {files[1]!r})'
  made = tokenizer_lib.build(name, [])
  made.save(str(workdir / 'tokenizer'))
  bart = start == 'eos'
  position = 'learned(offset=2)' if bart else "sinusoidal(layout='halves')"
  built, state = initial(
    workdir,
    {
      'model.vocab_size': made.vocab_size,
      'model.context_length': 23,
      'model.num_encoder_layers': 1,
      'model.num_layers': 2,
      'model.input': 'tokens(norm=True)' if bart else "tokens(scale='sqrt')",
      'model.position': position,
      'model.block': 'post',
      'model.ffn': 'relu',
      'objective.name': 'denoise()' if bart else "seq2seq(start='pad')",
      'data.rows': 'full_sentences' if bart else 'parallel',
      'data.sentences': 'terminal',
    },
  )
  exporting.to_hf(str(workdir), str(out))
  found, special = config(out), made.special
  assert found['model_type'] == ('bart' if bart else 'marian')
  assert found['decoder_start_token_id'] == getattr(special, f'{start}_id')
  ids = [found[f'{role}_token_id'] for role in ('pad', 'bos', 'eos')]
  assert ids == [special.pad_id, special.cls_id, special.eos_id]
  model, params = hf.load(str(out))
  inputs = {'input_ids': np.arange(5, 11)[None]}
  inputs['decoder_input_ids'] = np.arange(7, 10)[None]
  np.testing.assert_allclose(
    hf.forward(model, params, **inputs)['logits'],
    hf.forward(built.model, state.params, **inputs)['logits'],
    atol=1e-5,
    rtol=0,
  )


@pytest.mark.parametrize('special', [True, False])
def test_tokens_without_a_row(tmp_path, caplog, special):
  """LLaMA 2's <pad> is in the tokenizer alone: no text needs it."""
  source, workdir = tmp_path / 'hf', str(tmp_path / 'w')
  shutil.copytree(ROOT / 'gpt2_lm', source)
  num_rows = config(source)['vocab_size']
  words = {f'w{i}': i for i in range(num_rows - 2)}
  words |= {'</s>': num_rows - 2, '<unk>': num_rows - 1}
  made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token='<unk>'))
  made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
  made.add_tokens([tokenizers.AddedToken('<pad>', special=special)])
  plain = {'tokenizer_class': 'PreTrainedTokenizerFast'}  # GPT-2's reads a BPE
  made.save(str(source / 'tokenizer.json'))
  (source / 'tokenizer_config.json').write_text(
    json.dumps({**plain, 'eos_token': '</s>', 'pad_token': '<pad>'})
  )
  importing.from_hf(str(source), workdir)
  assert trained_lib.read_config(workdir).model.vocab_size == num_rows
  read = tokenizer_lib.load(f'{workdir}/tokenizer')
  assert read.vocab_size == num_rows
  assert read.special.pad_id == config(source)['pad_token_id'] == 0
  assert read.encode('w3 w5').tolist() == [3, 5]
  encode = read.encode_special if special else read.encode
  message = rf"needs the token '<pad>' with id {num_rows}.*only {num_rows} rows"
  with pytest.raises(UsageError, match=message):
    encode('w3 <pad>')
  if special:  # its name in a text is text
    assert read.encode('w3 <pad>').tolist() == [3, num_rows - 1]
  # A document could not end: an import without a tokenizer.
  (source / 'tokenizer_config.json').write_text(json.dumps({**plain, 'eos_token': '<pad>'}))
  importing.from_hf(str(source), str(tmp_path / 'w2'))
  assert f'ends documents has id {num_rows}; name another' in caplog.text
  assert not (tmp_path / 'w2/tokenizer').exists()
