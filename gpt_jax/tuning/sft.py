# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Supervised fine-tuning: `finetune.task="sft('train.jsonl', 'dev.jsonl')"`."""

import collections
from collections.abc import Mapping
from dataclasses import dataclass

from gpt_jax.core.config import Config
from gpt_jax.core.runtime.log import log
from gpt_jax.core.spec import UsageError
from gpt_jax.tuning import records
from gpt_jax.tuning.dialogues import Encoder, LearnedTokens, LossOn, ends, fitted
from gpt_jax.tuning.method import COMMON, Method, Prepared, digest, keeps, left_out, some
from gpt_jax.tuning.objectives.dialogue import Dialogue
from gpt_jax.tuning.packing import TokenRows
from gpt_jax.tuning.recipe import length_of
from gpt_jax.tuning.records import TextExample


@dataclass(frozen=True)
class Sft(Method):
  """Supervised fine-tuning on dialogues, instructions or texts.

  Attributes:
    train: a file of examples: see `records`.
    dev: a file of examples to evaluate on.
    packing: whether several examples share a row, without seeing each other.
    loss_on: which tokens are learned: see `dialogues.Encoder.encode`.
    template: a name in `chat.TEMPLATES`, or a file; '': the model's own.
  """

  train: str
  dev: str
  packing: bool = True
  loss_on: LossOn = 'assistant'
  template: str = ''
  reads = COMMON
  shown = ('loss', 'perplexity', 'mean_token_accuracy')

  def prepare(self, config: Config, encoder: Encoder) -> Prepared:
    """Encodes all examples, and makes rows of them."""
    paths = {'train': self.train, 'dev': self.dev}
    examples = {
      split: some(config, split, [*records.examples(path)], path) for split, path in paths.items()
    }
    encoded = {
      split: [encoder.encode(one, self.loss_on) for one in of_split]
      for split, of_split in examples.items()
    }
    length = length_of(
      config.finetune.length,
      max(len(one.ids) for split in encoded.values() for one in split) - 1,
      config.model.context_length,
    )
    tokenizer = encoder.tokenizer
    pad, splits, figures = tokenizer.special.pad_id, {}, {}
    for split, path in paths.items():
      kept, figures[split], reasons = fit(config, path, examples[split], encoded[split], length + 1)
      splits[split] = TokenRows(kept, length, pad, packed=self.packing)
      log.info(
        '%s: %s examples in %s rows of %d tokens; %s tokens learned, %d examples cut, %s',
        path,
        f'{len(examples[split]):,}',
        f'{len(splits[split]):,}',
        length,
        f'{figures[split]["learned_tokens"]:,}',
        figures[split]['cut'],
        left_out(reasons),
      )
    return Prepared(
      Dialogue(length=length, packed=self.packing),
      length,
      train=splits['train'],
      dev=splits['dev'],
      data=digest(encoded),
      figures=figures,
      ends=ends(self.train, examples['train'], encoded['train'], tokenizer),
    )


def fit(
  config: Config, path: str, examples: list[TextExample], encoded: list[LearnedTokens], most: int
) -> tuple[list[LearnedTokens], dict[str, int], Mapping[str, int]]:
  """Cuts, leaves out or refuses examples of more than `most` tokens.

  An example of which nothing is learned is left out too.

  Returns:
    What is kept; the number of `examples`, of those `cut` and `left_out`, and
    of all `tokens` and `learned_tokens` of the rest; and how many are left out
    for which reason.
  """
  kept, cut, reasons = [], 0, collections.Counter()
  for example, one in zip(examples, encoded, strict=True):
    too_long = len(one.ids) > most
    if not keeps(config, example.where, len(one.ids), most):
      reasons['too long'] += 1
      continue
    one = fitted(one, most)
    if not one.learned.any():
      reasons['of which nothing is learned'] += 1
      continue
    kept.append(one)
    cut += too_long
  if not kept:
    raise UsageError(
      f'{path}: nothing is left to learn in rows of finetune.length={most - 1} tokens; raise it'
    )
  figures = {
    'examples': len(examples),
    'cut': cut,
    'left_out': reasons.total(),
    'tokens': sum(len(one.ids) for one in kept),
    'learned_tokens': sum(int(one.learned.sum()) for one in kept),
  }
  return kept, figures, reasons
