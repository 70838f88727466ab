# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What an entry of the table of optimisers gives."""

from collections.abc import Callable
from typing import Any

import optax

# A tree like the parameters: of each its logical axes, a `PartitionSpec`.
Axes = Any
# From the learning rate and the parameters' axes to the optimizer.
Build = Callable[[optax.Schedule, Axes], optax.GradientTransformation]
