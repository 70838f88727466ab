#!/usr/bin/env bash
# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
#
# A run on GKE, as a JobSet or through XPK. README.md explains.
set -euo pipefail

LAUNCH=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=launch/lib/common.sh
source "$LAUNCH/lib/common.sh"
# shellcheck source=launch/lib/settings.sh
source "$LAUNCH/lib/settings.sh"
# shellcheck source=launch/lib/cost.sh
source "$LAUNCH/lib/cost.sh"
# shellcheck source=launch/lib/mask.sh
source "$LAUNCH/lib/mask.sh"

usage() {
  cat <<'END'
usage: launch/gke.sh COMMAND SETTINGS [--yes] [--dry_run]

  manifest  prints the JobSet: launch/jobset.yaml, filled in
  create    shows the cost, makes the secret and the JobSet in the cluster that
            kubectl points at; given again, it changes nothing that is the
            same, but a JobSet that failed is deleted first
  status    the JobSet and its pods
  logs      follows the log of the first host
  delete    deletes the JobSet and the secret; node pools stay
  xpk       prints the command that makes the same run with XPK

  SETTINGS   a file like launch/settings.example.sh, with its part for GKE
  --yes      does not ask before it creates or deletes
  --dry_run  prints the commands and runs none

Kubernetes starts the run again after each preemption (exit code 75, or a node
that is gone), at most MAX_RESTARTS times, and stops at 0, 1 (failed) and 2 (bad
usage).
END
}

YES=no
DRY_RUN=no

main() {
  local positional=()
  (($#)) || { usage >&2; exit 2; }
  while (($#)); do
    case $1 in
      -h | --help | help) usage; return ;;
      --yes) YES=yes ;;
      --dry_run) DRY_RUN=yes ;;
      -*) die 2 "$1: unknown flag; see launch/gke.sh --help" ;;
      *) positional+=("$1") ;;
    esac
    shift
  done
  local verb=${positional[0]:-}
  case $verb in
    manifest | create | status | logs | delete | xpk) ;;
    *) die 2 "${verb:-no command}: not a command; see launch/gke.sh --help" ;;
  esac
  ((${#positional[@]} == 2)) ||
    die 2 "$verb: give one settings file; see launch/gke.sh --help"
  load_settings "${positional[1]}"
  load_gke_settings
  case $verb in
    manifest) manifest ;;
    create) create ;;
    status) status ;;
    logs) logs ;;
    delete) delete ;;
    xpk) xpk ;;
  esac
}

# shellcheck disable=SC2034 # KIND is read by name
load_gke_settings() {
  ((MIN_SLICES == SLICES)) ||
    bad MIN_SLICES 'a JobSet has all of its slices or waits; empty it, and to go' \
      'on with fewer lower SLICES: README.md'
  [[ -n $IMAGE ]] || bad IMAGE 'is missing; launch/Dockerfile makes one'
  if [[ -n $NFS ]] || ! in_bucket; then
    [[ $NFS =~ ^[^:]+:/ ]] ||
      bad NFS 'SERVER:/PATH of a share that all pods mount at MOUNT; may be' \
        'empty where WORKDIR is in a bucket'
  fi
  in_bucket || [[ $WORKDIR == "$MOUNT"/* ]] ||
    bad WORKDIR "lies under MOUNT=$MOUNT, or in a bucket (gs://BUCKET/FOLDER)"
  case $GENERATION in
    v4) KIND=tpu-v4-podslice ;;
    v5p) KIND=tpu-v5p-slice ;;
    v5litepod) KIND=tpu-v5-lite-podslice ;;
    v6e) KIND=tpu-v6e-slice ;;
    tpu7x) KIND=tpu7x ;;
  esac
  TOPOLOGY=${TOPOLOGY:-$SHAPE}
  if [[ ! $TOPOLOGY =~ ^[0-9]+(x[0-9]+){1,2}$ ]] ||
    ((${TOPOLOGY//x/*} != CHIPS)); then
    bad TOPOLOGY "is not of $CHIPS chips ($ACCELERATOR)"
  fi
}

manifest() {
  local line word words=() field
  # JSON is YAML.
  for word in "${COMMAND[@]}"; do
    words+=("$(json "$word")")
  done
  local variables=()
  for word in "${ENVIRONMENT[@]}"; do
    variables+=("{\"name\": $(json "${word%%=*}"), \"value\": $(json "${word#*=}")}")
  done
  local ENVIRONMENT
  ENVIRONMENT="[$(IFS=,; echo "${variables[*]}")]"
  local HOSTS=$HOSTS_A_SLICE CHIPS=$((CHIPS / HOSTS_A_SLICE))
  local COMMAND
  COMMAND="[$(IFS=,; echo "${words[*]}")]"
  # shellcheck disable=SC2034 # read by name below
  local NFS_SERVER=${NFS%%:*} NFS_PATH=${NFS#*:}
  while IFS= read -r line; do
    case $line in
      *'# spot') [[ $SPOT == yes ]] || continue ;;
      *'# secret') [[ -n $SECRETS_FILE ]] || continue ;;
      *'# share') [[ -n $NFS ]] || continue ;;
    esac
    while [[ $line =~ ^([^@]*)@([A-Z_]+)@(.*)$ ]]; do
      field=${BASH_REMATCH[2]}
      printf '%s%s' "${BASH_REMATCH[1]}" "${!field}"
      line=${BASH_REMATCH[3]}
    done
    printf '%s\n' "$line"
  done < "$LAUNCH/jobset.yaml"
}

json() {
  local text=${1//\\/\\\\}
  text=${text//\"/\\\"}
  text=${text//$'\n'/\\n}
  printf '"%s"' "${text//$'\t'/\\t}"
}

selector() {
  echo "jobset.sigs.k8s.io/jobset-name=$NAME"
}

# The names of pods end in random characters.
first_pod() {
  if [[ $DRY_RUN == yes ]]; then
    echo "$NAME-slice-0-0-..."
    return
  fi
  kubectl get pods -l "$(selector),jobset.sigs.k8s.io/job-index=0" -o name |
    grep -m 1 -- '-slice-0-0-' ||
    die 1 "$NAME has no pods yet; launch/gke.sh status $SETTINGS"
}

status() {
  run_or_show kubectl get "jobset/$NAME" -o wide
  run_or_show kubectl get pods -l "$(selector)" -o wide
}

logs() {
  local pod
  pod=$(first_pod) || exit
  run_or_show kubectl logs --follow "$pod" | mask "$SECRETS_FILE"
}

create() {
  local states
  show_cost
  echo '(for as long as the node pools are there, with or without a JobSet)'
  if [[ $DRY_RUN == yes ]]; then
    [[ -z $SECRETS_FILE ]] ||
      run_or_show kubectl create secret generic "$NAME-secrets" \
        "--from-env-file=$SECRETS_FILE"
    echo "launch/gke.sh manifest $SETTINGS | kubectl apply -f -"
    return
  fi
  # Applying the same manifest does not restart an ended JobSet.
  states=$(kubectl get "jobset/$NAME" --ignore-not-found -o \
    'jsonpath={range .status.conditions[?(@.status=="True")]}{.type}{" "}{end}') ||
    die 1 'cannot look for the JobSet (above); is JobSet installed in the' \
      'cluster? https://jobset.sigs.k8s.io/docs/installation'
  case " $states" in
    *' Completed '*)
      say "$NAME is done already; to run it anew: launch/gke.sh delete $SETTINGS"
      return
      ;;
    *' Failed '*)
      confirm "Delete the JobSet $NAME, which failed, and create it again?"
      kubectl delete --cascade=foreground "jobset/$NAME"
      ;;
    *) confirm 'Create it?' ;;
  esac
  if [[ -n $SECRETS_FILE ]]; then
    kubectl create secret generic "$NAME-secrets" \
      "--from-env-file=$SECRETS_FILE" --dry-run=client -o yaml |
      kubectl apply -f -
  fi
  manifest | kubectl apply -f - ||
    die 1 'not created (above); a JobSet that is there cannot be changed:' \
      "launch/gke.sh delete $SETTINGS, then the same command again"
  say "follow it: launch/gke.sh logs $SETTINGS"
}

delete() {
  confirm "Delete the JobSet $NAME?"
  run_or_show kubectl delete --ignore-not-found "jobset/$NAME"
  run_or_show kubectl delete --ignore-not-found "secret/$NAME-secrets"
}

xpk() {
  [[ -n $CLUSTER ]] || bad CLUSTER 'is missing: the name of the GKE cluster'
  [[ -z $SECRETS_FILE ]] ||
    bad SECRETS_FILE 'an XPK workload cannot read the Kubernetes secret; use' \
      'launch/gke.sh create, or leave it empty and give xpk an --env-file,' \
      'whose values all see who may read the JobSet'
  local line='' pair variables=()
  for pair in "${ENVIRONMENT[@]}"; do
    variables+=("--env=$pair")
  done
  printf -v line '%q ' "${COMMAND[@]}"
  local words=(xpk workload create "--cluster=$CLUSTER" "--workload=$NAME"
    "--zone=$ZONE" "--tpu-type=$ACCELERATOR" "--num-slices=$SLICES"
    "--docker-image=$IMAGE" "--max-restarts=$MAX_RESTARTS"
    --restart-on-exit-codes=75 "${variables[@]}" "--command=${line% }")
  if [[ -n $PROJECT ]]; then
    words+=("--project=$PROJECT")
  fi
  DRY_RUN=yes
  run_or_show "${words[@]}"
}

main "$@"
