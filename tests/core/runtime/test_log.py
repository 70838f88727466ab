# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a process says last."""

import subprocess
import sys

# Threads log without end while the process ends itself.
PROGRAM = """
import sys, threading, time
from gpt_jax.core.runtime import log

def talk():
  while True:
    log.log.info('a line')

sys.setswitchinterval(1e-6)
log.set_up()
for _ in range(4):
  threading.Thread(target=talk, daemon=True).start()
time.sleep(0.1)
log.end('the last line', 75)
"""


def test_nothing_is_logged_after_the_line_of_the_end():
  for _ in range(3):
    done = subprocess.run([sys.executable, '-c', PROGRAM], capture_output=True, text=True)
    assert done.returncode == 75
    assert done.stderr.splitlines()[-1].endswith(': the last line')
