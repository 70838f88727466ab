# shellcheck shell=bash
# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
#
# `up`: from nothing to a finished run, through preemptions.

up() {
  local restarts=0 crashes=0
  VERDICT=''
  while :; do
    have_slices
    if bring_up; then
      follow_run
    else
      VERDICT=gone
      slices_gone || finish 1 "the hosts could not be made ready (above); the \
same command goes on where this one stopped"
    fi
    case $VERDICT in
      done) break ;;
      usage) finish 2 "$SAID" ;;
      failed) finish 1 "$SAID" ;;
      stopped) finish 75 'stopped; the same command goes on' ;;
      preempted) crashes=0 ;;
      gone)
        crashes=0
        # Whoever stopped it by hand may not want to pay for it.
        [[ $STATE != STOP* ]] ||
          die 75 "$NAME is $STATE, by hand; the same command starts it again"
        say "$NAME was taken away: making it again"
        # The queued resource may say ACTIVE for a while after its nodes are gone.
        sleep "$POLL_SECONDS"
        ;;
      crashed)
        crashes=$((crashes + 1))
        ((crashes < 3)) ||
          finish 1 "the run was killed $crashes times in a row: $SAID"
        ;;
    esac
    restarts=$((restarts + 1))
    ((restarts <= MAX_RESTARTS)) ||
      finish 75 "MAX_RESTARTS=$MAX_RESTARTS is used up; the same command goes on"
    say "starting again ($restarts of at most $MAX_RESTARTS)"
  done
  say 'the run is done'
  if [[ -n $RESULTS ]]; then
    copy_results
  fi
  if [[ $DELETE_AFTER != no ]]; then
    CONFIRMED=yes
    delete_slices
  else
    say "the slices are still there, and cost: launch/tpu.sh delete $SETTINGS"
  fi
}

# Asks for the slices and waits, as often as they are taken away meanwhile, and
# REQUEST_TRIES times where the request fails. What was confirmed once holds for
# the slices that replace them.
have_slices() {
  local failed=0
  while :; do
    create_slices
    if wait_for_slices; then
      return
    fi
    if [[ $STATE != FAILED ]]; then
      say "$NAME was taken away while waiting: asking again"
      continue
    fi
    failed=$((failed + 1))
    if ((failed >= REQUEST_TRIES)) || ! may_succeed_later "$REASON"; then
      after_failure
      request_failed
    fi
    # It was confirmed, or the request of before was.
    CONFIRMED=yes
    say "the request failed ($REASON): asking again in $RETRY_SECONDS s" \
      "($failed of $REQUEST_TRIES tries have failed)"
    sleep "$RETRY_SECONDS"
  done
}

# DELETE_AFTER=always: nothing is left that costs, but a disk that is the only
# one to hold what could not be copied.
after_failure() {
  local copied=${1:-yes}
  if [[ $DELETE_AFTER != always ]]; then
    say "what is there still costs: launch/tpu.sh delete $SETTINGS"
  elif [[ $copied == no ]] && ((NUM_HOSTS == 1)); then
    say "not deleted, as $WORKDIR could not be copied; it costs, until:" \
      "launch/tpu.sh delete $SETTINGS"
  else
    CONFIRMED=yes
    delete_slices
  fi
}

bring_up() {
  install_hosts || return 1
  if [[ -n $RESULTS ]]; then
    thrice restore_results || return 1
  fi
  wait_for_stragglers || return 1
  # Hosts that run already are left alone.
  new_round
  thrice start_run
}

thrice() {
  local tries
  for tries in 1 2 3; do
    if "$@"; then
      return
    fi
    ((tries == 3)) || sleep "$POLL_SECONDS"
  done
  return 1
}

# A slice of one host may keep WORKDIR on its own disk, which goes with it.
restore_results() {
  on_hosts 0 restore "$WORKDIR" "$RESULTS" || true
  if [[ $DRY_RUN == yes ]] || (($(answered nothing))); then
    return
  elif (($(answered 'copied back'))); then
    say "copied back: $RESULTS -> $WORKDIR"
  else
    show_talk
    say "$RESULTS could not be copied back"
    return 1
  fi
}

# A run of which some hosts ended and others still save must end everywhere
# before it starts anew; one that goes on everywhere is left alone.
wait_for_stragglers() {
  local since=$SECONDS told=no ended=no
  if [[ $DRY_RUN == yes ]]; then
    return
  fi
  while ((SECONDS - since < 5 * STRAGGLER_SECONDS)); do
    if ! read_status; then
      ! slices_gone || return 1
      sleep "$POLL_SECONDS"
      continue
    fi
    [[ " ${STATES[*]} " == *' running '* && " ${STATES[*]} " =~ \
      \ (ended|lost|stopped)\  ]] || return 0
    [[ $told == yes ]] || say 'waiting for the hosts that have not ended'
    told=yes
    if [[ $ended == no ]] && ((SECONDS - since >= STRAGGLER_SECONDS)); then
      ended=yes
      on_hosts all end || true
    fi
    sleep "$POLL_SECONDS"
  done
  return 1
}

# Shows the log until the run has ended everywhere or the slices are gone; sets
# VERDICT, and SAID for what is to be told.
follow_run() {
  local silent=0 copied=$SECONDS partly=''
  LOG_LINES=-50 # all of a new log; the end of one that was followed before
  if [[ $DRY_RUN == yes ]]; then
    on_hosts all status
    show_new_log
    VERDICT=done
    return
  fi
  while :; do
    sleep "$POLL_SECONDS"
    if ! read_status; then
      if slices_gone; then
        VERDICT=gone
        return
      fi
      silent=$((silent + 1))
      say "${#STATES[@]} of $NUM_HOSTS hosts answered"
      ((silent < 30)) ||
        finish 1 "hosts do not answer; if they are broken: launch/tpu.sh \
delete $SETTINGS, then the same command again"
      continue
    fi
    silent=0
    local states=" ${STATES[*]} "
    show_new_log
    if [[ $states != *' running '* ]]; then
      judge
      return
    fi
    # The others see a host that ended within heartbeat_seconds.
    if [[ $states =~ \ (ended|lost|none)\  ]]; then
      partly=${partly:-$SECONDS}
      if ((SECONDS - partly >= STRAGGLER_SECONDS)); then
        partly=$SECONDS
        say 'some hosts have ended, and some not: ending those'
        on_hosts all end || true
      fi
    fi
    if [[ -n $RESULTS ]] && ((COPY_MINUTES > 0)) &&
      ((SECONDS - copied > 60 * COPY_MINUTES)); then
      copied=$SECONDS
      (copy_results) || say 'goes on without this copy'
    fi
  done
}

# From the exit codes of all hosts: 0 done, 2 bad usage, 75 saved after SIGTERM,
# 1 failed, and anything else: the process was killed, or its host was.
judge() {
  local i code all_done=yes stopped=no verdict=''
  SAID=''
  for ((i = 0; i < ${#STATES[@]}; i++)); do
    code=${CODES[i]}
    [[ $code == 0 ]] || all_done=no
    [[ ${STATES[i]} != stopped ]] || stopped=yes
    case ${STATES[i]}/$code in
      */2) worst usage "$i" ;;
      */1) worst failed "$i" ;;
    esac
  done
  if [[ $all_done == yes ]]; then
    VERDICT=done
  elif [[ -n $verdict ]]; then
    VERDICT=$verdict
  elif [[ $stopped == yes ]]; then
    VERDICT=stopped
  elif [[ " ${CODES[*]} " == *' 75 '* ]]; then
    VERDICT=preempted
    say 'preempted after a save'
  else
    worst crashed 0
    VERDICT=crashed
    say "killed, with codes ${CODES[*]:-none}"
  fi
  # A host that was taken away makes the others fail.
  if [[ $VERDICT == failed || $VERDICT == crashed ]]; then
    sleep "$POLL_SECONDS"
    if slices_gone; then
      VERDICT=gone
    fi
  fi
}

# Bad usage counts for more than a failure: the others fail because of it. And
# of several failures, one that is not only told of another process is shown.
worst() {
  if [[ $verdict != usage && $1 == usage || $verdict == '' ||
    $verdict == "$1" && $SAID == *'failed: process '* ]]; then
    verdict=$1
    SAID="${NAMES[$2]}: ${LASTS[$2]}"
  fi
}

finish() {
  local copied=yes
  if [[ -n $RESULTS ]]; then
    (copy_results) || copied=no
  fi
  if [[ $VERDICT == stopped ]]; then
    # Whoever stopped it is there, and may go on at once.
    say "the slices are still there, and cost: launch/tpu.sh delete $SETTINGS"
  else
    if [[ $1 == 1 && $DELETE_AFTER != always ]]; then
      say "look: launch/tpu.sh logs $SETTINGS; then the same command goes on"
    fi
    after_failure "$copied"
  fi
  die "$1" "$2"
}
