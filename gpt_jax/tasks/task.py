# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tasks, and how their examples are read. `registry` lists all tasks.

A text is given by the name of a column, 'question', or by a template of
columns, '{question} {sentence}'.
"""

import glob
import logging
import math
import os
import re
import string
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from gpt_jax.core.files import lines, records
from gpt_jax.core.files.records import Record
from gpt_jax.core.spec import NoFileError, NotPreparedError, UsageError

# Record -> the records that it contains, such as one per question.
Expand = Callable[[Record], Iterable[Record]]
# The split of a tagger's sentences without tags.
UNLABELLED = 'unlabelled'

log = logging.getLogger('gpt_jax')


class Example(NamedTuple):
  """An example of a task.

  Attributes:
    where: 'file:line'.
    texts: the task's texts; in the form `choice` the answers follow.
    label: the number of a class, a score, a `reading.Answer`, the numbers of
      all words' tags, or None if it is unknown.
  """

  where: str
  texts: tuple[str, ...]
  label: Any


class TextPair(NamedTuple):
  """A text-to-text example: source and target.

  Attributes:
    where: 'file:line'.
    label: the label that the target denotes, if any: a class, or a similarity
      before rounding.
  """

  where: str
  source: str
  target: str
  label: Any = None


class Task(NamedTuple):
  """A task; `registry.FORMS` describes the forms.

  Attributes:
    form: a key of `registry.FORMS`.
    paths: of 'train', 'dev', and further splits for predictions; see
      `files.records`. Also of `UNLABELLED` text, see `reading.sentences`.
    texts: columns or templates.
    label: the column of the label, '' if there is none.
    labels: the names of the classes, in order; (): those in the train split.
    regression: whether the label is a score.
    answers: in the form `choice`: columns or templates, one for each answer, or
      a single column with a list.
    metrics: names in `metrics.METRICS[kind]`; the first selects the best step.
    columns: column names of files without a header.
    drop: labels whose examples are left out.
    expand: see `Expand`.
    gather: combines the expanded records of a table to others.
    how: how to get the data: manually, and from TFDS.
    example: (task, record, whether a label is needed) -> example; None: made of
      texts, answers and label.
    options: of the form: `reading.SpanOptions`.
  """

  form: str
  paths: dict[str, str]
  texts: tuple[str, ...]
  label: str = 'label'
  labels: tuple[str, ...] = ()
  regression: bool = False
  answers: tuple[str, ...] = ()
  metrics: tuple[str, ...] = ('accuracy',)
  columns: tuple[str, ...] = ()
  drop: tuple[str, ...] = ()
  expand: Expand = lambda record: (record,)
  gather: Callable[[Iterable[Record]], Iterable[Record]] | None = None
  how: tuple[str, str] | None = None
  example: 'Callable[[Task, Record, bool], Example] | None' = None
  options: Any = None

  @property
  def kind(self) -> str:
    """The kind of labels: classification, regression, or the form's own."""
    if self.form in ('choice', 'target', 'spans', 'tags'):
      return self.form
    return 'regression' if self.regression else 'classification'


def read(task: Task, split: str, path: str = '') -> list[Example]:
  """Reads a split, or another file of the same columns."""
  path = path or task.paths[split]
  needs_label = split in ('train', 'dev')
  found, dropped = [], 0
  try:
    for record in _records(task, path):
      if task.drop and str(record.fields.get(task.label)) in task.drop:
        dropped += 1
        continue
      read_one = task.example or _example
      found.append(read_one(task, record, needs_label))
  except NoFileError as e:
    if not task.how:
      raise
    raise UsageError(f'{e}. To get it: {", or ".join(task.how)}') from None
  except NotPreparedError as e:
    if not task.how:
      raise
    raise UsageError(f'{e}. Or {task.how[0]}') from None
  if not found:
    why = f', besides {dropped} without a label' * (dropped > 0)
    raise UsageError(f'{path}: holds no examples{why}; name another file')
  if dropped:
    log.info(
      '%s: left out %s of %s examples, whose %s is %s',
      path,
      f'{dropped:,}',
      f'{dropped + len(found):,}',
      task.label,
      ' or '.join(map(repr, task.drop)),
    )
  return found


def with_labels(task: Task) -> Task:
  """The task with the names of its classes, read from the train split."""
  if task.kind not in ('classification', 'tags') or task.labels:
    return task
  first: dict[str, str] = {}  # where each name occurs first
  for record in _records(task, task.paths['train']):
    value = record[task.label]
    several = task.kind == 'tags' and isinstance(value, list)
    for one in value if several else [value]:
      if str(one) not in task.drop:
        check_label(record, task.label, one)
        if several:
          check_tag(record.where, str(one))
        first.setdefault(str(one), record.where)
  names = {*first}
  if '-1' in names and all(n.isdecimal() for n in names - {'-1'}):
    raise UsageError(
      f'{first["-1"]}: the label -1 marks an example without a label in many '
      "tables; remove such lines, or name the classes, as in labels='-1, 0, 1'"
    )
  if len(names) < 2:
    raise UsageError(
      f'{task.paths["train"]}: column {task.label!r} holds {len(names)} labels; two are needed'
    )
  # Numbers are sorted by value: '10' follows '9'.
  ordered = sorted(names, key=lambda n: (not n.isdecimal(), len(n), n))
  if not all(n.isdecimal() for n in names):
    ordered = sorted(names)
  if len(names) > 1000:
    raise UsageError(
      f'{task.paths["train"]}: column {task.label!r} holds {len(names)} '
      'labels; name the column of the classes, or give regression=True'
    )
  return task._replace(labels=tuple(ordered))


def _records(task: Task, path: str) -> Iterator[Record]:
  found = (part for record in records.read(path, task.columns) for part in task.expand(record))
  yield from task.gather(found) if task.gather else found


def _example(task: Task, record: Record, needs_label: bool) -> Example:
  texts = [filled(record, text) for text in task.texts]
  if task.form == 'target' and needs_label:
    check_label(record, task.texts[-1], texts[-1])
  if len(task.answers) == 1 and '{' not in task.answers[0]:
    given = record[task.answers[0]]
    if not isinstance(given, list) or len(given) < 2:
      raise UsageError(f'{record.where}: {task.answers[0]!r} is not a list of answers')
    texts += [_text(record, task.answers[0], answer) for answer in given]
  else:
    texts += [filled(record, answer) for answer in task.answers]
  choices = len(texts) - len(task.texts)
  return Example(record.where, tuple(texts), _label(task, record, needs_label, choices))


def is_missing(record: Record, value: Any) -> bool:
  """Whether a label is missing: empty, null, NaN, or -1 in TFDS."""
  if isinstance(value, float) and math.isnan(value):
    return True
  if isinstance(value, str):
    return not value.strip()
  if isinstance(value, int | float) and value == -1:
    return record.where.startswith('tfds(')
  return value is None or value == []


def check_label(record: Record, column: str, value: Any):
  """Rejects an example whose label is missing."""
  if is_missing(record, value):
    raise UsageError(
      f'{record.where}: column {column!r} holds {value!r}, which is not a '
      'label; fix or remove the line'
    )


def check_tag(where: str, tag: str) -> None:
  """Rejects a tag with white space, which parts a sentence's tags in files."""
  if tag.split() != [tag]:
    raise UsageError(
      f'{where}: the tag {tag!r} holds white space, which separates tags in '
      'the predictions; rename it'
    )


def filled(record: Record, text: str) -> str:
  """The text of a column, or of a template with its columns filled in."""
  if '{' not in text:
    return _as_text(record, text)
  filled = ''
  for literal, column in _parts(text):
    filled += literal + (_as_text(record, column) if column else '')
  return filled


def _parts(template: str) -> list[tuple[str, str | None]]:
  """A template's literals, each with the next column, or None at the end."""
  try:
    found = string.Formatter().parse(template)
    parts = [(literal, column) for literal, column, *_ in found]
    why = 'has more in its braces than the name of a column'
  except ValueError as e:
    parts, why = [], str(e)
  # Rejects what parsing drops, such as format specifications after ':'.
  again = ''
  for literal, column in parts:
    again += literal.replace('{', '{{').replace('}', '}}')
    again += f'{{{column}}}' if column else ''
  if again != template:
    raise UsageError(
      f'finetune.task: the template {template!r}: {why}; write columns as in '
      "'{title}. {body}', and a brace of the text twice"
    )
  return parts


def _as_text(record: Record, column: str) -> str:
  return _text(record, column, record[column])


def _text(record: Record, column: str, value: Any) -> str:
  if isinstance(value, str | int | float) and value == value:  # no NaN
    return str(value)
  raise UsageError(
    f'{record.where}: column {column!r} holds {value!r:.60}, which is not a '
    'text; write one, or name another column'
  )


def _label(task: Task, record: Record, needed: bool, choices: int) -> int | float | None:
  """The number of the class, or the score."""
  if task.form == 'target':
    return None
  if not needed and task.label not in record.fields:
    return None
  value = record[task.label]
  if not needed and is_missing(record, value):
    return None  # withheld by the publisher
  if task.regression:
    return _score(task, record, value)
  check_label(record, task.label, value)
  from_tfds = record.where.startswith('tfds(')
  labels = task.labels or tuple(map(str, range(choices)))
  if task.form == 'choice':
    labels = labels[:choices]
  if str(value) in labels:
    return labels.index(str(value))
  # TFDS numbers the classes.
  if from_tfds and isinstance(value, int) and 0 <= value < len(labels):
    return value
  raise UsageError(
    f'{record.where}: the label {value!r} is none of '
    + ', '.join(labels)
    + '; where it is not known leave it empty' * (not needed)
  )


def _score(task: Task, record: Record, value: Any) -> float:
  try:
    score = float(value)
  except (TypeError, ValueError):
    score = math.nan
  if not math.isfinite(score):
    raise UsageError(
      f'{record.where}: {task.label!r} holds {value!r}, which is not a finite '
      'number; fix or remove the line'
    )
  return score


def names(text: str) -> tuple[str, ...]:
  """The parts of a comma list."""
  return tuple(x.strip() for x in re.split(r',\s*', text) if x.strip())


def tables(train: str, dev: str, test: str) -> dict[str, str]:
  """The paths of a user's tables by split, without empty ones."""
  paths = {'train': train, 'dev': dev, 'test': test}
  return {split: path for split, path in paths.items() if path}


# Locating the tables of a published task: in its folder, or in TFDS.


def splits(folder: str, file: str, tfds: str) -> dict[str, str]:
  """The paths of train, dev and, if the folder has it, test."""
  names = {'train': 'train', 'dev': 'validation', 'test': 'test'}
  paths = {
    split: table(folder, file.format(split), f'{tfds}:{name}') for split, name in names.items()
  }
  if folder and not os.path.isfile(paths['test']):
    del paths['test']
  return paths


def table(folder: str, name: str, tfds: str) -> str:
  """A file of the folder, possibly compressed; or the split in TFDS.

  If the name is a pattern, the first matching file is taken.
  """
  if not folder:
    return f'tfds:{tfds}'
  name = next(iter(sorted(glob.glob(name, root_dir=folder))), name)
  path = os.path.join(folder, name)
  packed = [p for e in lines.COMPRESSED if os.path.isfile(p := path + e)]
  return packed[0] if packed and not os.path.isfile(path) else path


def instructions(page: str, name: str, tfds: str) -> tuple[str, str]:
  """How to get the data: manually, and from TFDS."""
  return (
    f'unpack {name} from {page} and name its folder in the task',
    f'leave the folder out and prepare the set of TFDS: tfds build {tfds} '
    '--file_format=array_record',
  )
