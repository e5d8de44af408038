# One environment for everything: `make venv` makes it, every other target uses it.
VENV := .venv
PYTHON ?= python3
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# One thread: two make a training step of this size many times slower, and change its last bits.
export OMP_NUM_THREADS := 1

.PHONY: help venv demo test lint bench clean

help: ## what there is
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

venv: $(STAMP) ## make .venv with the exact versions of constraints.txt

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[trainer,dev]'
	touch $@

demo: venv ## train, kill, rejoin, judge, report: the whole thing on this machine
	$(BIN)/chaoskit run faults/kill-and-rejoin.toml

lint: venv ## ruff and mypy (strict)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy

test: lint ## lint, then every test
	$(BIN)/pytest

bench: venv ## measure the data plane (figures, no verdict)
	$(BIN)/python benchmarks/links.py

clean: ## remove what was generated here
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
