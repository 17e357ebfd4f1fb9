# On a machine with only Python (3.11 or newer) and make:
#   make walk       sets up and trains the walking humanoid
#   make test       sets up and runs the tests, except those marked `long`
#   make test-long  sets up and runs those: slow tests that a change seldom breaks; with KSIM_TESTS=full in every
#                   combination of devices, layouts, faults and environments
#   make faults     sets up and injects faults at length: kills, damage, full disks, NaN, wrong input (a quarter of an
#                   hour)
#   make compile-gpu  sets up JAX's compiler for NVIDIA GPUs (3 GB) and compiles a training step for one that is not here
#   make docs       sets up and writes docs/terms.md and docs/options.md anew, after a term or an option has changed
#   make site       sets up and writes the documentation as a site, build/site/index.html
# PYTHON picks the interpreter, ARGS adds options: make walk ARGS="num_envs=256 max_iterations=50"

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
BIN := $(VENV)/bin
# Python compiles a module at its first import and keeps the result; most of what is installed is never imported.
unexport PYTHONDONTWRITEBYTECODE
INSTALL := -m pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt

.PHONY: walk test test-long faults compile-gpu docs site lint format bench help clean

help:
	@sed -n 's/^# \{0,1\}//p' Makefile

# The stamp is newer than what it was made from only once everything is installed.
$(VENV)/.installed: pyproject.toml setup.py constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "ksim needs Python 3.11 or newer; set PYTHON=")'
	$(PYTHON) -m venv $(VENV)
	@echo "Installing 1.8 GB of packages into $(VENV), which takes one minute or a few ..."
	$(BIN)/python $(INSTALL) --editable '.[dev]'
	touch $@

walk: $(VENV)/.installed
	$(BIN)/python -m examples.walking_distributed $(if $(findstring max_iterations=,$(ARGS)),,max_iterations=500) $(ARGS)

# Without restarts, or pytest-xdist waits for ever for the tests of a process that crashed.
test: $(VENV)/.installed
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal --max-worker-restart 0 -m "not long" $(ARGS)

# Loggers of other services, environments and robots of other people, and notebooks take 800 MB, which only their tests
# need.
EXTRAS := warp,wandb,mlflow,playground,brax,robots,notebook
$(VENV)/.extras: $(VENV)/.installed
	$(BIN)/python $(INSTALL) --editable '.[$(EXTRAS)]'
	touch $@

# Apart from the rest, or JAX would look for a TPU at every start.
$(VENV)/tpu: $(VENV)/.installed
	$(BIN)/python $(INSTALL) --no-deps --target $@ libtpu

# By files: some have tests that read what those before them wrote. Three at a time also on two cores: they often wait for
# the processes that they start.
test-long: $(VENV)/.extras $(VENV)/tpu
	$(BIN)/python -m pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder --max-worker-restart 0 -m long $(ARGS)

faults: $(VENV)/.installed
	KSIM_TESTS=full $(BIN)/python -m pytest --numprocesses 2 --dist loadfile --max-worker-restart 0 tests/faults $(ARGS)

# JAX's compiler for NVIDIA GPUs takes 3 GB, and an environment of its own, or JAX would look for a GPU at every start.
$(VENV)-gpu/.installed: pyproject.toml setup.py constraints.txt
	$(PYTHON) -m venv $(VENV)-gpu
	$(VENV)-gpu/bin/python $(INSTALL) --editable '.[cuda,warp]'
	touch $@

compile-gpu: $(VENV)-gpu/.installed
	$(VENV)-gpu/bin/python -m ksim.tools.compile $(if $(ARGS),$(ARGS),examples.walking_distributed --target h100)

docs: $(VENV)/.installed
	$(BIN)/python -m ksim.tools.terms > docs/terms.md
	$(BIN)/python -m ksim.tools.options > docs/options.md

$(VENV)/.site: $(VENV)/.installed
	$(BIN)/python $(INSTALL) --editable '.[site]'
	touch $@

# Into build/site, with the pictures of the terms in build/pictures, which are drawn anew only when terms change. A link
# that leads nowhere, and a public name that the reference lacks, is an error.
site: $(VENV)/.site
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going -b html -c docs/site . build/site

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

format: $(VENV)/.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.installed
	$(BIN)/python -m benchmarks.throughput $(ARGS)

clean:
	rm -rf $(VENV) build dist *.egg-info
