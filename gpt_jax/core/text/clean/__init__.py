# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Cleaning and deduplication, between the source and the holdout split.

  data.clean = "c4, language('en'), minhash(threshold=0.8)"

`choices.load` turns the text into steps, which are applied in order. Each is a
`steps.Local` or a `steps.Global`: pure functions that can be pickled, so that a
pool of processes (`run`) and Apache Beam give the same result. `stages` has the
stages that both of them run.

* a local step looks at one document:
    `clean(document) -> Outcome`
* a global step looks at all of them:
    1. `rows(text) -> Rows`: of each document, the keys to group by, each with a
       value, and a sketch, a short vector that is looked up by place;
    2. `judge(keys, documents, values, sketches) -> Findings`: of whole groups
       (all rows with a key, sorted by key, document, value);
    3. `conclude(findings) -> Findings`: of all findings together;
    4. `clean(document, values) -> Outcome`: what is left of a document, given
       the values of its findings.

A document is addressed by its place in the input (`Document.place`). Up to
`PLACES` pieces of a document that is cut have places of their own, in order.
Only the order of places matters, not their values. In a mixture the source is
the first part of a document's name.

On Apache Beam a global step is: rows | GroupByKey(range of
keys) | judge | conclude (only where `concludes`: it takes all findings in one
place) | GroupByKey(shard), joined with the documents | clean. `report.count`
counts the outcomes of a shard, and `report.merge` adds shards up.
"""
