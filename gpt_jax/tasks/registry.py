# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The tasks that fine-tuning knows, by name: `TASKS`.

`FORMS` are those of a user's own tables: GPT-1's four (figure 1), spans and
tags (BERT, figure 4), ranking (MT-DNN), and prompts with their targets. The
others are published; each takes the folder of its files as published, or
without one is the set of TensorFlow Datasets.
"""

import functools
import logging
from collections.abc import Iterable, Iterator

from gpt_jax.files.records import Record
from gpt_jax.ranges import Count
from gpt_jax.spec import UsageError
from gpt_jax.tasks import choices, glue, reading
from gpt_jax.tasks.task import (
  Task,
  check_label,
  filled,
  instructions,
  names,
  splits,
  tables,
)

log = logging.getLogger('gpt_jax')


def classification(
  train: str,
  dev: str,
  test: str = '',
  text: str = 'text',
  label: str = 'label',
  labels: str = '',
  regression: bool = False,
  metrics: str = '',
  columns: str = '',
) -> Task:
  """One text: start, text, extract.

  Args:
    train: a table; see `records`.
    dev: another, which judges.
    test: another, which gets predictions; '': none.
    text: a column or a template.
    label: a column.
    labels: comma list of the classes; '': those of the train split.
    regression: the label is a score.
    metrics: comma list; '': accuracy, or pearson and spearman of scores.
    columns: comma list of the columns, of a table that does not name them.
  """
  paths, named = tables(train, dev, test), (labels, metrics, columns)
  return _form('classification', paths, (text,), label, *named, regression)


def entailment(
  train: str,
  dev: str,
  test: str = '',
  premise: str = 'premise',
  hypothesis: str = 'hypothesis',
  label: str = 'label',
  labels: str = '',
  regression: bool = False,
  metrics: str = '',
  columns: str = '',
) -> Task:
  """Two texts: start, premise, delimiter, hypothesis, extract."""
  paths, named = tables(train, dev, test), (labels, metrics, columns)
  texts = premise, hypothesis
  return _form('entailment', paths, texts, label, *named, regression)


def similarity(
  train: str,
  dev: str,
  test: str = '',
  first: str = 'sentence1',
  second: str = 'sentence2',
  label: str = 'label',
  labels: str = '',
  regression: bool = False,
  metrics: str = '',
  columns: str = '',
) -> Task:
  """Two texts without an order: both orders, their activations added."""
  paths, named = tables(train, dev, test), (labels, metrics, columns)
  texts = first, second
  return _form('similarity', paths, texts, label, *named, regression)


def choice(
  train: str,
  dev: str,
  test: str = '',
  context: str = 'context',
  answers: str = 'answers',
  label: str = 'label',
  labels: str = '',
  metrics: str = '',
  columns: str = '',
) -> Task:
  """One of several answers: start, context, delimiter, answer, extract each.

  Args:
    train: a table; dev and test too.
    dev: judges.
    test: gets predictions.
    context: a template, or a comma list of columns that follow each other;
      where it is too long each is cut by itself.
    answers: a column with a list, or a comma list of columns or of templates
      without commas.
    label: a column; which answer is right: 0 is the first, unless `labels` says
      otherwise.
    labels: comma list of what the column calls the answers: 'A, B, C, D'.
    metrics: comma list.
    columns: as of `classification`.
  """
  paths, named = tables(train, dev, test), (labels, metrics, columns)
  # A template may hold commas.
  texts = (context,) if '{' in context else names(context)
  task = _form('choice', paths, texts, label, *named)
  return task._replace(answers=names(answers))


def target(
  train: str,
  dev: str,
  test: str = '',
  prompt: str = '{prompt}',
  target: str = '{target}',
  metrics: str = 'exact_match',
  columns: str = '',
) -> Task:
  """Prompt and target, with the loss on the target alone.

  Args:
    train: a table; dev and test too.
    dev: judges.
    test: gets predictions.
    prompt: a template: '{en} =' (GPT-2, section 3.7); '{context} RESPONSE', or
      '{context} RESPONSE {response} {attribute}' (LaMDA, section 6).
    target: a template, with the space before it: ' {de}'.
    metrics: comma list.
    columns: as of `classification`.
  """
  paths, named = tables(train, dev, test), ('', metrics, columns)
  return _form('target', paths, (prompt, target), '', *named)


def _form(
  form: str,
  paths: dict[str, str],
  texts: tuple[str, ...],
  label: str,
  labels: str,
  metrics: str,
  columns: str,
  regression: bool = False,
) -> Task:
  default = ('pearson', 'spearman') if regression else ('accuracy',)
  return Task(
    form,
    paths,
    texts,
    label=label,
    labels=names(labels),
    regression=regression,
    metrics=names(metrics) or default,
    columns=names(columns),
  )


def ranking(
  train: str,
  dev: str,
  question: str = 'question',
  candidate: str = 'sentence',
  label: str = 'label',
  relevant: str = '1',
  candidates: Count = 2,
) -> Task:
  """The right one of several candidates: a score for each, as of `choice`.

  MT-DNN (Liu et al., 2019), equation 8: the loss of a question is that of its
  right answer among all its candidates, a softmax over their scores.

  Args:
    train: a table with a line for each candidate, in any order; dev too.
    dev: judges, by how often the right candidate has the highest score.
    question: a column or a template, the same for all candidates of a question.
    candidate: another.
    label: a column.
    relevant: the label of right candidates; all others are wrong.
    candidates: of a group: a right one and as many wrong ones as are left. A
      question has a group for each right candidate and each further lot of
      wrong ones; those that make up no group are left out, and counted.
  """
  if candidates < 2:
    raise UsageError(
      f'finetune.task: ranking: candidates={candidates}: a group needs a right '
      'one and a wrong one; give 2 or more'
    )
  return Task(
    form='choice',
    paths={'train': train, 'dev': dev},
    texts=('question',),
    answers=('candidates',),
    gather=functools.partial(
      _groups,
      question=question,
      candidate=candidate,
      label=label,
      relevant=relevant,
      count=candidates,
    ),
  )


def _groups(
  records: Iterable[Record],
  *,
  question: str,
  candidate: str,
  label: str,
  relevant: str,
  count: int,
) -> Iterator[Record]:
  # Of each question its candidates: whether they are right, and their texts.
  found: dict[str, list[tuple[bool, str]]] = {}
  where: dict[str, str] = {}
  for record in records:
    asked = filled(record, question)
    where.setdefault(asked, record.where)
    check_label(record, label, record[label])
    right = str(record[label]) == relevant
    found.setdefault(asked, []).append((right, filled(record, candidate)))
  total, used = sum(map(len, found.values())), 0
  for asked, of_question in found.items():
    numbers = range(len(of_question))
    right = [i for i in numbers if of_question[i][0]]
    wrong = [i for i in numbers if not of_question[i][0]]
    lots = len(wrong) // (count - 1)
    used += (len(right) + lots * (count - 1)) * bool(right and lots)
    for one in right:
      for lot in range(lots):
        others = wrong[lot * (count - 1) : (lot + 1) * (count - 1)]
        # In the table's order: no place among them gives the right one away.
        group = sorted([one, *others])
        fields = {
          'question': asked,
          'candidates': [of_question[i][1] for i in group],
          'label': group.index(one),
        }
        yield Record(where[asked], fields)
  if used < total:
    log.info(
      '%s of %s candidates make up no group of %d and are left out',
      *(f'{total - used:,}', f'{total:,}', count),
    )


FORMS = {
  'classification': classification,
  'entailment': entailment,
  'similarity': similarity,
  'choice': choice,
  'ranking': ranking,
  'target': target,
  'spans': reading.spans,
  'tags': reading.tags,
}


def snli(folder: str = '') -> Task:
  """Stanford inference: accuracy; those without a gold label are left out."""
  texts = ('sentence1', 'sentence2') if folder else ('premise', 'hypothesis')
  page = 'https://nlp.stanford.edu/projects/snli'
  return Task(
    'entailment',
    splits(folder, 'snli_1.0_{}.jsonl', 'snli'),
    texts,
    label='gold_label' if folder else 'label',
    labels=('entailment', 'neutral', 'contradiction'),
    drop=('-', '-1'),
    how=instructions(page, 'snli_1.0', 'snli'),
  )


def scitail(folder: str = '') -> Task:
  """Science questions: accuracy; the files of its folder tsv_format."""
  page = 'https://allenai.org/data/scitail'
  return Task(
    'entailment',
    splits(folder, 'scitail_1.0_{}.tsv', 'sci_tail'),
    ('premise', 'hypothesis'),
    labels=('entails', 'neutral'),
    columns=('premise', 'hypothesis', 'label') if folder else (),
    how=instructions(page, 'SciTailV1.1', 'sci_tail'),
  )


def qnli_ranking(folder: str = '', candidates: Count = 2) -> Task:
  """QNLI as MT-DNN has it: does the sentence that answers score highest?

  The paper used QNLI's first edition. In today's few questions have both a
  sentence that answers and one that does not; the log counts those left out.

  Args:
    folder: as of `qnli`.
    candidates: of a group; see `ranking`.
  """
  plain = glue.load('qnli', folder)
  task = ranking(
    plain.paths['train'],
    plain.paths['dev'],
    relevant='entailment' if folder else '0',
    candidates=candidates,
  )
  return task._replace(how=plain.how)


TASKS = {
  **FORMS,
  **glue.TASKS,
  'qnli_ranking': qnli_ranking,
  'snli': snli,
  'scitail': scitail,
  'race': choices.race_rows,
  'story_cloze': choices.story_cloze_rows,
  'squad': reading.squad,
  'conll2003': reading.conll2003,
}
