# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""Answers as LaMDA does (Thoppilan et al., 2022); measures labelled answers.

  gpt-jax lamda --workdir W --prompt "What's up?" --num_samples 16
  gpt-jax lamda --workdir W --prompt 'How much is 17 * 23?' --calculator --json
  gpt-jax lamda --labels labels.jsonl

W is fine-tuned with configs/lamda.py:finetune. It samples --num_samples
responses to the prompt, rates each itself, drops those whose probability of
being safe is below --safety, and prints the best of the others by
3 P(sensible) + P(specific) + P(interesting). If none is safe, nothing is
printed, and the exit code is 1.

With tools a response 'TS, 17 * 23' is a query: what they return is appended to
the prompt, as 'RESPONSE TS, 17 * 23 TOOLS 391', and the model responds again,
at most four times. --calculator returns the value of an expression, --retrieve
the paragraph of some texts that has the query's words (BM25), and --translator
the translation of what follows 'translate:'.

--labels: a file of JSON lines with true or false for sensible, specific,
interesting, safe, claims, supported, cites and known. Prints the shares of
these, groundedness, informativeness and citation accuracy: see
docs/posttraining.md.
"""

from gpt_jax import cli
from gpt_jax.core import ranges
from gpt_jax.core.spec import FailedError, NoFileError, UsageError
from gpt_jax.core.training.metrics import to_json
from gpt_jax.decoding.files import Prompt
from gpt_jax.decoding.settings import Sampler
from gpt_jax.evaluation import score
from gpt_jax.flags import Flags
from gpt_jax.tuning import lamda, records

with cli.lazy_imports():
  from gpt_jax.core import sharding
  from gpt_jax.decoding import texts
  from gpt_jax.opening import models as trained_lib
  from gpt_jax.tuning import tools


def define(flags: Flags) -> None:
  """Adds this command's flags."""
  flags.workdir('Folder of a run that was fine-tuned as LaMDA is.')
  flags.text('prompt', None, 'The dialogue so far.')
  flags.path('labels', None, 'File of labelled responses to measure.')
  flags.drawing()
  flags.number('num_samples', 16, 'Responses to choose from.', ranges.Count)
  use = 'Minimum probability that a response is safe.'
  flags.number('safety', 0.5, use, ranges.Probability)
  flags.number('rows', 8, 'Responses sampled at a time.', ranges.Count)
  flags.switch('calculator', 'Let the model ask a calculator.')
  use = 'Let the model search texts: a folder of .txt files, or a pattern.'
  flags.path('retrieve', None, use, bucket='folder')
  use = 'Let the model ask a translator: the workdir of an encoder-decoder.'
  flags.path('translator', None, use, bucket='run')
  flags.json()


def main(args: cli.Args) -> None:
  """Runs the command."""
  if bool(args.prompt) == bool(args.labels):
    raise UsageError('give one of --prompt and --labels; see --help')
  if args.labels:
    try:
      rows = [*records.read(args.labels)]
    except NoFileError as e:
      raise UsageError(f'{e}; give another with --labels') from e
    if not rows:
      raise UsageError(f'--labels={args.labels}: is empty; give a file with ratings')
    found = lamda.metrics(rows)
    if args.json:
      print(to_json(found))
    else:
      print('\n'.join(f'{name}: {x:.4g}' for name, x in found.items()))
    return
  cli.required(args, 'workdir')
  used = []
  if args.calculator:
    used.append(tools.calculator)
  if args.retrieve:
    used.append(tools.Retriever(args.retrieve))
  if args.translator:
    used.append(tools.translator(args.translator))
  trained = trained_lib.load(args.workdir, 'continue')
  options = texts.Options(
    max_tokens=args.max_tokens,
    sampler=Sampler(*(getattr(args, name) for name in Sampler._fields)),
    seed=args.seed,
    num_samples=args.num_samples,
  )
  generator = texts.TextGenerator(trained.decoder(), trained.tokenizer, options, rows=args.rows)
  scorer = score.scorer(trained)
  steps = []

  def best(context: str) -> str:
    prompt = Prompt('--prompt', context + lamda.SENTINEL)
    with sharding.use(trained.parts.mesh, trained.parts.rules):
      ((_, drawn),) = generator.complete(generator.requests([prompt]))
    responses = [x.text.strip() for x in drawn]
    ratings = lamda.rate(scorer, context, responses)
    order = lamda.rank(ratings, args.safety)
    steps.append(
      [
        {'response': responses[i], **ratings[i]._asdict()}
        | {'quality': ratings[i].quality, 'kept': i in order}
        for i in range(len(responses))
      ]
    )
    if not order:
      raise FailedError(
        f'none of {len(responses)} responses is safe with a probability of '
        f'{args.safety:g}; sample more with --num_samples, or lower --safety'
      )
    return responses[order[0]]

  turn = lamda.respond(best, args.prompt, used)
  if args.json:
    queries = [{'query': q, 'results': found} for q, found in turn.queries]
    entry = {'answer': turn.answer, 'queries': queries, 'candidates': steps}
    print(to_json(entry))
    return
  print(turn.answer)
