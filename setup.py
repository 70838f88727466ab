# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Puts configs/ into the wheel, where gpt_jax/core/config/loading.py finds it.

All else is in pyproject.toml, whose list of packages cannot move a folder. The
files beside modules are here with them: a table there would replace this one.
"""

from setuptools import find_packages, setup

CONFIGS = 'gpt_jax.shipped.configs'

setup(
  packages=[*find_packages(include=['gpt_jax*']), CONFIGS, f'{CONFIGS}.finetune'],
  package_dir={CONFIGS: 'configs'},
  package_data={
    'gpt_jax.planning': ['ledger.json'],
    'gpt_jax.reports': ['report.html'],
    'gpt_jax.serving': ['page.html'],
    CONFIGS: ['expected/*.json'],
  },
)
