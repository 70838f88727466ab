# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The whole config tree, with an explanation of each field.

Every other config starts from this one and sets only what differs. A text such
as `'cosine(peak=6e-4, warmup=2000)'` is a call-string, a name with arguments;
an unknown name prints the choices. A field of default None may stay empty; its
`doc` says what that means. Any field can be overridden on the command line:
`--config.model.num_layers=4`. `gpt-jax inspect --field` prints what stands here
and the calls of a field; docs/fields.md is written from it.
"""

import pathlib
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, TypeVar

from ml_collections import ConfigDict

from gpt_jax.core import ranges
from gpt_jax.core.config.log_trackers import TRACKERS
from gpt_jax.core.entries import Field, Section
from gpt_jax.core.nn.choices import CHOICES as MODEL
from gpt_jax.core.objectives.choices import OBJECTIVES, PRETRAINING
from gpt_jax.core.optim.batch_ramp import LENGTHS, RAMPS
from gpt_jax.core.optim.optimizer import OPTIMIZERS
from gpt_jax.core.optim.outer import OUTERS
from gpt_jax.core.optim.rounding import AVERAGES, PRECISIONS
from gpt_jax.core.optim.schedules import LAST_STEP, SCHEDULES
from gpt_jax.core.optim.spikes import SPIKES
from gpt_jax.core.ranges import Count, NotNegative, Seconds, Seed, Whole
from gpt_jax.core.rows.row_makers import ROWS
from gpt_jax.core.spec import Table, UsageError
from gpt_jax.core.text.clean.choices import STEPS as CLEANING
from gpt_jax.core.text.holdout import HOLDOUTS
from gpt_jax.core.text.sources import SOURCES
from gpt_jax.core.tokenizers.tokenizer import TOKENIZERS
from gpt_jax.core.tokens.mixture import mixture
from gpt_jax.core.tokens.store import COMPRESSIONS, SPLITTERS

# Helpers for the files in `configs/`.


T = TypeVar('T')


def size(file: str, arg: str, sizes: Mapping[str, T]) -> T:
  """The entry `arg` of a config's table of sizes."""
  if arg not in sizes:
    raise UsageError(f'{_name(file)}:{arg}: unknown size; one of ' + ', '.join(sizes))
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
  config.data.sources = {name: f"jsonl('corpora/{name}/*.jsonl*')" for name in percent}
  config.data.source = f'mixture({", ".join(weights)})'


# Wider than any model, with arrays of two widths that the compiler can count;
# config/validation.py checks larger arrays.
LAYERS = Annotated[int, ranges.whole(1, 10_000)]
DEPTH = Annotated[int, ranges.whole(0, 10_000)]
WIDTH = Annotated[int, ranges.whole(1, 2**24)]
OWN_WIDTH = Annotated[int, ranges.whole(0, 2**24)]
WORKERS = Annotated[int, ranges.whole(1, 10_000)]
STEPS = Annotated[int, ranges.whole(1, LAST_STEP)]
# The size of a mesh axis; -1: all remaining devices.
DEVICES = Annotated[int, ranges.whole(-1)]
WAIT = Annotated[int, ranges.whole(1, 10**6)]

TREE: dict[str, Any] = {}

TREE['seed'] = Field(0, Seed, 'Initial parameters, data order and dropout are functions of it.')

ENCODER = 'model.num_encoder_layers'
TREE['model'] = Section(
  'The model: the fields of `Transformer` in gpt_jax/core/nn/transformer.py.',
  vocab_size=Field(
    None,
    Count,
    'Rows of the table of token embeddings; empty: as many as the tokenizer has tokens.',
  ),
  context_length=Field(1024, WIDTH, 'Tokens per row.'),
  num_layers=Field(12, LAYERS, 'Number of layers; in an encoder-decoder, of the decoder.'),
  d_model=Field(768, WIDTH, 'Width of the states between layers.'),
  num_heads=Field(12, WIDTH, 'Attention heads.'),
  num_kv_heads=Field(None, WIDTH, 'Heads of keys and values; empty: num_heads.'),
  head_size=Field(None, WIDTH, "Width of a head's queries and keys; empty: d_model / num_heads."),
  value_size=Field(0, OWN_WIDTH, "Width of a head's values; 0: head_size."),
  encoder_num_heads=Field(
    0, OWN_WIDTH, 'Heads of the encoder, with the same total width; 0: num_heads.', needs=ENCODER
  ),
  d_ff=Field(None, WIDTH, 'Width of the feed-forward layers; empty: 4 * d_model.'),
  encoder_d_ff=Field(0, OWN_WIDTH, 'd_ff of the encoder; 0: d_ff.', needs=ENCODER),
  num_encoder_layers=Field(
    0, DEPTH, 'Number of encoder layers; above 0 the model is an encoder-decoder.'
  ),
  num_source_layers=Field(
    0,
    DEPTH,
    'Layers of an additional encoder with its own embedding table and '
    "positions, whose output replaces the encoder's token embeddings; "
    '0: no such encoder.',
    needs=ENCODER,
  ),
  source_vocab_size=Field(
    0,
    Whole,
    'Rows of the embedding table of the additional encoder (or, without one, '
    'of a separate table for the encoder). 0: the vocabulary of a separate '
    'source tokenizer, if there is one; otherwise encoder and decoder share a '
    'table.',
    needs=ENCODER,
  ),
  share=Field(
    'none',
    MODEL['share'],
    'Which parameters the layers share. Adjacent layers form `groups`; each '
    'group repeats its `inner` layers.',
  ),
  input=Field('tokens', MODEL['input'], 'The token embeddings.'),
  position=Field('learned', MODEL['position'], 'How positions enter the model.'),
  attention=Field(
    'full',
    str,
    'Which tokens a token attends to. A comma-separated list repeats over the layers.',
    calls=MODEL['attention'],
  ),
  encoder_attention=Field(
    None,
    str,
    "The encoder's attention: bidirectional, or recurrent layers; empty: bidirectional.",
    calls=MODEL['encoder_attention'],
    needs=ENCODER,
  ),
  attention_scale=Field(
    'rsqrt', MODEL['attention_scale'], 'The factor that attention scores are multiplied by.'
  ),
  attention_backend=Field(
    'auto',
    MODEL['attention_backend'],
    'The implementation of attention; all_gather, ring and ulysses are for '
    'rows split by mesh.context. auto selects, and logs, the first backend '
    'for the devices or the pattern that supports the layer (on a TPU splash, '
    'then flash), or reference if none does. For split rows it selects '
    'ulysses or ring on a TPU if splash supports the model, and all_gather '
    'otherwise.',
    free=True,
  ),
  ffn=Field(
    'gelu_tanh',
    str,
    'The feed-forward layers: an activation (relu to tanh), a gated layer '
    '(glu to swiglu), or a mixture of experts (switch). A comma-separated '
    'list repeats over the layers.',
    calls=MODEL['ffn'],
  ),
  encoder_ffn=Field(
    None, str, "The encoder's ffn; empty: the same as ffn.", calls=MODEL['encoder_ffn']
  ),
  norm=Field('layernorm(epsilon=1e-5)', MODEL['norm'], 'Kind of all normalization layers.'),
  block=Field(
    'pre',
    MODEL['block'],
    'Position of the norms in a layer. qk_norm is the norm of queries and '
    'keys: none, per_head (Qwen3) or all_heads (OLMo 2).',
  ),
  bias=Field('all', MODEL['bias'], 'Which dense layers have biases.'),
  output=Field(
    'tied', MODEL['output'], 'The output layer: whether it reuses the token embeddings.'
  ),
  dropout=Field('none', MODEL['dropout'], 'Dropout rates; a rate that is not given is 0.'),
  matmul=Field(
    'plain',
    MODEL['matmul'],
    'Precision in training of products with the kernels of attention, '
    'feed-forward layers and experts with a capacity. All other products are '
    'in model.dtype, as are all products in evaluation, in generation and for '
    'the policies of ppo and grpo.',
  ),
  init_weights=Field(
    'normal(stddev=0.02)', MODEL['init_weights'], 'Distribution of the initial weights.'
  ),
  dtype=Field(
    'bfloat16',
    Literal['float32', 'bfloat16'],
    'Dtype of activations and matrix products. Norms, softmax and loss are '
    'always float32; for parameters see optim.precision.',
  ),
  remat=Field(
    'none',
    Literal['none', 'full', 'dots', 'offload'],
    'What the backward pass recomputes: none (stores everything), dots (stores '
    'only matrix products), offload (stores those in host memory), full '
    '(stores only the input of each period of layers).',
  ),
  loop=Field(
    'auto',
    Literal['auto', 'scan', 'unroll'],
    'How the layers are run: scan (compiles fast) or unroll (runs faster on '
    'CPUs and GPUs). auto: on GPUs unroll, up to 24 periods of layers; else '
    'scan.',
    free=True,
  ),
  pipeline=Field(
    'circular',
    MODEL['pipeline'],
    'How rows pass through the stages if mesh.stage splits the layers.',
    free=True,
  ),
)

TREE['models'] = Section(
  'Additional models of the objective, by the names that the objective uses; '
  'each section has the differences from `model`, as in models.generator = '
  'dict(d_model=64).'
)

TREE['objective'] = Section(
  'The training objective; docs/training.md explains all of them.',
  name=Field(
    'causal',
    OBJECTIVES,
    'The loss, and how batches are made for it. finetune and the commands of '
    'post-training set it themselves. With objectives that corrupt text for an '
    "encoder-decoder, a row has enough text to fill the encoder's "
    'model.context_length.',
    calls=PRETRAINING,
  ),
  teacher=Field(
    '',
    str,
    'The teacher of `distilled`: a workdir or a Hugging Face folder; with '
    'top_k, a folder written by gpt-jax teach. A new run fills in '
    'models.teacher from it; to inspect or plan without a run, set '
    'models.teacher yourself.',
  ),
)

TREE['data'] = Section(
  'The text, and how rows are made from it; see docs/data.md.',
  source=Field(
    'stdlib',
    str,
    'The training text. The parallel_... sources have pairs of a source and a '
    "target text. mixture(web:0.6, books:0.4, draw='without_replacement', "
    "shares='rows') interleaves data.sources; a comma-separated list of "
    "mixtures changes the weights during the run, as in 'mixture(web:1.0), "
    "mixture(web:0.2, books:0.8, from_token=100e9)'. Weights are shares of "
    "rows; with shares='tokens', for padded data.rows, shares of tokens; with "
    "shares='examples', factors on the number of documents or pairs of a "
    'source, of which at most `limit` count.',
    calls=Table({**SOURCES.rows, 'mixture': mixture}),
  ),
  sources=Section('Named sources of a mixture: name -> call of a source.'),
  clean=Field(
    'none',
    str,
    'Cleaning steps, separated by commas and applied in this order, before the held-out split.',
    calls=CLEANING,
  ),
  holdout=Field(
    'documents(fraction=0.02)',
    str,
    'How the held-out text is chosen, or another source to read it from.',
    calls=HOLDOUTS,
  ),
  store=Field(None, str, 'Folder of the token store; empty: WORKDIR/data.', free=True),
  rows=Field(
    'stream',
    ROWS,
    'How rows are made from documents. Rows of whole documents or sentences '
    'are padded; rows of sentences (see data.sentences) have [CLS] and [SEP]. '
    'parallel, for a source of pairs, packs as many pairs as fit into '
    'context_length tokens on each side.',
  ),
  compression=Field('none', str, 'Compression of the token store.', calls=COMPRESSIONS),
  sentences=Field(
    'none',
    SPLITTERS,
    'How sentence ends are found and recorded in the store, for data.rows '
    'that need them. It does not change the tokens.',
  ),
  workers=Field(
    None,
    WORKERS,
    'Parallel tokenization workers; the result does not depend on their '
    'number. Empty: one per core.',
    free=True,
  ),
)

TREE['tokenizer'] = Section(
  'The tokenizer: a new one, trained on the training split, or an existing one.',
  name=Field(
    "sentencepiece(vocab_size=32000, model='bpe')",
    str,
    'sentencepiece, wordpiece, byte_bpe, words, characters and frequent_bytes '
    'are trained on the text. sides, for pairs of texts, has a separate '
    'tokenizer for the sources.',
    calls=TOKENIZERS,
  ),
)

TREE['optim'] = Section(
  'The optimizer, and the parameters that a run starts from.',
  start=Field(
    '',
    str,
    'A workdir or Hugging Face folder whose parameters a new run starts from; '
    'empty: random initialization.',
  ),
  drawn=Field(
    '',
    str,
    'Parameters that are initialized at random in spite of `start`. List '
    'those that `start` lacks or has in another shape, by patterns of the '
    "names that inspect prints: 'encoder/*, embed/*'; layer i of a stack: "
    "'encoder/periods/i/*'.",
  ),
  vectors=Field(
    '',
    str,
    "A file of word vectors in GloVe's text format, for the tokenizers "
    "'words' and 'words_file'. They initialize the rows of the embedding "
    'table (of the source table, if there is one); other rows are random. To '
    'keep the table unchanged, see trained.',
  ),
  trained=Field('', str, 'Parameters to train, by patterns as in `drawn`; empty: all.'),
  name=Field('adamw(b1=0.9, b2=0.95, eps=1e-8, weight_decay=0.1)', OPTIMIZERS, 'The optimizer.'),
  outer=Field(
    'none',
    OUTERS,
    'Replicas along the mesh axis data take optimizer steps '
    'independently, and every few steps an outer optimizer combines them.',
  ),
  clip_norm=Field(1.0, NotNegative, 'Maximum global norm of the gradient; 0: no clipping.'),
  precision=Field(
    'float32',
    PRECISIONS,
    'Dtype of the parameters; in bfloat16, updates are rounded '
    'stochastically. Optimizer state and gradient norm are always float32.',
  ),
  state=Field(
    'device',
    Literal['device', 'host'],
    'Where the moments of kernels and tables are stored: in device memory, or '
    'in host memory, from where each step transfers them one layer at a time.',
    free=True,
  ),
  ema=Field(
    'none',
    AVERAGES,
    'An average of the parameters for evaluation and generation: a moving '
    'average, or the mean since a step.',
  ),
  on_spike=Field(
    'stop',
    SPIKES,
    'What to do after a loss or gradient that is not finite (its update is '
    'never applied), or a loss that exceeds the median of recent losses by '
    '`threshold`.',
    free=True,
  ),
)

TREE['schedule'] = Section(
  'The length of the run, and the learning rate of each step.',
  num_steps=Field(
    100_000,
    STEPS,
    "Length of the run: a number of steps, '50k_steps' or '300B_tokens'.",
    or_text=True,
  ),
  name=Field(
    'cosine(peak=6e-4, warmup=2000, final=0.1)',
    SCHEDULES,
    'The learning rate schedule. `final` is a fraction of the peak; lengths '
    "are in steps, or in tokens as in warmup='375M_tokens', "
    "decay='260B_tokens'.",
  ),
)

TREE['batch'] = Section(
  'The rows of a batch.',
  size=Field(
    512,
    Count,
    'Rows per optimizer step: a number, or a ramp: ramp(0:512, 50k_steps:1024, '
    '390B_tokens:2048), ramp(256, 50%:512), linear_ramp(start=16, stop=256, '
    "over='4B_tokens', stages=9).",
    or_text=True,
    calls=RAMPS,
  ),
  length=Field(
    None,
    str,
    'Tokens per row, if it grows in stages, as in a ramp: stages(128, '
    '90%:512). Empty: always model.context_length, which is the maximum.',
    calls=LENGTHS,
  ),
  micro_rows=Field(
    None,
    Whole,
    'Maximum rows per micro-batch on each device along the axes of '
    'mesh.rules.batch; 0: the whole batch; empty: as many as fit into the '
    "devices' memory. Gradients accumulate over micro-batches, so smaller "
    'ones need less memory and change only rounding. If a batch does not '
    'divide evenly, rows of weight 0 pad it.',
    free=True,
  ),
  exact_over=Field(
    0,
    Whole,
    'Virtual shards of a batch, a power of two, for the same bits on any mesh: '
    'each is computed alone, and their sums are added in one tree. The devices '
    'along mesh.data and mesh.fsdp are powers of two whose product divides it; '
    'there are no others. A device computes one of its virtual shards at a time, '
    'whatever micro_rows allows. 0: bits depend on the mesh.',
  ),
)

TREE['mesh'] = Section(
  'Number of devices along each axis of the mesh; -1: all remaining devices.',
  free=True,
  data=Field(1, DEVICES, 'Data parallelism: copies of the model, each with its own rows.'),
  stage=Field(
    1,
    DEVICES,
    'Pipeline parallelism: splits the layers into stages and, outside the '
    'layers, the rows; see model.pipeline.',
  ),
  fsdp=Field(
    -1,
    DEVICES,
    'Fully sharded data parallelism: splits the parameters and the rows. With '
    "-1 it gets as many devices as divide the model's width, and data gets "
    'the rest.',
  ),
  expert=Field(1, DEVICES, 'Expert parallelism: splits the experts and the rows.'),
  context=Field(1, DEVICES, 'Sequence parallelism: splits each row; see model.attention_backend.'),
  tensor=Field(1, DEVICES, 'Tensor parallelism: splits heads, feed-forward layers and vocabulary.'),
  rules=Section(
    "Logical axis of a parameter or activation -> mesh axes; '': not split.",
    batch=Field('data, stage, fsdp, expert', str, 'Rows of a batch.'),
    group=Field('data, fsdp', str, 'Token groups of the experts.'),
    expert=Field('expert', str, 'Experts.'),
    length=Field('context', str, 'Tokens of a row.'),
    stream=Field('tensor', str, 'Features of the residual stream between layers.'),
    embed=Field('fsdp, context', str, 'Width of the model, in parameters.'),
    heads=Field('tensor', str, 'Heads of queries.'),
    kv_heads=Field('tensor', str, 'Heads of keys and values.'),
    head=Field('', str, 'Width of a head.'),
    buckets=Field('', str, 'Buckets of relative positions.'),
    cluster=Field('', str, 'Clusters of an adaptive softmax.'),
    mlp=Field('tensor', str, 'Width of the feed-forward layers.'),
    vocab=Field('tensor', str, 'Rows of the tables of tokens.'),
    norm=Field('', str, 'Scales and biases of norms.'),
    position=Field('', str, 'Rows of the tables of positions.'),
    router=Field('', str, 'Outputs of the routers of experts.'),
    layers=Field('stage', str, 'Layers of a stack.'),
  ),
)

TREE['checkpoint'] = Section(
  'When a run saves, and what it keeps.',
  free=True,
  every_steps=Field(1000, Count, 'Save every N steps, and after the last step.'),
  every_minutes=Field(
    None,
    NotNegative,
    'Save also after N minutes without a save, at the next logged step; 0: whenever the last '
    'save is done.',
  ),
  keep=Field(2, Count, 'Keep the newest N checkpoints, and one saved at a preemption.'),
  keep_every_steps=Field(0, Whole, 'Keep the checkpoints of every Nth step forever; 0: none.'),
  keep_best=Field(0, Whole, 'Keep the N evaluated checkpoints with the lowest held-out loss.'),
  local_every_steps=Field(
    0,
    Whole,
    'Also save a local checkpoint every N steps, in the memory or on the '
    'disks of the hosts, each shard on two machines; 0: never.',
  ),
  local_dir=Field(
    '/dev/shm',
    str,
    'Folder on each host for local checkpoints, by default in memory. Each '
    'run has its own folder in it.',
  ),
  grace_seconds=Field(
    30.0,
    Seconds,
    'Time from SIGTERM until the process is killed; a run warns if saving takes longer.',
  ),
)

TREE['eval'] = Section(
  'Evaluation during the run.',
  free=True,
  every_steps=Field(
    1000, Whole, 'Evaluate every N steps and after the last step; 0: only after the last.'
  ),
  rows=Field(64, Count, 'Rows per evaluation batch.'),
  num_batches=Field(None, Count, 'Batches of each held-out set; empty: all of it.'),
  sets=Section(
    'Additional held-out sets: name -> a source, as in data.source. They are '
    'prepared with the token store, and reported as eval/NAME/loss, '
    'eval/NAME/bits_per_byte and so on.'
  ),
  words=Section(
    'Word counts of the sets in `sets`, for eval/NAME/word_perplexity: a '
    "number, 'words' (split at white space) or 'words_and_lines' (line ends "
    'count as words, as in WikiText).'
  ),
  tasks=Field(
    None,
    str,
    'Zero-shot tasks to evaluate as well, separated by commas; see '
    'gpt_jax/evaluation/suite.py. Their files are in tasks_dir. For '
    "text-to-text models: seq2seq('val.en', 'val.de', first=200, "
    "metrics='bleu, chrf') and the GLUE tasks as texts.",
  ),
  tasks_dir=Field('tasks', str, 'Folder of the files of `tasks`.'),
)

TREE['watchdog'] = Section(
  'Time limit of each phase of a run. A phase that exceeds it counts as hung: '
  'the run ends and prints the stacks of all threads. 0: no limit.',
  free=True,
  start_seconds=Field(3600.0, Seconds, 'The start, without preparing text.'),
  compile_seconds=Field(7200.0, Seconds, 'Compilation, and the first step.'),
  step_seconds=Field(1800.0, Seconds, 'A step.'),
  evaluation_seconds=Field(7200.0, Seconds, 'An evaluation.'),
  save_seconds=Field(3600.0, Seconds, 'A checkpoint.'),
)

TREE['replay'] = Section(
  'Detection of silent data corruption by repeating work; see docs/training.md.',
  free=True,
  every_steps=Field(
    0,
    Whole,
    'Every N steps, compute the step twice, and its gradients also on other '
    'devices; 0: never. A loss spike is repeated from the newest checkpoint '
    'before it counts.',
  ),
)

TREE['hosts'] = Section(
  'Runs on several hosts, with --distributed.',
  free=True,
  join_seconds=Field(300, WAIT, 'How long to wait for all hosts to start.'),
  heartbeat_seconds=Field(30, WAIT, 'A host silent for longer is considered dead.'),
)

TREE['log'] = Section(
  'What a run reports.',
  free=True,
  every_steps=Field(10, Count, 'Steps between two lines of metrics.jsonl.'),
  norms_every_steps=Field(
    0,
    Whole,
    'Steps between two lines with norms by layer of gradients, parameters, updates and '
    'activations, and the largest attention logit; 0: none.',
  ),
  trackers=Field(
    'tensorboard',
    str,
    'Trackers that also show metrics.jsonl, separated by commas.',
    calls=TRACKERS,
  ),
  sample_prompt=Field('The ', str, "Prompt for a sample at the end of the run; '': no sample."),
  sample_tokens=Field(100, Whole, 'Tokens of the sample.'),
)


def get_config(arg: str = '') -> ConfigDict:
  """Returns the locked tree; the base has no sizes to choose from."""
  no_size('configs/base.py', arg)
  return _built(TREE).lock()


def optional(name: str) -> ConfigDict:
  """A section of `OPTIONAL`."""
  return _built(OPTIONAL[name])


def _built(section: Mapping[str, Any]) -> ConfigDict:
  config = ConfigDict()
  for name, entry in section.items():
    is_section = isinstance(entry, Section)
    config[name] = _built(entry) if is_section else entry.initial
  return config


def _entries(section: Mapping[str, Any], prefix: str = '') -> Iterator[Any]:
  """Name and entry of all sections and fields."""
  for name, entry in section.items():
    yield prefix + name, entry
    if isinstance(entry, Section):
      yield from _entries(entry, f'{prefix}{name}.')


# Sections that only some configs have; wings declare them.
OPTIONAL = Table({}, 'section')
_ENTRIES = dict(_entries({**TREE, **{name: OPTIONAL[name] for name in sorted(OPTIONAL)}}))
FIELDS = {name: x for name, x in _ENTRIES.items() if isinstance(x, Field)}
SECTIONS = {name: x for name, x in _ENTRIES.items() if isinstance(x, Section)}
# The fields that name one of several choices, with its arguments.
CALL_STRINGS: dict[str, Mapping[str, Any]] = {
  name: field.takes for name, field in FIELDS.items() if isinstance(field.takes, Mapping)
}
# The beginnings of the names of fields that may change when a run resumes.
FREE_ON_RESUME = (
  *(f'{name}.' for name, x in _ENTRIES.items() if isinstance(x, Section) and x.free),
  *(name for name, field in FIELDS.items() if field.free),
)
