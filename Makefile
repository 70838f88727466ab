# Each target sets up its own environment: .venv, from constraints.txt.
#   make smoke   trains a small GPT on this machine: three minutes on two cores
#   make translate MULTI30K=DIR  trains a translator, and ends with its BLEU
#   make test    runs the test suite, but for what is marked slow
#   make slow    runs the rest: whole runs, killed and resumed, on several hosts
#   make lane    runs a part of the tests with the other lane of constraints.txt
#   make lint    ruff, pyright and shellcheck
#   make beam    tests preparing on Apache Beam, in .venv-beam (constraints-beam.txt)
#   make lm_eval tests lm-eval's tasks on our workdirs, in .venv-lm_eval
#   make wandb   tests the tracker wandb offline, in .venv-wandb
#   make torch   tests what is measured against transformers, in .venv-torch
#   make tpu     runs the tests that compile for TPU slices, with libtpu in .venv
#   make crash   kills a small run KILLS times, and compares with one left alone;
#                tests/support/faults.jsonl is the ledger of all kills and damages
#   make damage  damages a file of a small run DAMAGES times; see what it does
#   make docs    writes the site of docs/ to site/, with mkdocs in .venv
#   make docs_test runs the commands of the tutorial and of docs/how-to
#   make house   counts files, lines, single importers and callers, and what a
#                tiny GPT-2 runs on its way to a training step
#   make pages   writes the pages that the code knows: fields, flags, metrics, and
#                the path of a step in docs/architecture.md
#   make hashes  writes launch/requirements.txt: the image's packages by hash
#   make plan    compiles the plans in docs/plans.json for their TPU slices, about
#                a minute each; fails where one is not what it was. ONLY=palm
#   make expected  writes configs/expected: the losses of the configs for two
#                cores, with three seeds each. ONLY=bert

PYTHON ?= python3
BIN := .venv/bin
# More flags for `make smoke`, such as --config.schedule.num_steps=30.
FLAGS ?=
KILLS ?= 10
DAMAGES ?= 20
# Which tests `make slow` and `make tpu` run; CI leaves out what is `long`.
SLOW ?= slow
TPU ?= tpu
ONLY ?=
# A comma that does not end an argument of `call`.
comma := ,

.PHONY: smoke translate test lane lane_here slow docs docs_test lint crash damage house pages hashes plan expected tpu beam lm_eval torch wandb

smoke: .venv/ready
	$(BIN)/gpt-jax train --config configs/smoke.py --workdir workdirs/smoke $(FLAGS)
	@echo 'Are these the losses that it should have?' \
	  '$(BIN)/gpt-jax compare --expected --workdir workdirs/smoke'

# The folder of the pairs, compressed or not: train.en, train.de, val.*, test_*.
MULTI30K ?= multi30k
pairs = parallel_text('$(MULTI30K)/$(1).en*', '$(MULTI30K)/$(1).de*')
written = $(firstword $(wildcard $(MULTI30K)/test_2016_flickr.$(1)*))

translate: .venv/ready
	$(BIN)/gpt-jax train --config configs/transformer.py:cpu \
	  --workdir workdirs/translate --config.data.source="$(call pairs,train)" \
	  --config.data.holdout="$(call pairs,val)" $(FLAGS)
	$(BIN)/gpt-jax evaluate --workdir workdirs/translate --average 5 --beam 4 \
	  --penalty gnmt --length_penalty=0.6 \
	  --source '$(call written,en)' --reference '$(call written,de)'

test: .venv/ready
	$(BIN)/python -m pytest

# Tests compile the same programs as others, and as the last time; so do the
# processes that they start, and Python its modules.
test slow docs_test crash damage lane_here: export JAX_COMPILATION_CACHE_DIR := $(CURDIR)/.programs
test slow docs_test crash damage lane_here: export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS := 0
test slow docs_test crash damage lane_here: export PYTHONDONTWRITEBYTECODE :=

# Contract tests of tables, what is saved and read again, plans, exports, and a
# short run, on the other JAX; LANE=tests for all. Without such a Python it says so.
LANE ?= tests/core/checkpoints tests/core/nn/test_positions.py \
  tests/core/optim/test_contract.py tests/core/rows/test_row_makers.py \
  tests/core/runtime/test_jax_internals.py tests/core/runtime/test_programs.py \
  tests/core/text/test_contract.py tests/core/tokenizers/test_contract.py \
  tests/core/training/test_train.py tests/hf/test_own_models.py \
  tests/planning/test_layouts.py

lane:
	@other=$$($(PYTHON) .ci/other_lane.py); \
	if [ -n "$$other" ]; then $(MAKE) lane_here PYTHON=$$other; \
	else echo 'make lane: no Python for the other versions of JAX in constraints.txt is here'; fi

lane_here: .venv-lane/ready
	.venv-lane/bin/python -m pytest $(LANE)
	rm -rf workdirs/lane
	.venv-lane/bin/gpt-jax train --config configs/smoke.py --config.schedule.num_steps=30 \
	  --workdir workdirs/lane

.venv-lane/ready: pyproject.toml constraints.txt
	$(call environment,.venv-lane,constraints.txt,'.[test]')

slow: .venv/ready
	$(BIN)/python -m pytest -m '$(SLOW)'

docs: .venv/mkdocs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build
	@echo 'Read them, with search, at http://127.0.0.1:8000:' \
	  '$(PYTHON) -m http.server --bind 127.0.0.1 --directory site'

docs_test: .venv/ready
	$(BIN)/python -m pytest -n 0 -m 'slow or not slow' tests/test_guides.py

.venv/mkdocs: .venv/ready
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[docs]'
	@touch $@

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/shellcheck --external-sources --check-sourced launch/*.sh

crash: .venv/ready
	$(BIN)/python -m tests.support.crash --kills $(KILLS)

damage: .venv/ready
	$(BIN)/python -m tests.support.damage --damages $(DAMAGES)

house: .venv/ready
	$(BIN)/python -m tests.support.house

pages: .venv/ready
	$(BIN)/gpt-jax inspect --fields > docs/fields.md
	$(BIN)/python -m tests.support.flags_page > docs/flags.md
	$(BIN)/python -m tests.support.lineage_page
	$(BIN)/python tests/reports/test_step_path.py

# Of the extras that launch/ installs. libtpu's files are for glibc 2.31 and later.
hashes: .venv-hashes/bin/uv
	echo setuptools==80.9.0 | $< pip compile --quiet pyproject.toml - \
	  --extra tpu --extra gcs --constraint constraints.txt \
	  --python-version 3.12 --python-platform x86_64-manylinux_2_31 \
	  --generate-hashes --no-annotate --custom-compile-command 'make hashes' \
	  --output-file launch/requirements.txt

.venv-hashes/bin/uv:
	$(PYTHON) -m venv .venv-hashes
	.venv-hashes/bin/pip install --quiet uv==0.13.9
	@touch $@

plan: .venv/libtpu
	$(BIN)/gpt-jax plan --recompile --only '$(ONLY)'

expected: .venv/ready
	$(BIN)/python -m tests.support.expected --work workdirs/expected --only '$(ONLY)'

tpu: .venv/libtpu
	$(BIN)/python -m pytest -m '$(TPU)'

# Not in .venv from the first: JAX complains of TPUs that are not there.
.venv/libtpu: .venv/ready
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[plan]'
	@touch $@

beam: .venv-beam/ready
	.venv-beam/bin/python -m pytest -n 0 tests/preparing_on_beam

.venv/ready: pyproject.toml constraints.txt
	$(call environment,.venv,constraints.txt,'.[test]')

lm_eval: .venv-lm_eval/ready
	HF_HUB_OFFLINE=1 .venv-lm_eval/bin/python -m pytest -n 0 tests/evaluation/test_lm_eval.py

.venv-lm_eval/ready: pyproject.toml constraints.txt
	$(call environment,.venv-lm_eval,constraints.txt,'.[eval]' hypothesis pytest pytest-xdist)

torch: .venv-torch/ready
	.venv-torch/bin/python -m pytest -n 0 tests/benchmarks/test_against.py tests/hf/test_peft.py tests/hf_tokenizers/test_export.py

.venv-torch/ready: pyproject.toml constraints.txt
	$(call environment,.venv-torch,constraints.txt,'.[hf]' hypothesis pytest pytest-xdist)

wandb: .venv-wandb/ready
	.venv-wandb/bin/python -m pytest -n 0 tests/core/training/test_wandb.py

.venv-wandb/ready: pyproject.toml constraints.txt
	$(call environment,.venv-wandb,constraints.txt,'.[wandb]' hypothesis pytest pytest-xdist)

# Apart from .venv: Beam needs older versions of some libraries.
.venv-beam/ready: pyproject.toml constraints-beam.txt
	$(call environment,.venv-beam,constraints-beam.txt,'.[beam$(comma)clean]' hypothesis pytest pytest-xdist)

define environment
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo 'Python 3.11 or later is needed: make PYTHON=python3.12' >&2; exit 2; }
	$(PYTHON) -m venv $(1)
	$(1)/bin/pip install --quiet --constraint $(2) --editable $(3)
	@touch $@
endef
