# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""`gpt-jax COMMAND ...` runs `gpt_jax.commands.COMMAND`."""

import contextlib
import difflib
import importlib
import sys

from gpt_jax.core import malloc
from gpt_jax.core.runtime import libtpu, parent

COMMANDS = {
  'train': 'pre-train a model; go on where a run stopped',
  'finetune': 'fine-tune a pre-trained model on a task',
  'sft': 'fine-tune on dialogues or instructions',
  'reward': 'train a reward model on preferences',
  'dpo': 'train a model on preferences directly',
  'grpo': 'train on rewards of completions, relative to their group',
  'ppo': 'train on rewards of completions, with a value function',
  'generate': 'continue a prompt',
  'lamda': 'answer with rated candidates and tools, as LaMDA does',
  'fill': 'fill the [MASK] of a text',
  'serve': "serve a model over HTTP, as OpenAI's API does",
  'evaluate': 'measure a trained model on held-out text and tasks',
  'prepare': 'text to tokenizer and token store',
  'teach': "store a teacher's top-k predictions, for students",
  'tokenizers': 'compare tokenizers on held-out text',
  'convert': 'checkpoints of Hugging Face to workdirs, and back',
  'inspect': 'resolved config, parameters, FLOPs',
  'eject': 'a config as one file of Python that needs JAX alone',
  'scaling': 'train a grid of small models, and fit scaling laws',
  'plan': 'what a run needs on TPU slices, what a budget buys',
  'compare': 'sweep: train several configs with several seeds, and compare',
  'plot': 'draw the curves of runs',
  'report': 'a page about a run, to open in a browser',
  'benchmark': 'compile time, step time, tokens/s, data wait, MFU',
  'why': 'take a step of a run again, and look into it',
  'profile': 'trace steps of a run, and show where their time went',
  'doctor': 'check the installation',
}


# Told to stop, they save and end with exit code 75.
STOPPABLE = ('train', 'finetune', 'sft', 'reward', 'dpo', 'grpo', 'ppo')
# Interrupted, they have on disk what they did so far.
RESUMABLE = ('prepare', 'teach')
# They have nothing to save, and are in a compiler for minutes.
ENDED_AT_ONCE = ('plan',)
_INTERRUPTED = 130  # that of `preemption`, which is not imported yet


def main(argv: list[str] | None = None) -> int:
  """Runs one command; returns the exit code.

  Args:
    argv: None: those of this process, which may start anew.
  """
  try:
    if argv is None:
      parent.end_with()
      libtpu.silence()
      malloc.start_anew()
    return _run(sys.argv[1:] if argv is None else argv)
  except BrokenPipeError:  # of the list of commands
    from gpt_jax import cli

    cli.reader_is_gone()
    return 1
  except KeyboardInterrupt:  # while modules are imported
    print('gpt-jax: interrupted', file=sys.stderr)
    return _INTERRUPTED


def _run(argv: list[str]) -> int:
  # Not above: the process may start anew first.
  from gpt_jax.core.runtime import log, preemption

  if not argv or argv[0] in ('-h', '--help', 'help'):
    from gpt_jax import cli

    print('usage: gpt-jax COMMAND [--help] [flags]\n       gpt-jax --version\n')
    for name, summary in COMMANDS.items():
      print(f'  {name:10} {summary}')
    print('\nexit codes:')
    for code, said in cli.EXIT_CODES.items():
      print(f'  {code:<10} {said}')
    sys.stdout.flush()
    return 0 if argv else 2
  if argv[0] == '--version':
    from importlib import metadata

    print(f'gpt-jax {metadata.version("gpt_jax")}')
    return 0
  name, *rest = argv
  if name not in COMMANDS:
    near = difflib.get_close_matches(name, COMMANDS, 1)
    choices = ', '.join(COMMANDS)
    print(
      f'gpt-jax: unknown command {name!r}; '
      + (f'did you mean {near[0]}? ' if near else '')
      + f'one of {choices}',
      file=sys.stderr,
    )
    return 2
  malloc.keep_memory()
  log.started_as(name)
  context = contextlib.nullcontext()
  if name in STOPPABLE:
    context = preemption.listening()
  elif name in RESUMABLE:
    context = preemption.announcing()
  elif name in ENDED_AT_ONCE:
    context = preemption.ending()
  with context:
    # After `ending`: the threads of numpy's library would hear the signals.
    from gpt_jax import cli

    module = importlib.import_module(f'gpt_jax.commands.{name}')
    return cli.run(module, rest)


if __name__ == '__main__':
  sys.exit(main())
