# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The whole config tree, with an explanation of each field.

Every other config starts from this one and sets only what differs. A text such
as `'cosine(peak=6e-4, warmup=2000)'` is a call-string, a name with arguments;
an unknown name prints the choices. A `placeholder` may stay empty; its comment
gives the default. Any field can be overridden on the command line:
`--config.model.num_layers=4`.
"""

import pathlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from ml_collections import ConfigDict
from ml_collections.config_dict import FieldReference, placeholder

from gpt_jax import ranges
from gpt_jax.nn.build import CHOICES as MODEL
from gpt_jax.nn.stack import LOOPS, REMATS
from gpt_jax.nn.transformer import DTYPES
from gpt_jax.objectives.choices import OBJECTIVES
from gpt_jax.objectives.lora import LORAS
from gpt_jax.optim import wrappers
from gpt_jax.optim.optimizer import OPTIMIZERS
from gpt_jax.optim.rounding import AVERAGES, PRECISIONS
from gpt_jax.optim.schedules import LAST_STEP, SCHEDULES
from gpt_jax.optim.spikes import SPIKES
from gpt_jax.ranges import (
  Count,
  Fraction,
  NotNegative,
  OneOf,
  Positive,
  Probability,
  Range,
  Rate,
  Seconds,
  Seed,
  Weight,
  Whole,
)
from gpt_jax.rows.row_makers import ROWS
from gpt_jax.spec import UsageError
from gpt_jax.text.sentences import SPLITTERS

# Helpers for the files in `configs/`.


T = TypeVar('T')


def number_or_text(value: int) -> FieldReference:
  """A field that accepts a number or a text, in a file or as an override."""
  return FieldReference(value, field_type=object)


def size(file: str, arg: str, sizes: Mapping[str, T]) -> T:
  """The entry `arg` of a config's table of sizes."""
  if arg not in sizes:
    raise UsageError(
      f'{_name(file)}:{arg}: unknown size; one of ' + ', '.join(sizes)
    )
  return sizes[arg]


def no_size(file: str, arg: str) -> None:
  """Rejects an argument of a config that has only one size."""
  if arg:
    raise UsageError(f'{_name(file)}:{arg}: has one size; leave :{arg} out')


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
    **percent: of the rows, for each corpus. They are scaled to 100, since
      papers round them.
  """
  total = sum(percent.values())
  weights = [f'{name}:{part / total:.9g}' for name, part in percent.items()]
  config.data.sources = {
    name: f"jsonl('corpora/{name}/*.jsonl*')" for name in percent
  }
  config.data.source = f'mixture({", ".join(weights)})'


class Field(NamedTuple):
  """A field: all that is known of it but what the comment beside it says."""

  default: Any  # None: it may stay empty
  # The range or the names of its values; a table of the calls that it names; or
  # a type.
  takes: Any
  or_text: bool = False  # a number, or a text that `lengths` reads
  # A run may go on with another value, which does not change its result.
  free: bool = False

  @property
  def range(self) -> Range | OneOf | None:
    """Which values it takes; None: any of its type, or calls."""
    return None if isinstance(self.takes, Mapping) else ranges.of(self.takes)

  @property
  def initial(self) -> Any:
    """The value in a new `ConfigDict`."""
    if self.default is None:
      return placeholder(ranges.plain(self.takes))
    return number_or_text(self.default) if self.or_text else self.default


class Free(dict):
  """A section whose fields are all `free`, those of the user's own too."""


def names(table: Iterable[str]) -> Any:
  """Takes the names of a table."""
  return Annotated[str, OneOf((*table,))]


# Wider than any model by far, and an array of two widths can be counted: see
# config/validation.py for those of more.
LAYERS = Annotated[int, ranges.whole(1, 10_000)]
DEPTH = Annotated[int, ranges.whole(0, 10_000)]
WIDTH = Annotated[int, ranges.whole(1, 2**24)]
OWN_WIDTH = Annotated[int, ranges.whole(0, 2**24)]
WORKERS = Annotated[int, ranges.whole(1, 10_000)]
STEPS = Annotated[int, ranges.whole(1, LAST_STEP)]
# Of a mesh axis: -1 is the rest.
DEVICES = Annotated[int, ranges.whole(-1)]
WAIT = Annotated[int, ranges.whole(1, 10**6)]

TREE: dict[str, Any] = {}

# Initial parameters, data order and dropout are functions of the seed.
TREE['seed'] = Field(0, Seed)

# The fields of gpt_jax.nn.transformer.Transformer.
TREE['model'] = dict(
  vocab_size=Field(None, Count),  # empty: the tokenizer's
  context_length=Field(1024, WIDTH),  # tokens per row
  num_layers=Field(12, LAYERS),
  d_model=Field(768, WIDTH),
  num_heads=Field(12, WIDTH),
  num_kv_heads=Field(None, WIDTH),  # empty: num_heads
  head_size=Field(None, WIDTH),  # empty: d_model / num_heads
  value_size=Field(0, OWN_WIDTH),  # width of a head's values; 0: head_size
  # Heads of the encoder, with the same total width; 0: num_heads.
  encoder_num_heads=Field(0, OWN_WIDTH),
  d_ff=Field(None, WIDTH),  # empty: 4 * d_model
  encoder_d_ff=Field(0, OWN_WIDTH),  # of the encoder; 0: d_ff
  num_encoder_layers=Field(0, DEPTH),  # above 0: an encoder-decoder
  # Above 0: layers of an additional encoder with its own table and positions,
  # whose output replaces the encoder's token embeddings (BART, section 3.4).
  num_source_layers=Field(0, DEPTH),
  # Of that table; 0: that of the source tokenizer.
  source_vocab_size=Field(0, Whole),
  # Which parameters the layers share: none, all(groups=1, inner=1) (ALBERT),
  # attention(...), ffn(...), each with its norms. Adjacent layers form
  # `groups`; each group repeats its `inner` layers. stacks: layer i of the
  # encoder and of the decoder are shared, except for cross-attention.
  share=Field('none', MODEL['share']),
  # tokens(scale='none', token_types=0, norm=False, d_embed=0): d_embed above
  # 0 is the embedding width, followed by a dense layer (ALBERT);
  # queries=True adds a vector for the tokens that a second stream predicts
  # (XLNet). adaptive(cutoffs=(20000, ...), d_embed=..., div_val=1,
  # scale='none').
  input=Field('tokens', MODEL['input']),
  # learned, learned_by_layer (added before every layer), sinusoidal,
  # rope(theta=1e4, fraction=1.0, layout='half', scaling='none',
  # local_theta=0.0) (local_theta: of layers with a window; 0: theta),
  # t5_bias, alibi(scale='none', dtype='float32'),
  # transformer_xl(memory=0, clamp=0, segment=0, biases='own') (a row is read
  # in segments of `segment` tokens, each with a memory of the states before
  # it; biases='shared': one u and v for all layers), xlnet(memory=0, clamp=0)
  # (signed distances, and relative segments), none,
  # deberta(max_distance=512, buckets=0, c2c=True, c2p=True, p2c=True,
  # shared=False, norm=False, absolute=False, mask_decoder=0, convolution=0,
  # activation='gelu') (activation: of the convolution)
  position=Field('learned', MODEL['position']),
  # full, local(window=...), strided(stride=...), fixed(stride=...),
  # bidirectional; bigbird(block=64, window=3, random=3, extra=0,
  # draw='uniform', seed=0): global, neighboring and random blocks,
  # bidirectional; extra=N adds global tokens beside the row. A list with
  # commas repeats over the layers.
  attention='full',
  # The factor on the scores: rsqrt(size=0, softcap=0.0) is 1/sqrt(size), with
  # 0 for the head size; none, by_layer. softcap turns scores s into
  # softcap * tanh(s / softcap).
  attention_scale=Field('rsqrt', MODEL['attention_scale']),
  # The implementation: reference (XLA), splash(block=512, fused_until=4096)
  # (TPU), cudnn (GPU), blocks (for bigbird). For rows split by mesh.context:
  # all_gather(block=1024) (keys and values go to all devices), ring (they go
  # round), ulysses (splits heads instead); on a TPU the last two use splash.
  # auto selects the backend for the devices or the pattern, or the reference
  # if that does not support the model, and logs its choice; for split rows
  # ulysses or ring on a TPU if splash supports the model, else all_gather.
  attention_backend=Field('auto', MODEL['attention_backend'], free=True),
  # gelu_tanh, gelu, relu, silu, tanh; gated: glu, bilinear, reglu, geglu,
  # geglu_tanh, swiglu; a mixture of experts: switch(num_experts=...,
  # expert='relu', top_k=1, capacity_factor=1.25). A comma-separated list
  # repeats over the layers.
  ffn='gelu_tanh',
  encoder_ffn=None,  # the encoder's ffn; empty: the same as ffn
  # Or layernorm(bias=False), rmsnorm(epsilon=1e-6, plus_one=False).
  norm=Field('layernorm(epsilon=1e-5)', MODEL['norm']),
  # Position of the norms: pre (GPT-2), post (GPT-1), parallel (PaLM),
  # parallel(num_norms=2) (GPT-NeoX), sandwich (Gemma 2), reordered (OLMo 2).
  # All take qk_norm, the norm of queries and keys: none, per_head (Qwen3) or
  # all_heads (OLMo 2).
  block=Field('pre', MODEL['block']),
  # Which dense layers have biases: all, none, where(qkv=False, out=False,
  # ffn=False, key=True); key=False excludes keys from qkv.
  bias=Field('all', MODEL['bias']),
  # Whether the output layer reuses the token embeddings:
  # tied(bias=False, scale='none', transform='none', softcap=0.0) or
  # untied(...); softcap turns logits x into softcap * tanh(x / softcap).
  # adaptive(own=()): the adaptive softmax for input=adaptive(...).
  output=Field('tied', MODEL['output']),
  # none, or rates(embedding=0.1, residual=0.1, attention=0.1)
  dropout=Field('none', MODEL['dropout']),
  # gpt2(stddev=0.02), truncated_normal(stddev=0.02) (BERT), palm,
  # switch(scale=0.1, embedding=0.02), transformer
  init_weights=Field('normal(stddev=0.02)', MODEL['init_weights']),
  # Dtype of activations and matrix products: bfloat16 or float32. Norms,
  # softmax and loss are always float32; for parameters see optim.precision.
  dtype=Field('bfloat16', names(DTYPES)),
  # What the backward pass recomputes: none (stores everything), dots (stores
  # only matrix products), offload (stores those in host memory), full (stores
  # only the input of each period of layers).
  remat=Field('none', names(REMATS)),
  # scan (compiles fast), unroll (runs faster on CPU)
  loop=Field('scan', names(LOOPS)),
)

# Further models of the objective, named by it, each with the differences from
# `model`: models.generator = dict(d_model=64) (ELECTRA).
TREE['models'] = dict()

# Explained in docs/training.md.
# causal(z_loss=0.0): next tokens; adds z_loss * log(Z)^2, which keeps the
# softmax's normalizer Z near 1. Reported losses do not include it.
# auxiliary(positions='all', layers='all', targets=2, weight=0.5): the same at
# each layer for a part of the run, and the token after the next (T64).
# prefix(text='', sees='both', z_loss=0.0): prefix LM; a random number of
# tokens at the start of each row attend to each other in both directions, and
# the others are predicted. text='seq2seq()', text='span()': the prefix is the
# source of that encoder-decoder objective.
# masked(rate=0.15, mask=0.8, random=0.1, unit='token', ngram=1, pair='none',
# static=0): masked tokens (BERT); whole words with unit='word', up to `ngram`
# consecutive ones; pair='next' or 'order' adds sentence pairs; static=n: n
# masks per row, used in turn.
# unified(rate=0.15, mask=0.8, random=0.1): the same under four attention
# masks: bidirectional, left, right, sequence-to-sequence (UniLM).
# unified_target(rate=0.7, mask=0.8, random=0.1, label_smoothing=0.0): only
# the last of these, on pairs of texts: an encoder learns to write targets.
# permuted(context=6, longest=5, block=256, segments=1): one in `context`
# tokens, in runs of up to `longest` words, in a random order of `block`
# tokens (XLNet); several segments in a row use its memory.
# electra(rate=0.15, weight=50.0, targets='electra', temperature=1.0): which
# tokens models.generator replaced; or targets='electra_15', 'replace_mlm',
# 'all_tokens_mlm'; generator_steps=n: the generator alone for n steps, then
# the model from its weights.
# distilled(temperature=2.0, soft=5.0, hard=2.0, cosine=1.0, text='masked',
# places='real', layers=(), top_k=0): imitates a teacher, in addition to the
# loss of the text, 'masked' or 'causal'; layers=(0, 2, 4, 7, 9, 11):
# initialized with these of its layers (DistilBERT); top_k=64: reads its
# outputs from disk.
# mass(rate=0.5, mask=0.8, random=0.1, start='eos'): an encoder-decoder writes
# a hidden part of a row from the rest, see data.rows='doc_sentences' (MASS).
# seq2seq(label_smoothing=0.0, start='eos'): an encoder-decoder writes the
# target of a pair of texts (the Transformer); start='pad' as in T5.
# denoise(noise='permute, infill'): an encoder-decoder restores a text after
# corruptions, applied in order: mask(rate), delete(rate), infill(rate=0.3,
# mean=3.0, random=0.0), permute (sentences), rotate (BART).
# span(rate=0.15, length=3.0, start='pad'): spans of a text become sentinels,
# and the decoder writes them; T5's others: replace_spans, drop_tokens,
# bert_style, mass_style (rate=0.15), deshuffle, continuation. A row has as
# much text as fills the encoder's model.context_length.
TREE['objective'] = dict(
  name=Field('causal', OBJECTIVES),
  # The teacher of `distilled`: a workdir or a Hugging Face folder. A new run
  # fills models.teacher from it; to inspect or plan without a run, give that
  # section. With top_k: a folder written by gpt-jax teach.
  teacher='',
)

TREE['data'] = dict(
  # stdlib (Python's own source files), text('glob or folder', ...),
  # jsonl('glob', 'field') (plain, .gz, .zst), parquet('glob', 'column'),
  # tfds('name', 'split', 'field'), tfds_dir('folder', 'split', 'field').
  # Pairs of a source and a target: parallel_text('train.en', 'train.de')
  # (lines side by side), parallel_jsonl('glob', 'en', 'de'),
  # parallel_tfds('name', 'en', 'de'),
  # parallel_tfds_dir('folder', 'en', 'de'). All but stdlib take
  # on_error='skip': count unreadable documents instead of failing.
  # text_to_text('sst2', 'folder', split='train'): a GLUE task as pairs of
  # texts, in T5's formats.
  # passages("text('books/*.txt')", chars=1000) splits another source's
  # documents at blank lines, so that the model sees enough beginnings and
  # ends to learn them.
  source='stdlib',
  # Named sources, for source='mixture(web:0.6, books:0.4,
  # draw="without_replacement", shares="rows")'. A comma-separated list of
  # phases changes the weights during the run, as in
  # 'mixture(web:1.0), mixture(web:0.2, books:0.8, from_token=100e9)'.
  # shares='tokens': weights are shares of tokens, if `rows` below are padded.
  # shares='examples', limit=...: in proportion to the number of documents or
  # pairs, of which at most `limit` count (T5); weights are factors on it.
  sources=dict(),
  # Cleaning steps, applied in the order given, before the held-out split:
  # c4(words=3, sentences=5, bad_words='', duplicates='spans'),
  # gopher(min_words=50, max_words=100_000, ...),
  # language('en', probability=0.99), quality(high='...', low='...'),
  # minhash(threshold=0.8, hashes=10, rows=5, ngram=5),
  # decontaminate('glob', ..., n=13, rule='documents'); none
  clean='none',
  # Held-out text for evaluation: documents(fraction=...),
  # tail(fraction=...), none, or the call of another source.
  holdout='documents(fraction=0.02)',
  # Folder of the token store; empty: WORKDIR/data.
  store=Field(None, str, free=True),
  # stream: documents are concatenated and cut into rows (GPT). documents:
  # rows hold whole documents that do not attend to each other, padded. Rows
  # of sentences (see `sentences` below), with [CLS] and [SEP]: full_sentences
  # (RoBERTa), doc_sentences (one document per row), and two texts,
  # pairs('next', short=0.1) (BERT), pairs('order') (ALBERT) or
  # pairs('unified') (UniLM); halves: text, and two texts that follow it
  # (XLNet). For a source of pairs: parallel(start='text'), as many as fit,
  # context_length tokens on each side; start='cls': sources begin with [CLS].
  rows=Field('stream', ROWS),
  # Compression of the token store: none, zstd(level=3).
  compression='none',
  # Whether the store records sentence ends, for the rows that need them.
  # terminal: after . ! ? and space, and at line ends. lines: one per line.
  # The tokens do not depend on it.
  sentences=Field('none', SPLITTERS),
  # Parallel tokenization workers; the result does not depend on their
  # number. Empty: one per core.
  workers=Field(None, WORKERS, free=True),
)

# sentencepiece(vocab_size=..., model='unigram', normalization='identity',
# byte_fallback=True, split_digits=True, symbols=[], sample_bytes=0, seed=0,
# character_coverage=0.9999), trained on the training split, as are
# wordpiece(vocab_size=..., lowercase=True, alphabet=1000) and
# byte_bpe(vocab_size=...), for encoders; bytes, characters,
# words(vocab_size=0, count=1) (the most frequent words between white space;
# the others are <unk>), frequent_bytes(vocab_size=...) (the others are one
# symbol). Existing tokenizers: saved('WORKDIR'),
# sentencepiece_file('tokenizer.model', eos=''),
# hf_tokenizer('tokenizer.json', eos=''), gpt2_bpe('encoder.json',
# 'vocab.bpe'), gpt1_bpe('encoder_bpe_40000.json', 'vocab_40000.bpe'),
# wordpiece_file('vocab.txt', lowercase=True), byte_bpe_file('vocab.json',
# 'merges.txt'). For pairs of texts sides(target, source='...'): two of these
# calls, for a model with a separate source vocabulary.
TREE['tokenizer'] = dict(name="sentencepiece(vocab_size=32000, model='bpe')")

TREE['optim'] = dict(
  # A new run starts from the parameters of this workdir or Hugging Face
  # folder; empty: random initialization.
  start='',
  # Parameters to initialize at random all the same, necessary for those that
  # `start` lacks or has in another shape: patterns of the names that inspect
  # prints: 'encoder/*, embed/*'; layer i of a stack: 'encoder/periods/i/*'.
  drawn='',
  # Parameters to train, by such patterns; empty: all.
  trained='',
  # adamw, adam(l2=0.0), adamax, adafactor(b1=0.0, factored=True, ...), lamb,
  # lion, muon, sgd(momentum=0.0, nesterov=False), none
  name=Field('adamw(b1=0.9, b2=0.95, eps=1e-8, weight_decay=0.1)', OPTIMIZERS),
  # Maximum global norm of the gradient; 0: no clipping.
  clip_norm=Field(1.0, NotNegative),
  # Dtype of the parameters: float32, or bfloat16 (kernels and tables, with
  # stochastic rounding). Optimizer state and gradient norm stay float32.
  precision=Field('float32', PRECISIONS),
  # Where the moments of kernels and tables are stored: device, or host (in
  # host memory; each step transfers those of one layer at a time).
  state=Field('device', names(wrappers.MEMORIES), free=True),
  # ema(decay=0.999): keeps a moving average of the parameters in float32, for
  # evaluation and generation. none: uses the parameters themselves.
  ema=Field('none', AVERAGES),
  # What to do after a non-finite loss or gradient (its update is never
  # applied), or a loss `threshold` above the median of recent ones: stop,
  # skip(at_most=10), rewind(threshold=0.0, before=100, batches=200)
  on_spike=Field('stop', SPIKES, free=True),
)

TREE['schedule'] = dict(
  # Length of the run: a number of steps, '50k_steps' or '300B_tokens'.
  num_steps=Field(100_000, STEPS, or_text=True),
  # constant, linear, cosine, rsqrt(hold=...), noam(d_model=...),
  # wsd(cooldown=...). `final` is a fraction of the peak; lengths are steps,
  # or tokens as in warmup='375M_tokens', decay='260B_tokens'.
  name=Field('cosine(peak=6e-4, warmup=2000, final=0.1)', SCHEDULES),
)

TREE['batch'] = dict(
  # Rows per optimizer step: a number, or a ramp:
  # ramp(0:512, 50k_steps:1024, 390B_tokens:2048), ramp(256, 50%:512),
  # linear_ramp(start=16, stop=256, over='4B_tokens', stages=9).
  size=Field(512, Count, or_text=True),
  # Tokens per row, in stages like a ramp's: stages(128, 90%:512).
  length=Field(None, str),  # empty: context_length, which is the maximum
  # Maximum rows per micro-batch on each device along the axes of
  # mesh.rules.batch. Gradients accumulate over micro-batches; smaller ones
  # need less memory. Only rounding depends on it. If a batch does not divide
  # evenly, rows of weight 0 pad it. Empty or 0: one batch.
  micro_rows=Field(None, Whole, free=True),
)

TREE['mesh'] = Free(
  # Devices along each mesh axis; -1: all remaining ones. fsdp=-1 takes as
  # many as divide the model's width, and data the rest.
  data=Field(1, DEVICES),
  fsdp=Field(-1, DEVICES),
  expert=Field(1, DEVICES),
  # Splits each row (sequence parallelism): attention_backend.
  context=Field(1, DEVICES),
  tensor=Field(1, DEVICES),
  # Logical axis of a parameter or activation -> mesh axes ('': not split).
  rules=dict(
    batch='data, fsdp, expert',
    group='data, fsdp',  # token groups of the experts
    expert='expert',
    length='context',
    stream='tensor',  # features of the residual stream between layers
    embed='fsdp, context',
    heads='tensor',
    kv_heads='tensor',
    head='',
    buckets='',
    cluster='',
    mlp='tensor',
    vocab='tensor',
    norm='',
    position='',
    router='',
    layers='',
  ),
)

TREE['checkpoint'] = Free(
  every_steps=Field(1000, Count),  # also after the last step
  keep=Field(2, Count),  # keep the newest N, and one from a preemption
  keep_every_steps=Field(0, Whole),  # keep every Nth step forever; 0: none
  # Keep the N evaluated ones with the lowest held-out loss.
  keep_best=Field(0, Whole),
  # From SIGTERM to the kill; warns if a save is slower.
  grace_seconds=Field(30.0, Seconds),
)

TREE['eval'] = Free(
  every_steps=Field(1000, Whole),  # and after the last step; 0: only then
  rows=Field(64, Count),  # rows per evaluation batch
  num_batches=Field(None, Count),  # of `rows`, per held-out set; empty: all
  # More held-out sets: name -> call of a source, as in data.source. Prepared
  # with the token store, and reported as eval/NAME/loss, .../bits_per_byte.
  sets=dict(),
  # Word counts of these sets, for eval/NAME/word_perplexity: a number,
  # 'words' (split at white space) or 'words_and_lines' (line ends count as
  # words, as in WikiText).
  words=dict(),
  # Zero-shot tasks to evaluate as well: lambada, blimp, piqa, ...; see
  # gpt_jax/evaluation/suite.py. Their files are in tasks_dir. For
  # text-to-text models: seq2seq('val.en', 'val.de', first=200,
  # metrics='bleu, chrf') and the GLUE tasks, in T5's formats.
  tasks=Field(None, str),
  tasks_dir='tasks',
)

# A phase that takes longer counts as hung: the run ends and dumps all stacks.
# 0: no limit.
TREE['watchdog'] = Free(
  start_seconds=Field(3600.0, Seconds),  # does not include preparing text
  compile_seconds=Field(7200.0, Seconds),  # compilation, and the first step
  step_seconds=Field(1800.0, Seconds),
  evaluation_seconds=Field(7200.0, Seconds),
  save_seconds=Field(3600.0, Seconds),
)

# With --distributed.
TREE['hosts'] = Free(
  join_seconds=Field(300, WAIT),  # how long to wait for all hosts to start
  # A host silent for longer is considered dead.
  heartbeat_seconds=Field(30, WAIT),
)

TREE['log'] = Free(
  every_steps=Field(10, Count),
  # Trackers that also show metrics.jsonl: tensorboard,
  # wandb(project='...', entity='', name='', mode='offline'), or both; none.
  trackers='tensorboard',
  # Prompt for a sample at the end of the run; '': no sample.
  sample_prompt='The ',
  sample_tokens=Field(100, Whole),
)

# The section `finetune`, with the values of GPT-1.
#
# Radford et al., 2018, sections 3.2 and 4.1.
FINETUNE = dict(
  # A published task, sst2('FOLDER') of its files or sst2() of TensorFlow
  # Datasets: sst2, cola, mrpc, stsb, qqp, rte, qnli, qnli_ranking, mnli,
  # wnli, snli, scitail, race, story_cloze, squad, conll2003. Or your own
  # tables (.tsv, .csv, .jsonl, packed or not): classification('train.tsv',
  # 'dev.tsv', text='review', label='stars'), entailment(...),
  # similarity(...), choice(...), ranking(...), target('train.jsonl',
  # 'dev.jsonl', prompt='{en} =', target=' {de}'), spans('train.jsonl',
  # 'dev.jsonl'), tags('train.conll', 'dev.conll'). Or a method of
  # post-training, for the command of its name: sft('train.jsonl',
  # 'dev.jsonl', packing=True, loss_on='assistant', template=''); see
  # gpt_jax/posttraining/methods.py.
  task='sst2()',
  # Several tasks at once instead of `task`, each with its own head: a list
  # such as 'rte(), mrpc()'; see configs/finetune/mt_dnn.py. Empty: one.
  tasks='',
  # An epoch of several tasks: proportional (each batch of each task once), or
  # capped(examples=2000), at most that many of a task.
  mixing='proportional',
  # Which pre-trained parameters to start from: all, none (from scratch),
  # embeddings, layers(3): the embeddings and the first three layers.
  transfer='all',
  # Freeze the embeddings and the first N layers; 0 freezes nothing.
  freeze=Field(0, Whole),
  # lora(rank=8, alpha=16.0, on='query, value', rslora=False): trains low-rank
  # adapters of these kernels instead of the model: modules by name ('query',
  # 'attention', 'ffn', ...), patterns as in optim.trained, or 'all'. none.
  lora=Field('none', LORAS),
  # The task head: extract (GPT-1's last token), first (BERT's pooled first
  # token), choice (either, with one score per answer), spans, tokens. Empty:
  # determined by the model and the task.
  head=Field(None, str),
  # The pooler's activation: tanh (BERT), gelu (ELECTRA), relu (DistilBERT).
  # Empty: that of the pre-trained model.
  pooler=Field(None, str),
  # Freeze the model and read these layers: layer(number=-1; 0 are the
  # embeddings), concat(count=4), weighted_sum(count=0) of the last layers (0:
  # all). Empty: fine-tune the model and read its last layer.
  features=Field(None, str),
  # "Adding language modeling as an auxiliary objective [...] We set lambda
  # to 0.5." Empty: that for decoders, 0 for encoders, which have none.
  auxiliary=Field(None, Weight),
  # "We add dropout to the classifier with a rate of 0.1."
  dropout=Field(0.1, Fraction),
  task_dropout=dict(),  # overrides for some tasks, by name
  # Tokens per sequence; empty: the task's longest, at most the model's
  # context. For several tasks this is the maximum; each has its own length.
  length=Field(None, Count),
  # Texts that do not fit: cut (truncate and count), refuse; in post-training
  # also drop (leave out and count).
  too_long=Field('cut', Literal['cut', 'drop', 'refuse']),
  # For classification: none, balanced (inverse class frequency), or
  # weights(1.0, 3.5), one per class.
  class_weights='none',
  # Scores are learned unscaled (raw), or standardized to mean 0 and deviation
  # 1 (standard).
  scores=Field('standard', Literal['standard', 'raw']),
  examples=Field(None, Count),  # use N of the train split; empty: all
  # "3 epochs of training was sufficient."
  epochs=Field(3.0, Annotated[float, ranges.number(0, 10**6, above=True)]),
  # "a linear learning rate decay schedule with warmup over 0.2% of training"
  peak=Field(6.25e-5, Rate),
  warmup=Field(0.002, Probability),
  # Stop after N evaluations without a better dev score; 0: never.
  patience=Field(0, Whole),
  # The state used for predictions: last, or best by the dev score.
  select=Field('last', Literal['last', 'best']),
  # Overrides of the pre-trained model's fields; empty: its own (the backend
  # becomes auto).
  model=dict(
    dropout=Field(None, str),
    dtype=Field(None, str),
    remat=Field(None, str),
    loop=Field(None, str),
    attention_backend=Field(None, str),
  ),
  # Filled in by finetune: the pre-trained model, sequences per example, rows
  # of the pre-trained embedding table, the classes, the number and a hash of
  # the training and dev examples, and how they are shuffled. For several
  # tasks `each` has a section per task with its call, examples, length,
  # classes and hash.
  init=Field(None, str),
  sequences=Field(None, int),
  vocab_size=Field(None, int),
  labels=Field(None, list),
  data=Field(None, str),
  order=Field(None, str),
  each=dict(),
)

# The section `sweep`, the grid of `gpt-jax scaling`, which may grow.
SWEEP = Free(
  # Training FLOPs, 6ND, of each IsoFLOP curve: '1e12, 3e12'.
  budgets='',
  # The models to train: size(num_layers, d_model, num_heads, peak), with the
  # peak learning rate; peak=0 is the schedule's.
  sizes='',
  # A size is left out of a curve if it would see fewer or more tokens.
  min_tokens_per_parameter=Field(8.0, NotNegative),
  max_tokens_per_parameter=Field(1000.0, Positive),
)


def get_config(arg: str = '') -> ConfigDict:
  """Returns the locked tree; the base has no sizes to choose from."""
  no_size('configs/base.py', arg)
  return _built(TREE).lock()


def finetune() -> ConfigDict:
  """The section `finetune`."""
  return _built(FINETUNE)


def sweep() -> ConfigDict:
  """The section `sweep`."""
  return _built(SWEEP)


def _built(section: Mapping[str, Any]) -> ConfigDict:
  config = ConfigDict()
  for name, entry in section.items():
    if isinstance(entry, Mapping):
      entry = _built(entry)
    config[name] = entry.initial if isinstance(entry, Field) else entry
  return config


def _entries(section: Mapping[str, Any], prefix: str = '') -> Iterator[Any]:
  """Name and entry of all sections and fields."""
  for name, entry in section.items():
    yield prefix + name, entry
    if isinstance(entry, Mapping):
      yield from _entries(entry, f'{prefix}{name}.')


_ENTRIES = dict(_entries({**TREE, 'finetune': FINETUNE, 'sweep': SWEEP}))
FIELDS = {name: x for name, x in _ENTRIES.items() if isinstance(x, Field)}
# The fields that name one of several choices, with its arguments.
CALL_STRINGS: dict[str, Mapping[str, Any]] = {
  name: field.takes
  for name, field in FIELDS.items()
  if isinstance(field.takes, Mapping)
}
# What a field begins with that a run may go on with other values of.
FREE_ON_RESUME = (
  *(f'{name}.' for name, x in _ENTRIES.items() if isinstance(x, Free)),
  *(name for name, field in FIELDS.items() if field.free),
)
