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
from collections.abc import Mapping
from typing import Any, TypeVar

from ml_collections import ConfigDict
from ml_collections.config_dict import FieldReference, placeholder

from gpt_jax.spec import UsageError

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


def get_config(arg: str = '') -> ConfigDict:
  """Returns the locked tree; the base has no sizes."""
  no_size('configs/base.py', arg)
  config = ConfigDict()

  # Initial parameters, data order and dropout are functions of the seed.
  config.seed = 0

  # The fields of gpt_jax.nn.transformer.Transformer.
  config.model = dict(
    vocab_size=placeholder(int),  # empty: the tokenizer's
    context_length=1024,  # tokens per row
    num_layers=12,
    d_model=768,
    num_heads=12,
    num_kv_heads=placeholder(int),  # empty: num_heads
    head_size=placeholder(int),  # empty: d_model / num_heads
    value_size=0,  # width of a head's values; 0: head_size
    # Heads of the encoder, with the same total width; 0: num_heads.
    encoder_num_heads=0,
    d_ff=placeholder(int),  # empty: 4 * d_model
    encoder_d_ff=0,  # of the encoder; 0: d_ff
    num_encoder_layers=0,  # above 0: an encoder-decoder
    # Above 0: layers of an additional encoder with its own table and positions,
    # whose output replaces the encoder's token embeddings (BART, section 3.4).
    num_source_layers=0,
    source_vocab_size=0,  # of that table; 0: that of the source tokenizer
    # Which parameters the layers share: none, all(groups=1, inner=1) (ALBERT),
    # attention(...), ffn(...), each with its norms. Adjacent layers form
    # `groups`; each group repeats its `inner` layers. stacks: layer i of the
    # encoder and of the decoder are shared, except for cross-attention.
    share='none',
    # tokens(scale='none', token_types=0, norm=False, d_embed=0): d_embed above
    # 0 is the embedding width, followed by a dense layer (ALBERT);
    # queries=True adds a vector for the tokens that a second stream predicts
    # (XLNet). adaptive(cutoffs=(20000, ...), d_embed=..., div_val=1,
    # scale='none').
    input='tokens',
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
    position='learned',
    # full, local(window=...), strided(stride=...), fixed(stride=...),
    # bidirectional; bigbird(block=64, window=3, random=3, extra=0,
    # draw='uniform', seed=0): global, neighboring and random blocks,
    # bidirectional; extra=N adds global tokens beside the row. A list with
    # commas repeats over the layers.
    attention='full',
    # The factor on the scores: rsqrt(size=0, softcap=0.0) is 1/sqrt(size), with
    # 0 for the head size; none, by_layer. softcap turns scores s into
    # softcap * tanh(s / softcap).
    attention_scale='rsqrt',
    # The implementation: reference (XLA), splash(block=512, fused_until=4096)
    # (TPU), cudnn (GPU), blocks (for bigbird). For rows split by mesh.context:
    # all_gather(block=1024) (keys and values go to all devices), ring (they go
    # round), ulysses (splits heads instead); on a TPU the last two use splash.
    # auto selects the backend for the devices or the pattern, or the reference
    # if that does not support the model, and logs its choice; for split rows
    # ulysses or ring on a TPU if splash supports the model, else all_gather.
    attention_backend='auto',
    # gelu_tanh, gelu, relu, silu, tanh; gated: glu, bilinear, reglu, geglu,
    # geglu_tanh, swiglu; a mixture of experts: switch(num_experts=...,
    # expert='relu', top_k=1, capacity_factor=1.25). A comma-separated list
    # repeats over the layers.
    ffn='gelu_tanh',
    encoder_ffn=None,  # the encoder's ffn; empty: the same as ffn
    # Or layernorm(bias=False), rmsnorm(epsilon=1e-6, plus_one=False).
    norm='layernorm(epsilon=1e-5)',
    # Position of the norms: pre (GPT-2), post (GPT-1), parallel (PaLM),
    # parallel(num_norms=2) (GPT-NeoX), sandwich (Gemma 2), reordered (OLMo 2).
    # All take qk_norm, the norm of queries and keys: none, per_head (Qwen3) or
    # all_heads (OLMo 2).
    block='pre',
    # Which dense layers have biases: all, none, where(qkv=False, out=False,
    # ffn=False, key=True); key=False excludes keys from qkv.
    bias='all',
    # Whether the output layer reuses the token embeddings:
    # tied(bias=False, scale='none', transform='none', softcap=0.0) or
    # untied(...); softcap turns logits x into softcap * tanh(x / softcap).
    # adaptive(own=()): the adaptive softmax for input=adaptive(...).
    output='tied',
    # none, or rates(embedding=0.1, residual=0.1, attention=0.1)
    dropout='none',
    # gpt2(stddev=0.02), truncated_normal(stddev=0.02) (BERT), palm,
    # switch(scale=0.1, embedding=0.02), transformer
    init_weights='normal(stddev=0.02)',
    # Dtype of activations and matrix products: bfloat16 or float32. Norms,
    # softmax and loss are always float32; for parameters see optim.precision.
    dtype='bfloat16',
    # What the backward pass recomputes: none (stores everything), dots (stores
    # only matrix products), offload (stores those in host memory), full (stores
    # only the input of each period of layers).
    remat='none',
    loop='scan',  # scan (compiles fast), unroll (runs faster on CPU)
  )

  # Further models of the objective, named by it, each with the differences from
  # `model`: models.generator = dict(d_model=64) (ELECTRA).
  config.models = dict()

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
  config.objective = dict(
    name='causal',
    # The teacher of `distilled`: a workdir or a Hugging Face folder. A new run
    # fills models.teacher from it; to inspect or plan without a run, give that
    # section. With top_k: a folder written by gpt-jax teach.
    teacher='',
  )

  config.data = dict(
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
    store=placeholder(str),  # folder of the token store; empty: WORKDIR/data
    # stream: documents are concatenated and cut into rows (GPT). documents:
    # rows hold whole documents that do not attend to each other, padded. Rows
    # of sentences (see `sentences` below), with [CLS] and [SEP]: full_sentences
    # (RoBERTa), doc_sentences (one document per row), and two texts,
    # pairs('next', short=0.1) (BERT), pairs('order') (ALBERT) or
    # pairs('unified') (UniLM); halves: text, and two texts that follow it
    # (XLNet). For a source of pairs: parallel(start='text'), as many as fit,
    # context_length tokens on each side; start='cls': sources begin with [CLS].
    rows='stream',
    # Compression of the token store: none, zstd(level=3).
    compression='none',
    # Whether the store records sentence ends, for the rows that need them.
    # terminal: after . ! ? and space, and at line ends. lines: one per line.
    # The tokens do not depend on it.
    sentences='none',
    # Parallel tokenization workers; the result does not depend on their
    # number. Empty: one per core.
    workers=placeholder(int),
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
  config.tokenizer = dict(name="sentencepiece(vocab_size=32000, model='bpe')")

  config.optim = dict(
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
    name='adamw(b1=0.9, b2=0.95, eps=1e-8, weight_decay=0.1)',
    clip_norm=1.0,  # maximum global norm of the gradient; 0: no clipping
    # Dtype of the parameters: float32, or bfloat16 (kernels and tables, with
    # stochastic rounding). Optimizer state and gradient norm stay float32.
    precision='float32',
    # Where the moments of kernels and tables are stored: device, or host (in
    # host memory; each step transfers those of one layer at a time).
    state='device',
    # ema(decay=0.999): keeps a moving average of the parameters in float32, for
    # evaluation and generation. none: uses the parameters themselves.
    ema='none',
    # What to do after a non-finite loss or gradient (its update is never
    # applied), or a loss `threshold` above the median of recent ones: stop,
    # skip(at_most=10), rewind(threshold=0.0, before=100, batches=200)
    on_spike='stop',
  )

  config.schedule = dict(
    # Length of the run: a number of steps, '50k_steps' or '300B_tokens'.
    num_steps=number_or_text(100_000),
    # constant, linear, cosine, rsqrt(hold=...), noam(d_model=...),
    # wsd(cooldown=...). `final` is a fraction of the peak; lengths are steps,
    # or tokens as in warmup='375M_tokens', decay='260B_tokens'.
    name='cosine(peak=6e-4, warmup=2000, final=0.1)',
  )

  config.batch = dict(
    # Rows per optimizer step: a number, or a ramp:
    # ramp(0:512, 50k_steps:1024, 390B_tokens:2048), ramp(256, 50%:512),
    # linear_ramp(start=16, stop=256, over='4B_tokens', stages=9).
    size=number_or_text(512),
    # Tokens per row, in stages like a ramp's: stages(128, 90%:512).
    length=placeholder(str),  # empty: context_length, which is the maximum
    # Maximum rows per micro-batch on each device along the axes of
    # mesh.rules.batch. Gradients accumulate over micro-batches; smaller ones
    # need less memory. Only rounding depends on it. If a batch does not divide
    # evenly, rows of weight 0 pad it. Empty or 0: one batch.
    micro_rows=placeholder(int),
  )

  config.mesh = dict(
    # Devices along each mesh axis; -1: all remaining ones. fsdp=-1 takes as
    # many as divide the model's width, and data the rest.
    data=1,
    fsdp=-1,
    expert=1,
    context=1,  # splits each row (sequence parallelism): attention_backend
    tensor=1,
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

  config.checkpoint = dict(
    every_steps=1000,  # also after the last step
    keep=2,  # keep the newest N, and one from a preemption
    keep_every_steps=0,  # keep every Nth step forever; 0: none
    keep_best=0,  # keep the N evaluated ones with the lowest held-out loss
    grace_seconds=30.0,  # from SIGTERM to the kill; warns if a save is slower
  )

  config.eval = dict(
    every_steps=1000,  # and after the last step; 0: only then
    rows=64,  # rows per evaluation batch
    num_batches=placeholder(int),  # of `rows`, per held-out set; empty: all
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
    tasks=placeholder(str),
    tasks_dir='tasks',
  )

  # A phase that takes longer counts as hung: the run ends and dumps all stacks.
  # 0: no limit.
  config.watchdog = dict(
    start_seconds=3600.0,  # does not include preparing text
    compile_seconds=7200.0,  # compilation, and the first step
    step_seconds=1800.0,
    evaluation_seconds=7200.0,
    save_seconds=3600.0,
  )

  # With --distributed.
  config.hosts = dict(
    join_seconds=300,  # how long to wait for all hosts to start
    heartbeat_seconds=30,  # a host silent for longer is considered dead
  )

  config.log = dict(
    every_steps=10,
    # Trackers that also show metrics.jsonl: tensorboard,
    # wandb(project='...', entity='', name='', mode='offline'), or both; none.
    trackers='tensorboard',
    # Prompt for a sample at the end of the run; '': no sample.
    sample_prompt='The ',
    sample_tokens=100,
  )
  return config.lock()


def finetune() -> ConfigDict:
  """The section `finetune`, with the values of GPT-1.

  Radford et al., 2018, sections 3.2 and 4.1.
  """
  section = dict(
    # A published task, sst2('FOLDER') of its files or sst2() of TensorFlow
    # Datasets: sst2, cola, mrpc, stsb, qqp, rte, qnli, qnli_ranking, mnli,
    # wnli, snli, scitail, race, story_cloze, squad, conll2003. Or your own
    # tables (.tsv, .csv, .jsonl, packed or not): classification('train.tsv',
    # 'dev.tsv', text='review', label='stars'), entailment(...),
    # similarity(...), choice(...), ranking(...), target('train.jsonl',
    # 'dev.jsonl', prompt='{en} =', target=' {de}'), spans('train.jsonl',
    # 'dev.jsonl'), tags('train.conll', 'dev.conll').
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
    freeze=0,
    # The task head: extract (GPT-1's last token), first (BERT's pooled first
    # token), choice (either, with one score per answer), spans, tokens. Empty:
    # determined by the model and the task.
    head=placeholder(str),
    # The pooler's activation: tanh (BERT), gelu (ELECTRA), relu (DistilBERT).
    # Empty: that of the pre-trained model.
    pooler=placeholder(str),
    # Freeze the model and read these layers: layer(number=-1; 0 are the
    # embeddings), concat(count=4), weighted_sum(count=0) of the last layers (0:
    # all). Empty: fine-tune the model and read its last layer.
    features=placeholder(str),
    # "Adding language modeling as an auxiliary objective [...] We set lambda
    # to 0.5." Empty: that for decoders, 0 for encoders, which have none.
    auxiliary=placeholder(float),
    dropout=0.1,  # "We add dropout to the classifier with a rate of 0.1."
    task_dropout=dict(),  # overrides for some tasks, by name
    # Tokens per sequence; empty: the task's longest, at most the model's
    # context. For several tasks this is the maximum; each has its own length.
    length=placeholder(int),
    # Texts that do not fit: cut (truncate and count), refuse.
    too_long='cut',
    # For classification: none, balanced (inverse class frequency), or
    # weights(1.0, 3.5), one per class.
    class_weights='none',
    # Scores are learned unscaled (raw), or standardized to mean 0 and deviation
    # 1 (standard).
    scores='standard',
    examples=placeholder(int),  # use N of the train split; empty: all
    epochs=3.0,  # "3 epochs of training was sufficient"
    # "a linear learning rate decay schedule with warmup over 0.2% of training"
    peak=6.25e-5,
    warmup=0.002,
    # Stop after N evaluations without a better dev score; 0: never.
    patience=0,
    # The state used for predictions: last, or best by the dev score.
    select='last',
    # Overrides of the pre-trained model's fields; empty: its own (the backend
    # becomes auto).
    model=dict(
      dropout=placeholder(str),
      dtype=placeholder(str),
      remat=placeholder(str),
      loop=placeholder(str),
      attention_backend=placeholder(str),
    ),
    # Filled in by finetune: the pre-trained model, sequences per example, rows
    # of the pre-trained embedding table, the classes, the number and a hash of
    # the training and dev examples, and how they are shuffled. For several
    # tasks `each` has a section per task with its call, examples, length,
    # classes and hash.
    init=placeholder(str),
    sequences=placeholder(int),
    vocab_size=placeholder(int),
    labels=placeholder(list),
    data=placeholder(str),
    order=placeholder(str),
    each=dict(),
  )
  return ConfigDict(section)


def sweep() -> ConfigDict:
  """The section `sweep`, the grid of `gpt-jax scaling`."""
  section = dict(
    # Training FLOPs, 6ND, of each IsoFLOP curve: '1e12, 3e12'.
    budgets='',
    # The models to train: size(num_layers, d_model, num_heads, peak), with the
    # peak learning rate; peak=0 is the schedule's.
    sizes='',
    # A size is left out of a curve if it would see fewer or more tokens.
    min_tokens_per_parameter=8.0,
    max_tokens_per_parameter=1000.0,
  )
  return ConfigDict(section)
