# Every command sets up .venv by itself when it is missing or out of date.
.DEFAULT_GOAL := help
.PHONY: help setup demo test check bench soak docs
PYTHON ?= python3
BIN := .venv/bin
# Where every branch must be reached by some test, and the tests that must reach it.
HEART := tests/core tests/ledger tests/store tests/privacy tests/secagg tests/test_accounts.py tests/test_scenarios.py
WHOLE := src/consortium/core/*,src/consortium/crypto/*,src/consortium/ledger/*,src/consortium/privacy/*,src/consortium/store/*

help:  ## list these commands
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):[^#]*## /  make \1\t/' | expand -t 16

.venv/ready: pyproject.toml constraints.txt scripts/setup.sh
	@PYTHON="$(PYTHON)" sh scripts/setup.sh

setup: .venv/ready  ## make .venv with all that is needed

demo: .venv/ready  ## four hospitals and a coordinator train here: killed, gone on, audited
	@$(BIN)/consortium demo

test: .venv/ready  ## all tests, with the coverage that the heart must have
	@$(BIN)/coverage run --include='$(WHOLE)' -m pytest $(HEART)
	@$(BIN)/coverage report --skip-covered --fail-under=100
	@$(BIN)/python -m pytest --numprocesses 2 --dist loadfile $(HEART:%=--ignore %)

check: .venv/ready  ## format, lint, types, layers, sizes, generated pages and snippets
	@$(BIN)/ruff format --check src tests benchmarks scripts
	@$(BIN)/ruff check src tests benchmarks scripts
	@$(BIN)/mypy
	@$(BIN)/python -m pytest tests/test_layers.py tests/test_docs.py

bench: .venv/ready  ## every benchmark, one JSON object a line
	@$(BIN)/python -m benchmarks.core --json
	@$(BIN)/python -m benchmarks.store --json
	@$(BIN)/python -m benchmarks.aggregation --json
	@$(BIN)/python -m benchmarks.secagg --json
	@$(BIN)/python -m benchmarks.network --json
	@$(BIN)/python -m benchmarks.asynchronous --json
	@$(BIN)/python -m benchmarks.dpsgd --json
	@$(BIN)/python -m benchmarks.population --json

soak: .venv/ready  ## the long campaigns; docs/reference/soak.md says how they went
	@$(BIN)/python scripts/soak.py

docs: .venv/ready  ## write the generated parts of docs/ anew
	@$(BIN)/python scripts/gen_docs.py
