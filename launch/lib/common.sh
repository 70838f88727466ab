# shellcheck shell=bash
# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Messages, gcloud, and a scratch folder.

((BASH_VERSINFO[0] * 10 + BASH_VERSINFO[1] >= 44)) || {
  echo "bash 4.4 or later is needed, this is $BASH_VERSION" >&2
  exit 2
}

say() {
  if [[ $DRY_RUN == yes ]]; then
    return
  fi
  printf '%(%H:%M:%S)T %s\n' -1 "$*"
}

# die CODE MESSAGE...: the message names the remedy.
die() {
  local code=$1
  shift
  printf '%s: %s\n' "$(basename "$0")" "$*" >&2
  exit "$code"
}

# confirm QUESTION: asks once; the answer holds for the whole command.
CONFIRMED=no
confirm() {
  if [[ $YES == yes || $DRY_RUN == yes || $CONFIRMED == yes ]]; then
    return
  fi
  local answer=''
  read -r -p "$1 [y/N] " answer || true
  [[ $answer == [yY] || $answer == [yY][eE][sS] ]] ||
    die 2 'not confirmed, nothing was done; --yes does not ask'
  CONFIRMED=yes
}

# A folder for gcloud's messages. mktemp lets only the user read it: the
# bundle for the hosts may contain secrets.
make_scratch() {
  SCRATCH=$(mktemp -d)
  trap 'rm -rf "$SCRATCH"' EXIT
}

# tpus ARGS...: `gcloud compute tpus`, in the project and zone of the settings.
tpus() {
  local command=(gcloud compute tpus "$@" "--zone=$ZONE")
  if [[ -n $PROJECT ]]; then
    command+=("--project=$PROJECT")
  fi
  run_or_show "${command[@]}"
}

run_or_show() {
  if [[ $DRY_RUN == no ]]; then
    "$@"
    return
  fi
  local word words=()
  for word in "$@"; do
    if [[ $word =~ ^(--[a-z-]+=)?[A-Za-z0-9_./:,@%+~-]*$ ]]; then
      words+=("$word")
    elif [[ $word =~ ^--[a-z-]+= ]]; then
      words+=("${word%%=*}=$(single_quote "${word#*=}")")
    else
      words+=("$(single_quote "$word")")
    fi
  done
  echo "${words[*]}"
}

single_quote() {
  printf "'%s'" "${1//\'/\'\\\'\'}"
}

# duration SECONDS: in words.
duration() {
  local s=$1
  if ((s < 120)); then
    echo "$s s"
  elif ((s < 7200)); then
    echo "$((s / 60)) min"
  else
    echo "$((s / 3600)) h $((s % 3600 / 60)) min"
  fi
}
