#!/usr/bin/env bash
# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Run by tpu.sh on each host of a slice, by ssh. The run is a separate process,
# which outlives the connection; its state is in ~/gpt_jax_run: log, pid,
# exit_code, and lock, held while it runs. Several hosts write their state to a
# shared folder, so that one ssh to the first shows all.
set -euo pipefail

RUN=$HOME/gpt_jax_run
cd "$RUN"
# shellcheck source=launch/lib/mask.sh
source code/launch/lib/mask.sh

# Every answer is one line with this prefix: ssh and gcloud print lines, too.
answer() {
  printf 'gpt_jax|%s|%s\n' "$HOSTNAME" "$*"
}

running() {
  [[ -f lock ]] && ! flock --nonblock --shared lock true
}

last_line() {
  if [[ -f log ]]; then
    tail -c 4000 log | tr '\r' '\n' | grep -v '^[[:space:]]*$' | tail -n 1 |
      mask secrets || true
  fi
}

# Makes or repairs the environment. $1: stamp, $2: extras, $3: Python's version.
install_here() {
  local uv
  rm -f installed
  set_up
  uv=$(command -v uv || echo "$HOME/.local/bin/uv")
  if [[ ! -x $uv ]]; then
    python3 -m pip install --quiet --user uv
  fi
  if [[ ! -x venv/bin/python ]]; then
    # The images come with Python 3.10, which is too old.
    rm -rf venv
    "$uv" venv --quiet --python "$3" venv
  fi
  # The second file has hashes, which uv checks.
  (cd code && "$uv" pip install --quiet --python ../venv/bin/python \
    --constraint constraints.txt --constraint launch/requirements.txt \
    --editable ".[$2]")
  echo "$1" > installed
  answer installed
}

# Runs HOST_SETUP of the settings, such as mounting the shared folder.
set_up() {
  bash -euo pipefail setup.sh >&2
}

is_installed() {
  if [[ -f installed && $(< installed) == "$1" ]]; then
    set_up
    answer installed
  elif running; then
    answer 'running from another tree'
  else
    answer missing
  fi
}

# $1: the shared folder, or empty; $2: a name for this start; then the program.
start() {
  local i program shared=${1:+$1/$2}
  shift 2
  program=$(printf '%q ' "$@")
  if running; then
    if [[ $program == "$(cat program)" ]]; then
      answer 'running already'
    else
      answer "busy with: $(cat program)"
    fi
    return
  fi
  set_up
  if [[ -s log ]]; then
    cat log >> log.old
  fi
  rm -f exit_code pid stopped
  : > log
  echo "$program" > program
  echo "$shared" > shared
  setsid nohup bash code/launch/on_host.sh supervise "$@" \
    > /dev/null 2>&1 < /dev/null &
  for ((i = 0; i < 100; i++)); do
    if [[ -s pid || -s exit_code ]]; then
      tell
      answer started
      return
    fi
    sleep 0.1
  done
  answer 'did not start'
  return 1
}

# Runs the command and records its exit code. A reboot frees the lock; child
# processes do not inherit it.
supervise() {
  local code=0 line
  exec 9> lock
  flock --wait 10 9
  while IFS= read -r line; do
    if [[ $line == *=* && $line != '#'* ]]; then
      export "${line?}"
    fi
  done < <(cat environment secrets 2> /dev/null)
  export PATH=$RUN/venv/bin:$PATH
  # A host that shuts down sends SIGTERM to all processes: the run saves and
  # ends, and Bash waits for its foreground program. A handler, because an
  # ignored signal would be inherited.
  trap : TERM INT HUP
  keep_telling 9>&- > /dev/null 2>&1 &
  local teller=$!
  cd code
  # shellcheck disable=SC2016 # expanded by the inner one
  bash -c 'echo $$ > ../pid; exec "$@"' run "$@" \
    >> ../log 2>&1 < /dev/null 9>&- || code=$?
  cd ..
  kill "$teller" 2> /dev/null || true
  wait "$teller" || true
  echo "$code" > exit_code.new
  mv exit_code.new exit_code
  exec 9>&- # as `status` sees it, the run has ended
  tell
}

BEAT_SECONDS=10 # between two status writes of a running host

keep_telling() {
  while sleep "$BEAT_SECONDS" && running; do
    tell
  done
  tell
}

# Writes the output of `status` to the shared folder.
tell() {
  local shared
  shared=$(cat shared 2> /dev/null || true)
  if [[ -n $shared ]]; then
    {
      mkdir -p "$shared"
      status > "$shared/.$HOSTNAME.$$"
      mv "$shared/.$HOSTNAME.$$" "$shared/$HOSTNAME"
    } 2> /dev/null || true # then this host is asked by ssh
  fi
}

# The states of all hosts of this start, except outdated "running" ones.
# $1: the shared folder.
status_of_all() {
  local shared now said file
  shared=$(cat shared 2> /dev/null || true)
  if [[ -z $shared || ! -d $shared ]]; then
    return
  fi
  # By the clock of the shared file system.
  touch "$shared/.now"
  now=$(stat -c %Y "$shared/.now")
  for file in "$shared"/*; do
    said=$(cat "$file" 2> /dev/null) || continue
    if [[ $said != *'|running|'* ]] ||
      ((now - $(stat -c %Y "$file") <= 6 * BEAT_SECONDS)); then
      echo "$said"
    fi
  done
  # Delete the folders of earlier starts.
  find "$1" -mindepth 1 -maxdepth 1 -not -path "$shared" -exec rm -rf {} +
}

# STATE|EXIT CODE|LAST LINE
status() {
  if running; then
    answer "running||$(last_line)"
  elif [[ -f stopped ]]; then
    answer "stopped|$(cat exit_code 2> /dev/null || true)|$(last_line)"
  elif [[ -f exit_code ]]; then
    answer "ended|$(< exit_code)|$(last_line)"
  elif [[ -f pid ]]; then
    answer "lost||$(last_line)"
  else
    answer 'none||'
  fi
}

# The complete lines of the log after line $1, and their number. A negative
# number selects that many of the last lines.
show_log() {
  local total=0 from=$1
  if [[ -f log ]]; then
    total=$(wc -l < log)
  fi
  if ((from < 0)); then
    from=$((total + from > 0 ? total + from : 0))
  fi
  if ((total > from)); then
    sed -n "$((from + 1)),${total}p" log | mask secrets
  fi
  answer "lines|$total"
}

# The slices of the run, if one goes on: RUN_SLICES of the program.
slices_of_run() {
  local found
  if running; then
    found=$(grep -o 'RUN_SLICES=[^ ]*' program) || true
    found=${found#*=}
    answer "on ${found//\\/}"
  fi
}

# Ends the run for the user: `up` does not start it again.
stop() {
  if running && [[ -s pid ]]; then
    touch stopped
  fi
  end
}

# Ends the run before another start.
end() {
  if running && [[ -s pid ]]; then
    kill -TERM "$(< pid)" 2> /dev/null || true
    answer stopping
  else
    answer 'not running'
  fi
}

# Copies folders to and from gs://. One host does it for all: WORKDIR is shared.
copy() {
  if [[ -d $1 ]]; then
    gcloud storage rsync --recursive "$1" "$2" >&2
    answer copied
  else
    answer 'nothing to copy yet'
  fi
}

# An unreadable bucket must not count as empty: a new run would later be copied
# over the old one.
restore() {
  local found
  if [[ -e $1/config.json ]]; then
    answer 'nothing to copy back'
  elif found=$(gcloud storage ls "$2/config.json" 2>&1); then
    mkdir -p "$1"
    gcloud storage rsync --recursive '--exclude=^config\.json$' "$2" "$1" >&2
    # Last, so that its presence means that the copy is complete.
    gcloud storage cp "$2/config.json" "$1/config.json" >&2
    answer 'copied back'
  elif [[ $found == *'matched no objects'* ]]; then
    answer 'nothing to copy back'
  else
    echo "$found" >&2
    return 1
  fi
}

verb=$1
shift
case $verb in
  install) install_here "$@" ;;
  is_installed | start | supervise | status | status_of_all | show_log | \
    slices_of_run | stop | end | copy | restore) "$verb" "$@" ;;
  *)
    echo "on_host.sh: $verb: not a command; tpu.sh calls this" >&2
    exit 2
    ;;
esac
