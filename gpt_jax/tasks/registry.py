# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""All tasks by name, and what each is for: `TASKS`.

`FORMS` are for fine-tuning on a user's own tables: GPT-1's four (figure 1),
spans and tags (BERT, figure 4), ranking (MT-DNN), and prompts with targets. The
others are published tasks; for fine-tuning each takes the folder of its
published files, or without one reads TensorFlow Datasets.
"""

import functools
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from gpt_jax.core.files.records import Record
from gpt_jax.core.ranges import Count
from gpt_jax.core.spec import UsageError
from gpt_jax.tasks import cbt, glue, reading, zero_shot
from gpt_jax.tasks import published as choices
from gpt_jax.tasks.prompts import Prompted
from gpt_jax.tasks.task import Task, check_label, filled, instructions, names, splits, tables

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
    train: a table; see `files.records`.
    dev: a table for evaluation.
    test: a table for predictions; '': none.
    text: a column or a template.
    label: a column.
    labels: comma list of the classes; '': those in the train split.
    regression: whether the label is a score.
    metrics: comma list; '': accuracy, or pearson and spearman for scores.
    columns: comma list of the column names, for a table without a header.
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
  """Two unordered texts: both orders are read, and their activations added."""
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
    train: a table, like dev and test.
    dev: for evaluation.
    test: for predictions.
    context: a template, or a comma list of consecutive columns, each of which
      is truncated separately.
    answers: a column with a list, or a comma list of columns or of templates
      without commas.
    label: a column with the right answer: 0 is the first, unless `labels` is
      given.
    labels: comma list of the answers' names in that column: 'A, B, C, D'.
    metrics: comma list.
    columns: see `classification`.
  """
  paths, named = tables(train, dev, test), (labels, metrics, columns)
  # A template can contain commas.
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
  """Prompt and target, with the loss on the target only.

  Args:
    train: a table, like dev and test.
    dev: for evaluation.
    test: for predictions.
    prompt: a template: '{en} =' (GPT-2, section 3.7); '{context} RESPONSE', or
      '{context} RESPONSE {response} {attribute}' (LaMDA, section 6).
    target: a template, with its leading space: ' {de}'.
    metrics: comma list.
    columns: see `classification`.
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
  """The right one of several candidates, by a score for each, as in `choice`.

  MT-DNN (Liu et al., 2019), equation 8: a softmax over the scores of a
  question's candidates, with the loss of the right one.

  Args:
    train: a table with a line for each candidate, in any order, like dev.
    dev: for evaluation: how often the right candidate has the highest score.
    question: a column or a template, the same for all candidates of a question.
    candidate: a column or a template.
    label: a column.
    relevant: the label of right candidates; all others are wrong.
    candidates: size of a group: one right candidate and candidates - 1 wrong
      ones. The wrong candidates of a question are divided into lots, and each
      right one forms a group with each lot; wrong ones that do not fill a lot
      are left out, and counted.
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
  records: Iterable[Record], *, question: str, candidate: str, label: str, relevant: str, count: int
) -> Iterator[Record]:
  # Question -> its candidates: whether each is right, and its text.
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
        # In the table's order, so that the right one's place is no clue.
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
      f'{total - used:,}',
      f'{total:,}',
      count,
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
  """Stanford inference; accuracy; examples without gold label are left out."""
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
  """Science questions; accuracy; reads the files of its folder tsv_format."""
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
  """QNLI as ranking (MT-DNN): the answering sentence must score highest.

  The paper used QNLI's first edition. In the present one few questions have
  both an answering sentence and another; the log counts those left out.

  Args:
    folder: of QNLI's files.
    candidates: size of a group; see `ranking`.
  """
  plain = glue.load('qnli', folder)
  task = ranking(
    plain.paths['train'],
    plain.paths['dev'],
    relevant='entailment' if folder else '0',
    candidates=candidates,
  )
  return task._replace(how=plain.how)


class Uses(NamedTuple):
  """What a task is for; None: it is not for that.

  Attributes:
    tuned: describes the task for fine-tuning, by its arguments in the config.
    prompted: makes its prompts, whose likelihood is evaluated.
  """

  tuned: Callable[..., Task] | None = None
  prompted: Callable[..., Prompted] | None = None


# The tasks by name. GLUE's are also measured by generated texts, as T5 does
# (`evaluation.text_tasks`). Texts are in `tasks.texts`.
TASKS = {
  **{name: Uses(form) for name, form in FORMS.items()},
  **{name: Uses(functools.partial(glue.load, name)) for name in glue.GLUE},
  'qnli_ranking': Uses(qnli_ranking),
  'snli': Uses(snli),
  'scitail': Uses(scitail),
  'squad': Uses(reading.squad),
  'conll2003': Uses(reading.conll2003),
  'race': Uses(choices.race_rows, choices.race),
  'story_cloze': Uses(choices.story_cloze_rows, choices.story_cloze),
  'lambada': Uses(prompted=choices.lambada),
  'blimp': Uses(prompted=choices.blimp),
  'piqa': Uses(prompted=choices.piqa),
  'hellaswag': Uses(prompted=choices.hellaswag),
  'boolq': Uses(prompted=choices.boolq),
  'cbt': Uses(prompted=cbt.cbt),
  'cola_zero_shot': Uses(prompted=zero_shot.cola_zero_shot),
  'sst2_zero_shot': Uses(prompted=zero_shot.sst2_zero_shot),
  'race_zero_shot': Uses(prompted=zero_shot.race_zero_shot),
  'multiple_choice': Uses(prompted=choices.multiple_choice),
}
TUNED = {name: of.tuned for name, of in TASKS.items() if of.tuned}
PROMPTED = {name: of.prompted for name, of in TASKS.items() if of.prompted}
