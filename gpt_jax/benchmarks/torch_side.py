# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The side of torch: the model of transformers, for processes of its own."""

import os
from typing import Any


def load(folder: str) -> tuple[Any, bool]:
  """Its model of a checkpoint, on all cores, and whether it has an encoder.

  Args:
    folder: of Hugging Face's files.
  """
  import torch  # pyright: ignore[reportMissingImports]
  import transformers  # pyright: ignore[reportMissingImports]

  transformers.logging.set_verbosity_error()
  transformers.logging.disable_progress_bar()
  torch.set_num_threads(len(os.sched_getaffinity(0)))
  encoder = transformers.AutoConfig.from_pretrained(folder).is_encoder_decoder
  kind = (
    transformers.AutoModelForSeq2SeqLM
    if encoder
    else transformers.AutoModelForCausalLM
  )
  return kind.from_pretrained(folder), encoder
