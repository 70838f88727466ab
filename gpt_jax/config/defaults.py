# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The whole config tree, each field explained once.

Every other config starts from this one and states only what differs. A text
such as `'cosine(peak=6e-4, warmup=2000)'` is a call-string: a name with its own
arguments; an unknown name prints the choices. A `placeholder` may stay empty;
its comment says what it then becomes. Any field can be overridden on the
command line: `--config.model.num_layers=4`.
"""

import pathlib
from collections.abc import Mapping
from typing import Any, TypeVar

from ml_collections import ConfigDict
from ml_collections.config_dict import FieldReference, placeholder

from gpt_jax.spec import UsageError

# What the files in `configs/` are written with.


T = TypeVar('T')


def number_or_text(value: int) -> FieldReference:
  """A field that takes a number or a text, in a file or as an override."""
  return FieldReference(value, field_type=object)


def size(file: str, arg: str, sizes: Mapping[str, T]) -> T:
  """The entry `arg` of a config's table of sizes."""
  if arg not in sizes:
    raise UsageError(
      f'{_name(file)}:{arg}: unknown size; one of ' + ', '.join(sizes)
    )
  return sizes[arg]


def no_size(file: str, arg: str) -> None:
  """Refuses an argument where a config has one size only."""
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
    **percent: of the rows, for each corpus. Numbers that a paper rounded, so
      that they do not add up to 100, are scaled.
  """
  total = sum(percent.values())
  weights = [f'{name}:{part / total:.9g}' for name, part in percent.items()]
  config.data.sources = {
    name: f"jsonl('corpora/{name}/*.jsonl*')" for name in percent
  }
  config.data.source = f'mixture({", ".join(weights)})'


def get_config(arg: str = '') -> ConfigDict:
  """Returns the locked tree; the base has no sizes to choose from."""
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
    value_size=0,  # features of a value of a head; 0: head_size
    # Heads of the encoder, together as wide as num_heads; 0: num_heads.
    encoder_num_heads=0,
    d_ff=placeholder(int),  # empty: 4 * d_model
    encoder_d_ff=0,  # of the encoder; 0: d_ff
    num_encoder_layers=0,  # above 0: an encoder-decoder
    # Above 0: so many layers of another encoder, with a table and positions of
    # its own, whose output the encoder reads for tokens' vectors (BART, 3.4).
    num_source_layers=0,
    source_vocab_size=0,  # of that table; 0: that of the tokenizer of sources
    # Which parameters the layers share: none, all(groups=1, inner=1) (ALBERT),
    # attention(...), ffn(...), each with its norms. Neighbouring layers form
    # `groups`, each with `inner` layers of its own, which it repeats. stacks:
    # layer i of the encoder and of the decoder, but for attention between them.
    share='none',
    # tokens(scale='none', token_types=0, norm=False, d_embed=0) (above 0: so
    # wide, with a dense layer after it: ALBERT), with queries=True also a
    # vector for tokens that a second stream predicts (XLNet),
    # adaptive(cutoffs=(20000, ...), d_embed=..., div_val=1, scale='none')
    input='tokens',
    # learned, learned_by_layer (added before every layer), sinusoidal,
    # rope(theta=1e4, fraction=1.0, layout='half', scaling='none',
    # local_theta=0.0) (of layers with a window; 0: theta),
    # t5_bias, alibi(scale='none', dtype='float32'),
    # transformer_xl(memory=0, clamp=0, segment=0, biases='own') (a row is read
    # in segments of so many tokens, each with a memory of the states before
    # it; biases='shared': one u and v for all layers), xlnet(memory=0, clamp=0)
    # (to both sides, and of token types), none,
    # deberta(max_distance=512, buckets=0, c2c=True, c2p=True, p2c=True,
    # shared=False, norm=False, absolute=False, mask_decoder=0, convolution=0,
    # activation='gelu') (of the convolution)
    position='learned',
    # full, local(window=...), strided(stride=...), fixed(stride=...),
    # bidirectional; bigbird(block=64, window=3, random=3, extra=0,
    # draw='uniform', seed=0): global, near and random blocks, both ways; with
    # extra=N global tokens beside the row's. A comma list repeats over the
    # layers.
    attention='full',
    # The factor on the scores: rsqrt(size=0, softcap=0.0), 1/sqrt(size; 0: of
    # the head), none, by_layer. Scores s become softcap * tanh(s / softcap).
    attention_scale='rsqrt',
    # The implementation: reference (XLA), splash(block=512, fused_until=4096)
    # (TPU), cudnn (GPU), blocks (of bigbird). Of rows that mesh.context splits:
    # all_gather(block=1024) (keys and values come to all devices), ring (they
    # go round), ulysses (the heads are split instead); on a TPU the last two by
    # splash. auto takes the one made for the devices or the pattern, or the
    # reference where that does not support the model, and logs its choice; of
    # split rows ulysses or ring on a TPU, where splash serves it, else
    # all_gather.
    attention_backend='auto',
    # gelu_tanh, gelu, relu, silu, tanh; gated: glu, bilinear, reglu, geglu,
    # geglu_tanh, swiglu; a mixture of experts: switch(num_experts=...,
    # expert='relu', top_k=1, capacity_factor=1.25). A comma list repeats over
    # the layers.
    ffn='gelu_tanh',
    encoder_ffn=None,  # the encoder's ffn; empty: the same as ffn
    # or layernorm(bias=False), rmsnorm(epsilon=1e-6, plus_one=False)
    norm='layernorm(epsilon=1e-5)',
    # Where the norms go: pre (GPT-2), post (GPT-1), parallel (PaLM),
    # parallel(num_norms=2) (GPT-NeoX), sandwich (Gemma 2), reordered (OLMo 2).
    # All take qk_norm: that of queries and keys is none, per_head (Qwen3) or
    # all_heads (OLMo 2).
    block='pre',
    # Of the dense layers: all, none, where(qkv=False, out=False, ffn=False,
    # key=True); key=False leaves keys out of qkv.
    bias='all',
    # Whether the output layer reuses the token embeddings:
    # tied(bias=False, scale='none', transform='none', softcap=0.0) or
    # untied(...); logits x become softcap * tanh(x / softcap).
    # adaptive(own=()): the softmax that goes with input=adaptive(...)
    output='tied',
    # none, or rates(embedding=0.1, residual=0.1, attention=0.1)
    dropout='none',
    # gpt2(stddev=0.02), truncated_normal(stddev=0.02) (BERT), palm,
    # switch(scale=0.1, embedding=0.02), transformer
    init_weights='normal(stddev=0.02)',
    # Dtype of activations and matrix products: bfloat16 or float32. Norms,
    # softmax and loss are always float32; for parameters see optim.precision.
    dtype='bfloat16',
    # What the backward pass recomputes instead of storing: none, dots (stores
    # matrix products only), offload (stores those in the host's memory), full
    # (stores each layer period's input only).
    remat='none',
    loop='scan',  # scan (compiles fast), unroll (runs faster on CPU)
  )

  # Models that the objective has beside `model`, by the names that it gives
  # them, each with what differs: models.generator = dict(d_model=64) (ELECTRA).
  config.models = dict()

  # causal(z_loss=0.0): adds z_loss * log(Z)^2, which keeps the softmax's
  # normaliser Z near 1. Reported losses do not include it.
  # auxiliary(positions='all', layers='all', targets=2, weight=0.5): the same by
  # each layer for a part of the run, and of the token after the next (T64).
  # prefix(text='', sees='both', z_loss=0.0): of each row the first tokens, a
  # random number of them, see each other both ways, and the others are
  # predicted (prefix LM); text='seq2seq()', text='span()': the source of what
  # an encoder-decoder would learn from.
  # masked(rate=0.15, mask=0.8, random=0.1, unit='token', ngram=1, pair='none',
  # static=0): tokens that the model does not see (BERT); of whole words with
  # unit='word', of up to ngram of them in a row; with pair='next' or 'order',
  # how two texts belong together; static=n: n masks a row that come again.
  # unified(rate=0.15, mask=0.8, random=0.1): the same under four masks of
  # attention, of both sides, the left, the right, sequence to sequence (UniLM).
  # unified_target(rate=0.7, mask=0.8, random=0.1, label_smoothing=0.0): the
  # last of these alone, of pairs of texts: an encoder learns to write targets.
  # permuted(context=6, longest=5, block=256, segments=1): one token of
  # `context`, in runs of up to `longest` words, in a random order of `block`
  # tokens (XLNet); a row of several segments has its memory.
  # electra(rate=0.15, weight=50.0, targets='electra', temperature=1.0): which
  # tokens models.generator replaced; or targets='electra_15', 'replace_mlm',
  # 'all_tokens_mlm'; generator_steps=n: the generator alone for n steps, then
  # the model from its weights.
  # distilled(temperature=2.0, soft=5.0, hard=2.0, cosine=1.0, text='masked',
  # places='real', layers=(), top_k=0): what a teacher says of the tokens,
  # beside the loss of the text, 'masked' or 'causal'; layers=(0, 2, 4, 7, 9,
  # 11): start as these of its layers (DistilBERT); top_k=64: read what it said
  # from disk.
  # mass(rate=0.5, mask=0.8, random=0.1, start='eos'): an encoder-decoder writes
  # a hidden part of a row from the rest, see data.rows='doc_sentences' (MASS).
  # seq2seq(label_smoothing=0.0, start='eos'): an encoder-decoder writes the
  # target of a pair of texts (the Transformer); start='pad' as T5.
  # denoise(noise='permute, infill'): it restores a text after corruptions, in
  # this order: mask(rate), delete(rate), infill(rate=0.3, mean=3.0,
  # random=0.0), permute (sentences), rotate (BART).
  # span(rate=0.15, length=3.0, start='pad'): spans of a text become sentinels,
  # and are written; T5's others: replace_spans, drop_tokens, bert_style,
  # mass_style (rate=0.15), deshuffle, continuation. A row has as much text as
  # fills the encoder's model.context_length.
  config.objective = dict(
    name='causal',
    # The teacher of `distilled`: a workdir or a Hugging Face folder. A new run
    # fills models.teacher from it; to inspect or plan without a run, give that
    # section. With top_k: a folder that gpt-jax teach wrote.
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
    # text_to_text('sst2', 'folder', split='train'): a task of GLUE as pairs of
    # texts, in T5's formats.
    # passages("text('books/*.txt')", chars=1000) splits another source's
    # documents at blank lines, so that the model sees enough beginnings and
    # ends to learn them.
    source='stdlib',
    # Named sources, for source='mixture(web:0.6, books:0.4,
    # draw="without_replacement", shares="rows")'. A comma list of phases
    # changes the weights during the run, as in
    # 'mixture(web:1.0), mixture(web:0.2, books:0.8, from_token=100e9)'.
    # shares='tokens': weights count tokens, where `rows` below are padded.
    # shares='examples', limit=...: in proportion to the number of documents or
    # pairs, of which `limit` count at most (T5); weights are factors on it.
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
    # rows hold whole documents that do not attend to each other, padded. Of
    # sentences (see `sentences` below), with [CLS] and [SEP]: full_sentences
    # (RoBERTa), doc_sentences (never of two documents), and two texts,
    # pairs('next', short=0.1) (BERT), pairs('order') (ALBERT) or
    # pairs('unified') (UniLM); halves: text, and two texts that see it
    # (XLNet). Of a source of pairs: parallel(start='text'), as many as fit,
    # context_length tokens on each side; start='cls': sources begin with [CLS].
    rows='stream',
    # Compression of the token store: none, zstd(level=3).
    compression='none',
    # Whether the store says where sentences end, for the rows that need it.
    # terminal: after . ! ? and space, and at line ends. lines: one a line.
    # Tokens are the same either way.
    sentences='none',
    # Parallel tokenization workers; the result does not depend on their
    # number. Empty: one per core.
    workers=placeholder(int),
  )

  # sentencepiece(vocab_size=..., model='unigram', normalization='identity',
  # byte_fallback=True, split_digits=True, symbols=[], sample_bytes=0, seed=0,
  # character_coverage=0.9999), trained on the training split, as are
  # wordpiece(vocab_size=..., lowercase=True, alphabet=1000) and
  # byte_bpe(vocab_size=...), which encoders need; bytes, characters,
  # words(vocab_size=0, count=1) (between white space, the most frequent first;
  # the others are <unk>), frequent_bytes(vocab_size=...) (the others are one
  # symbol). Existing ones: saved('WORKDIR'),
  # sentencepiece_file('tokenizer.model', eos=''),
  # hf_tokenizer('tokenizer.json', eos=''), gpt2_bpe('encoder.json',
  # 'vocab.bpe'), gpt1_bpe('encoder_bpe_40000.json', 'vocab_40000.bpe'),
  # wordpiece_file('vocab.txt', lowercase=True), byte_bpe_file('vocab.json',
  # 'merges.txt'). Of pairs of texts sides(target, source='...'): two of these
  # calls, for a model whose sources have a vocabulary of their own.
  config.tokenizer = dict(name="sentencepiece(vocab_size=32000, model='bpe')")

  config.optim = dict(
    # Whose parameters a new run starts from: a workdir that train left, or a
    # folder of Hugging Face; empty: they are drawn.
    start='',
    # Parameters that are drawn all the same, as those that `start` lacks or has
    # in another shape must be: patterns of the names that inspect shows, as
    # 'encoder/*, embed/*'; layer i of a stack: 'encoder/periods/i/*'.
    drawn='',
    # Parameters that are trained, by such patterns; empty: all.
    trained='',
    # adamw, adam(l2=0.0), adamax, adafactor(b1=0.0, factored=True, ...), lamb,
    # lion, muon, sgd(momentum=0.0, nesterov=False), none
    name='adamw(b1=0.9, b2=0.95, eps=1e-8, weight_decay=0.1)',
    clip_norm=1.0,  # maximum global norm of the gradient; 0: no clipping
    # Dtype of the parameters: float32, or bfloat16 (kernels and tables, with
    # stochastic rounding). Optimizer state and gradient norm stay float32.
    precision='float32',
    # Where the moments of kernels and tables are kept: device, or host (in the
    # host's memory; each step brings and takes those of one layer at a time).
    state='device',
    # ema(decay=0.999): keep a moving average of the parameters in float32,
    # and evaluate and generate with it. none: use the parameters themselves.
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
    # Tokens in a row, in stages as a ramp has them: stages(128, 90%:512).
    length=placeholder(str),  # empty: context_length, which none exceeds
    # Rows per micro-batch, at most, of each device that takes rows of its own
    # (mesh.rules.batch). Gradients accumulate over micro-batches; smaller ones
    # need less memory. Nothing but rounding depends on it. Where a batch does
    # not divide, rows of weight 0 fill it up. Empty or 0: one batch.
    micro_rows=placeholder(int),
  )

  config.mesh = dict(
    # Devices along each mesh axis; -1: all that the other axes leave. fsdp=-1
    # takes of them what divides the model's width, and data the rest.
    data=1,
    fsdp=-1,
    expert=1,
    context=1,  # each has a part of each row: model.attention_backend says how
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
    keep=2,  # keep the newest N, and that of a preemption
    keep_every_steps=0,  # keep every Nth step for good; 0: none
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
    # 'words' (split at white space) or 'words_and_lines' (ends of lines count
    # as words too, as for WikiText).
    words=dict(),
    # Zero-shot tasks to evaluate as well: lambada, blimp, piqa, ...; see
    # gpt_jax/evaluation/suite.py. Their files are in tasks_dir. Of models that
    # write a text for a text: seq2seq('val.en', 'val.de', first=200,
    # metrics='bleu, chrf') and the tasks of GLUE, in T5's formats.
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
    # What shows the numbers of metrics.jsonl besides: tensorboard,
    # wandb(project='...', entity='', name='', mode='offline'), or both; none
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
    # Several at once, each with a head of its own, instead of `task`: a comma
    # list such as 'rte(), mrpc()'; see configs/finetune/mt_dnn.py. Empty: one.
    tasks='',
    # Of several tasks: proportional (an epoch has each batch of each task
    # once), or capped(examples=2000), that many of a task at most.
    mixing='proportional',
    # Which pre-trained parameters to start from: all, none (from scratch),
    # embeddings, layers(3): the embeddings and the first three layers.
    transfer='all',
    # Freeze the embeddings and the first N layers; 0 freezes nothing.
    freeze=0,
    # What reads the model's states: extract (GPT-1's last token), first (BERT's
    # pooled first token), choice (either, a score for each answer), spans,
    # tokens. Empty: what the model and the task ask for.
    head=placeholder(str),
    # What the pooled first token goes through: tanh (BERT), gelu (ELECTRA),
    # relu (DistilBERT).
    # Empty: as the pre-trained model has it.
    pooler=placeholder(str),
    # Freeze the model, and let the head read its layers: layer(number=-1; 0
    # are the embeddings), concat(count=4), weighted_sum(count=0) of the last
    # layers (0: all). Empty: fine-tune the model, and read its last layer.
    features=placeholder(str),
    # "Adding language modeling as an auxiliary objective [...] We set lambda
    # to 0.5." Empty: that for decoders, 0 for encoders, which have none.
    auxiliary=placeholder(float),
    dropout=0.1,  # "We add dropout to the classifier with a rate of 0.1."
    task_dropout=dict(),  # another for some tasks, by name
    # Tokens per sequence; empty: the task's longest, at most the model's
    # context. Of several tasks at most so many; each has its own.
    length=placeholder(int),
    # What to do with a text that does not fit: cut (and count it), refuse.
    too_long='cut',
    # For classification: none, balanced (inverse class frequency), or
    # weights(1.0, 3.5), one per class.
    class_weights='none',
    # Scores are learned as they are (raw), or with mean 0 and deviation 1
    # (standard).
    scores='standard',
    examples=placeholder(int),  # use N of the train split; empty: all
    epochs=3.0,  # "3 epochs of training was sufficient"
    # "a linear learning rate decay schedule with warmup over 0.2% of training"
    peak=6.25e-5,
    warmup=0.002,
    # Stop after N evaluations without a better dev score; 0: never.
    patience=0,
    # The state that predicts: the last, or the best by the dev score.
    select='last',
    # Override these fields of the pre-trained model; empty: keep its own (the
    # backend becomes auto).
    model=dict(
      dropout=placeholder(str),
      dtype=placeholder(str),
      remat=placeholder(str),
      loop=placeholder(str),
      attention_backend=placeholder(str),
    ),
    # Filled in by finetune: the pre-trained model, sequences per example, rows
    # of the pre-trained embedding table, the classes, the number and a hash of
    # the training and dev examples, and how they are shuffled. Of several tasks
    # `each` has a section with a task's call, examples, tokens of one, classes
    # and hash.
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
    # Each a model to train: size(num_layers, d_model, num_heads, peak), of
    # the learning rate; peak=0 is the schedule's own.
    sizes='',
    # A size is left out of a curve where it would see fewer or more.
    min_tokens_per_parameter=8.0,
    max_tokens_per_parameter=1000.0,
  )
  return ConfigDict(section)
