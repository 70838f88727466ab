# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The model families that are read and written, by `model_type`."""

from gpt_jax.hf.base import Family
from gpt_jax.hf.bert import ALBERT, BERT, BIG_BIRD, DISTILBERT, ELECTRA, ROBERTA
from gpt_jax.hf.deberta import DEBERTA, DEBERTA_V2
from gpt_jax.hf.gpt import FALCON, GPT2, GPT_NEO, GPT_NEOX, GPTJ, OPENAI_GPT
from gpt_jax.hf.llama import GEMMA2, GEMMA3_TEXT, LLAMA, MISTRAL, MIXTRAL, OLMO2, QWEN3
from gpt_jax.hf.lstm import AWD_LSTM, ELMO
from gpt_jax.hf.seq2seq import BART, MARIAN, MBART, SWITCH_TRANSFORMERS, T5
from gpt_jax.hf.transformer_xl import TRANSFO_XL, XLNET

# A model of our own is exported as the first family that can express it.
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
    AWD_LSTM,
    ELMO,
  )
}
