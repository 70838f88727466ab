# shellcheck shell=bash
# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
#
# The bundle for the hosts: this working tree, HOST_SETUP, ENVIRONMENT, secrets.

# Checks before anything is created that all of INCLUDE would be packed.
check_include() {
  local path file there
  for path in "${INCLUDE[@]}"; do
    there=no
    if git -C "$REPO" rev-parse --is-inside-work-tree > /dev/null 2>&1; then
      while IFS= read -r -d '' file; do
        [[ ! -e $REPO/$file ]] || there=yes
      done < <(git -C "$REPO" ls-files -z --cached --others --exclude-standard \
        -- "$path" 2> /dev/null)
    elif [[ -e $REPO/$path ]]; then
      there=yes
    fi
    if [[ $there == yes ]]; then
      continue
    elif [[ -e $REPO/$path ]]; then
      die 2 "$SETTINGS: INCLUDE=$path: git ignores it, or it is empty or" \
        "outside of $REPO: nothing would be sent; git add --force it, or put" \
        'it where the hosts can read it'
    fi
    die 2 "$SETTINGS: INCLUDE=$path: no such file or folder in $REPO"
  done
}

# What the processes of a job prove to each other that they know.
new_secret() {
  od -An -N32 -tx1 /dev/urandom | tr -d ' \n'
}

# Packs the working tree, edited configs included, into one file.
pack() {
  local staging=$SCRATCH/pack
  rm -rf "$staging"
  mkdir -p "$staging/code"
  local parts=(gpt_jax configs launch pyproject.toml setup.py constraints.txt
    README.md LICENSE "${INCLUDE[@]}")
  if git -C "$REPO" rev-parse --is-inside-work-tree > /dev/null 2>&1; then
    git -C "$REPO" ls-files -z --cached --others --exclude-standard \
      -- "${parts[@]}"
  else
    (cd "$REPO" && find "${parts[@]}" -type f -not -name '*.pyc' -print0)
  fi | LC_ALL=C sort -z > "$SCRATCH/files"
  # Skip files that git lists but that were deleted.
  (cd "$REPO" && tar cf - --null --ignore-failed-read -T "$SCRATCH/files" \
    2> /dev/null) | tar xf - -C "$staging/code"
  printf '%s\n' "${HOST_SETUP:-true}" > "$staging/setup.sh"
  printf '%s\n' "${ENVIRONMENT[@]}" > "$staging/environment"
  if [[ -n $SECRETS_FILE ]]; then
    (umask 077 && cat "$SECRETS_FILE" > "$staging/secrets")
  fi
  STAMP=$(cd "$staging" && {
    find . -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum
    echo "$EXTRAS $PYTHON_VERSION"
  } | sha256sum | cut -c 1-16)
  # After the stamp, which does not change with it. All hosts have one bundle.
  if ! grep -qs '^GPT_JAX_JOB_SECRET=' "$staging/secrets"; then
    (umask 077 && printf '\nGPT_JAX_JOB_SECRET=%s\n' "$(new_secret)" \
      >> "$staging/secrets")
  fi
  (umask 077 && tar czpf "$SCRATCH/gpt_jax_bundle.tgz" -C "$staging" .)
}
