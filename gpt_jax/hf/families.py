# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The model families that are read and written, by `model_type`."""

from gpt_jax.hf.albert import ALBERT
from gpt_jax.hf.bart import BART
from gpt_jax.hf.base import Family
from gpt_jax.hf.bert import BERT
from gpt_jax.hf.big_bird import BIG_BIRD
from gpt_jax.hf.deberta import DEBERTA, DEBERTA_V2
from gpt_jax.hf.distilbert import DISTILBERT
from gpt_jax.hf.electra import ELECTRA
from gpt_jax.hf.falcon import FALCON
from gpt_jax.hf.gemma import GEMMA2, GEMMA3_TEXT
from gpt_jax.hf.gpt2 import GPT2
from gpt_jax.hf.gpt_neo import GPT_NEO
from gpt_jax.hf.gpt_neox import GPT_NEOX
from gpt_jax.hf.gptj import GPTJ
from gpt_jax.hf.llama import LLAMA, MISTRAL
from gpt_jax.hf.marian import MARIAN
from gpt_jax.hf.mbart import MBART
from gpt_jax.hf.mixtral import MIXTRAL
from gpt_jax.hf.olmo2 import OLMO2
from gpt_jax.hf.openai_gpt import OPENAI_GPT
from gpt_jax.hf.qwen3 import QWEN3
from gpt_jax.hf.roberta import ROBERTA
from gpt_jax.hf.switch_transformers import SWITCH_TRANSFORMERS
from gpt_jax.hf.t5 import T5
from gpt_jax.hf.transfo_xl import TRANSFO_XL
from gpt_jax.hf.xlnet import XLNET

# An export of a model of our own takes the first that can express it.
FAMILIES: dict[str, Family] = {
  family.model_type: family
  for family in (
    GPT2,
    OPENAI_GPT,
    GPT_NEO,
    GPTJ,
    GPT_NEOX,
    LLAMA,
    MISTRAL,
    MIXTRAL,
    QWEN3,
    OLMO2,
    GEMMA2,
    GEMMA3_TEXT,
    FALCON,
    BERT,
    ROBERTA,
    ALBERT,
    ELECTRA,
    DISTILBERT,
    DEBERTA,
    DEBERTA_V2,
    BIG_BIRD,
    T5,
    SWITCH_TRANSFORMERS,
    BART,
    MBART,
    MARIAN,
    TRANSFO_XL,
    XLNET,
  )
}
