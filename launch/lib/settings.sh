# shellcheck shell=bash
# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Reads and checks a settings file; settings.example.sh explains the fields.

# shellcheck disable=SC2034 # what sources this file uses them
load_settings() {
  [[ -f $1 ]] || die 2 "$1: no such file; start from launch/settings.example.sh"
  SETTINGS=$1
  NAME='' ZONE='' PROJECT='' ACCELERATOR='' RUNTIME='' HOSTS=''
  SLICES=1 MIN_SLICES='' SLICE_WAIT_SECONDS=600
  SPOT=no REQUEST=queued CREATE_FLAGS=() SSH_FLAGS=()
  COMMAND=() WORKDIR='' RESULTS='' HOST_SETUP='' SECRETS_FILE=''
  EXTRAS=tpu PYTHON_VERSION=3.12 INCLUDE=() PRICE=''
  POLL_SECONDS=20 STRAGGLER_SECONDS=120 COPY_MINUTES=30 MAX_RESTARTS=100
  DELETE_AFTER=no REQUEST_TRIES=5 RETRY_SECONDS=120 ENVIRONMENT=()
  IMAGE='' NFS='' MOUNT=/mnt/shared TOPOLOGY='' CLUSTER=''
  # In a subshell first: a mistake would end this shell with code 1.
  # shellcheck source=/dev/null
  (source "$1" > /dev/null) || die 2 "$1: a mistake in it (above); it is Bash"
  # shellcheck source=/dev/null
  source "$1"
  local field
  # gs://b/run//config.json and gs://b/run/config.json are different objects.
  for field in WORKDIR RESULTS; do
    while [[ ${!field} == ?*/ && ${!field} != gs:// ]]; do
      printf -v "$field" %s "${!field%/}"
    done
  done
  for field in NAME ZONE ACCELERATOR WORKDIR; do
    [[ -n ${!field} ]] ||
      bad "$field" 'is missing; launch/settings.example.sh explains it'
  done
  ((${#COMMAND[@]})) || bad COMMAND 'is missing: what runs on every host'
  [[ $NAME =~ ^[a-z][a-z0-9-]{0,39}$ ]] ||
    bad NAME 'lower case letters, digits and dashes, a letter first'
  check_choice SPOT yes no
  check_choice REQUEST queued direct
  check_choice DELETE_AFTER yes no always
  MIN_SLICES=${MIN_SLICES:-$SLICES}
  for field in SLICES MIN_SLICES SLICE_WAIT_SECONDS COPY_MINUTES MAX_RESTARTS \
    STRAGGLER_SECONDS REQUEST_TRIES; do
    # Bash reads 08 as octal.
    [[ ${!field} =~ ^(0|[1-9][0-9]*)$ ]] ||
      bad "$field" 'a whole number, without zeros in front'
  done
  for field in POLL_SECONDS RETRY_SECONDS; do
    [[ ${!field} =~ ^[0-9]+([.][0-9]+)?$ ]] || bad "$field" 'seconds'
  done
  ((SLICES > 0)) || bad SLICES 'at least 1'
  ((MIN_SLICES > 0 && MIN_SLICES <= SLICES)) ||
    bad MIN_SLICES "from 1 to SLICES=$SLICES; empty: all"
  ((STRAGGLER_SECONDS > 0)) || bad STRAGGLER_SECONDS 'at least 1'
  ((REQUEST_TRIES > 0)) || bad REQUEST_TRIES 'at least 1'
  ((SLICES == 1)) || [[ $REQUEST == queued ]] ||
    bad SLICES 'several slices need REQUEST=queued'
  [[ -z $RESULTS || $RESULTS == gs://?* ]] || bad RESULTS 'begins with gs://'
  if in_bucket; then
    [[ $WORKDIR == gs://?*/?* ]] || bad WORKDIR 'in a bucket: gs://BUCKET/FOLDER'
    [[ -z $RESULTS ]] ||
      bad RESULTS 'nothing is to be copied, as WORKDIR is in a bucket: empty it'
    [[ ,$EXTRAS, == *,gcs,* ]] || EXTRAS+=,gcs
  else
    [[ $DELETE_AFTER == no || -n $RESULTS ]] ||
      bad DELETE_AFTER 'needs RESULTS, or a WORKDIR in a bucket: disks go with' \
        'the slice'
  fi
  [[ -z $PRICE || $PRICE =~ ^[0-9]+([.][0-9]+)?$ ]] ||
    bad PRICE 'dollars per chip and hour, such as 3.22'
  check_secrets
  size_up
  check_environment
}

# Whether WORKDIR is in a bucket: then hosts share and store nothing.
in_bucket() {
  [[ $WORKDIR == gs://* ]]
}

bad() {
  local field=$1
  shift
  die 2 "$SETTINGS: $field=${!field:-}: $*"
}

check_choice() {
  local field=$1 choice
  shift
  for choice in "$@"; do
    if [[ ${!field} == "$choice" ]]; then
      return
    fi
  done
  bad "$field" "one of $*"
}

# NAME=value each; LIBTPU_INIT_ARGS defaults to the generation's flags.
check_environment() {
  local pair given=no chip=$GENERATION
  for pair in "${ENVIRONMENT[@]}"; do
    [[ $pair =~ ^[A-Za-z_][A-Za-z0-9_]*= && $pair != *$'\n'* ]] ||
      die 2 "$SETTINGS: ENVIRONMENT=$pair: not NAME=value on one line"
    [[ $pair != LIBTPU_INIT_ARGS=* ]] || given=yes
  done
  if [[ $given == yes ]]; then
    return
  fi
  [[ $chip != v5litepod ]] || chip=v5e
  pair=$(python3 "$LAUNCH/../gpt_jax/core/runtime/tpu_flags.py" "$chip") ||
    die 2 'python3 is needed (above); or give LIBTPU_INIT_ARGS in ENVIRONMENT'
  [[ -z $pair ]] || ENVIRONMENT+=("LIBTPU_INIT_ARGS=$pair")
}

check_secrets() {
  if [[ -z $SECRETS_FILE ]]; then
    return
  fi
  [[ -f $SECRETS_FILE ]] ||
    bad SECRETS_FILE 'no such file; lines of NAME=value, such as WANDB_API_KEY=...'
  [[ -z $(find "$SECRETS_FILE" -perm /077) ]] ||
    bad SECRETS_FILE "others may read it; chmod 600 $SECRETS_FILE"
  # Do not show the line itself: it may be the secret.
  local number
  number=$(grep -nvE '^(#.*|[A-Za-z_][A-Za-z0-9_]*=.*|)$' "$SECRETS_FILE" |
    head -n 1 | cut -d: -f1) || true
  [[ -z $number ]] ||
    bad SECRETS_FILE "line $number is not NAME=value"
}

# Chips, hosts and shape of the accelerator, by the table that `gpt-jax plan` has
# too, and its runtime.
size_up() {
  local found runtime=''
  found=$(python3 "$LAUNCH/../gpt_jax/core/costs/slice_names.py" "$ACCELERATOR") ||
    bad ACCELERATOR "${found:-python3 is needed (above)}"
  # The cloud calls v5e v5litepod.
  read -r ACCELERATOR CHIPS HOSTS_A_SLICE SHAPE <<< "$found"
  GENERATION=${ACCELERATOR%-*}
  case $GENERATION in
    v4) runtime=tpu-ubuntu2204-base ;;
    v5p) runtime=v2-alpha-tpuv5 ;;
    v5litepod) runtime=v2-alpha-tpuv5-lite ;;
    v6e) runtime=v2-alpha-tpuv6e ;;
  esac
  RUNTIME=${RUNTIME:-$runtime}
  HOSTS_A_SLICE=${HOSTS:-$HOSTS_A_SLICE}
  NUM_HOSTS=$((HOSTS_A_SLICE * SLICES))
  # NODES are those of the run, maybe fewer than ALL_NODES: see some_slices.sh.
  local i
  NODES=("$NAME")
  if ((SLICES > 1)); then
    NODES=()
    for ((i = 0; i < SLICES; i++)); do
      NODES+=("$NAME-$i")
    done
  fi
  ALL_NODES=("${NODES[@]}")
}
