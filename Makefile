# One place for every command; `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.fresh
LOCKS := $(wildcard requirements/*.lock)
# Some tests wait for sockets and processes: three workers for each core keep those busy. Each one imports all tests.
WORKERS ?= $(shell echo $$(( $$(nproc) * 3 )))
# A Java broker takes a core of its own while it starts. On a busy machine it answers later than the 3 s for which our
# clients wait, so there are no more workers than cores.
PEER_WORKERS ?= $(shell nproc)
PART ?= all
# How long `make nightly` may take, and what it draws: without SEED, the date.
MINUTES ?= 45
SEED ?=
# `make mutants` tries the modules that differ from BASE, unless MODULE names others.
BASE ?= $(shell git merge-base HEAD origin/main 2>/dev/null || echo HEAD)
MODULE ?=
# `make check` looks at texts, the wheel, mutants, and at Spark, which takes as long to start as 500 tests to run.
SPARK := model_tests/judge/test_cluster.py model_tests/judge/test_spark.py model_tests/spec/test_spark_engine.py
CHECKED := model_tests/tidy model_tests/docs model_tests/docs_site model_tests/mutants model_tests/door $(SPARK)
# `make check QUICK=1` leaves out the wheel, the site, Spark and every test that runs for seconds.
QUICK ?=
PROSE := model_tests/tidy/test_prose.py model_tests/tidy/test_text.py model_tests/tidy/test_house.py
# `make test FILE=PATH` runs one file or folder of tests, whose `long` tests it leaves out.
FILE ?=
# Tests are compiled once, on all cores: else each worker compiles all of them anew.
COMPILED := build/compiled-tests
TESTS := $(filter-out $(CHECKED:%=%/%),$(wildcard model_tests/*/*.py model_tests/*/*/*.py))
# Compiled modules are kept even where the environment forbids it: else each of hundreds of processes compiles anew.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: setup run test test-peers nightly mutants bench docs check format release lock clean help

setup: $(STAMP)  ## make .venv with every dependency pinned, or with some extras: make setup EXTRAS=spec,testing

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

test: setup $(if $(FILE),,$(COMPILED))  ## the test suite, under three minutes on two quiet cores, or make test FILE=PATH
	@$(BIN)/python -m pytest $(or $(FILE),-n $(WORKERS) --dist loadgroup $(CHECKED:%=--ignore %))

test-peers: setup  ## real clients and brokers, SPIN, browsers, and the servers that kit tests; at most 15 minutes
	@$(BIN)/python -m pytest -n $(PEER_WORKERS) --dist loadgroup -m "peers and not long" --timeout 600

nightly: setup  ## simulations, fuzzers and long tests for a given time: make nightly MINUTES=45 [SEED=N]
	@$(BIN)/python -m model_tests.nightly --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

mutants: setup  ## mutants of the changed modules that no test kills: make mutants [MODULE=GLOB] [BASE=REVISION]
	@$(BIN)/python -m model_tests.mutants.code $(if $(MODULE),--module '$(MODULE)',--changed-since $(BASE))

bench: setup  ## measure, and print ratios against the peer: make bench PART=explore|broker|judge|polling|oracle|client|services
	@$(BIN)/python -m model_tests.bench "$(PART)"

docs: setup  ## make the site of the docs in build/site, to be opened as files
	@PYTHONPATH=spec:reference $(BIN)/python -m docs.site

check: setup  ## format, lint, types, contracts, wheel, site, Spark, tests of tests; make check QUICK=1: under 30 s
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
ifneq ($(QUICK),)
	@$(BIN)/python -m pytest -q $(PROSE)
else
	@$(BIN)/python -m longpoll_spec.render.spec_page | diff -q - docs/spec.md >/dev/null || { echo "docs/spec.md differs from the specification: $(BIN)/python -m longpoll_spec.render.spec_page >docs/spec.md"; exit 1; }
	@rm -rf build/wheel && mkdir -p build && $(BIN)/python -m build --wheel --no-isolation --outdir build/wheel . >build/wheel.log 2>&1 || { cat build/wheel.log; exit 1; }
	@$(BIN)/check-wheel-contents build/wheel
	@$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadgroup $(CHECKED)
endif

format: setup  ## let the formatter decide
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

release: setup  ## build wheel and sdist into dist, and check what is in them
	@$(BIN)/python -m model_tests.door.release

lock:  ## make requirements/*.lock anew (needs uv)
	@bash requirements/lock.sh

clean:  ## remove what the other targets made
	@rm -rf $(VENV) build dist longpoll-report .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis spark-warehouse
	@find spec reference model_tests -name __pycache__ -prune -exec rm -rf {} +

help:  ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F'\t' '{printf "  make %-12s %s\n", $$1, $$2}'
