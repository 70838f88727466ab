# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""Prints the most probable fillers of each [MASK] of a text.

  gpt-jax fill --workdir W --text 'Paris is the [MASK] of France.' --top 5
  gpt-jax fill --workdir W --text 'A [MASK] b.' --text 'C [MASK] [MASK].' --json
  gpt-jax fill --workdir T5 --text 'Paris <extra_id_0> France.'
  cat texts.txt | gpt-jax fill --workdir W --text -

W holds an encoder, trained as a masked language model or converted.
Each mask is filled independently while the others stay masked, so the fillers
of several masks need not fit together. The tokenizer's own name of the mask,
such as <mask>, works as well.

An encoder-decoder generates the missing text: a T5 for <extra_id_0>,
<extra_id_1>, ..., a BART for <mask>. Prints the --top best filled texts, with
their scores, by a beam search with that many hypotheses.
"""

from gpt_jax import cli
from gpt_jax.core import ranges
from gpt_jax.core.files import lines
from gpt_jax.core.spec import UsageError
from gpt_jax.core.training.metrics import to_json
from gpt_jax.decoding.settings import BeamSettings
from gpt_jax.flags import Flags

with cli.lazy_imports():
  from gpt_jax.core import sharding
  from gpt_jax.decoding import fill
  from gpt_jax.decoding import texts as texts_lib
  from gpt_jax.opening import models as trained_lib


def define(flags: Flags) -> None:
  """Adds this command's flags."""
  flags.workdir('Folder of a run.')
  flags.texts('text', 'A text with [MASK], or - for lines of standard input; may be repeated.')
  use = 'How many fillers of each mask, or filled texts, to print.'
  flags.number('top', 5, use, ranges.Count)
  flags.number('rows', 32, 'Texts computed at a time.', ranges.Count)
  flags.json()


def main(args: cli.Args) -> None:
  """Runs the command."""
  cli.required(args, 'workdir')
  texts = [line for text in args.text for line in _lines(text)]
  if not texts:
    raise UsageError("--text is missing; give a text with [MASK], or '-'")
  if trained_lib.read_config(args.workdir).model.num_encoder_layers:
    _fill_sources(args, texts)
    return
  trained = trained_lib.load(args.workdir, 'fill')
  tokenizer, model = trained.tokenizer, trained.parts.model
  needs = trained.parts.objective.needs
  params = needs.merged(trained.state.eval_params)
  rows = [fill.encode(tokenizer, t, model.context_length) for t in texts]
  found = []
  with sharding.use(trained.parts.mesh, trained.parts.rules):
    for start in range(0, len(rows), args.rows):
      found += fill.fill(model, params, tokenizer, rows[start : start + args.rows], top=args.top)
  if args.json:
    entries = [
      {'text': text, 'masks': [[f._asdict() for f in m] for m in masks]}
      for text, masks in zip(texts, found, strict=True)
    ]
    print(to_json({'texts': entries}))
    return
  for text, masks in zip(texts, found, strict=True):
    print('\n'.join(shown(text, masks)))


def _fill_sources(args: cli.Args, texts: list[str]) -> None:
  """Prints texts whose blanks an encoder-decoder has filled."""
  trained = trained_lib.load(args.workdir)
  with sharding.use(trained.parts.mesh, trained.parts.rules):
    model = texts_lib.TextGenerator(
      trained.decoder(),
      trained.tokenizer,
      texts_lib.Options(),
      rows=args.rows,
      sources=trained_lib.source_format(trained.parts, trained.tokenizer),
      beam=BeamSettings(args.top),
    )
    found = fill.fill_blanks(model, texts)
  if args.json:
    entries = [
      {'text': text, 'filled': [f._asdict() for f in fillings]}
      for text, fillings in zip(texts, found, strict=True)
    ]
    print(to_json({'texts': entries}))
    return
  for text, fillings in zip(texts, found, strict=True):
    print(text, *(f'  {f.text} {f.score:.4f}' for f in fillings), sep='\n')


def shown(text: str, masks: 'list[list[fill.Filler]]') -> list[str]:
  """Lines for people: the text, and the fillers of each mask."""
  pairs = [[f'{f.token} {f.probability:.4f}' for f in m] for m in masks]
  return [text, *('  ' + ', '.join(found) for found in pairs)]


def _lines(text: str) -> list[str]:
  """The text, or those that are piped in."""
  if text != '-':
    return [text]
  return [line for _, line in lines.piped() if line.strip()]
