# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Where the tables of a published task are: in its folder, or in TFDS."""

import glob
import os

from gpt_jax.data import lines


def splits(folder: str, file: str, tfds: str) -> dict[str, str]:
  """The paths of train, dev and, where the folder has it, test."""
  names = {'train': 'train', 'dev': 'validation', 'test': 'test'}
  paths = {
    split: table(folder, file.format(split), f'{tfds}:{name}')
    for split, name in names.items()
  }
  if folder and not os.path.isfile(paths['test']):
    del paths['test']
  return paths


def table(folder: str, name: str, tfds: str) -> str:
  """A file of the folder, maybe compressed; or the split of TFDS.

  A name may be a pattern, of which the first file is taken.
  """
  if not folder:
    return f'tfds:{tfds}'
  name = next(iter(sorted(glob.glob(name, root_dir=folder))), name)
  path = os.path.join(folder, name)
  packed = [p for e in lines.COMPRESSED if os.path.isfile(p := path + e)]
  return packed[0] if packed and not os.path.isfile(path) else path


def instructions(page: str, name: str, tfds: str) -> tuple[str, str]:
  """How to get the data: by hand, and by TFDS."""
  return (
    f'unpack {name} from {page} and name its folder in the task',
    f'leave the folder out and prepare the set of TFDS: tfds build {tfds} '
    '--file_format=array_record',
  )
