# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The names in the tables of docs/metrics.md, which is written by hand."""

import pathlib
import re

_PAGE = pathlib.Path(__file__).parents[2] / 'docs/metrics.md'
_METRICS, _EVENTS = _PAGE.read_text(encoding='utf-8').split('\n## Events\n')
_ROW = re.compile(r'^\| `([^`]+)` \|(?! \|$)', re.MULTILINE)
METRICS, EVENTS = _ROW.findall(_METRICS), _ROW.findall(_EVENTS)
