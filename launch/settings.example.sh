# shellcheck shell=bash disable=SC2034
# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Settings of a run on Cloud TPU VMs, for launch/tpu.sh (or on GKE, for
# launch/gke.sh). Copy it, edit the first part, and keep it: the same file
# resumes, stops and deletes the run.

# ---- required

NAME=llama-7b                 # of the slice: lower case, digits, dashes
ZONE=us-central2-b            # https://cloud.google.com/tpu/docs/regions-zones
ACCELERATOR=v4-32             # v4-N, v5p-N, v5litepod-N (v5e-N) or v6e-N
# The run's folder, visible to all hosts; or gs://BUCKET/FOLDER, which needs
# neither HOST_SETUP nor RESULTS.
WORKDIR=/mnt/shared/llama-7b
RESULTS=gs://my-bucket/llama-7b   # the copy of WORKDIR; may be empty

# The command that runs on every host, in the folder of this repository. With
# --distributed the hosts find each other.
COMMAND=(
  gpt-jax train --config configs/llama.py:7b --workdir "$WORKDIR" --distributed
  # From `gpt-jax plan --topology v4-32 --config.model.remat=full`.
  --config.model.remat=full --config.mesh.fsdp=16 --config.batch.micro_rows=16
  "--config.data.source=jsonl('/mnt/shared/text/*.jsonl.zst')"
)

# Runs on each host after it has started, before the run, and again whenever
# either is repeated. Here: mounts a Filestore (NFS) share. With one host there
# is nothing to share: leave it empty, and set WORKDIR=/var/tmp/run and RESULTS.
# shellcheck disable=SC2016  # the hosts expand it
HOST_SETUP='
  if ! mountpoint -q /mnt/shared; then
    sudo apt-get -qq install --yes nfs-common
    sudo mkdir -p /mnt/shared
    sudo mount 10.0.0.2:/share /mnt/shared
    [[ -w /mnt/shared ]] || sudo chown "$(id -u):$(id -g)" /mnt/shared
  fi
'

# ---- optional

PROJECT=           # empty: that of `gcloud config`
SPOT=yes           # cheaper; may be preempted at any time, and `up` resumes
SLICES=1           # several train together over the data center network
MIN_SLICES=        # fewer than SLICES: a start that lacks slices goes on with
                   # those that are there, and this many are enough
SLICE_WAIT_SECONDS=600   # how long such a start waits for all; 0: not at all
REQUEST=queued     # or direct: succeeds at once or fails, one slice only
DELETE_AFTER=no    # yes: deletes the slices when the run is done and copied;
                   # always: also if it fails
PRICE=             # dollars per chip-hour, in place of gpt_jax/planning/prices.py's
MAX_RESTARTS=100
REQUEST_TRIES=5    # attempts at a request that fails for lack of capacity
RETRY_SECONDS=120  # between two of them

# Variables of the run: ENVIRONMENT=(NAME=value 'OTHER=a b'). LIBTPU_INIT_ARGS
# defaults to the generation's flags for asynchronous collectives, from
# gpt_jax/core/runtime/tpu_flags.py.
ENVIRONMENT=()

# A file with lines of NAME=value, such as WANDB_API_KEY=...; chmod 600. They
# become environment variables of the run, are sent by scp, and shown as ***.
SECRETS_FILE=

INCLUDE=()         # more files and folders of this repository to pack, besides
                   # gpt_jax, configs and launch
EXTRAS=tpu         # of pyproject.toml: for instance tpu,wandb
PYTHON_VERSION=3.12   # installed by uv; the images have 3.10
RUNTIME=           # empty: the image for the generation
CREATE_FLAGS=()    # for `gcloud ... create`: --network=... --reserved
SSH_FLAGS=()       # for `gcloud ... ssh` and scp: --tunnel-through-iap
POLL_SECONDS=20    # between two checks of the slices and hosts
STRAGGLER_SECONDS=120   # from the end of one host until the others are ended;
                   # longer than hosts.heartbeat_seconds
COPY_MINUTES=30    # between two copies to RESULTS; 0: only at the end

# ---- only on GKE

IMAGE=us-docker.pkg.dev/my-project/images/gpt_jax:1   # from launch/Dockerfile
NFS=10.0.0.2:/share   # a share that every pod mounts at MOUNT; may be empty if
                      # WORKDIR is in a bucket
MOUNT=/mnt/shared
TOPOLOGY=             # empty: the usual shape for the number of chips
CLUSTER=my-cluster    # for `gke.sh xpk`; kubectl knows its cluster
