#!/usr/bin/env bash
# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
#
# What tpu.sh calls on each host of a slice, by ssh. The run is a process of
# its own, which outlives the connection; all that is known of it lies in
# ~/gpt_jax_run: log, pid, exit_code, and lock, held while it lives. Of several
# hosts each tells of itself in a folder that all of them see, so that one ssh to
# the first is enough to know of them.
set -euo pipefail

RUN=$HOME/gpt_jax_run
cd "$RUN"
# shellcheck source=launch/lib/mask.sh
source code/launch/lib/mask.sh

# Every answer is one line with this in front: ssh and gcloud talk, too.
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
  # The second file has hashes, which uv compares.
  (cd code && "$uv" pip install --quiet --python ../venv/bin/python \
    --constraint constraints.txt --constraint launch/requirements.txt \
    --editable ".[$2]")
  echo "$1" > installed
  answer installed
}

# HOST_SETUP of the settings, such as mounting the shared folder.
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

# $1: the shared folder, or nothing; $2: a name for this start; then the program.
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

# Runs the command, and writes down how it ended. A reboot frees the lock, which
# no process that the run leaves behind inherits.
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
  # A host that goes down sends SIGTERM to all: the run saves and ends, and
  # this, as Bash does with a program in the foreground, waits for it. A handler,
  # as ignoring would be inherited.
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

BEAT_SECONDS=10 # between two words of a host that runs

keep_telling() {
  while sleep "$BEAT_SECONDS" && running; do
    tell
  done
  tell
}

# Puts what `status` answers where all hosts see it.
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

# What all hosts of this start told; of one that said long ago that it runs
# nothing is known. $1: the shared folder.
status_of_all() {
  local shared now said file
  shared=$(cat shared 2> /dev/null || true)
  if [[ -z $shared || ! -d $shared ]]; then
    return
  fi
  # By the clock of the file system, which they share.
  touch "$shared/.now"
  now=$(stat -c %Y "$shared/.now")
  for file in "$shared"/*; do
    said=$(cat "$file" 2> /dev/null) || continue
    if [[ $said != *'|running|'* ]] ||
      ((now - $(stat -c %Y "$file") <= 6 * BEAT_SECONDS)); then
      echo "$said"
    fi
  done
  # Of starts before.
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

# The whole lines of the log after line $1, and how many there are now. Below
# zero: so many of the last.
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

# For the user, who wants it to stay so.
stop() {
  if running && [[ -s pid ]]; then
    touch stopped
  fi
  end
}

# For a run that is to start again.
end() {
  if running && [[ -s pid ]]; then
    kill -TERM "$(< pid)" 2> /dev/null || true
    answer stopping
  else
    answer 'not running'
  fi
}

# Folders to and from gs://. One host does it for all, as they share WORKDIR.
copy() {
  if [[ -d $1 ]]; then
    gcloud storage rsync --recursive "$1" "$2" >&2
    answer copied
  else
    answer 'nothing to copy yet'
  fi
}

# A bucket that cannot be looked at is not one that is empty: a run that began
# anew would then be copied over the old one.
restore() {
  local found
  if [[ -e $1/config.json ]]; then
    answer 'nothing to copy back'
  elif found=$(gcloud storage ls "$2/config.json" 2>&1); then
    mkdir -p "$1"
    gcloud storage rsync --recursive '--exclude=^config\.json$' "$2" "$1" >&2
    # Comes last: where it is, all of the run is.
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
  is_installed | start | supervise | status | status_of_all | show_log | stop | \
    end | copy | restore) "$verb" "$@" ;;
  *)
    echo "on_host.sh: $verb: not a command; tpu.sh calls this" >&2
    exit 2
    ;;
esac
