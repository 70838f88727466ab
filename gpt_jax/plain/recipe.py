# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The constants of one recipe. These are of GPT-2 small; `gpt-jax eject` prints a config's own."""

from typing import Any

import jax.numpy as jnp

# The model.
VOCAB_SIZE: int = 50_257
CONTEXT_LENGTH: int = 1024  # tokens of a row
NUM_LAYERS: int = 12
NUM_ENCODER_LAYERS: int = 0
D_MODEL: int = 768  # width of the states between layers
NUM_HEADS: int = 12
NUM_KV_HEADS: int = 12  # heads of keys and values
HEAD_SIZE: int = 64
D_FF: int = 3072  # width inside the feed-forward layers
WINDOW: int = 0  # keys that a token sees in every second layer, itself included
ROPE_THETA: float = 10_000.0  # base of the rotation's angles
NUM_BUCKETS: int = 32  # of distances between tokens
MAX_DISTANCE: int = 128  # from here on one bucket
NORM_EPSILON: float = 1e-5
SCORE_SCALE: float = 0.125  # of queries times keys
EMBEDDING_SCALE: float = 1.0  # of the tokens' vectors
OUTPUT_SCALE: float = 1.0  # of the last states, before the output
INIT_STDDEV: float = 0.02  # of the initial weights
INIT_SCALE: float = 1.0  # of a kernel's initial variance: scale / inputs
TABLE_STDDEV: float = 0.02  # of the initial tables of vectors
DTYPE: Any = jnp.bfloat16  # of activations and products; parameters are float32
EMBEDDING_DROPOUT: float = 0.0
RESIDUAL_DROPOUT: float = 0.0  # of what a sublayer adds
ATTENTION_DROPOUT: float = 0.0  # of the attention's probabilities
BIASES: bool = True
GATED: bool = False
NORM_SCALES: bool = True
NORM_BIASES: bool = True
FINAL_NORM: bool = True
POSITION_TABLE: bool = True
DISTANCE_VECTORS: bool = False
ALIBI: bool = False
SCORE_BIAS: bool = False
TIED: bool = True
SINUSOIDS: bool = False
READS_DOCUMENTS: bool = False
READS_SENTENCES: bool = False
PENALTY: bool = False
PACKED: bool = False
PADDED: bool = False
DRAWS: bool = False

# The experts (Switch).
NUM_EXPERTS: int = 0
EXPERT_EVERY: int = 2  # every Nth layer has experts
CAPACITY_FACTOR: float = 1.25  # room of an expert, by its even share of a group's tokens
GROUP_SIZE: int = 1024  # tokens that are routed together, in training
DECODER_GROUP_SIZE: int = 1024  # of the decoder
ROUTER_JITTER: float = 0.01  # the router's input is multiplied by 1 +- this
BALANCE: float = 0.01  # factor of the load-balancing loss

# Training.
SEED: int = 0
NUM_STEPS: int = 600_000  # of the whole run; --stop ends it earlier, at the same rates
BATCH_ROWS: int = 512
STAGES: tuple[tuple[int, int, int], ...] = ((0, 512, 1024),)  # first step, rows, tokens of a row
MICRO_ROWS: int = 8  # rows computed at once, which divide BATCH_ROWS; fewer need less memory
PEAK_RATE: float = 6e-4
FINAL_RATE: float = 0.1  # the last rate, as a part of the peak
WARMUP: int = 2000  # steps
WARMUP_TOKENS: int = 0
WARMUP_STEPS: int = 2000  # steps of the warm-up
WARMUP_BY_TOKENS: bool = False
DECAY_START: int = 2000
DECAY_END: int = 600_000
DECAY_BY_TOKENS: bool = False
HOLD: int = 10_000  # steps at the peak rate
BETA1: float = 0.9
BETA2: float = 0.95
ADAM_EPSILON: float = 1e-8
WEIGHT_DECAY: float = 0.1
BETA2_POWER: float = 0.8  # beta2 of step k is 1 - k^-0.8
FACTORED: bool = False
CLIP_UPDATE: float = 0.0  # largest root mean square of an update
MOMENTUM: bool = False
CLIP_NORM: float = 1.0  # largest norm of the gradient
Z_LOSS: float = 0.0  # factor of log(Z)^2
LABEL_SMOOTHING: float = 0.0

# The rows.
ORDER: str = '0'  # names the order of rows: another text gives another order
WEIGHTS: dict[str, float] = {}  # share of each corpus in the rows
SHARES_OF_TOKENS: bool = False
NOISE_RATE: float = 0.15  # part of a text that is left out of it
SPAN_LENGTH: float = 3.0  # mean tokens of a span left out
TEXT_LENGTH: int = 568  # tokens of text in a row
SOURCE_LENGTH: int = 512  # tokens that the encoder reads
TARGET_LENGTH: int = 114  # tokens that the decoder writes
NUM_SENTINELS: int = 100
MASK_RATE: float = 0.15  # part of a row's tokens that are predicted
MASK_SHARE: float = 0.8  # of them, become [MASK]
RANDOM_SHARE: float = 0.1  # of them, become another token
SHORT_SHARE: float = 0.1  # of the rows, aim at fewer tokens than fit
