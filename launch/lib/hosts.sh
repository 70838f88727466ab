# shellcheck shell=bash
# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Installs, starts, watches and stops a run on all hosts at once. The code that
# runs there is in on_host.sh.

# on_hosts WORKER ARGS...: on_host.sh on all hosts (WORKER=all), or on the first
# host of the first slice (WORKER=0). Its answers go to $SCRATCH/answers, other
# lines of its output to $SCRATCH/output, and ssh's messages to $SCRATCH/talk.
# @SLICE@ in ARGS becomes the number of the host's slice.
on_hosts() {
  local worker=$1
  shift
  ssh_hosts "$worker" "bash gpt_jax_run/code/launch/on_host.sh $(quote "$@")"
}

quote() {
  printf '%q ' "$@"
}

ssh_hosts() {
  local worker=$1 line=$2 nodes=("${NODES[@]}") node jobs=() failed=0 job i
  [[ $worker == all ]] || nodes=("${NODES[0]}")
  if [[ $DRY_RUN == yes ]]; then
    for i in "${!nodes[@]}"; do
      tpus tpu-vm ssh "${nodes[i]}" "--worker=$worker" \
        "--command=${line//@SLICE@/$i}" --quiet "${SSH_FLAGS[@]}"
    done
    return
  fi
  rm -f "$SCRATCH"/ssh.*
  for i in "${!nodes[@]}"; do
    node=${nodes[i]}
    tpus tpu-vm ssh "$node" "--worker=$worker" \
      "--command=${line//@SLICE@/$i}" --quiet "${SSH_FLAGS[@]}" \
      > "$SCRATCH/ssh.$node.out" 2> "$SCRATCH/ssh.$node.err" < /dev/null &
    jobs+=($!)
  done
  for job in "${jobs[@]}"; do
    wait "$job" || failed=1
  done
  cat "$SCRATCH"/ssh.*.err > "$SCRATCH/talk"
  cat "$SCRATCH"/ssh.*.out > "$SCRATCH/all"
  grep '^gpt_jax|' "$SCRATCH/all" | sort -V > "$SCRATCH/answers" || true
  grep -v '^gpt_jax|' "$SCRATCH/all" > "$SCRATCH/output" || true
  return "$failed"
}

# answered WORD: the number of hosts with this answer.
answered() {
  grep -c "^gpt_jax|[^|]*|$1" "$SCRATCH/answers" || true
}

# expect WORD: checks that all hosts gave this answer; shows others.
expect() {
  local count
  if [[ $DRY_RUN == yes ]]; then
    return
  fi
  count=$(answered "$1")
  if ((count != NUM_HOSTS)); then
    show_talk
    say "$count of $NUM_HOSTS hosts: $1"
    return 1
  fi
}

# Shows the messages of ssh and the hosts.
show_talk() {
  cat "$SCRATCH/talk" "$SCRATCH/output" | tail -n 20 >&2
}

# Does nothing if all hosts have this tree; sets LEFT_ALONE if they all run
# another. Hosts answer ssh only some time after their slice exists, so this
# retries for a while.
install_hosts() {
  local tries started=$SECONDS
  LEFT_ALONE=no
  pack
  if [[ $DRY_RUN == no ]]; then
    on_hosts all is_installed "$STAMP" || true
    if (($(answered installed) == NUM_HOSTS)); then
      say "installed already on all $NUM_HOSTS hosts"
      return
    elif (($(answered running) == NUM_HOSTS)); then
      say 'the run goes on from the tree that it was started with, and this one' \
        "differs; to go on from this one: launch/tpu.sh stop $SETTINGS, then" \
        'the same command'
      LEFT_ALONE=yes
      return
    elif (($(answered running))); then
      say 'some hosts run another tree, and some do not run: ending those'
      end_run || return 1
    fi
  fi
  say "installing on $NUM_HOSTS hosts"
  for ((tries = 1; ; tries++)); do
    if copy_bundle && unpack_bundle; then
      say "installed on $NUM_HOSTS hosts in $(duration $((SECONDS - started)))"
      return
    fi
    if ((tries == 10)) || slices_gone; then
      break
    fi
    say 'not all hosts are done: trying again'
    sleep "$POLL_SECONDS"
  done
  return 1
}

copy_bundle() {
  local node
  for node in "${NODES[@]}"; do
    # -p keeps the mode: only the user may read the bundle.
    tpus tpu-vm scp "$SCRATCH/gpt_jax_bundle.tgz" "$node:" --worker=all \
      --scp-flag=-p --quiet "${SSH_FLAGS[@]}" \
      > "$SCRATCH/scp" 2>&1 < /dev/null || {
      tail -n 5 "$SCRATCH/scp" >&2
      return 1
    }
    if [[ $DRY_RUN == yes ]]; then
      cat "$SCRATCH/scp"
    fi
  done
}

# The hosts may have nothing yet, not even on_host.sh. Files deleted here must
# disappear there.
unpack_bundle() {
  ssh_hosts all "set -e
mkdir -p -m 700 gpt_jax_run
rm -rf gpt_jax_run/code gpt_jax_run/secrets gpt_jax_run/environment
tar xzpf gpt_jax_bundle.tgz -C gpt_jax_run
rm gpt_jax_bundle.tgz
bash gpt_jax_run/code/launch/on_host.sh install $STAMP $(quote "$EXTRAS" \
    "$PYTHON_VERSION")" || true
  expect installed
}

# Hosts that start together write their states to one new folder.
new_round() {
  ROUND=$(date +%s)-$$-$RANDOM
}

start_run() {
  start_command || return 1
  on_hosts all start "$(shared_folder)" "$ROUND" "${START[@]}" &&
    [[ $DRY_RUN == yes ]] && return
  local count
  if (($(answered busy))); then
    die 1 "another program is on the hosts, $(grep -m 1 -o 'busy with.*' \
      "$SCRATCH/answers"); let it end: launch/tpu.sh stop $SETTINGS"
  fi
  count=$(($(answered started) + $(answered running)))
  if ((count != NUM_HOSTS)); then
    show_talk
    say "started on $count of $NUM_HOSTS hosts"
    return 1
  fi
  say "running on $NUM_HOSTS hosts: $(quote "${COMMAND[@]}")"
}

# Code is not replaced under a run.
end_run() {
  local since=$SECONDS
  on_hosts all end || true
  while read_status || true; [[ " ${STATES[*]} " == *' running '* ]]; do
    if ((SECONDS - since >= STRAGGLER_SECONDS)); then
      say "the run does not end: launch/tpu.sh status $SETTINGS"
      return 1
    fi
    sleep "$POLL_SECONDS"
  done
}

# `run`: only starts the run.
run_once() {
  new_round
  start_run ||
    die 1 "not all hosts started (above); launch/tpu.sh install $SETTINGS," \
      'then the same command again: hosts that run already are left alone'
  say "follow it: launch/tpu.sh logs $SETTINGS"
}

# The folder for the states of several hosts: beside WORKDIR, which all of them
# see. Empty if WORKDIR is in a bucket.
shared_folder() {
  if ((NUM_HOSTS > 1)) && ! in_bucket; then
    echo "$WORKDIR.hosts"
  fi
}

# Sets STATES, CODES, NAMES and LASTS, one entry per host. Returns 1 unless all
# hosts answered. The first host reports the states of all; each is asked over
# ssh only if a state is missing or outdated.
read_status() {
  if [[ -n $(shared_folder) ]]; then
    on_hosts 0 status_of_all "$(shared_folder)" || true
    take_status && return
  fi
  on_hosts all status || true
  take_status
}

take_status() {
  local _ name state code last
  STATES=() CODES=() NAMES=() LASTS=()
  while IFS='|' read -r _ name state code last; do
    NAMES+=("$name") STATES+=("$state") CODES+=("$code") LASTS+=("$last")
  done < "$SCRATCH/answers"
  ((${#STATES[@]} == NUM_HOSTS))
}

show_status() {
  local i complete=yes
  if [[ $DRY_RUN == yes ]]; then
    read_state_dry
    on_hosts all status
    return
  fi
  if apart; then
    say "$NAME: ${#HERE[@]} of $SLICES slices are there: ${HERE[*]}"
  else
    read_state
    say "$NAME: $STATE"
    if [[ $STATE != ACTIVE ]]; then
      return
    fi
  fi
  read_status || complete=no
  for ((i = 0; i < ${#STATES[@]}; i++)); do
    printf '  %s: %s %s  %s\n' "${NAMES[i]}" "${STATES[i]}" \
      "${CODES[i]:+with ${CODES[i]}}" "${LASTS[i]}"
  done
  [[ $complete == yes ]] ||
    die 1 "${#STATES[@]} of $NUM_HOSTS hosts answered;" \
      "launch/tpu.sh up $SETTINGS repairs what it can"
}

# Prints the new lines of the first host's log; sets LOG_LINES.
show_new_log() {
  local _ total
  on_hosts 0 show_log "$LOG_LINES" || return 0
  [[ $DRY_RUN == no ]] || return 0
  cat "$SCRATCH/output"
  IFS='|' read -r _ _ _ total < "$SCRATCH/answers" || return 0
  LOG_LINES=$total
}

follow_log() {
  LOG_LINES=-50
  show_new_log
  while [[ $DRY_RUN == no ]]; do
    sleep "$POLL_SECONDS"
    show_new_log
    read_status && [[ " ${STATES[*]} " == *' running '* ]] || break
  done
  show_new_log
}

stop_run() {
  local i
  on_hosts all stop || die 1 'not all hosts answered; give the same command again'
  if [[ $DRY_RUN == yes ]]; then
    return
  fi
  say 'told the run to save and end'
  while read_status && [[ " ${STATES[*]} " == *' running '* ]]; do
    sleep "$POLL_SECONDS"
  done
  for ((i = 0; i < ${#STATES[@]}; i++)); do
    say "${NAMES[i]}: ${STATES[i]} ${CODES[i]} ${LASTS[i]}"
  done
}

copy_results() {
  [[ -n $RESULTS ]] || bad RESULTS 'where to, gs://...?'
  on_hosts 0 copy "$WORKDIR" "$RESULTS" || true
  if [[ $DRY_RUN == no ]]; then
    if (($(answered copied) + $(answered nothing) == 0)); then
      show_talk
      die 1 "$WORKDIR was not copied (above); may the service account of the" \
        "hosts write to $RESULTS? Then: launch/tpu.sh copy $SETTINGS"
    fi
    say "$(cut -d '|' -f 3 "$SCRATCH/answers"): $WORKDIR -> $RESULTS"
  fi
}
