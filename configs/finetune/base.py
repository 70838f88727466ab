# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Fine-tuning as GPT-1 does it (Radford et al., 2018), sections 3.2 and 4.1:
configs/base.py with a section `finetune`.

The model, but for the fields of `finetune.model`, and the tokenizer are those
of --init; the sections `model` and `tokenizer` say what --init=none starts.
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from configs import base


def get_config(arg: str = '') -> ConfigDict:
  """The paper's settings, without a task."""
  base.no_size(__file__, arg)
  config = base.get_config().unlock()

  config.finetune = dict(
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
    labels=placeholder(str),
    data=placeholder(str),
    order=placeholder(str),
    each=dict(),
  )

  # Empty: from finetune.peak, warmup and epochs.
  config.schedule.name = placeholder(str)
  config.schedule.num_steps = placeholder(object)
  config.batch.size = base.number_or_text(32)
  # The rest is as in pre-training.
  config.optim.name = 'adamw(b1=0.9, b2=0.999, eps=1e-8, weight_decay=0.01)'
  config.optim.clip_norm = 1.0

  # Empty: once per epoch.
  config.eval.every_steps = placeholder(int)
  config.checkpoint.every_steps = placeholder(int)
  config.log.sample_prompt = ''
  return config.lock()
