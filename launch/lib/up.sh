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
        [[ $STATE != STOP* ]] || stopped_by_hand
        say "$NAME was taken away: making it again"
        # The queued resource may stay ACTIVE for a while without its nodes.
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

# The user stopped it, maybe to save money.
stopped_by_hand() {
  die 75 "$NAME is $STATE, by hand; the same command starts it again"
}

# Requests the slices and waits: again after each preemption, and at most
# REQUEST_TRIES times if the request fails. One confirmation covers all.
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
    # This request, or the one before, was confirmed.
    CONFIRMED=yes
    say "the request failed ($REASON): asking again in $RETRY_SECONDS s" \
      "($failed of $REQUEST_TRIES tries have failed)"
    sleep "$RETRY_SECONDS"
  done
}

# DELETE_AFTER=always deletes all that costs money, except a disk with the
# only copy of a WORKDIR that could not be copied.
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
  # Hosts that are running already are not restarted.
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

# A slice of one host may keep WORKDIR on its disk, which is deleted with it.
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

# If some hosts have ended and others still save, the run must end everywhere
# before it starts again; a run that continues everywhere is not touched.
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
# VERDICT, and SAID, the message to show.
follow_run() {
  local silent=0 copied=$SECONDS partly='' asked=$SECONDS grows=no
  LOG_LINES=-50 # all of a new log; the end of an older one
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
    if ((${#NODES[@]} < ${#ALL_NODES[@]})) && [[ $grows == no ]] &&
      ((SECONDS - asked >= ${RETRY_SECONDS%.*})); then
      asked=$SECONDS
      if more_slices; then
        grows=yes
        say "${#HERE[@]} of $SLICES slices are there: saving, to go on with them"
        on_hosts all end || true
      fi
    fi
    # The other processes notice an ended host within heartbeat_seconds.
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

# Sets VERDICT from the exit codes of all hosts: 0 done, 2 bad usage, 75 saved
# after SIGTERM, 1 failed; anything else: the process or its host was killed,
# which makes others fail.
judge() {
  local i code all_done=yes stopped=no killed=no verdict=''
  SAID=''
  for ((i = 0; i < ${#STATES[@]}; i++)); do
    code=${CODES[i]}
    [[ $code == 0 ]] || all_done=no
    [[ ${STATES[i]} != stopped ]] || stopped=yes
    case ${STATES[i]}/$code in
      lost/* | */137) killed=yes ;;
      */2) worst usage "$i" ;;
      */1) worst failed "$i" ;;
    esac
  done
  if [[ $all_done == yes ]]; then
    VERDICT=done
  elif [[ $verdict == usage || $verdict == failed && $killed == no ]]; then
    VERDICT=$verdict
  elif [[ $stopped == yes ]]; then
    VERDICT=stopped
  elif [[ " ${CODES[*]} " == *' 75 '* ]]; then
    VERDICT=preempted
    say 'preempted after a save'
  else
    verdict=''
    worst crashed 0
    VERDICT=crashed
    say "killed, with codes ${CODES[*]:-none}"
  fi
  # A preempted host makes the others fail.
  if [[ $VERDICT == failed || $VERDICT == crashed ]]; then
    sleep "$POLL_SECONDS"
    if slices_gone; then
      VERDICT=gone
    fi
  fi
}

# Bad usage outranks a failure, since it makes the others fail. Of several
# failures, one that does not merely report another process is shown.
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
    # The user stopped it, and may continue at once.
    say "the slices are still there, and cost: launch/tpu.sh delete $SETTINGS"
  else
    if [[ $1 == 1 && $DELETE_AFTER != always ]]; then
      say "look: launch/tpu.sh logs $SETTINGS; then the same command goes on"
    fi
    after_failure "$copied"
  fi
  die "$1" "$2"
}
