# shellcheck shell=bash
# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
#
# The cost of the slices per hour, shown before anything is created.

# Dollars per chip-hour in the cheapest US region, from memory of the public
# price list. Spot prices vary; these are 40% of the list price. PRICE in the
# settings overrides them.
PRICES_NOTED=2025-06
declare -A ON_DEMAND=([v4]=3.22 [v5litepod]=1.20 [v5p]=4.20 [v6e]=2.70)
SPOT_SHARE=0.40

# Whether what is asked for is part of a sum that was shown.
# shellcheck disable=SC2034 # slices.sh reads it
COST_SHOWN=no

chip_price() {
  local listed=${ON_DEMAND[$GENERATION]:-}
  if [[ -n $PRICE ]]; then
    echo "$PRICE"
  elif [[ $SPOT == yes ]]; then
    awk -v p="$listed" -v s="$SPOT_SHARE" 'BEGIN { printf "%.2f\n", p * s }'
  else
    echo "$listed"
  fi
}

show_cost() {
  local price source kind='on demand' chips=$((CHIPS * SLICES))
  if [[ -z $PRICE && -z ${ON_DEMAND[$GENERATION]:-} ]]; then
    echo "$SLICES x $ACCELERATOR, $NUM_HOSTS hosts, $chips chips: no price is" \
      'known here; set PRICE, from https://cloud.google.com/tpu/pricing'
    return
  fi
  price=$(chip_price)
  if [[ $SPOT == yes ]]; then
    kind=spot
  fi
  source="noted $PRICES_NOTED, yours to check: https://cloud.google.com/tpu/pricing"
  if [[ -n $PRICE ]]; then
    source='PRICE of the settings'
  elif [[ $SPOT == yes ]]; then
    source="a guess at 40% of the list price; $source"
  fi
  awk -v chips="$chips" -v price="$price" -v kind="$kind" -v source="$source" \
    -v what="$SLICES x $ACCELERATOR, $NUM_HOSTS hosts, $chips chips" 'BEGIN {
      printf "%s: about $%.2f an hour, $%.0f a day, %s ($%.2f a chip-hour; %s)\n",
        what, chips * price, 24 * chips * price, kind, price, source }'
}
