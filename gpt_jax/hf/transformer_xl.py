# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Transformer-XL and XLNet; `forward.py` handles memories and permutations."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpt_jax.core.nn.transformer import Transformer
from gpt_jax.core.spec import UsageError
from gpt_jax.hf.base import (
  ACTIVATIONS,
  Entry,
  Family,
  Options,
  Tensor,
  call,
  call_text,
  choice,
  classes,
  constant,
  dropout,
  fixed,
  fused_qkv,
  linear,
  named,
  norm,
  only,
  same,
  sizes,
  transposed,
  writes,
)
from gpt_jax.papers.transformer_xl.adaptive import Clusters

# Transformer-XL (removed from transformers 5; equal to 4.35).
#
# Without `mems` HF starts from zeros, which count as tokens. We leave out its
# dropout within the feed-forward layer and after the last block, which matters
# in training only. If all labels of the first row are ignored, HF replaces one
# (by the end of text); we do not.


def _alphabetical(*entries: Entry) -> tuple[Entry, ...]:
  """Entries whose options are written in alphabetical order."""

  def write(model: Transformer) -> dict[str, Any]:
    options = {}
    for entry in entries:
      options |= entry.write(model)
    return dict(sorted(options.items()))

  return (*(Entry(entry.read) for entry in entries), Entry(write=write))


def _read_pairs(options: Options) -> dict[str, Any]:
  if options.size('d_model', 1024) % 2:
    raise options.fail('d_model', 'must be even, as transformers pairs sines and cosines')
  return {}


# HF's defaults are of the model trained on WikiText-103.
_CUTOFFS = [20_000, 40_000, 200_000]


def _read_memory(options: Options) -> dict[str, Any]:
  same_length = options.flag('same_length', True)
  memory = options.size('mem_len', 1600) if same_length else _whole(options, 'mem_len', 1600)
  clamp = max(_whole(options, 'clamp_len', 1000, least=None), 0)
  return {
    # An option of transformers' first versions, which changes no output.
    'context_length': options.size('tgt_len', memory or 1),
    'position': f'transformer_xl(memory={memory}, clamp={clamp})',
    'attention': f'local(window={memory})' if same_length else 'full',
  }


def _write_memory(model: Transformer) -> dict[str, Any]:
  position = choice(model, 'position').kwargs
  return {
    'clamp_len': position.get('clamp', 0),
    'mem_len': position.get('memory', 0),
    'same_length': choice(model, 'attention').name == 'local',
    'tgt_len': model.context_length,
  }


def _read_clusters(options: Options) -> dict[str, Any]:
  clusters = _clusters(options)
  clusters.check(options.size('vocab_size', 267_735))
  own = _own(options, clusters, options.size('d_model', 1024))
  return {
    'input': call_text('adaptive', **clusters._asdict(), scale='sqrt'),
    'output': f'adaptive(own={own})',
  }


def _write_clusters(model: Transformer) -> dict[str, Any]:
  clusters, own = _adaptive(model)
  return {
    'cutoffs': list(clusters.cutoffs),
    'd_embed': clusters.d_embed,
    'div_val': clusters.div_val,
    'tie_projs': [i not in own for i in range(len(clusters.cutoffs) + 1)],
  }


def _whole(options: Options, name: str, default: int, *, least: int | None = 0) -> int:
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
  return Clusters(tuple(cutoffs), options.size('d_embed', 1024), options.size('div_val', 4))


def _own(options: Options, clusters: Clusters, d_model: int) -> tuple[int, ...]:
  """Clusters whose output projection is not tied to the input's."""
  count = len(clusters.cutoffs) + 1
  rest = options.flag('proj_share_all_but_first', True)
  tied = options.get('tie_projs', [False] + [rest] * (count - 1))
  if not isinstance(tied, list) or len(tied) != count:
    raise options.fail('tie_projs', f'must be a list of {count}, as clusters')
  if not clusters.num_projections(d_model):
    return ()
  return tuple(i for i, tie in enumerate(tied) if not tie)


def _adaptive(model: Transformer) -> tuple[Clusters, tuple[int, ...]]:
  """The clusters (one, for a plain embedding), and `_own` of them."""
  given = choice(model, 'input').kwargs
  if choice(model, 'input').name != 'adaptive':
    given = {'cutoffs': (), 'd_embed': model.d_model, 'div_val': 1}
  clusters = Clusters(tuple(given['cutoffs']), given['d_embed'], given['div_val'])
  return clusters, tuple(choice(model, 'output').kwargs.get('own', ()))


def _transfo_xl_tensors(model: Transformer) -> list[Tensor]:
  clusters, own = _adaptive(model)
  heads = model.num_heads
  table = []
  h, ours = 'transformer.layers.{layer}', 'layer'
  for name, path in (('r_w_bias', 'content_bias'), ('r_r_bias', 'position_bias')):
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


def _embedding(model: Transformer, clusters: Clusters, own: tuple[int, ...]) -> list[Tensor]:
  """Tables and projections, named by input and, if tied, by output too."""
  scores = _scores(model)

  def per_cluster(path: str, name: str, *copies: str) -> list[Tensor]:
    """One tensor for each cluster; a single one if all have one width."""
    numbers = range(len(clusters.cutoffs) + 1)
    if clusters.div_val > 1:
      return [same(f'{path}_{i}', *(n.format(i) for n in (name, *copies))) for i in numbers]
    paths = tuple(f'{path}_{i}' for i in numbers)
    names = tuple(n.format(0) for n in (name, *copies))
    return [_stacked_rows(names, paths, clusters, model.vocab_size)]

  emb = 'transformer.word_emb.{}'
  tables = per_cluster(
    'embed/embedding', emb.format('emb_layers.{}.weight'), *['crit.out_layers.{}.weight'] * scores
  )
  if scores:
    tables += per_cluster('softmax/bias', 'crit.out_layers.{}.bias')
  for i in range(clusters.num_projections(model.d_model)):
    # With one width, several output projections are tied to the input's one.
    users = [i] if clusters.div_val > 1 else range(len(clusters.cutoffs) + 1)
    copies = [f'crit.out_projs.{n}' for n in users if scores and n not in own]
    name = emb.format(f'emb_projs.{i}')
    tables.append(transposed(f'embed/kernel_{i}', name, *copies))
  return tables


def _softmax(model: Transformer, clusters: Clusters, own: tuple[int, ...]) -> list[Tensor]:
  """Parameters of the output alone."""
  tensors = [same(f'softmax/kernel_{i}', f'crit.out_projs.{i}') for i in own]
  if clusters.cutoffs:
    tensors += [
      same('softmax/cluster_embedding', 'crit.cluster_weight'),
      same('softmax/cluster_bias', 'crit.cluster_bias'),
    ]
  return tensors


def _stacked_rows(
  names: tuple[str, ...], paths: tuple[str, ...], clusters: Clusters, vocab_size: int
) -> Tensor:
  """The tables of all clusters as one tensor."""

  def split(x: np.ndarray) -> list[np.ndarray]:
    return [x[start:stop] for start, stop in clusters.bounds(vocab_size)]

  return Tensor(names, paths, split, lambda parts: np.concatenate(parts))


def _frequencies(d_model: int) -> Tensor:
  """A constant that HF keeps in the file; rejects other values."""
  name = 'transformer.pos_emb.inv_freq'
  # As torch computes it in float32, to the last bit.
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
  architectures=classes('TransfoXL', {'LMHeadModel': 'lm', 'Model': 'body'}),
  prefix='transformer.',
  entries=_alphabetical(
    constant(adaptive=True, attn_type=0, pre_lnorm=False, untie_r=True),
    only(tie_weight=True, tie_word_embeddings=True),
    writes(sample_softmax=-1),
    sizes(
      vocab_size=('vocab_size', 267_735),
      n_layer=('num_layers', 18),
      d_model=('d_model', 1024),
      n_head=('num_heads', 16),
      d_head=('head_size', 64),
      d_inner=('d_ff', 4096),
    ),
    Entry(_read_pairs),
    Entry(_read_clusters, _write_clusters),
    Entry(_read_memory, _write_memory),
    call('norm', 'layernorm', epsilon=('layer_norm_epsilon', 1e-5)),
    dropout('dropout', 'dropout', 'dropatt', (0.1, 0.1, 0.0)),
    fixed(bias='where(ffn=True)', ffn='relu', block='post'),
  ),
  tensors=_transfo_xl_tensors,
  recurrent=('mems',),
)


# XLNet: two streams, relative attention with segments, a memory.
#
# We leave out its dropout within the feed-forward layer, of the distances and
# after the last block, which matters in training only. `bi_data`, where half of
# the batch is read backwards, is for pre-training.


def _read_xlnet(options: Options) -> dict[str, Any]:
  # Null is none, and not the default.
  given = options.get('mem_len') or not options.has('mem_len')
  memory = options.size('mem_len', 512) if given else 0
  clamp = max(options.whole('clamp_len', -1), 0)
  return {'position': f'xlnet(memory={memory}, clamp={clamp})'}


def _write_xlnet(model: Transformer) -> dict[str, Any]:
  position = choice(model, 'position').kwargs
  return {'clamp_len': position.get('clamp') or -1, 'mem_len': position.get('memory') or None}


def _head_size(options: Options) -> int:
  return options.size('d_model', 1024) // options.size('n_head', 16)


def _xlnet_tensors(model: Transformer) -> list[Tensor]:
  h, ours = 'transformer.layer.{layer}', 'layer'
  of = f'{h}.rel_attn'
  heads = model.num_heads, model.head_size
  scores = choice(model, 'output').kwargs['bias']
  own = [
    same(f'{ours}/attention/{path}', f'{of}.{name}')
    for path, name in (
      ('content_bias', 'r_w_bias'),
      ('position_bias', 'r_r_bias'),
      ('segment_bias', 'r_s_bias'),
      ('segments', 'seg_embed'),
    )
  ]
  return [
    same('embed/embedding', 'transformer.word_embedding.weight'),
    Tensor(
      ('transformer.mask_emb',),
      ('query_embedding',),
      lambda x: [x[0, 0]],
      lambda parts: parts[0][None, None],
    ),
    *([same('head_bias', 'lm_loss.bias')] if scores else []),
    *own,
    *(
      _heads(f'{ours}/attention/{path}/kernel', f'{of}.{name}', heads)
      for path, name in (('query', 'q'), ('key', 'k'), ('value', 'v'), ('relative', 'r'))
    ),
    _heads(f'{ours}/attention/out/kernel', f'{of}.o', heads, back=True),
    *norm(f'{ours}/attention_norm', f'{of}.layer_norm'),
    *linear(f'{ours}/ffn/in', f'{h}.ff.layer_1'),
    *linear(f'{ours}/ffn/out', f'{h}.ff.layer_2'),
    *norm(f'{ours}/ffn_norm', f'{h}.ff.layer_norm'),
  ]


def _heads(path: str, name: str, heads: tuple[int, int], *, back: bool = False) -> Tensor:
  """A raw [width, heads, size]; `back`: our kernel maps heads to the width."""

  def split(x: np.ndarray) -> list[np.ndarray]:
    x = x.reshape(len(x), -1)
    return [x.T if back else x]

  def join(parts: Any) -> np.ndarray:
    x = parts[0].T if back else parts[0]
    return x.reshape(len(x), *heads)

  return Tensor((name,), (path,), split, join)


XLNET = Family(
  model_type='xlnet',
  architectures=classes(
    'XLNet',
    {
      'LMHeadModel': 'lm',
      'ForSequenceClassification': 'last_classification',
      'ForMultipleChoice': 'last_choice',
      'ForTokenClassification': 'tokens',
      'ForQuestionAnsweringSimple': 'spans',
      'Model': 'body',
    },
  ),
  prefix='transformer.',
  entries=_alphabetical(
    constant(bi_data=False, same_length=False, untie_r=True),
    only(reuse_len=None, tie_word_embeddings=True),
    sizes(
      vocab_size=('vocab_size', 32_000),
      # Not an option of HF's; it changes no output.
      context_length=('context_length', 512),
      n_layer=('num_layers', 24),
      d_model=('d_model', 1024),
      n_head=('num_heads', 16),
      d_head=('head_size', _head_size),
      d_inner=('d_ff', 4096),
    ),
    Entry(_read_pairs),
    Entry(_read_xlnet, _write_xlnet),
    named('attn_type', 'attention', {'bi': 'bidirectional', 'uni': 'full'}, 'bi'),
    named('ff_activation', 'ffn', ACTIVATIONS, 'gelu'),
    call('norm', 'layernorm', epsilon=('layer_norm_eps', 1e-12)),
    dropout('dropout', 'dropout', 'dropout', 0.1),
    fixed(
      input='tokens(queries=True)', bias='where(ffn=True)', block='post', output='tied(bias=True)'
    ),
  ),
  tensors=_xlnet_tensors,
  token_types=True,
  heads={
    'pooler': 'sequence_summary.summary',
    'last_classification/classifier': 'logits_proj',
    'last_choice/classifier': 'logits_proj',
  },
  recurrent=('attention_mask', 'token_type_ids', 'mems', 'use_mems', 'perm_mask', 'target_mapping'),
)
