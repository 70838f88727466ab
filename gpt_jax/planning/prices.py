# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What an hour of a TPU chip costs.

  python3 gpt_jax/planning/prices.py v5litepod

prints for launch/ the price on demand, that of spot, which is a guess, its
share of the former in percent, and when they were noted; - for prices that are
not known. It needs only Python: the launching machine may have nothing else.
"""

import sys
from collections.abc import Sequence

# Dollars per chip-hour on demand in the cheapest US region, by the prefix of
# accelerator names, from memory of the public price list.
ON_DEMAND = {'v4': 3.22, 'v5litepod': 1.20, 'v5p': 4.20, 'v6e': 2.70}
NOTED = '2025-06'
WHERE = 'https://cloud.google.com/tpu/pricing'
# Spot prices vary: a guess.
SPOT_PERCENT = 40


def of_chip(prefixes: Sequence[str]) -> float | None:
  """Dollars per chip-hour on demand; None: not known here.

  Args:
    prefixes: of the accelerator names of a chip.
  """
  known = (ON_DEMAND[name] for name in prefixes if name in ON_DEMAND)
  return next(known, None)


def source() -> str:
  """Where the prices are from, in words."""
  return f'on demand in the cheapest US region, noted {NOTED}, yours to check: ' + WHERE


if __name__ == '__main__':
  price = of_chip(sys.argv[1:])
  shown = '- -'
  if price is not None:
    shown = f'{price:.2f} {price * SPOT_PERCENT / 100:.2f}'
  print(shown, SPOT_PERCENT, NOTED)
