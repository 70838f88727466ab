# shellcheck shell=bash
# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
#
# The slices themselves: their state, creating, waiting, deleting.

# Sets STATE: ABSENT, or a state of queued resources; those of a single node
# are mapped to the same words, plus STOPPED and STOPPING. An error other than
# "not found" ends the command: an unreadable slice must not count as gone.
read_state() {
  local format='value(state)' tries resource=(tpu-vm)
  if [[ $REQUEST == queued ]]; then
    format='value(state.state)'
    resource=(queued-resources)
  fi
  for tries in 1 2 3; do
    if STATE=$(tpus "${resource[@]}" describe "$NAME" "--format=$format" \
      2> "$SCRATCH/error"); then
      STATE=$(node_state "$STATE")
      look_for_stopped
      return
    elif not_found "$SCRATCH/error"; then
      STATE=ABSENT
      return
    fi
    ((tries == 3)) || sleep "$POLL_SECONDS"
  done
  cat "$SCRATCH/error" >&2
  die 1 "cannot read the state of $NAME (above); check \`gcloud auth login\`," \
    'PROJECT, ZONE and the network, then give the same command again'
}

not_found() {
  grep -qiE 'NOT_FOUND|not found|was not found|HTTPError 404' "$1"
}

node_state() {
  case $1 in
    READY) echo ACTIVE ;;
    STARTING | RESTARTING | REPAIRING | REIMAGING | UNHIDING)
      echo PROVISIONING
      ;;
    PREEMPTED | TERMINATED) echo SUSPENDED ;;
    *) echo "$1" ;;
  esac
}

# Slices of one host can be stopped manually and keep their disk, while their
# queued resource stays ACTIVE.
look_for_stopped() {
  local node
  if [[ $REQUEST == queued && $STATE == ACTIVE ]] && ((NUM_HOSTS == 1)); then
    node=$(tpus tpu-vm describe "$NAME" '--format=value(state)' \
      2> "$SCRATCH/error") || return 0
    if [[ $node == STOP* ]]; then
      STATE=$node
    fi
  fi
}

# True if a spot slice was preempted, so that hosts will not answer. The queued
# resource may stay ACTIVE for a while, so the nodes are checked, too.
slices_gone() {
  if apart; then
    some_gone
    return
  fi
  read_state
  if [[ $STATE != ACTIVE ]]; then
    return 0
  fi
  local node state
  for node in "${NODES[@]}"; do
    if ! state=$(tpus tpu-vm describe "$node" '--format=value(state)' \
      2> "$SCRATCH/error"); then
      if not_found "$SCRATCH/error"; then
        return 0
      fi
    elif [[ $(node_state "$state") == SUSPENDED ]]; then
      return 0
    fi
  done
  return 1
}

# Requests the slices unless they exist or are requested already.
create_slices() {
  if apart; then
    create_some
    return
  fi
  STATE=ABSENT
  if [[ $DRY_RUN == no ]]; then
    read_state
  fi
  case $STATE in
    ACTIVE)
      say "$NAME is there already"
      return
      ;;
    CREATING | ACCEPTED | WAITING_FOR_RESOURCES | PROVISIONING)
      say "$NAME is asked for already: $STATE"
      return
      ;;
    STOPPED | STOPPING)
      start_stopped
      return
      ;;
    ABSENT | FAILED | SUSPENDED | SUSPENDING | DELETING) ;;
    *)
      die 1 "$NAME is $STATE, which this does not mend; look at it in the" \
        "Cloud console, or launch/tpu.sh delete $SETTINGS, then the same" \
        'command again'
      ;;
  esac
  [[ $COST_SHOWN == yes ]] || show_cost
  if [[ $STATE == ABSENT ]]; then
    confirm 'Create it?'
  else
    confirm "Delete $NAME ($STATE), with all on its disks, and create it again?"
    say "$NAME is $STATE: deleting it first"
    delete_now
  fi
  local flags=("--accelerator-type=$ACCELERATOR")
  if [[ $SPOT == yes ]]; then
    flags+=(--spot)
  fi
  local command
  if [[ $REQUEST == direct ]]; then
    command=(tpu-vm create "$NAME" "--version=$RUNTIME")
  elif ((SLICES > 1)); then
    command=(queued-resources create "$NAME" "--node-count=$SLICES"
      "--node-prefix=$NAME" "--runtime-version=$RUNTIME")
  else
    command=(queued-resources create "$NAME" "--node-id=$NAME"
      "--runtime-version=$RUNTIME")
  fi
  tpus "${command[@]}" "${flags[@]}" "${CREATE_FLAGS[@]}" ||
    die 1 "$NAME was not created (above); mend that, then give the same" \
      'command again'
}

start_stopped() {
  # `up` had it running: its processes may have saved before it was stopped.
  [[ -z ${VERDICT:-} ]] || stopped_by_hand
  [[ $COST_SHOWN == yes ]] || show_cost
  confirm "Start $NAME again ($STATE)?"
  while [[ $STATE == STOPPING ]]; do
    sleep "$POLL_SECONDS"
    read_state
  done
  say "$NAME is $STATE: starting it again"
  tpus tpu-vm start "$NAME" ||
    die 1 "$NAME was not started (above); mend that, then give the same" \
      "command again; or launch/tpu.sh delete $SETTINGS, with its disk"
}

# Waits until the slices are ACTIVE. Returns 1 if they were preempted meanwhile,
# or if the request failed; then REASON says why.
wait_for_slices() {
  local seen='' told=$SECONDS since=$SECONDS
  if apart; then
    wait_for_some
    return
  fi
  if [[ $DRY_RUN == yes ]]; then
    read_state_dry
    return
  fi
  while :; do
    read_state
    if [[ $STATE != "$seen" ]]; then
      say "$NAME: $STATE"
      seen=$STATE
    elif ((SECONDS - told >= 600)); then
      told=$SECONDS
      say "$NAME: still $STATE after $(duration $((SECONDS - since)))" \
        '(Ctrl-C is safe: the request stays, and the same command goes on)'
    fi
    case $STATE in
      ACTIVE) return ;;
      ABSENT) die 1 "$NAME: there is none; launch/tpu.sh create $SETTINGS" ;;
      SUSPENDED | SUSPENDING | DELETING) return 1 ;;
      STOPPED | STOPPING)
        die 1 "$NAME is $STATE; launch/tpu.sh create $SETTINGS starts it"
        ;;
      FAILED)
        REASON=$(tpus queued-resources describe "$NAME" \
          '--format=value(state.failedData.error.message)' 2>&1) || true
        REASON=${REASON:-no reason given}
        return 1
        ;;
    esac
    sleep "$POLL_SECONDS"
  done
}

# A request that fails for lack of capacity may succeed later; without quota,
# permission or a valid accelerator it will not.
may_succeed_later() {
  ! grep -qiE \
    'quota|PERMISSION_DENIED|INVALID_ARGUMENT|UNAUTHENTICATED|not supported' <<< "$1"
}

request_failed() {
  die 1 "$NAME: the request failed: $REASON; check quota, ZONE and ACCELERATOR," \
    'then give the same command again: it makes a new request'
}

# `wait`.
wait_once() {
  wait_for_slices && return
  [[ $STATE != FAILED ]] || request_failed
  return 1
}

read_state_dry() {
  if [[ $REQUEST == queued ]]; then
    tpus queued-resources describe "$NAME" '--format=value(state.state)'
  else
    tpus tpu-vm describe "$NAME" '--format=value(state)'
  fi
}

delete_slices() {
  if apart; then
    delete_some
    return
  fi
  STATE=ACTIVE
  if [[ $DRY_RUN == no ]]; then
    read_state
  fi
  if [[ $STATE == ABSENT ]]; then
    say "$NAME: there is none, nothing to delete"
    return
  fi
  confirm "Delete $NAME ($STATE), with all that is on its disks?"
  delete_now
  say "$NAME is deleted"
}

# Deleting may fail while the slices are being deleted already.
delete_now() {
  local tries command=(tpu-vm delete "$NAME" --quiet)
  if [[ $REQUEST == queued ]]; then
    command=(queued-resources delete "$NAME" --force --quiet)
  fi
  for tries in 1 2 3 4 5; do
    if tpus "${command[@]}" 2> "$SCRATCH/delete_error" ||
      not_found "$SCRATCH/delete_error"; then
      return
    fi
    ((tries == 5)) || sleep "$POLL_SECONDS"
  done
  cat "$SCRATCH/delete_error" >&2
  die 1 "$NAME could not be deleted (above) and may still cost money; give" \
    "launch/tpu.sh delete $SETTINGS until it says that it is deleted"
}
