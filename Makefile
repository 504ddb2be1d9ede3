# The two commands a newcomer needs: `make demo` and `make test`. Each sets up .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

SECONDS ?= 600
SEED ?= 1

.PHONY: demo test slow hunt bench tables docs lint format clean

$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

demo: $(VENV)/.installed
	$(BIN)/polycert demo

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/python -m pytest -n auto

slow: $(VENV)/.installed
	$(BIN)/python -m pytest -m slow

hunt: $(VENV)/.installed
	$(BIN)/python -m tests.hunt --seconds $(SECONDS) --seed $(SEED)

bench: $(VENV)/.installed
	$(BIN)/python benchmarks/certify.py
	$(BIN)/python benchmarks/bounds.py
	$(BIN)/python benchmarks/training.py
	$(BIN)/python benchmarks/growth.py

tables: $(VENV)/.installed
	$(BIN)/polycert reproduce all --out docs

docs: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[docs]"
	$(BIN)/mkdocs build --strict

format: $(VENV)/.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist site demo-out
