# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What keeps a run right: replayed steps, checkpoints in memory."""
