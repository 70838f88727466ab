# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Prints a Python of the other lane of versions in constraints.txt, if one is here.

`make lane` runs it. It needs no package. Looked for on PATH, and below the
folders of version managers.
"""

import glob
import os
import shutil
import subprocess
import sys

# The newest first: 3.11 has the last JAX for it, later ones the newest.
OLD, NEW = ['3.11'], ['3.14', '3.13', '3.12']
MANAGERS = ('~/.pyenv/versions', '~/.local/share/uv/python', '~/.asdf/installs/python', '/opt')


def candidates(version: str) -> list[str]:
  """Programs that may be that Python."""
  name = f'python{version}'
  below = [f'{folder}/*/bin/{name}' for folder in MANAGERS]
  return [
    *filter(None, [shutil.which(name)]),
    *(path for pattern in below for path in sorted(glob.glob(os.path.expanduser(pattern)))),
  ]


def works(python: str) -> bool:
  """Whether it runs, and can make an environment: a version manager's shim may not."""
  code = 'import ensurepip, venv'
  return not subprocess.run([python, '-c', code], capture_output=True, check=False).returncode


def main() -> None:
  """Prints the path, or nothing."""
  for version in OLD if sys.version_info >= (3, 12) else NEW:
    for python in candidates(version):
      if works(python):
        print(python)
        return


if __name__ == '__main__':
  main()
