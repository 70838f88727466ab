# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Prepares a TFDS set from existing downloads, in a process of its own.

  python -m gpt_jax.core.files.tfds_build NAME DATA_DIR MANUAL_DIR

Many builders of text sets need TensorFlow only to open files. Where it is not
installed they get Python's functions under TensorFlow's names; a builder that
uses more of it fails, and needs TensorFlow.
"""

import glob
import importlib
import importlib.util
import os
import sys
import types


def _glob(pattern: str) -> list[str]:
  """The files that match; the folder's own name may look like a pattern."""
  folder, name = os.path.split(pattern)
  if not os.path.isdir(folder):
    return glob.glob(pattern)
  found = glob.glob(name, root_dir=folder)
  return [os.path.join(folder, name) for name in found]


_FILES = types.SimpleNamespace(
  GFile=open,
  exists=os.path.exists,
  isdir=os.path.isdir,
  listdir=os.listdir,
  glob=_glob,
  join=os.path.join,
  makedirs=lambda path: os.makedirs(path, exist_ok=True),
)


def main(name: str, data_dir: str, manual_dir: str):
  """Writes ArrayRecord files, without trying Google's prepared copy."""
  tfds = importlib.import_module('tensorflow_datasets')
  if importlib.util.find_spec('tensorflow') is None:
    # Builders, which are imported later, find this as TensorFlow.
    shared = importlib.import_module('tensorflow_datasets.core.utils.lazy_imports_utils')
    gfile = types.SimpleNamespace(gfile=_FILES)
    stand_in = types.SimpleNamespace(io=gfile)
    shared.__dict__['tensorflow'] = stand_in
  config = tfds.download.DownloadConfig(manual_dir=manual_dir, try_download_gcs=False)
  tfds.builder(name, data_dir=data_dir, try_gcs=False).download_and_prepare(
    download_dir=os.path.join(data_dir, 'downloads'),
    download_config=config,
    file_format='array_record',
  )


if __name__ == '__main__':
  main(*sys.argv[1:])
