# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Supervised fine-tuning: `finetune.task="sft('train.jsonl', 'dev.jsonl')"`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gpt_jax.config import Config
from gpt_jax.posttraining import records
from gpt_jax.posttraining.base import (
  COMMON,
  Method,
  Prepared,
  digest,
  limited,
  set_length,
)
from gpt_jax.posttraining.dialogues import Encoded, Encoder, LossOn, fitted
from gpt_jax.posttraining.packing import TokenRows
from gpt_jax.posttraining.records import Example
from gpt_jax.runtime.log import log
from gpt_jax.spec import UsageError
from gpt_jax.tokenizers.chat import ChatTemplate
from gpt_jax.tokenizers.tokenizer import Tokenizer


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

  def prepare(
    self,
    config: Config,
    tokenizer: Tokenizer,
    template: Callable[[], ChatTemplate],
  ) -> Prepared:
    """Encodes all examples, and makes rows of them."""
    tuned, encoder = config.finetune, Encoder(tokenizer, template)
    paths = {'train': self.train, 'dev': self.dev}
    found = {
      split: limited(config, split, [*records.examples(path)], path)
      for split, path in paths.items()
    }
    encoded = {
      split: [encoder.encode(example, self.loss_on) for example in examples]
      for split, examples in found.items()
    }
    every = [one for split in encoded.values() for one in split]
    set_length(config, max(len(one.ids) for one in every) - 1)
    pad = tokenizer.special.pad_id
    splits, figures = {}, {}
    for split, path in paths.items():
      rows = fit(config, path, found[split], encoded[split])
      made = TokenRows(rows.kept, tuned.length, pad, packed=self.packing)
      splits[split], figures[split] = made, rows.figures
      log.info(
        '%s: %s in %s rows of %d tokens; %s learned, %d examples cut, %d left '
        'out',
        *(path, f'{len(found[split]):,} examples', f'{len(made):,}'),
        *(tuned.length, f'{rows.figures["learned_tokens"]:,} tokens'),
        *(rows.figures['cut'], rows.figures['left_out']),
      )
    return Prepared(
      f'dialogue(length={tuned.length}, packed={self.packing})',
      train=splits['train'],
      dev=splits['dev'],
      data=digest(encoded),
      figures=figures,
      template=encoder.template if encoder.chats else None,
      ends=ends(encoded['train'], tokenizer) if encoder.chats else frozenset(),
    )


class Fitted(NamedTuple):
  """The examples that rows are made of.

  Attributes:
    figures: the number of `examples`, of those `cut` and `left_out`, and of all
      `tokens` and `learned_tokens` of the rest.
  """

  kept: list[Encoded]
  figures: dict[str, int]


def fit(
  config: Config, path: str, examples: list[Example], encoded: list[Encoded]
) -> Fitted:
  """Cuts, leaves out or refuses what is too long: `finetune.too_long`.

  An example of which nothing is learned is left out too.
  """
  tuned, kept, cut, dropped = config.finetune, [], 0, 0
  for example, one in zip(examples, encoded, strict=True):
    too_long = len(one.ids) > tuned.length + 1
    if too_long and tuned.too_long == 'refuse':
      raise UsageError(
        f'{example.where}: has {len(one.ids)} tokens, but a row holds '
        f'{tuned.length + 1}; raise finetune.length, or let '
        "finetune.too_long='cut' cut it"
      )
    one = fitted(one, tuned.length + 1)
    if not one.learned.any() or (too_long and tuned.too_long == 'drop'):
      dropped += 1
      continue
    kept.append(one)
    cut += too_long
  if not kept:
    raise UsageError(
      f'{path}: nothing is left to learn in rows of finetune.length='
      f'{tuned.length} tokens; raise it'
    )
  figures = {
    'examples': len(examples),
    'cut': cut,
    'left_out': dropped,
    'tokens': sum(len(one.ids) for one in kept),
    'learned_tokens': sum(int(one.learned.sum()) for one in kept),
  }
  return Fitted(kept, figures)


def ends(encoded: Sequence[Encoded], tokenizer: Tokenizer) -> frozenset[int]:
  """The special tokens that end what is learned of a conversation."""
  last = {int(one.ids[one.learned][-1]) for one in encoded if one.learned.any()}
  return frozenset(last & {*tokenizer.special.names.values()})
