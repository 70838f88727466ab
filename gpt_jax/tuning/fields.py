# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The section `finetune` of the config."""

from typing import Annotated, Literal

from gpt_jax.core import ranges
from gpt_jax.core.entries import Field, Section
from gpt_jax.core.objectives.choices import FEATURES, LORAS, VIEWS
from gpt_jax.core.optim.batch_ramp import MIXINGS
from gpt_jax.core.ranges import Count, Fraction, Probability, Rate, Share, Weight, Whole

FILLED = 'Filled in by finetune:'

FINETUNE = Section(
  'Fine-tuning. The defaults are those of GPT-1 (Radford et al., 2018, '
  'sections 3.2 and 4.1); quotations are from that paper.',
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
    'Several tasks to train on together instead of `task`, each with its own '
    "head: a list such as 'rte(), mrpc()'; see configs/finetune/mt_dnn.py. "
    'Empty: only `task`.',
  ),
  mixing=Field(
    'proportional', str, 'How the batches of several tasks are mixed in an epoch.', calls=MIXINGS
  ),
  transfer=Field(
    'all',
    str,
    'Which pre-trained parameters to start from: all, none (from scratch), '
    'embeddings, layers(3): the embeddings and the first three layers.',
  ),
  freeze=Field(0, Whole, 'Freeze the embeddings and the first N layers; 0 freezes nothing.'),
  unfreeze=Field(
    0,
    Whole,
    'Gradual unfreezing (ULMFiT): only the head is trained at first, after N '
    'steps also the last layer, after 2 N the layer below it, and so on down '
    "to the embeddings; each time the optimizer's state is reset. 0: all "
    'layers are trained from the start; empty: N is an epoch.',
  ),
  layer_decay=Field(
    1.0,
    Share,
    'Learning rate of a layer, as a fraction of that of the layer above it; '
    "the head has the schedule's rate. ULMFiT: 1 / 2.6.",
  ),
  lora=Field(
    'none',
    LORAS,
    'Train low-rank adapters of some kernels instead of the model. `on` lists '
    "these kernels: modules by name ('query', 'attention', 'ffn', ...), "
    "patterns as in optim.trained, or 'all'.",
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
    'Activation of the pooler: tanh (BERT), gelu (ELECTRA) or relu '
    '(DistilBERT). Empty: as in the pre-trained model.',
  ),
  features=Field(
    None,
    str,
    'Layers that the head reads from a frozen model. Empty: the model is '
    'fine-tuned, and the head reads its last layer (an ELMo is frozen and all '
    "its layers are read, unless features='').",
    calls=FEATURES,
  ),
  auxiliary=Field(
    None,
    Weight,
    'Weight of the language modeling loss: "language modeling as an auxiliary '
    'objective [...] We set lambda to 0.5." Empty: 0.5 for decoders, 0 for '
    'encoders, which have no such loss.',
  ),
  segment=Field(
    0,
    Whole,
    'For LSTMs: stop the gradient of the state at every Nth token; 0: '
    'backpropagate through the whole row.',
  ),
  dropout=Field(
    0.1, Fraction, 'Dropout rate: "We add dropout to the classifier with a rate of 0.1."'
  ),
  task_dropout=Section('Dropout rate of single tasks, by name, if there are several.'),
  views=Field(
    'none',
    str,
    'How taggers are trained: on their last states alone, or by cross-view '
    'training, which also uses unlabelled text; see configs/cvt.py.',
    calls=VIEWS,
  ),
  length=Field(
    None,
    Count,
    "Tokens per sequence; empty: the longest of the task, at most the model's "
    'context. If there are several tasks, each has its own length, and this '
    'is the maximum.',
  ),
  too_long=Field(
    'cut',
    Literal['cut', 'drop', 'refuse'],
    'What to do with texts that do not fit: cut (truncate and count) or '
    'refuse (end with an error); in post-training also drop (leave out and '
    'count).',
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
    'For regression: learn the scores as they are (raw), or standardized to '
    'mean 0 and standard deviation 1 (standard).',
  ),
  examples=Field(None, Count, 'Use N examples of the train split; empty: all.'),
  epochs=Field(
    3.0,
    Annotated[float, ranges.number(0, 10**6, above=True)],
    'Passes over the training examples: "3 epochs of training was sufficient."',
  ),
  peak=Field(6.25e-5, Rate, 'Peak learning rate.'),
  warmup=Field(
    0.002, Probability, 'Fraction of training that is warmup: "warmup over 0.2% of training".'
  ),
  patience=Field(0, Whole, 'Stop after N evaluations without a better dev score; 0: never.'),
  select=Field(
    'last',
    Literal['last', 'best'],
    'Which checkpoint makes the predictions: the last, or the best by dev score.',
  ),
  model=Section(
    'Overrides of fields of the pre-trained model; empty: unchanged.',
    dropout=Field(None, str, 'model.dropout.'),
    dtype=Field(None, str, 'model.dtype.'),
    remat=Field(None, str, 'model.remat.'),
    loop=Field(None, str, 'model.loop.'),
    attention=Field(None, str, "model.attention, to change the dropout of 'lstm(...)'."),
    attention_backend=Field(None, str, 'model.attention_backend; empty: auto.'),
  ),
  init=Field(None, str, f'{FILLED} the pre-trained model.'),
  backward=Field(
    None, bool, f'{FILLED} whether texts are read from right to left, as by the pre-trained model.'
  ),
  sequences=Field(None, int, f'{FILLED} sequences per example.'),
  vocab_size=Field(None, int, f'{FILLED} rows of the pre-trained embedding table.'),
  labels=Field(None, list, f'{FILLED} the classes.'),
  data=Field(None, str, f'{FILLED} the number and a hash of the training and dev examples.'),
  order=Field(None, str, f'{FILLED} how the examples are shuffled.'),
  each=Section(
    f'{FILLED} for several tasks a section per task with its call, examples, '
    'length, classes and hash.'
  ),
)
