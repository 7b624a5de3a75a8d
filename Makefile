# One place for every command; `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.fresh
LOCKS := $(wildcard requirements/*.lock)
# Many tests wait for something: three times as many workers as there are cores keep those busy.
WORKERS ?= $(shell echo $$(( $$(nproc) * 3 )))
# What takes long mostly computes, and some of it takes much memory.
LONG_WORKERS ?= $(shell echo $$(( $$(nproc) * 2 )))
LONG := $(BIN)/python -m pytest --dist loadgroup --timeout 3600 --durations 10
# A Java broker takes a core of its own while it starts; the tests of a module share theirs.
PEER_WORKERS ?= $(shell nproc)
PART ?= all
# What is told of the project, what is shipped, and whether its tests see faults: looked at by `make check`.
CHECKED := model_tests/tidy model_tests/docs model_tests/mutants model_tests/door
# Tests are compiled once, on all cores: else each worker compiles all of them anew.
COMPILED := build/compiled-tests
TESTS := $(filter-out $(CHECKED:%=%/%),$(wildcard model_tests/*/*.py model_tests/*/*/*.py))
# Compiled modules are kept even where the environment forbids it: else each of hundreds of processes compiles anew.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: setup run test test-long test-peers bench docs check format changelog release lock clean help

setup: $(STAMP)  ## make .venv with every dependency pinned, or with some extras: make setup EXTRAS=law,testing

# The stamp says what .venv is for: `dev` for everything, else names of extras. What it lacks is installed.
COMMA := ,
WANTED := $(or $(subst $(COMMA), ,$(EXTRAS)),dev)
HAVE := $(file <$(STAMP))
ifneq ($(if $(filter dev,$(HAVE)),,$(filter-out $(HAVE),$(WANTED))),)
.PHONY: $(STAMP)
endif

$(STAMP): $(LOCKS) pyproject.toml requirements/setup.sh requirements/extras.py
	@PYTHON="$(PYTHON)" EXTRAS="$(EXTRAS)" bash requirements/setup.sh "$(VENV)"

run: setup  ## the main job: explore, prove, serve, drive, record, judge, report
	@$(BIN)/longpoll verify

$(COMPILED): $(STAMP) $(TESTS)
	@mkdir -p build
	@printf '%s\n' $(filter %/test_%.py,$(TESTS)) | xargs -n 150 -P $$(nproc) $(BIN)/python -m pytest --collect-only -qq >build/compiled.log 2>&1 || { tail -40 build/compiled.log; exit 1; }
	@touch $@

test: setup $(COMPILED)  ## the test suite, some five minutes on two cores; that text, docs, packages and tests are what they should be is in `make check`
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup $(CHECKED:%=--ignore %)

test-long: setup  ## everything that takes over 30 s; what fails in one part keeps no other from its turn
	@export LONGPOLL_PROFILE=long; failed=0; \
	$(LONG) -n $(LONG_WORKERS) -m "long and not whole_machine" || failed=1; \
	$(LONG) -n $(LONG_WORKERS) model_tests/machines || failed=1; \
	$(LONG) -n 0 -m whole_machine || failed=1; \
	exit $$failed

test-peers: setup  ## real RocketMQ clients and brokers
	@$(BIN)/python -m pytest -n $(PEER_WORKERS) --dist loadfile -m "peers and not long" --timeout 600

bench: setup  ## measure, and print ratios against the peer: make bench PART=explore|broker|judge|polling|schedules|oracle|attacks|java|client
	@$(BIN)/python -m model_tests.bench "$(PART)"

docs: setup  ## make the site of the docs in build/site, to be opened as files
	@PYTHONPATH=spec:reference $(BIN)/python -m docs.site

check: setup  ## format, lint, types, contracts, wheel, docs, and that the tests see planted faults
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m longpoll_spec.render.spec | diff -q - docs/spec.md >/dev/null || { echo "docs/spec.md is not what the law says: $(BIN)/python -m longpoll_spec.render.spec >docs/spec.md"; exit 1; }
	@rm -rf build/wheel && mkdir -p build && $(BIN)/python -m build --wheel --no-isolation --outdir build/wheel . >build/wheel.log 2>&1 || { cat build/wheel.log; exit 1; }
	@$(BIN)/check-wheel-contents build/wheel
	@$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadgroup $(CHECKED)

format: setup  ## let the formatter decide
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

changelog: setup  ## make CHANGELOG.md of the fragments in changelog.d
	@$(BIN)/python -m model_tests.tidy.changelog

release: setup  ## build wheel and sdist into dist, and check what is in them
	@$(BIN)/python -m model_tests.door.release

lock:  ## make requirements/*.lock anew (needs uv)
	@bash requirements/lock.sh

clean:  ## remove what the other targets made
	@rm -rf $(VENV) build dist longpoll-report .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis spark-warehouse
	@find spec reference model_tests -name __pycache__ -prune -exec rm -rf {} +

help:  ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F'\t' '{printf "  make %-12s %s\n", $$1, $$2}'
