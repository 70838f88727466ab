# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Records a small random model of transformers for tests/golden.

python -m tests.support.record_golden tests/golden/qwen3_lm Qwen3ForCausalLM \
  '{"hidden_size": 32, "num_hidden_layers": 3, "vocab_size": 103, ...}'

The cases are `main` (padding, labels, every state), `nomask`, and for language
models that write `gen` (greedy). `golden_io` describes the files. Needs the
extra `hf` and torch.
"""

import argparse
import json
import pathlib

import numpy as np
import torch
import transformers

NEW_TOKENS = 16


def main() -> None:
  """Reads the command line."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('folder', type=pathlib.Path)
  parser.add_argument('architecture', help='a class of transformers')
  parser.add_argument('config', help='fields of its config, as JSON')
  parser.add_argument('--seed', type=int, default=0)
  args = parser.parse_args()
  record(args.folder, args.architecture, json.loads(args.config), args.seed)


def record(folder: pathlib.Path, architecture: str, fields: dict, seed: int = 0) -> None:
  """Writes the model, its inputs and its outputs into a new folder."""
  torch.manual_seed(seed)
  torch.set_num_threads(1)
  kind = getattr(transformers, architecture)
  config = kind.config_class(**fields)
  model = kind._from_config(config, attn_implementation='eager').eval()
  for parameter in model.parameters():  # all have an effect, biases too
    torch.nn.init.normal_(parameter, std=0.3)
  model.tie_weights()
  folder.mkdir(parents=True)
  model.save_pretrained(folder)
  rng = np.random.default_rng(seed)
  ids = rng.integers(3, config.vocab_size, (3, 20))
  mask = (np.arange(20) < np.array([[20], [13], [7]])).astype(np.int64)
  labels = np.where(mask, rng.integers(3, config.vocab_size, ids.shape), -100)
  if 'ForCausalLM' in architecture or 'LMHead' in architecture:
    labels = np.where(mask, ids, -100)  # shifted inside
  arrays, cases = {}, {}
  padded = {'input_ids': ids, 'attention_mask': mask, 'labels': labels}
  for name, inputs in (('main', padded), ('nomask', {'input_ids': ids[:2]})):
    outputs = _outputs(model, inputs, states=name == 'main')
    valid = {'tokens': mask.astype(bool)} if name == 'main' else {}
    cases[name] = {
      'call': 'forward',
      'static': {},
      'inputs': sorted(inputs),
      'outputs': {k: _described(k, x, valid) for k, x in outputs.items()},
    }
    _add(arrays, name, inputs, outputs, valid)
  if model.can_generate():
    sequences = _greedy(model, ids[:2, :6])
    cases['gen'] = {
      'call': 'greedy',
      'new_tokens': NEW_TOKENS,
      'inputs': ['input_ids'],
      'outputs': {'sequences': {'shape': [*sequences.shape]}},
    }
    of_gen = {'input_ids': ids[:2, :6]}, {'sequences': sequences}
    _add(arrays, 'gen', *of_gen, {})
  np.savez_compressed(folder / 'golden.npz', **arrays)
  meta = {
    'hf_class': architecture,
    'model_type': config.model_type,
    'transformers': transformers.__version__,
    'seed': seed,
    'num_parameters': sum(p.numel() for p in model.parameters()),
    'cases': cases,
  }
  (folder / 'meta.json').write_text(json.dumps(meta, indent=1) + '\n')


@torch.no_grad()
def _outputs(model, inputs, *, states) -> dict[str, np.ndarray]:
  tensors = {name: torch.from_numpy(x) for name, x in inputs.items()}
  out = model(**tensors, output_hidden_states=True)
  found = {'logits': out.logits, 'last_hidden_state': out.hidden_states[-1]}
  if states:
    found['hidden_states'] = torch.stack(out.hidden_states)
    found['loss'] = out.loss
  return {name: x.numpy() for name, x in found.items()}


@torch.no_grad()
def _greedy(model, ids) -> np.ndarray:
  """The prompt and the most probable tokens, without a cache."""
  sequences = torch.from_numpy(ids)
  for _ in range(NEW_TOKENS):
    best = model(sequences, use_cache=False).logits[:, -1].argmax(-1)
    sequences = torch.cat([sequences, best[:, None]], 1)
  return sequences.numpy()


def _described(name, array, valid) -> dict:
  described = {'shape': [*array.shape]}
  if valid and array.ndim:
    described |= {'valid': 'tokens', 'batch_axis': int(name == 'hidden_states')}
  return described


def _add(arrays, case, inputs, outputs, valid) -> None:
  for kind, found in (('in', inputs), ('out', outputs), ('valid', valid)):
    arrays |= {f'{case}/{kind}/{name}': x for name, x in found.items()}


if __name__ == '__main__':
  main()
