# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Writes a config as one Python file that needs JAX alone: model, optimizer, data, loop.

  gpt-jax eject --config configs/gpt2.py:small
  gpt-jax eject --config configs/gpt2.py:small --out gpt2.py
  gpt-jax eject --config configs/smoke.py --config.model.vocab_size=4096 --out smoke.py
  gpt-jax eject --workdir W --out run.py --weights run.npz
  gpt-jax eject --config configs/gpt2.py:small --out gpt2.py --init HF_FOLDER --weights gpt2.npz

Prints a plain program for this one config, or that of the run in W, or writes it to --out: its
constants, the functions that it uses, and no branch that it does not take; functions over
dictionaries of arrays, without Flax, classes or sharding. It trains on one device from the token
store that `gpt-jax prepare` wrote, in the order of rows and with the losses of `gpt-jax train`; its
docstring says how to run it. Its initial weights and its dropout are drawn in another way, and it
stops at a loss or an update that is not finite.

With --weights: also writes weights, as the file starts from them by its own flag --weights: those
of the newest checkpoint in W, or of --init, a workdir or a Hugging Face folder with a model of
this config.

The functions are those of gpt_jax/plain/. A config that asks for anything that is not written
there is refused, by its field.
"""

from gpt_jax import cli
from gpt_jax.core import config as config_lib
from gpt_jax.core.files import buckets
from gpt_jax.core.spec import UsageError
from gpt_jax.flags import Flags

with cli.lazy_imports():
  from gpt_jax.ejecting import file, weights
  from gpt_jax.opening import models


def define(flags: Flags) -> None:
  """Adds this command's flags."""
  flags.config()
  flags.workdir('Folder of a run to eject, instead of --config.')
  flags.path('out', None, 'Python file to write instead of printing it.', written=True)
  flags.path('weights', None, 'File to write weights to, NAME.npz.', written=True)
  flags.path(
    'init', None, 'With --weights: workdir or Hugging Face folder that has them.', bucket='run'
  )


def main(args: cli.Args) -> None:
  """Runs the command."""
  if bool(args.config) == bool(args.workdir):
    raise UsageError('give one of --config and --workdir; see --help')
  cli.check_out_file(args, 'out', ('.py',))
  cli.check_out_file(args, 'weights', ('.npz',))
  field = 'init' if args.init else 'workdir'
  folder = args.init or args.workdir
  if args.weights and not folder:
    raise UsageError(f'--weights={args.weights}: of which model? give --workdir or --init')
  if args.init and not args.weights:
    raise UsageError(f'--init={args.init}: is for --weights; give both, or leave it out')
  if args.workdir:
    config = models.read_config(args.workdir)
    about = f'The run in {args.workdir}.', ''
  else:
    config = config_lib.resolve(args.config)
    about = file.described(args.argv)
  text = file.text(config, *about)
  if args.weights:
    opened = models.open_model(folder, 'start', f'--{field}')
    assert opened.params is not None
    weights.write(args.weights, opened.params(), config, f'--{field}={folder}')
  if args.out:
    buckets.write_atomically(args.out, text)
    print(buckets.shown(args.out))
  else:
    print(text, end='')
