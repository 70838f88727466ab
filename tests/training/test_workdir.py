# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which changes of a config a workdir with a run accepts."""

import json

import pytest

from gpt_jax import config as config_lib
from gpt_jax.spec import UsageError
from gpt_jax.training import workdir
from tests.support import tiny

BEFORE = 'mixture(web:0.5, code:0.5)'
ROW = tiny.MODEL['context_length']


def config(source):
  return config_lib.resolve(tiny.config(**{'data.source': source}))


@pytest.mark.parametrize(
  ('later', 'accepted'),
  [
    # Three steps of 16 rows were made.
    (f'{BEFORE}, mixture(web:1.0, from_token={3 * 16 * ROW})', True),
    (f'{BEFORE}, mixture(web:1.0, from_token={3 * 16 * ROW - 1})', False),
    ('mixture(web:0.4, code:0.6)', False),
    ('stdlib', False),
  ],
)
def test_a_phase_may_be_added_where_the_run_was_not(tmp_path, later, accepted):
  text = config_lib.to_json(config(BEFORE))
  (tmp_path / 'config.json').write_text(text)
  lines = [{'step': 2, 'tokens': 2 * 16 * ROW}, {'step': 3, 'event': 'saved'}]
  (tmp_path / 'metrics.jsonl').write_text(
    ''.join(json.dumps(line) + '\n' for line in lines)
  )
  if accepted:
    workdir.check_same_run(config(later), str(tmp_path))
    return
  with pytest.raises(UsageError, match=r'another config \(data.source'):
    workdir.check_same_run(config(later), str(tmp_path))
