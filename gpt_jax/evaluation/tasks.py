# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The tasks by name, with GPT-3's prompts (appendix G) unless noted.

Those of GLUE are text to text: see `text_tasks`.
"""

from collections.abc import Callable

from gpt_jax.evaluation import continuing, own_tables, text_tasks
from gpt_jax.evaluation.choices import Make

TASKS: dict[str, Callable[..., Make]] = {
  'lambada': continuing.lambada,
  'blimp': continuing.blimp,
  'piqa': continuing.piqa,
  'hellaswag': continuing.hellaswag,
  'story_cloze': continuing.story_cloze,
  'race': continuing.race,
  'boolq': continuing.boolq,
  'multiple_choice': own_tables.multiple_choice,
  'qa': own_tables.qa,
  'wikitext2': own_tables.wikitext2,
  'text': own_tables.text,
  **text_tasks.TASKS,
}
