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
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from ml_collections import ConfigDict
from ml_collections.config_dict import FieldReference, placeholder

from gpt_jax import ranges
from gpt_jax.config.log_trackers import TRACKERS
from gpt_jax.nn.choices import CHOICES as MODEL
from gpt_jax.objectives.choices import (
  FEATURES,
  LORAS,
  OBJECTIVES,
  PRETRAINING,
  VIEWS,
)
from gpt_jax.optim.batch_ramp import LENGTHS, RAMPS
from gpt_jax.optim.optimizer import OPTIMIZERS
from gpt_jax.optim.outer import OUTERS
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
  Share,
  Weight,
  Whole,
)
from gpt_jax.rows.row_makers import ROWS
from gpt_jax.rows.task_order import MIXINGS
from gpt_jax.spec import UsageError
from gpt_jax.text.clean.choices import STEPS as CLEANING
from gpt_jax.text.holdout import HOLDOUTS
from gpt_jax.text.sentences import SPLITTERS
from gpt_jax.text.sources import SOURCES
from gpt_jax.tokenizers.tokenizer import TOKENIZERS
from gpt_jax.tokens.mixture import mixture
from gpt_jax.tokens.store import COMPRESSIONS

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
  """A field of the config: all that is known of it, in one place."""

  default: Any  # None: it may stay empty
  # The range or the names of its values; a table of the calls that it names; or
  # a type.
  takes: Any
  doc: str  # as `gpt-jax inspect --field` and docs/fields.md print it
  or_text: bool = False  # a number, or a text that `lengths` reads
  # May change when a run resumes, since the result does not depend on it.
  free: bool = False
  # Calls that its text may hold, several with commas, where the room that reads
  # the text checks them; or, of the calls that it may name, those to document.
  calls: Mapping[str, Any] | None = None

  @property
  def range(self) -> Range | OneOf | None:
    """Which values it takes; None: any of its type, or calls."""
    return None if isinstance(self.takes, Mapping) else ranges.of(self.takes)

  @property
  def table(self) -> Mapping[str, Any]:
    """The calls to document."""
    return self.calls or (self.takes if isinstance(self.takes, Mapping) else {})

  @property
  def initial(self) -> Any:
    """The value in a new `ConfigDict`."""
    if self.default is None:
      return placeholder(ranges.plain(self.takes))
    return number_or_text(self.default) if self.or_text else self.default


class Section(dict[str, Any]):
  """The fields and sections of a section, by name.

  With `free` all its fields may change on resume, also those that users name.
  """

  def __init__(self, doc: str, /, *, free: bool = False, **entries: Any):
    """`doc` is the line above its fields in docs/fields.md."""
    super().__init__(entries)
    self.doc, self.free = doc, free


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

FILLED = 'Filled in by finetune:'

TREE: dict[str, Any] = {}

TREE['seed'] = Field(
  0, Seed, 'Initial parameters, data order and dropout are functions of it.'
)

TREE['model'] = Section(
  'The model: the fields of `Transformer` in gpt_jax/nn/transformer.py.',
  vocab_size=Field(None, Count, "Empty: the tokenizer's."),
  context_length=Field(1024, WIDTH, 'Tokens per row.'),
  num_layers=Field(12, LAYERS, 'Layers; of the decoder, if there are two.'),
  d_model=Field(768, WIDTH, 'Width of the states between layers.'),
  num_heads=Field(12, WIDTH, 'Attention heads.'),
  num_kv_heads=Field(
    None, WIDTH, 'Heads of keys and values; empty: num_heads.'
  ),
  head_size=Field(
    None,
    WIDTH,
    "Width of a head's queries and keys; empty: d_model / num_heads.",
  ),
  value_size=Field(0, OWN_WIDTH, "Width of a head's values; 0: head_size."),
  encoder_num_heads=Field(
    0,
    OWN_WIDTH,
    'Heads of the encoder, with the same total width; 0: num_heads.',
  ),
  d_ff=Field(
    None, WIDTH, 'Width of the feed-forward layers; empty: 4 * d_model.'
  ),
  encoder_d_ff=Field(0, OWN_WIDTH, 'd_ff of the encoder; 0: d_ff.'),
  num_encoder_layers=Field(
    0, DEPTH, 'Above 0: layers of the encoder of an encoder-decoder.'
  ),
  num_source_layers=Field(
    0,
    DEPTH,
    'Above 0: layers of an additional encoder with its own table and '
    "positions, whose output replaces the encoder's token embeddings (BART, "
    'section 3.4).',
  ),
  source_vocab_size=Field(
    0,
    Whole,
    'Rows of the table of that additional encoder, or, without one, of a '
    "table of the encoder's own; 0: as many as a separate tokenizer of sources "
    'has, else both sides share a table.',
  ),
  share=Field(
    'none',
    MODEL['share'],
    'Which parameters the layers share. Adjacent layers form `groups`; each '
    'group repeats its `inner` layers.',
  ),
  input=Field('tokens', MODEL['input'], 'The token embeddings.'),
  position=Field('learned', MODEL['position'], 'How the model sees positions.'),
  attention=Field(
    'full',
    str,
    'Which tokens a token attends to. A comma-separated list repeats over the '
    'layers.',
    calls=MODEL['attention'],
  ),
  encoder_attention=Field(
    None,
    str,
    "The encoder's attention: bidirectional, or recurrent layers; empty: "
    'bidirectional.',
    calls=MODEL['encoder_attention'],
  ),
  attention_scale=Field(
    'rsqrt',
    MODEL['attention_scale'],
    'The factor on the scores of attention.',
  ),
  attention_backend=Field(
    'auto',
    MODEL['attention_backend'],
    'The implementation of attention; all_gather, ring and ulysses are for '
    'rows split by mesh.context. auto selects the first backend for the '
    'devices or the pattern that supports the layer (on a TPU splash, then '
    'flash), else the reference, and logs its choice; for split rows ulysses '
    'or ring on a TPU if splash supports the model, else all_gather.',
    free=True,
  ),
  ffn=Field(
    'gelu_tanh',
    str,
    'The feed-forward layers: an activation, a gated one (from glu to swiglu), '
    'or a mixture of experts. A comma-separated list repeats over the layers.',
    calls=MODEL['ffn'],
  ),
  encoder_ffn=Field(
    None,
    str,
    "The encoder's ffn; empty: the same as ffn.",
    calls=MODEL['encoder_ffn'],
  ),
  norm=Field(
    'layernorm(epsilon=1e-5)', MODEL['norm'], 'The kind of all norms.'
  ),
  block=Field(
    'pre',
    MODEL['block'],
    'Position of the norms in a layer. qk_norm is the norm of queries and '
    'keys: none, per_head (Qwen3) or all_heads (OLMo 2).',
  ),
  bias=Field('all', MODEL['bias'], 'Which dense layers have biases.'),
  output=Field(
    'tied',
    MODEL['output'],
    'The output layer: whether it reuses the token embeddings.',
  ),
  dropout=Field(
    'none', MODEL['dropout'], 'Rates of dropout, each 0 where it is left out.'
  ),
  matmul=Field(
    'plain',
    MODEL['matmul'],
    'How training multiplies by the kernels of attention, feed-forward layers '
    'and experts with a capacity. All other products stay in model.dtype, and '
    'so do these in evaluations, in generation and for the policies of ppo and '
    'grpo.',
  ),
  init_weights=Field(
    'normal(stddev=0.02)',
    MODEL['init_weights'],
    'Distribution of the initial weights.',
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
    'How rows go through the layers where mesh.stage splits them.',
    free=True,
  ),
)

TREE['models'] = Section(
  'Further models of the objective, under the names that it gives them, each '
  'with its differences from `model`: models.generator = dict(d_model=64) '
  '(ELECTRA).'
)

TREE['objective'] = Section(
  'What the model learns to do; docs/training.md explains the objectives.',
  name=Field(
    'causal',
    OBJECTIVES,
    'The loss; finetune and the commands of post-training fill in their own. '
    "With T5's encoder-decoder objectives, a row has enough text to fill the "
    "encoder's model.context_length.",
    calls=PRETRAINING,
  ),
  teacher=Field(
    '',
    str,
    'The teacher of `distilled`: a workdir or a Hugging Face folder. A new run '
    'fills models.teacher from it; to inspect or plan without a run, give that '
    'section. With top_k: a folder written by gpt-jax teach.',
  ),
)

TREE['data'] = Section(
  'Text, and the rows made from it; see docs/data.md.',
  source=Field(
    'stdlib',
    str,
    'The text. parallel_... are pairs of a source and a target text. '
    "mixture(web:0.6, books:0.4, draw='without_replacement', shares='rows') "
    'draws from data.sources; a comma-separated list of mixtures changes the '
    "weights during the run, as in 'mixture(web:1.0), mixture(web:0.2, "
    "books:0.8, from_token=100e9)'. shares='tokens': weights are shares of "
    "tokens, if data.rows are padded. shares='examples', limit=...: sources "
    'are drawn in proportion to their number of documents or pairs, of which '
    'at most `limit` count (T5); weights are factors on that number.',
    calls={**SOURCES, 'mixture': mixture},
  ),
  sources=Section('Named sources of a mixture: name -> call of a source.'),
  clean=Field(
    'none',
    str,
    'Cleaning steps, separated by commas and applied in this order, before the '
    'held-out split.',
    calls=CLEANING,
  ),
  holdout=Field(
    'documents(fraction=0.02)',
    str,
    'Held-out text for evaluation; or the call of another source.',
    calls=HOLDOUTS,
  ),
  store=Field(
    None, str, 'Folder of the token store; empty: WORKDIR/data.', free=True
  ),
  rows=Field(
    'stream',
    ROWS,
    'How rows are made from documents. Rows of whole documents or sentences '
    'are padded; rows of sentences (see data.sentences) have [CLS] and [SEP]. '
    'parallel is for a source of pairs: as many as fit, context_length tokens '
    'on each side.',
  ),
  compression=Field(
    'none', str, 'Compression of the token store.', calls=COMPRESSIONS
  ),
  sentences=Field(
    'none',
    SPLITTERS,
    'Where the store records sentence ends, for the rows that need them. The '
    'tokens do not depend on it.',
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
  'The tokenizer, trained on the training split or an existing one.',
  name=Field(
    "sentencepiece(vocab_size=32000, model='bpe')",
    str,
    'sides is for pairs of texts and a model with a separate source '
    'vocabulary; sentencepiece, wordpiece, byte_bpe, words, characters and '
    'frequent_bytes learn from the text.',
    calls=TOKENIZERS,
  ),
)

TREE['optim'] = Section(
  'The optimizer, and which parameters it starts from.',
  start=Field(
    '',
    str,
    'A new run starts from the parameters of this workdir or Hugging Face '
    'folder; empty: random initialization.',
  ),
  drawn=Field(
    '',
    str,
    'Parameters to initialize at random all the same. Name those that `start` '
    'lacks or has in another shape, by patterns of the names that inspect '
    "prints: 'encoder/*, embed/*'; layer i of a stack: 'encoder/periods/i/*'.",
  ),
  vectors=Field(
    '',
    str,
    'A file of word vectors in the text format of GloVe: a new run starts with '
    'these rows in its table of tokens (the table of sources, if they have '
    "one), for the tokenizers 'words' and 'words_file'. Other rows are random. "
    'To keep the table unchanged, see trained.',
  ),
  trained=Field(
    '', str, 'Parameters to train, by patterns as in drawn; empty: all.'
  ),
  name=Field(
    'adamw(b1=0.9, b2=0.95, eps=1e-8, weight_decay=0.1)',
    OPTIMIZERS,
    'The optimizer.',
  ),
  outer=Field(
    'none',
    OUTERS,
    'Replicas along the mesh axis data take steps of the optimizer apart, and '
    'an outer optimizer combines them now and then (DiLoCo).',
  ),
  clip_norm=Field(
    1.0, NotNegative, 'Maximum global norm of the gradient; 0: no clipping.'
  ),
  precision=Field(
    'float32',
    PRECISIONS,
    'Dtype of the parameters; bfloat16 has stochastic rounding. Optimizer '
    'state and gradient norm stay float32.',
  ),
  state=Field(
    'device',
    Literal['device', 'host'],
    'Where the moments of kernels and tables are stored: device, or host (in '
    'host memory; each step transfers those of one layer at a time).',
    free=True,
  ),
  ema=Field(
    'none',
    AVERAGES,
    'An average of the parameters, for evaluation and generation: a moving '
    'one, or the mean since a step.',
  ),
  on_spike=Field(
    'stop',
    SPIKES,
    'What to do after a non-finite loss or gradient (its update is never '
    'applied), or a loss `threshold` above the median of recent ones.',
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
    'The learning rate. `final` is a fraction of the peak; lengths are steps, '
    "or tokens as in warmup='375M_tokens', decay='260B_tokens'.",
  ),
)

TREE['batch'] = Section(
  'The rows of a step.',
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
    "Tokens per row, in stages like a ramp's: stages(128, 90%:512); empty: "
    'model.context_length, which is the maximum.',
    calls=LENGTHS,
  ),
  micro_rows=Field(
    None,
    Whole,
    'Maximum rows per micro-batch on each device along the axes of '
    'mesh.rules.batch. Gradients accumulate over micro-batches; smaller ones '
    'need less memory. Only rounding depends on it. If a batch does not divide '
    'evenly, rows of weight 0 pad it. 0: the whole batch; empty: as many as '
    "the devices' memory holds.",
    free=True,
  ),
)

TREE['mesh'] = Section(
  'Devices along each axis of the mesh; -1: all remaining ones.',
  free=True,
  data=Field(1, DEVICES, 'Copies of the model, each with rows of its own.'),
  stage=Field(
    1,
    DEVICES,
    'Splits the layers into the stages of a pipeline and, outside the layers, '
    'the rows: see model.pipeline.',
  ),
  fsdp=Field(
    -1,
    DEVICES,
    'Splits the parameters, and the rows too. -1 takes as many as divide the '
    "model's width, and data the rest.",
  ),
  expert=Field(1, DEVICES, 'Splits the experts, and the rows too.'),
  context=Field(
    1,
    DEVICES,
    'Splits each row (sequence parallelism): see model.attention_backend.',
  ),
  tensor=Field(1, DEVICES, 'Splits heads, feed-forward layers and vocabulary.'),
  rules=Section(
    "Logical axis of a parameter or activation -> mesh axes; '': not split.",
    batch=Field('data, stage, fsdp, expert', str, 'Rows of a batch.'),
    group=Field('data, fsdp', str, 'Token groups of the experts.'),
    expert=Field('expert', str, 'Experts.'),
    length=Field('context', str, 'Tokens of a row.'),
    stream=Field(
      'tensor', str, 'Features of the residual stream between layers.'
    ),
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
  every_steps=Field(
    1000, Count, 'Save every N steps, and after the last step.'
  ),
  keep=Field(
    2, Count, 'Keep the newest N checkpoints, and one from a preemption.'
  ),
  keep_every_steps=Field(0, Whole, 'Keep every Nth step forever; 0: none.'),
  keep_best=Field(
    0, Whole, 'Keep the N evaluated checkpoints with the lowest held-out loss.'
  ),
  local_every_steps=Field(
    0,
    Whole,
    'Also save every N steps into the memory or on the disks of the hosts, '
    'each shard on two machines; 0: never.',
  ),
  local_dir=Field(
    '/dev/shm',
    str,
    'Folder on each host for these local checkpoints, by default in memory. '
    'Each run has its own folder in it.',
  ),
  grace_seconds=Field(
    30.0, Seconds, 'From SIGTERM to the kill; warns if a save is slower.'
  ),
)

TREE['eval'] = Section(
  'Evaluation during the run.',
  free=True,
  every_steps=Field(
    1000,
    Whole,
    'Evaluate every N steps, and after the last step; 0: only then.',
  ),
  rows=Field(64, Count, 'Rows per evaluation batch.'),
  num_batches=Field(
    None, Count, 'Batches of each held-out set; empty: all of it.'
  ),
  sets=Section(
    'More held-out sets: name -> call of a source, as in data.source. Prepared '
    'with the token store, and reported as eval/NAME/loss, .../bits_per_byte.'
  ),
  words=Section(
    'Word counts of these sets, for eval/NAME/word_perplexity: a number, '
    "'words' (split at white space) or 'words_and_lines' (line ends count as "
    'words, as in WikiText).'
  ),
  tasks=Field(
    None,
    str,
    'Zero-shot tasks to evaluate as well, separated by commas; see '
    'gpt_jax/evaluation/suite.py. Their files are in tasks_dir. For '
    "text-to-text models: seq2seq('val.en', 'val.de', first=200, "
    "metrics='bleu, chrf') and the GLUE tasks, in T5's formats.",
  ),
  tasks_dir=Field('tasks', str, 'Folder of the files of `tasks`.'),
)

TREE['watchdog'] = Section(
  'A phase that takes longer counts as hung: the run ends and dumps all '
  'stacks. 0: no limit.',
  free=True,
  start_seconds=Field(
    3600.0, Seconds, 'The start; does not include preparing text.'
  ),
  compile_seconds=Field(7200.0, Seconds, 'Compilation, and the first step.'),
  step_seconds=Field(1800.0, Seconds, 'A step.'),
  evaluation_seconds=Field(7200.0, Seconds, 'An evaluation.'),
  save_seconds=Field(3600.0, Seconds, 'A checkpoint.'),
)

TREE['replay'] = Section(
  'Silent data corruption, found by repeating work: see docs/training.md.',
  free=True,
  every_steps=Field(
    0,
    Whole,
    'Every N steps, a step is taken twice and its gradients are also computed '
    'on other devices; a spike is repeated from the newest checkpoint before '
    'it counts. 0: never.',
  ),
)

TREE['hosts'] = Section(
  'Several hosts, with --distributed.',
  free=True,
  join_seconds=Field(300, WAIT, 'How long to wait for all hosts to start.'),
  heartbeat_seconds=Field(
    30, WAIT, 'A host silent for longer is considered dead.'
  ),
)

TREE['log'] = Section(
  'What a run reports.',
  free=True,
  every_steps=Field(10, Count, 'Steps between two lines of metrics.'),
  trackers=Field(
    'tensorboard',
    str,
    'Trackers that also show metrics.jsonl, separated by commas.',
    calls=TRACKERS,
  ),
  sample_prompt=Field(
    'The ',
    str,
    "Prompt for a sample at the end of the run; '': no sample.",
  ),
  sample_tokens=Field(100, Whole, 'Tokens of the sample.'),
)

FINETUNE = Section(
  'Fine-tuning; the values are those of GPT-1 (Radford et al., 2018, sections '
  '3.2 and 4.1), which the quotations are from.',
  task=Field(
    'sst2()',
    str,
    "A published task, sst2('FOLDER') of its files or sst2() of TensorFlow "
    'Datasets; or your own tables (.tsv, .csv, .jsonl, packed or not): '
    "classification('train.tsv', 'dev.tsv', text='review', label='stars'), "
    "target('train.jsonl', 'dev.jsonl', prompt='{en} =', target=' {de}'), "
    "tags('train.conll', 'dev.conll'). Or a method of post-training, for the "
    "command of its name: sft('train.jsonl', 'dev.jsonl'), "
    "reward('train.jsonl', 'dev.jsonl'), dpo('train.jsonl', 'dev.jsonl'), "
    "grpo('prompts.jsonl', 'rewards.py:accuracy'), "
    "ppo('prompts.jsonl', 'rewards.py:accuracy').",
  ),
  tasks=Field(
    '',
    str,
    'Several tasks at once instead of `task`, each with its own head: a list '
    "such as 'rte(), mrpc()'; see configs/finetune/mt_dnn.py. Empty: one.",
  ),
  mixing=Field(
    'proportional', str, 'An epoch of several tasks.', calls=MIXINGS
  ),
  transfer=Field(
    'all',
    str,
    'Which pre-trained parameters to start from: all, none (from scratch), '
    'embeddings, layers(3): the embeddings and the first three layers.',
  ),
  freeze=Field(
    0, Whole, 'Freeze the embeddings and the first N layers; 0 freezes nothing.'
  ),
  unfreeze=Field(
    0,
    Whole,
    'Gradual unfreezing (ULMFiT): the head is trained alone, after N steps the '
    'last layer too, after 2 N the layer below it, ..., at last the '
    "embeddings; each time the optimizer's state starts again. 0: all are "
    'trained from the start; empty: N is an epoch.',
  ),
  layer_decay=Field(
    1.0,
    Share,
    'The learning rate of a layer, as a fraction of the rate of the layer '
    "above it; the head has the schedule's rate. ULMFiT: 1 / 2.6.",
  ),
  lora=Field(
    'none',
    LORAS,
    'Trains low-rank adapters of some kernels instead of the model: modules by '
    "name ('query', 'attention', 'ffn', ...), patterns as in optim.trained, or "
    "'all'.",
  ),
  head=Field(
    None,
    str,
    "The task head: extract (GPT-1's last token), first (BERT's pooled first "
    'token), choice (either, with one score per answer), spans, tokens. Empty: '
    'determined by the model and the task. Decoders can also take concat '
    "(ULMFiT's last state, maximum and mean).",
  ),
  pooler=Field(
    None,
    str,
    "The pooler's activation: tanh (BERT), gelu (ELECTRA), relu (DistilBERT). "
    'Empty: that of the pre-trained model.',
  ),
  features=Field(
    None,
    str,
    'Freeze the model and read these layers. Empty: fine-tune the model and '
    'read its last layer; an ELMo is frozen and all its layers are read, '
    "unless features=''.",
    calls=FEATURES,
  ),
  auxiliary=Field(
    None,
    Weight,
    '"Adding language modeling as an auxiliary objective [...] We set lambda '
    'to 0.5." Empty: 0.5 for decoders, 0 for encoders, which lack such a loss.',
  ),
  segment=Field(
    0,
    Whole,
    'For LSTMs: no gradient passes to the state before every Nth token; 0: it '
    'passes through the whole row.',
  ),
  dropout=Field(
    0.1, Fraction, '"We add dropout to the classifier with a rate of 0.1."'
  ),
  task_dropout=Section('Dropout of some of several tasks, by name.'),
  views=Field(
    'none',
    str,
    'How taggers learn: from their last states, or by cross-view training, '
    'which reads unlabelled text too; see configs/cvt.py.',
    calls=VIEWS,
  ),
  length=Field(
    None,
    Count,
    "Tokens per sequence; empty: the task's longest, at most the model's "
    'context. For several tasks this is the maximum; each has its own length.',
  ),
  too_long=Field(
    'cut',
    Literal['cut', 'drop', 'refuse'],
    'Texts that do not fit: cut (truncate and count) or refuse; in '
    'post-training also drop (leave out and count).',
  ),
  class_weights=Field(
    'none',
    str,
    'For classification: none, balanced (inverse class frequency), or '
    'weights(1.0, 3.5), one per class.',
  ),
  scores=Field(
    'standard',
    Literal['standard', 'raw'],
    'Scores are learned unscaled (raw), or standardized to mean 0 and '
    'deviation 1 (standard).',
  ),
  examples=Field(None, Count, 'Use N examples of the train split; empty: all.'),
  epochs=Field(
    3.0,
    Annotated[float, ranges.number(0, 10**6, above=True)],
    '"3 epochs of training was sufficient."',
  ),
  peak=Field(6.25e-5, Rate, 'Peak of the learning rate.'),
  warmup=Field(
    0.002,
    Probability,
    '"a linear learning rate decay schedule with warmup over 0.2% of '
    'training": the fraction.',
  ),
  patience=Field(
    0, Whole, 'Stop after N evaluations without a better dev score; 0: never.'
  ),
  select=Field(
    'last',
    Literal['last', 'best'],
    'The state used for predictions: last, or best by the dev score.',
  ),
  model=Section(
    "Overrides of the pre-trained model's fields; empty: its own.",
    dropout=Field(None, str, 'model.dropout.'),
    dtype=Field(None, str, 'model.dtype.'),
    remat=Field(None, str, 'model.remat.'),
    loop=Field(None, str, 'model.loop.'),
    attention=Field(
      None, str, "model.attention, for another dropout of 'lstm(...)'."
    ),
    attention_backend=Field(None, str, 'model.attention_backend; empty: auto.'),
  ),
  init=Field(None, str, f'{FILLED} the pre-trained model.'),
  backward=Field(
    None,
    bool,
    f'{FILLED} whether texts are read from right to left, as by the '
    'pre-trained model.',
  ),
  sequences=Field(None, int, f'{FILLED} sequences per example.'),
  vocab_size=Field(
    None, int, f'{FILLED} rows of the pre-trained embedding table.'
  ),
  labels=Field(None, list, f'{FILLED} the classes.'),
  data=Field(
    None,
    str,
    f'{FILLED} the number and a hash of the training and dev examples.',
  ),
  order=Field(None, str, f'{FILLED} how the examples are shuffled.'),
  each=Section(
    f'{FILLED} for several tasks a section per task with its call, examples, '
    'length, classes and hash.'
  ),
)

SWEEP = Section(
  'The grid of `gpt-jax scaling`, which may grow.',
  free=True,
  budgets=Field(
    '', str, "Training FLOPs, 6ND, of each IsoFLOP curve: '1e12, 3e12'."
  ),
  sizes=Field(
    '',
    str,
    'The models to train: size(num_layers, d_model, num_heads, peak), with the '
    "peak learning rate; peak=0 is the schedule's.",
  ),
  min_tokens_per_parameter=Field(
    8.0,
    NotNegative,
    'A size is left out of a curve if it would see fewer tokens.',
  ),
  max_tokens_per_parameter=Field(
    1000.0,
    Positive,
    'A size is left out of a curve if it would see more tokens.',
  ),
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
    is_section = isinstance(entry, Section)
    config[name] = _built(entry) if is_section else entry.initial
  return config


def _entries(section: Mapping[str, Any], prefix: str = '') -> Iterator[Any]:
  """Name and entry of all sections and fields."""
  for name, entry in section.items():
    yield prefix + name, entry
    if isinstance(entry, Section):
      yield from _entries(entry, f'{prefix}{name}.')


_ENTRIES = dict(_entries({**TREE, 'finetune': FINETUNE, 'sweep': SWEEP}))
FIELDS = {name: x for name, x in _ENTRIES.items() if isinstance(x, Field)}
SECTIONS = {name: x for name, x in _ENTRIES.items() if isinstance(x, Section)}
# The fields that name one of several choices, with its arguments.
CALL_STRINGS: dict[str, Mapping[str, Any]] = {
  name: field.takes
  for name, field in FIELDS.items()
  if isinstance(field.takes, Mapping)
}
# The beginnings of the names of fields that may change when a run resumes.
FREE_ON_RESUME = (
  *(
    f'{name}.'
    for name, x in _ENTRIES.items()
    if isinstance(x, Section) and x.free
  ),
  *(name for name, field in FIELDS.items() if field.free),
)
