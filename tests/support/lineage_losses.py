# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Trains a small decoder of each paper of the lineage on the same tokens: docs/lineage_losses.json.

python -m tests.support.lineage_losses

Each is the file that `gpt-jax eject` writes for the paper's config, at one width, depth, batch and
rate. `lineage_page` draws what it measures.
"""

import contextlib
import io
import json
import pathlib
import platform
import tempfile
from typing import Any

import jax
import numpy as np

from gpt_jax.core.tokens import prepare
from tests.support import ejected

RESULTS = pathlib.Path(__file__).parents[2] / 'docs/lineage_losses.json'
STEPS, EVERY = 600, 30
ROWS, LENGTH, WIDTH, HEADS = 8, 128, 128, 4
# What all have in common, and no paper gives at this size.
SAME = {
  'model.num_layers': 4,
  'model.d_model': WIDTH,
  'model.num_heads': HEADS,
  'model.num_kv_heads': HEADS,
  'model.head_size': WIDTH // HEADS,
  'model.d_ff': 4 * WIDTH,
  'model.vocab_size': 2048,
  'model.context_length': LENGTH,
  'model.dtype': 'float32',
  'model.dropout': 'none',
  'tokenizer.name': 'sentencepiece(vocab_size=2048)',
  'data.source': 'stdlib',
  'data.rows': 'stream',
  'data.holdout': 'none',
  'batch.size': ROWS,
  'batch.micro_rows': 0,
  'batch.length': None,
  'optim.name': 'adamw(b1=0.9, b2=0.95, eps=1e-8, weight_decay=0.1)',
  'schedule.name': 'cosine(peak=2e-3, warmup=100, final=0.1)',
  'schedule.num_steps': STEPS,
}
# The decoders, by the keys of `lineage_page.PAPERS`, with their own ratios of sizes. Chinchilla is
# Gopher at another size; the others of the lineage learn from other rows.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
  'gpt1': ('gpt1.py:117m', {}),
  'gpt2': ('gpt2.py:small', {}),
  'gpt3': ('gpt3.py:125m', {'model.attention': 'full, local(window=16)'}),
  'switch': ('switch.py:base-8', {}),
  'gopher': ('gopher.py:44m', {}),
  'palm': ('palm.py:8b', {'model.num_kv_heads': 1}),
  'llama': ('llama.py:7b', {'model.d_ff': 344}),
  'llama3': ('llama3.py:8b', {'model.d_ff': 448, 'model.num_kv_heads': 1}),
}


def config_of(key: str) -> Any:
  """The resolved config of a small model."""
  name, changes = MODELS[key]
  return ejected.config_of(f'configs/{name}', **{**SAME, **changes})


def losses(key: str, store: str, steps: int = STEPS) -> tuple[list[float], int]:
  """The losses of the first steps of a run, and the parameters outside of the tables."""
  module = ejected.module_of(config_of(key))
  with (
    jax.numpy_rank_promotion('allow'),
    tempfile.TemporaryDirectory() as folder,
    contextlib.redirect_stdout(io.StringIO()),
  ):
    params, curve = module.train(module.open_store(store), f'{folder}/run.npz', None, steps, steps)
  tables = {'embed', 'positions', 'head'}
  inner = {name: part for name, part in params.items() if name not in tables}
  return curve, sum(x.size for x in jax.tree.leaves(inner))


def main() -> None:
  """Trains all; writes the means of each `EVERY` losses after each model, and goes on there."""
  with tempfile.TemporaryDirectory() as store:
    corpus = prepare.ensure(config_of('gpt2'), store)
    results: dict[str, Any] = {
      'made_with': {'jax': jax.__version__, 'python': platform.python_version()},
      'fingerprint': corpus.manifest.fingerprint,
      'corpus_tokens': corpus.manifest.num_tokens,
      'tokens': EVERY * ROWS * LENGTH,
    }
    models: dict[str, Any] = {}
    if RESULTS.exists():
      earlier = json.loads(RESULTS.read_text(encoding='utf-8'))
      # One file has runs of one corpus and one version.
      if earlier | results == earlier and earlier['models'].keys() < MODELS.keys():
        models = earlier['models']
    for key in [key for key in MODELS if key not in models]:
      curve, parameters = losses(key, store)
      means = np.mean(np.reshape(curve, (-1, EVERY)), axis=1)
      models[key] = {
        'parameters': parameters,
        'first': [round(x, 4) for x in curve[:3]],
        'losses': [round(x, 4) for x in means.tolist()],
      }
      print(key, f'{means[-1]:.4f}', flush=True)
      text = json.dumps(results | {'models': models}, indent=1)
      RESULTS.write_text(text + '\n', encoding='utf-8')


if __name__ == '__main__':
  main()
