# shellcheck shell=bash
# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
#
# mask FILE: copies its input, with the values of the NAME=value lines in FILE
# replaced by ***. FILE may be missing.
mask() {
  local line value values=()
  if [[ -f $1 ]]; then
    while IFS= read -r line || [[ -n $line ]]; do
      value=${line#*=}
      [[ $line == '#'* || ${#value} -lt 4 ]] || values+=("$value")
    done < "$1"
  fi
  while IFS= read -r line || [[ -n $line ]]; do
    for value in "${values[@]}"; do
      line=${line//"$value"/***}
    done
    printf '%s\n' "$line"
  done
}
