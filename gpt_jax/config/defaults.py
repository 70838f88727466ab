# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The whole config tree, each field explained once.

Every other config starts from this one and states what differs. A text such as
`'cosine(peak=6e-4, warmup=2000)'` is a call-string: a name with its own
arguments; an unknown name prints the choices. A `placeholder` may stay empty,
and says then what it becomes. Override any field on the command line:
`--config.model.num_layers=4`.
"""

import pathlib
from collections.abc import Mapping
from typing import Any, TypeVar

from ml_collections import ConfigDict
from ml_collections.config_dict import FieldReference, placeholder

T = TypeVar('T')


def get_config(arg: str = '') -> ConfigDict:
  """Returns the locked tree; the base has no sizes to choose from."""
  no_size('configs/base.py', arg)
  config = ConfigDict()

  # Parameters, the data order and dropout are functions of this number.
  config.seed = 0

  # The fields of gpt_jax.nn.transformer.Transformer.
  config.model = dict(
    vocab_size=placeholder(int),  # empty: the tokenizer's
    context_length=1024,  # tokens in a row
    num_layers=12,
    d_model=768,
    num_heads=12,
    num_kv_heads=placeholder(int),  # empty: num_heads
    head_size=placeholder(int),  # empty: d_model / num_heads
    d_ff=placeholder(int),  # empty: 4 * d_model
    num_encoder_layers=0,  # more than 0: an encoder-decoder
    # tokens(scale='none', token_types=0, norm=False),
    # adaptive(cutoffs=(20000, ...), d_embed=..., div_val=1, scale='none')
    input='tokens',
    # learned, sinusoidal, rope(theta=1e4, fraction=1.0, layout='half',
    # scaling='none'), t5_bias, alibi(scale='none', dtype='float32'),
    # transformer_xl(memory=0, clamp=0), none
    position='learned',
    # full, local(window=...), strided(stride=...), fixed(stride=...),
    # bidirectional; a comma list repeats over the layers.
    attention='full',
    attention_scale='rsqrt',  # rsqrt: 1/sqrt(head size), none, by_layer
    # What computes it: reference (XLA), splash(block=512, fused_until=4096)
    # (TPU), cudnn (GPU). auto takes what is made for the devices, or the
    # reference where that cannot serve the model, and logs which.
    attention_backend='auto',
    # gelu_tanh, gelu, relu, silu, tanh; gated: glu, bilinear, reglu, geglu,
    # geglu_tanh, swiglu; a mixture of experts: switch(num_experts=...,
    # expert='relu', top_k=1, capacity_factor=1.25). A comma list repeats over
    # the layers.
    ffn='gelu_tanh',
    encoder_ffn=None,  # of the encoder's layers; empty means ffn
    norm='layernorm(epsilon=1e-5)',  # or layernorm(bias=False), rmsnorm
    # Where the norms go: pre (GPT-2), post (GPT-1), parallel (PaLM),
    # parallel(num_norms=2) (GPT-NeoX).
    block='pre',
    bias='all',  # of the dense layers: all, none, where(qkv=True, ...)
    # tied(bias=False, scale='none', transform='none'), untied(...): does the
    # output reuse the token embeddings. adaptive(own=()): the softmax of
    # input=adaptive(...)
    output='tied',
    # none, or rates(embedding=0.1, residual=0.1, attention=0.1)
    dropout='none',
    # or gpt2(stddev=0.02), palm, switch(scale=0.1, embedding=0.02)
    init_weights='normal(stddev=0.02)',
    # Of activations and matrix products: bfloat16, float32. Norms, softmax
    # and loss are float32 always; for parameters see optim.precision.
    dtype='bfloat16',
    # What the backward pass computes again instead of keeping:
    # none, dots (keeps matrix products), full (keeps each period's input).
    remat='none',
    loop='scan',  # scan (compiles fast), unroll (runs faster on CPU)
  )

  # causal(z_loss=0.0): the penalty z_loss * log(Z)^2 keeps the softmax's
  # normaliser Z near 1; the reported losses leave it out.
  config.objective = dict(name='causal')

  config.data = dict(
    # stdlib (Python's own source files), text('glob'), jsonl('glob', 'field')
    # (plain, .gz, .zst), parquet('glob', 'column'), tfds('name', 'split',
    # 'field'), tfds_dir('folder', 'split', 'field'). All but stdlib take
    # on_error='skip', which counts what is bad instead of failing.
    # passages("text('books/*.txt')", chars=1000) cuts the documents of another
    # at blank lines, so that enough begin and end for a model to learn how.
    source='stdlib',
    # Or mixture(web:0.6, books:0.4, draw='without_replacement', shares='rows')
    # of the calls in `sources`; a comma list of phases changes the weights, as
    # in 'mixture(web:1.0), mixture(web:0.2, books:0.8, from_token=100e9)'.
    # shares='tokens': weights are of tokens, where `rows` below are padded.
    sources=dict(),
    # What is done to the documents before they are split, in this order:
    # c4(words=3, sentences=5, bad_words='', duplicates='spans'),
    # gopher(min_words=50, max_words=100_000, ...),
    # language('en', probability=0.99), quality(high='...', low='...'),
    # minhash(threshold=0.8, hashes=10, rows=5, ngram=5),
    # decontaminate('glob', ..., n=13, rule='documents'); none
    clean='none',
    # What evaluation sees: documents(fraction=...), tail(fraction=...), none,
    # or a source of its own.
    holdout='documents(fraction=0.02)',
    store=placeholder(str),  # folder of the token store; empty: WORKDIR/data
    # stream: rows are cut out of all documents, one after the other (GPT);
    # documents: rows of whole documents that do not see each other, padded.
    rows='stream',
    # Of the token store's chunks: none, zstd(level=3).
    compression='none',
    # Threads or processes that turn text into tokens, always the same; empty:
    # one a core.
    workers=placeholder(int),
  )

  # sentencepiece(vocab_size=..., model='unigram', normalization='identity',
  # byte_fallback=True, split_digits=True, symbols=[], sample_bytes=0, seed=0,
  # character_coverage=0.9999), trained on the training split; bytes,
  # characters. Those of others: sentencepiece_file('tokenizer.model', eos=''),
  # hf_tokenizer('tokenizer.json', eos=''), gpt2_bpe('encoder.json',
  # 'vocab.bpe'), gpt1_bpe('encoder_bpe_40000.json', 'vocab_40000.bpe')
  config.tokenizer = dict(name="sentencepiece(vocab_size=32000, model='bpe')")

  config.optim = dict(
    # adamw, adam(l2=0.0), adafactor(b1=0.0, factored=True, ...), lamb, lion,
    # muon, sgd(momentum=0.0, nesterov=False), none
    name='adamw(b1=0.9, b2=0.95, eps=1e-8, weight_decay=0.1)',
    clip_norm=1.0,  # bound of the gradient's global norm; 0: none
    # Of the parameters: float32, or bfloat16 (kernels and tables, rounded
    # stochastically). Optimizer and gradient norm are float32 always.
    precision='float32',
    # ema(decay=0.999): evaluate and generate with the moving average of the
    # parameters, which is kept in float32 besides; none
    ema='none',
    # After a loss or gradient that is not finite (that update never happens),
    # or a loss `threshold` above the median of the logged ones: stop,
    # skip(at_most=10), rewind(threshold=0.0, before=100, batches=200)
    on_spike='stop',
  )

  config.schedule = dict(
    # A number, or as many as a text says: '50k_steps', '300B_tokens'.
    num_steps=number_or_text(100_000),
    # constant, linear, cosine, rsqrt(hold=...), noam(d_model=...),
    # wsd(cooldown=...). `final` is a fraction of the peak; lengths are steps,
    # or tokens as in warmup='375M_tokens', decay='260B_tokens'.
    name='cosine(peak=6e-4, warmup=2000, final=0.1)',
  )

  config.batch = dict(
    # Rows of context_length tokens in one optimizer step: a number, or one
    # that grows in stages: ramp(0:512, 50k_steps:1024, 390B_tokens:2048),
    # linear_ramp(start=16, stop=256, over='4B_tokens', stages=9).
    size=number_or_text(512),
    # So many of them at a time, over all devices: the gradients of the parts
    # are summed. Fewer take less memory. Empty or 0: all at once.
    micro_rows=placeholder(int),
  )

  config.mesh = dict(
    # Devices along each axis; -1 takes what the others leave.
    data=1,
    fsdp=-1,
    expert=1,
    tensor=1,
    # Logical axis of a parameter or activation -> mesh axes ('' : not split).
    rules=dict(
      batch='data, fsdp, expert',
      group='data, fsdp',  # of tokens, where experts take them
      expert='expert',
      length='',
      stream='tensor',  # the features of what goes from layer to layer
      embed='fsdp',
      heads='tensor',
      kv_heads='tensor',
      head='',
      buckets='',
      cluster='',
      mlp='tensor',
      vocab='tensor',
      norm='',
      router='',
      layers='',
    ),
  )

  config.checkpoint = dict(
    every_steps=1000,  # also after the last step
    keep=2,  # so many of the newest stay (that of a preemption besides)
    keep_every_steps=0,  # its multiples stay for good; 0: none
    keep_best=0,  # so many stay of the least held-out loss, of those evaluated
    grace_seconds=30.0,  # from SIGTERM to the end: a slower save is warned of
  )

  config.eval = dict(
    every_steps=1000,  # also after the last step; 0: only then
    rows=64,  # rows in one evaluation batch
    num_batches=placeholder(int),  # empty: all of each held-out set
    # More held-out sets: name -> call of a source, as in data.source. Prepared
    # with the token store, and reported as eval/NAME/loss, .../bits_per_byte.
    sets=dict(),
    # Of these the number of original words, for eval/NAME/word_perplexity: a
    # number, 'words' (separated by white space) or 'words_and_lines' (which
    # counts ends of lines too, as WikiText does).
    words=dict(),
    # Tasks that are evaluated too, without shots: lambada, blimp, piqa, ...;
    # see gpt_jax/evaluation/tasks.py. Their files are in tasks_dir.
    tasks=placeholder(str),
    tasks_dir='tasks',
  )

  # A phase that takes longer is hung: the run ends, and shows where. 0: never.
  config.watchdog = dict(
    start_seconds=3600.0,  # without preparing text
    compile_seconds=7200.0,  # all that is compiled, and the first step
    step_seconds=1800.0,
    evaluation_seconds=7200.0,
    save_seconds=3600.0,
  )

  # With --distributed.
  config.hosts = dict(
    join_seconds=300,  # so long all wait for the last to start
    heartbeat_seconds=30,  # one that was silent for longer is taken for dead
  )

  config.log = dict(
    every_steps=10,
    # What shows the numbers of metrics.jsonl besides: tensorboard,
    # wandb(project='...', entity='', name='', mode='offline'), or both; none
    trackers='tensorboard',
    # The text to continue at the end of the run; '' for none.
    sample_prompt='The ',
    sample_tokens=100,
  )
  return config.lock()


def number_or_text(value: int) -> FieldReference:
  """A field that takes either, from a file or the command line."""
  return FieldReference(value, field_type=object)


def size(file: str, arg: str, sizes: Mapping[str, T]) -> T:
  """The entry `arg` of a config's table of sizes."""
  if arg not in sizes:
    raise ValueError(
      f'{_name(file)}:{arg}: unknown size; one of ' + ', '.join(sizes)
    )
  return sizes[arg]


def no_size(file: str, arg: str) -> None:
  """Refuses an argument where a config has one size only."""
  if arg:
    raise ValueError(f'{_name(file)}:{arg}: has one size; leave :{arg} out')


def _name(file: str) -> str:
  """As it is given after --config: 'configs/finetune/sst2.py'."""
  parts = pathlib.PurePath(file).parts
  if 'configs' not in parts:
    return parts[-1]
  at = len(parts) - 1 - parts[::-1].index('configs')
  return '/'.join(parts[at:])


def corpora(config: Any, **percent: float) -> None:
  """Sets a mixture of corpora, each in a folder `corpora/NAME` of JSON lines.

  Args:
    config: a `ConfigDict`, unlocked.
    **percent: of the rows, for each corpus. Numbers that a paper rounded, so
      that they do not add up to 100, are scaled.
  """
  total = sum(percent.values())
  weights = [f'{name}:{part / total:.9g}' for name, part in percent.items()]
  config.data.sources = {
    name: f"jsonl('corpora/{name}/*.jsonl*')" for name in percent
  }
  config.data.source = f'mixture({", ".join(weights)})'
