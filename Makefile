# Set-up and daily work. `make` alone lists the verbs.
VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= python3

.PHONY: help train test check learning clusters fuzz bench-peers format clean

help:  ## list the verbs
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

train: $(VENV)/.srl  ## set up and train PPO on CartPole-v1 until it is solved
	$(BIN)/srl train ppo --env CartPole-v1

test: $(VENV)/.dev check  ## everything CI runs: checks, then the tests
	$(BIN)/pytest

check: $(VENV)/.dev  ## format, lint, types, imports, size budgets; seconds
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/python tests/budgets.py

learning: $(VENV)/.dev  ## the learning tests on three seeds each; about half an hour
	$(BIN)/pytest -m learning --timeout 3600

clusters: $(VENV)/.dev  ## hosts that fail, come back and are cut off, in network namespaces; minutes, as root
	$(BIN)/pytest -m clusters

fuzz: $(VENV)/.dev  ## ten thousand damaged inputs; minutes
	$(BIN)/pytest -m fuzz --timeout 3600

bench-peers: $(VENV)/.dev  ## install the peers, run them beside SRL, draw docs/performance.md; hours
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[perf]"
	$(BIN)/python perf/peers/install.py
	$(BIN)/python perf/compare.py

format: $(VENV)/.dev  ## format the code and mend what can be mended by itself
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:  ## remove the environment and what tools left behind
	rm -rf $(VENV) build *.egg-info .pytest_cache .ruff_cache .hypothesis .import_linter_cache

# torch first: without the pin pip would choose a build with gigabytes of CUDA.
$(VENV)/.srl: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[play]"
	touch $@

$(VENV)/.dev: $(VENV)/.srl
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@
