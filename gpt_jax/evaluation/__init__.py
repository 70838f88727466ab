# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Zero- and few-shot tasks: GPT-2's and GPT-3's evaluations, without tuning.

score.py           texts -> log-probabilities, in batches on all devices
journal.py         scores on disk, so that a stopped evaluation goes on
choices.py         the best of several continuations: PIQA, HellaSwag, RACE,
                   BLiMP; the last word of a passage: LAMBADA
language_model.py  perplexity of a text: WikiText-2
closed_book.py     questions answered by generation, by exact match
overlap.py         what of a task the training text holds
shots.py           which solved examples are shown before each one
figures.py         means with standard errors
results.py         figures on disk
files.py           where the files of tasks are
fields.py          what is in their records
task.py, tasks.py  what a task is, and the choice of one by name
suite.py           several tasks on one model
"""
