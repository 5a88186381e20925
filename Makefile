# Everything a newcomer needs: `make demo` and `make test` set up the environment
# themselves, once, in .venv.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# Tests wait for processes that they start, a sixth of their time: one more than cores.
JOBS   ?= $(shell $(PYTHON) -c 'import os; print(len(os.sched_getaffinity(0)) + 1)' 2>/dev/null || echo auto)
# uv, where there is one, installs in a fifth of the time.
PIP := $(BIN)/python -m pip install --disable-pip-version-check --no-compile
INSTALL := $(if $(shell command -v uv),uv pip install --python $(BIN)/python,$(PIP))
# What of the package's extras goes into it.
EXTRAS ?= test,docs
# What a file's tests share is then made once, and not by each worker; tests/conftest.py
# has put the files in the order in which they are to be begun.
# Linear algebra in threads only keeps the other workers waiting.
PYTEST := OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder

# The tests start this package hundreds of times. What is imported is compiled then, and
# nothing else is: pip would compile all there is.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup browser demo collect test nightly smoke check format docs bench clean

help:  ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

$(STAMP): pyproject.toml hatch_build.py lagom_jax/nccl_plugin/build.py $(wildcard lagom_jax/nccl_plugin/plugin/*)
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit( \
	  f"lagom_jax needs Python 3.11 or newer, $(PYTHON) is {v[0]}.{v[1]}. " \
	  "Name another one: make PYTHON=python3.12 demo")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { echo \
	  "could not make $(VENV): on Debian and Ubuntu, apt-get install python3-venv"; exit 1; }
	@echo "Installing into $(VENV) (about a minute, once) ..."
	@$(INSTALL) --quiet --editable '.[$(EXTRAS)]'
	@touch $@

setup: $(STAMP)  ## make .venv and install everything into it

browser:  ## a Chromium for the tests of pages, where this machine can install one
	@command -v chromium chromium-browser google-chrome >/dev/null || \
	  { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get -qq update && \
	    DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends \
	      chromium fonts-dejavu-core >/dev/null; } || \
	  echo "No Chromium here, and none could be installed: tests of pages are skipped."

docs: $(STAMP)  ## the site, into site/; warnings are errors
	$(BIN)/python -m mkdocs build --quiet

demo: $(STAMP)  ## llama-3-8b's training step on 64 H100s: analyse, search, recompile
	@$(BIN)/lagom tune llama-3-8b --parallelism fsdp --cluster h100:8x8 --compiles 5

test: $(STAMP) check  ## lint, types and the whole test suite
	$(PYTEST) --durations=25

collect: $(STAMP)
	@$(BIN)/python -m pytest --collect-only --quiet --quiet >/dev/null

nightly: $(STAMP) check  ## the same at full depth, and what is left out by day
	$(PYTEST) --nightly --durations=25

# Not what is the same with every jax: stores, processes, questions asked once, damaged
# text and rules of work. `make VENV=... nightly` runs them there, too.
SMOKE := $(addprefix tests/compile/test_,assembler.py catalogue.py compiled_steps.py \
	foreign_kernels.py kernels.py known_options.py locations.py lowering.py \
	same_module.py scheduler_pass.py streams.py windowed_einsum.py wire.py) \
	$(addprefix tests/hlo/test_,files.py stated_kernels.py work_truth.py) \
	tests/runtime/test_contract.py

smoke: $(STAMP)  ## the tests that depend on jax's version, without lint
	$(PYTEST) $(SMOKE)

check: $(STAMP)  ## lint and types only
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

format: $(STAMP)  ## rewrite the sources the way `check` wants them
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)  ## measure reading and analysis; rewrites its page
	$(BIN)/python scripts/bench_analysis.py

clean:  ## remove .venv, caches, and what was compiled
	rm -rf .venv .venv-newest site .pytest_cache .ruff_cache .hypothesis lagom_jax/nccl_plugin/*.so
