# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Zero- and few-shot evaluation, as for GPT-2 and GPT-3.

score.py           log-probabilities of texts, in batches over all devices
journal.py         scores on disk, so that a stopped evaluation can resume
choices.py         choosing among continuations: PIQA, HellaSwag, RACE, BLiMP;
                   the last word of a passage: LAMBADA
language_model.py  perplexity of a text: WikiText-2
closed_book.py     questions answered by generation, scored by exact match
text_tasks.py      texts written for sources: pairs of files, GLUE as T5 does
written.py         the task of these; writing.py: how a model writes them
text_metrics.py    BLEU, chrF, ROUGE, exact match and F1
overlap.py         overlap of a task with the training text
shots.py           choice of the few-shot examples
figures.py         means with standard errors
results.py         results on disk
files.py           locating and reading the files of tasks
fields.py          checking the fields of their records
task.py, tasks.py  the interface of a task, and the tasks by name
suite.py           several tasks on one model
"""
