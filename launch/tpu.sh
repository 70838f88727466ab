#!/usr/bin/env bash
# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Cloud TPU VMs: from a settings file to a finished run. README.md explains.
set -euo pipefail

LAUNCH=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
REPO=$(dirname "$LAUNCH")
# shellcheck source=launch/lib/common.sh
source "$LAUNCH/lib/common.sh"
# shellcheck source=launch/lib/settings.sh
source "$LAUNCH/lib/settings.sh"
# shellcheck source=launch/lib/cost.sh
source "$LAUNCH/lib/cost.sh"
# shellcheck source=launch/lib/slices.sh
source "$LAUNCH/lib/slices.sh"
# shellcheck source=launch/lib/some_slices.sh
source "$LAUNCH/lib/some_slices.sh"
# shellcheck source=launch/lib/pack.sh
source "$LAUNCH/lib/pack.sh"
# shellcheck source=launch/lib/hosts.sh
source "$LAUNCH/lib/hosts.sh"
# shellcheck source=launch/lib/up.sh
source "$LAUNCH/lib/up.sh"

usage() {
  cat <<'END'
usage: launch/tpu.sh COMMAND SETTINGS [--yes] [--dry_run] [-- PROGRAM ARGS...]

  up       all of the below, in order: create, wait, install, run, follow the
           log, start again after each preemption until the run exits with 0,
           copy the results. Give the same command again after any failure,
           also after Ctrl-C: it goes on where things are.

  cost     what the slices cost an hour; creates nothing
  create   asks for the slices, after showing the cost
  wait     until the slices are there
  install  this working tree and its Python packages, onto all hosts
  run      starts the command of the settings, or the one after --, on all
           hosts; it goes on when this terminal closes
  status   the state of the slices, and of the run on each host
  logs     follows the log of the first host (Ctrl-C leaves the run alone)
  stop     tells the run to save and end; `up` goes on later
  copy     copies WORKDIR to RESULTS (gs://...)
  delete   deletes the slices; what is on their disks is lost

  SETTINGS   a file like launch/settings.example.sh, which explains each line
  --yes      does not ask before it creates or deletes
  --dry_run  prints the gcloud commands and runs none

Start with:
  cp launch/settings.example.sh my_run.sh   # and edit it
  launch/tpu.sh up my_run.sh --dry_run
  launch/tpu.sh up my_run.sh

Exit codes: 0 done, 1 failed (the cause in the last line), 2 bad usage, config
or settings, 75 stopped or preempted: the same command goes on.
END
}

YES=no
DRY_RUN=no
OTHER=()

main() {
  local positional=() help=no
  (($#)) || { usage >&2; exit 2; }
  while (($#)); do
    case $1 in
      -h | --help | help) help=yes ;;
      --yes) YES=yes ;;
      --dry_run) DRY_RUN=yes ;;
      --) shift; OTHER=("$@"); break ;;
      -*) die 2 "$1: unknown flag; see launch/tpu.sh --help" ;;
      *) positional+=("$1") ;;
    esac
    shift
  done
  if [[ $help == yes ]]; then
    usage
    return
  fi
  local verb=${positional[0]:-} settings=${positional[1]:-}
  case $verb in
    up | cost | create | wait | install | run | status | logs | stop | copy | \
      delete) ;;
    *) die 2 "${verb:-no command}: not a command; see launch/tpu.sh --help" ;;
  esac
  ((${#positional[@]} <= 2)) ||
    die 2 "${positional[2]}: unexpected; a program to run comes after --"
  [[ -n $settings ]] ||
    die 2 "$verb: which settings? cp launch/settings.example.sh my_run.sh," \
      "edit it, then: launch/tpu.sh $verb my_run.sh"
  load_settings "$settings"
  [[ -n $RUNTIME ]] ||
    bad ACCELERATOR 'TPU7x is to be had on GKE only: launch/gke.sh --help'
  if [[ $SPOT == yes && -z $RESULTS && -z $HOST_SETUP ]] &&
    ((NUM_HOSTS == 1)) && ! in_bucket; then
    bad RESULTS 'a spot slice of one host loses its disk: set it to gs://...,' \
      'or mount WORKDIR in HOST_SETUP'
  fi
  if ((${#OTHER[@]})); then
    [[ $verb == run ]] ||
      die 2 "$verb: only \`run\` takes a program after --"
    COMMAND=("${OTHER[@]}")
  fi
  if [[ $DRY_RUN == no && $verb != cost ]]; then
    command -v gcloud > /dev/null ||
      die 2 'gcloud is not installed: https://cloud.google.com/sdk/docs/install'
  fi
  if [[ $verb == up || $verb == install ]]; then
    check_include
  fi
  make_scratch
  if [[ $DRY_RUN == no ]] && apart; then
    case $verb in
      install | run | status | logs | stop | copy) find_slices ;;
    esac
  fi
  case $verb in
    cost) show_cost ;;
    create) create_slices ;;
    wait) wait_once ;;
    install)
      install_hosts
      [[ $LEFT_ALONE == no ]] || die 1 'not installed: a run is there (above)'
      ;;
    run) run_once ;;
    status) show_status ;;
    logs) follow_log ;;
    stop) stop_run ;;
    copy) copy_results ;;
    delete) delete_slices ;;
    up) up ;;
  esac
}

main "$@"
