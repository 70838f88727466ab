# shellcheck shell=bash
# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
#
# A run that goes on with some of its slices, if MIN_SLICES is less than SLICES.
# A slice itself runs with all its hosts or not at all.
#
# Each slice then has a request of its own: a lost one takes no other along, and
# is asked for again while the others train. That slices belong together, which
# Google Cloud says of those of one request, each start says by MEGASCALE_*,
# variables that JAX and libtpu read first.

# Whether each slice has a request of its own.
apart() {
  ((MIN_SLICES < SLICES))
}

# of_slice NODE COMMAND...: a command that is about one request, for this one.
# shellcheck disable=SC2034 # read by the command
of_slice() {
  local NAME=$1 SLICES=1 NODES=("$1") NUM_HOSTS=$HOSTS_A_SLICE
  shift
  "$@"
}

# Makes these the slices of the run.
take_slices() {
  NODES=("$@")
  NUM_HOSTS=$((HOSTS_A_SLICE * ${#NODES[@]}))
}

# Sets HERE, the slices that are there; PENDING, the number of those asked for;
# and LOST, the others.
look_for_slices() {
  local node
  HERE=() PENDING=0 LOST=()
  for node in "${ALL_NODES[@]}"; do
    if ! of_slice "$node" slices_gone; then
      HERE+=("$node")
      continue
    fi
    case $STATE in
      CREATING | ACCEPTED | WAITING_FOR_RESOURCES | PROVISIONING)
        PENDING=$((PENDING + 1))
        ;;
      *) LOST+=("$node") ;;
    esac
  done
}

# Asks for the slices that are not there; one confirmation covers all.
create_some() {
  local node NUM_HOSTS=$((HOSTS_A_SLICE * SLICES))
  LOST=("${ALL_NODES[@]}")
  if [[ $DRY_RUN == no ]]; then
    look_for_slices
  fi
  ((${#LOST[@]})) || return 0
  [[ $COST_SHOWN == yes ]] || show_cost
  COST_SHOWN=yes
  confirm "Create ${LOST[*]}, first deleting what may be left of them?"
  for node in "${LOST[@]}"; do
    of_slice "$node" create_slices
  done
}

# Waits for all slices, and for more than MIN_SLICES no longer than
# SLICE_WAIT_SECONDS. Returns 1 if one that is needed has to be asked for again.
wait_for_some() {
  local since=$SECONDS told='' node
  if [[ $DRY_RUN == yes ]]; then
    for node in "${ALL_NODES[@]}"; do
      of_slice "$node" read_state_dry
    done
    return
  fi
  while :; do
    look_for_slices
    if [[ ${HERE[*]} != "$told" ]]; then
      told=${HERE[*]}
      say "${#HERE[@]} of $SLICES slices are there: $told"
    fi
    if ((${#HERE[@]} >= MIN_SLICES)); then
      if ((PENDING == 0 || SECONDS - since >= SLICE_WAIT_SECONDS)); then
        break
      fi
    else
      for node in "${LOST[@]}"; do
        of_slice "$node" wait_for_slices || return 1
      done
    fi
    sleep "$POLL_SECONDS"
  done
  find_run
  if [[ -n $RUN_ON && $(slices_listed) != "$RUN_ON" ]]; then
    say "the run was on $RUN_ON: ending what is left of it"
    thrice end_run || die 1 'it does not end; the same command goes on'
    take_slices "${HERE[@]}"
  fi
}

# Takes the slices that are there; if a run is on some of them, only those. Sets
# RUN_ON, the slices that it was started on, of which some may be gone.
find_run() {
  local node each left=()
  RUN_ON=''
  take_slices "${HERE[@]}"
  for node in "${HERE[@]}"; do
    of_slice "$node" on_hosts 0 slices_of_run || continue
    RUN_ON=$(sed -n 's/^gpt_jax|[^|]*|on //p' "$SCRATCH/answers")
    [[ -z $RUN_ON ]] || break
  done
  if [[ -z $RUN_ON ]]; then
    return
  fi
  for each in ${RUN_ON//,/ }; do
    if [[ " ${HERE[*]} " == *" $each "* ]]; then
      left+=("$each")
    fi
  done
  take_slices "${left[@]}"
}

slices_listed() {
  local IFS=,
  echo "${NODES[*]}"
}

# For commands about a run that may be there.
find_slices() {
  look_for_slices
  ((${#HERE[@]})) ||
    die 1 "$NAME: none of its slices is there; launch/tpu.sh create $SETTINGS"
  find_run
}

# True if one of the run's slices was preempted.
some_gone() {
  local node
  for node in "${NODES[@]}"; do
    if of_slice "$node" slices_gone; then
      return
    fi
  done
  return 1
}

# While a run trains on some slices: asks for the lost ones again. True if more
# are there than it trains on.
more_slices() {
  local node CONFIRMED=yes
  look_for_slices
  for node in "${LOST[@]}"; do
    # One of the run's is for `slices_gone` to see.
    if [[ " ${NODES[*]} " != *" $node "* ]]; then
      (of_slice "$node" create_slices) || say 'goes on without it'
    fi
  done
  ((${#HERE[@]} > ${#NODES[@]}))
}

# Sets START: COMMAND, told which slices are of the run, and which this one is.
start_command() {
  START=("${COMMAND[@]}")
  if ! apart; then
    return
  fi
  local address=ADDRESS get=(tpu-vm describe "${NODES[0]}"
    '--format=value(networkEndpoints[0].ipAddress)') joined=()
  if [[ $DRY_RUN == yes ]]; then
    tpus "${get[@]}"
  else
    address=$(tpus "${get[@]}") || return 1
  fi
  # Alone, a slice is none of several.
  if ((${#NODES[@]} > 1)); then
    joined=("MEGASCALE_COORDINATOR_ADDRESS=$address"
      "MEGASCALE_NUM_SLICES=${#NODES[@]}" MEGASCALE_SLICE_ID=@SLICE@)
  fi
  START=(env "RUN_SLICES=$(slices_listed)" "${joined[@]}" "${COMMAND[@]}")
}

delete_some() {
  local node
  confirm "Delete the slices of $NAME, with all that is on their disks?"
  for node in "${ALL_NODES[@]}"; do
    of_slice "$node" delete_slices
  done
}
