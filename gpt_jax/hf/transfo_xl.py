# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Transformer-XL (removed from transformers 5; made equal to 4.35).

Without `mems` HF starts from zeros, which count as tokens. Its dropout within
the feed-forward layer and after the last block is not ours: it matters in
training alone. If the first row has no label that counts, HF makes up one (the
end of text); we do not.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpt_jax.hf.base import (
  Family,
  Options,
  Tensor,
  choice,
  fused_qkv,
  linear,
  norm,
  same,
  transposed,
)
from gpt_jax.hf.transfo_xl_forward import forward
from gpt_jax.nn.adaptive import Clusters
from gpt_jax.nn.transformer import Transformer
from gpt_jax.spec import UsageError

# HF's defaults are those of the model trained on WikiText-103.
_CUTOFFS = [20_000, 40_000, 200_000]


def _fields(options: Options) -> dict[str, Any]:
  for name, value in (
    ('adaptive', True),
    ('attn_type', 0),
    ('pre_lnorm', False),
    ('tie_weight', True),
    ('tie_word_embeddings', True),
    ('untie_r', True),
  ):
    options.only(name, value)
  d_model = options.size('d_model', 1024)
  vocab_size = options.size('vocab_size', 267_735)
  clusters = _clusters(options)
  clusters.check(vocab_size)
  same_length = options.flag('same_length', True)
  if same_length:
    memory = options.size('mem_len', 1600)
  else:
    memory = _whole(options, 'mem_len', 1600)
  epsilon = options.number('layer_norm_epsilon', 1e-5)
  dropout = options.number('dropout', 0.1)
  attention_dropout = options.number('dropatt', 0.0)
  return {
    'vocab_size': vocab_size,
    # In transformers' first versions; nothing that it computes depends on it.
    'context_length': options.size('tgt_len', memory or 1),
    'num_layers': options.size('n_layer', 18),
    'd_model': d_model,
    'num_heads': options.size('n_head', 16),
    'head_size': options.size('d_head', 64),
    'd_ff': options.size('d_inner', 4096),
    'input': f"adaptive({_text(clusters)}, scale='sqrt')",
    'position': f'transformer_xl(memory={memory}, '
    f'clamp={max(_whole(options, "clamp_len", 1000, least=None), 0)})',
    'attention': f'local(window={memory})' if same_length else 'full',
    'bias': 'where(ffn=True)',
    'ffn': 'relu',
    'norm': f'layernorm(epsilon={epsilon})',
    'block': 'post',
    'output': f'adaptive(own={_own(options, clusters, d_model)})',
    'dropout': f'rates(embedding={dropout}, residual={dropout}, '
    f'attention={attention_dropout})',
  }


def _text(clusters: Clusters) -> str:
  return ', '.join(f'{n}={v!r}' for n, v in clusters._asdict().items())


def _whole(
  options: Options, name: str, default: int, *, least: int | None = 0
) -> int:
  value = options.get(name, default)
  if not isinstance(value, int) or isinstance(value, bool):
    raise options.fail(name, 'must be a whole number')
  if least is not None and value < least:
    raise options.fail(name, f'must be at least {least}')
  return value


def _clusters(options: Options) -> Clusters:
  cutoffs = options.get('cutoffs', _CUTOFFS)
  if not isinstance(cutoffs, list):
    raise options.fail('cutoffs', 'must be a list')
  return Clusters(
    tuple(cutoffs), options.size('d_embed', 1024), options.size('div_val', 4)
  )


def _own(options: Options, clusters: Clusters, d_model: int) -> tuple[int, ...]:
  """Clusters whose output projection is not the input's."""
  count = len(clusters.cutoffs) + 1
  rest = options.flag('proj_share_all_but_first', True)
  tied = options.get('tie_projs', [False] + [rest] * (count - 1))
  if not isinstance(tied, list) or len(tied) != count:
    raise options.fail('tie_projs', f'must be a list of {count}, as clusters')
  if not clusters.num_projections(d_model):
    return ()
  return tuple(i for i, tie in enumerate(tied) if not tie)


def _options(model: Transformer) -> dict[str, Any]:
  clusters, own = _adaptive(model)
  position = choice(model, 'position').kwargs
  rates = choice(model, 'dropout').kwargs
  return {
    'adaptive': True,
    'attn_type': 0,
    'clamp_len': position.get('clamp', 0),
    'cutoffs': list(clusters.cutoffs),
    'd_embed': clusters.d_embed,
    'd_head': model.head_size,
    'd_inner': model.d_ff,
    'd_model': model.d_model,
    'div_val': clusters.div_val,
    'dropatt': rates.get('attention', 0.0),
    'dropout': rates.get('residual', 0.0),
    'layer_norm_epsilon': choice(model, 'norm').kwargs['epsilon'],
    'mem_len': position.get('memory', 0),
    'n_head': model.num_heads,
    'n_layer': model.num_layers,
    'pre_lnorm': False,
    'same_length': choice(model, 'attention').name == 'local',
    'sample_softmax': -1,
    'tgt_len': model.context_length,
    'tie_projs': [i not in own for i in range(len(clusters.cutoffs) + 1)],
    'untie_r': True,
    'vocab_size': model.vocab_size,
  }


def _adaptive(model: Transformer) -> tuple[Clusters, tuple[int, ...]]:
  """The clusters, a plain embedding being one; those with own projections."""
  given = choice(model, 'input').kwargs
  if choice(model, 'input').name != 'adaptive':
    given = {'cutoffs': (), 'd_embed': model.d_model, 'div_val': 1}
  clusters = Clusters(
    tuple(given['cutoffs']), given['d_embed'], given['div_val']
  )
  return clusters, tuple(choice(model, 'output').kwargs.get('own', ()))


def _tensors(model: Transformer) -> list[Tensor]:
  clusters, own = _adaptive(model)
  heads = model.num_heads
  table = []
  h, ours = 'transformer.layers.{layer}', 'layer'
  for name, path in (
    ('r_w_bias', 'content_bias'),
    ('r_r_bias', 'position_bias'),
  ):
    table.append(same(f'{ours}/attention/{path}', f'{h}.dec_attn.{name}'))
  return [
    *_embedding(model, clusters, own),
    *(_softmax(model, clusters, own) * _scores(model)),
    _frequencies(model.d_model),
    *table,
    *fused_qkv(
      f'{ours}/attention',
      f'{h}.dec_attn.qkv_net',
      groups=1,
      heads=(heads, heads, heads),
      head_size=model.head_size,
      bias=False,
    ),
    *linear(f'{ours}/attention/relative', f'{h}.dec_attn.r_net', bias=False),
    *linear(f'{ours}/attention/out', f'{h}.dec_attn.o_net', bias=False),
    *norm(f'{ours}/attention_norm', f'{h}.dec_attn.layer_norm'),
    *linear(f'{ours}/ffn/in', f'{h}.pos_ff.CoreNet.0'),
    *linear(f'{ours}/ffn/out', f'{h}.pos_ff.CoreNet.3'),
    *norm(f'{ours}/ffn_norm', f'{h}.pos_ff.layer_norm'),
  ]


def _scores(model: Transformer) -> bool:
  return choice(model, 'output').name == 'adaptive'


def _embedding(
  model: Transformer, clusters: Clusters, own: tuple[int, ...]
) -> list[Tensor]:
  """Tables and their projections; the output's tied copies are other names."""
  scores = _scores(model)

  def per_cluster(path: str, name: str, *copies: str) -> list[Tensor]:
    """One tensor each, or with one width all of them in one."""
    numbers = range(len(clusters.cutoffs) + 1)
    if clusters.div_val > 1:
      return [
        same(f'{path}_{i}', *(n.format(i) for n in (name, *copies)))
        for i in numbers
      ]
    paths = tuple(f'{path}_{i}' for i in numbers)
    names = tuple(n.format(0) for n in (name, *copies))
    return [_stacked_rows(names, paths, clusters, model.vocab_size)]

  emb = 'transformer.word_emb.{}'
  tables = per_cluster(
    'embed/embedding',
    emb.format('emb_layers.{}.weight'),
    *['crit.out_layers.{}.weight'] * scores,
  )
  if scores:
    tables += per_cluster('softmax/bias', 'crit.out_layers.{}.bias')
  for i in range(clusters.num_projections(model.d_model)):
    # With one width, the one projection of the input is tied to several.
    users = [i] if clusters.div_val > 1 else range(len(clusters.cutoffs) + 1)
    copies = [f'crit.out_projs.{n}' for n in users if scores and n not in own]
    name = emb.format(f'emb_projs.{i}')
    tables.append(transposed(f'embed/kernel_{i}', name, *copies))
  return tables


def _softmax(
  model: Transformer, clusters: Clusters, own: tuple[int, ...]
) -> list[Tensor]:
  """What the output has for itself."""
  tensors = [same(f'softmax/kernel_{i}', f'crit.out_projs.{i}') for i in own]
  if clusters.cutoffs:
    tensors += [
      same('softmax/cluster_embedding', 'crit.cluster_weight'),
      same('softmax/cluster_bias', 'crit.cluster_bias'),
    ]
  return tensors


def _stacked_rows(
  names: tuple[str, ...],
  paths: tuple[str, ...],
  clusters: Clusters,
  vocab_size: int,
) -> Tensor:
  """All clusters one below the other."""

  def split(x: np.ndarray) -> list[np.ndarray]:
    return [x[start:stop] for start, stop in clusters.bounds(vocab_size)]

  return Tensor(names, paths, split, lambda parts: np.concatenate(parts))


def _frequencies(d_model: int) -> Tensor:
  """A constant that HF keeps in the file; other numbers are refused."""
  name = 'transformer.pos_emb.inv_freq'
  # To the last bit as torch computes it in float32.
  exponents = np.arange(0, d_model, 2, dtype=np.float32) / np.float32(d_model)
  powers = np.power(10_000.0, exponents.astype(np.float64)).astype(np.float32)
  expected = np.float32(1) / powers

  def split(x: np.ndarray) -> Sequence[np.ndarray]:
    if not np.allclose(x, expected, rtol=1e-2):
      raise UsageError(f'{name} holds other frequencies than 10000^(-2i/D)')
    return []

  return Tensor((name,), (), split, lambda parts: expected)


TRANSFO_XL = Family(
  model_type='transfo-xl',
  architectures={'TransfoXLLMHeadModel': 'lm', 'TransfoXLModel': 'body'},
  prefix='transformer.',
  fields=_fields,
  options=_options,
  tensors=_tensors,
  forward=forward,
)
