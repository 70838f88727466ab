# shellcheck shell=bash
# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
#
# The cost of the slices per hour, shown before anything is created. The prices
# are those of gpt_jax/planning/prices.py; PRICE in the settings overrides them.

# Whether what is asked for is part of a sum that was shown.
# shellcheck disable=SC2034 # slices.sh reads it
COST_SHOWN=no

show_cost() {
  local price=$PRICE spot percent noted source='PRICE of the settings'
  local kind='on demand' page=https://cloud.google.com/tpu/pricing
  local chips=$((CHIPS * SLICES))
  local hosts="$NUM_HOSTS hosts"
  ((NUM_HOSTS > 1)) || hosts='1 host'
  local what="$SLICES x $ACCELERATOR, $hosts, $chips chips"
  [[ $SPOT != yes ]] || kind=spot
  if [[ -z $price ]]; then
    read -r price spot percent noted < <(
      python3 "$LAUNCH/../gpt_jax/planning/prices.py" "$GENERATION"
    ) || die 2 'python3 is needed (above); or set PRICE'
    source="noted $noted, yours to check: $page"
    if [[ $SPOT == yes ]]; then
      price=$spot source="a guess at $percent% of the list price; $source"
    fi
  fi
  if [[ $price == - ]]; then
    echo "$what: no price is known here; set PRICE, from $page"
    return
  fi
  awk -v chips="$chips" -v price="$price" -v kind="$kind" -v source="$source" \
    -v what="$what" 'BEGIN {
      printf "%s: about $%.2f an hour, $%.0f a day, %s ($%.2f a chip-hour; %s)\n",
        what, chips * price, 24 * chips * price, kind, price, source }'
}
