# `make demo` and `make test` set up everything they need in .venv.
PYTHON ?= python3.11
BIN := .venv/bin

.PHONY: demo test lint types check bench clean

demo: .venv/installed
	$(BIN)/memcurse inspect sample_checkpoints/dense_linear_rnn.safetensors \
	  sample_checkpoints/complex_diagonal_rnn.safetensors \
	  sample_checkpoints/lru.safetensors sample_checkpoints/gru.safetensors

# One thread for each of the two workers and for the commands that they run.
test: .venv/installed-dev
	$(BIN)/memcurse inspect sample_checkpoints/lru.safetensors
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

lint: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: .venv/installed-dev
	$(BIN)/mypy

check: lint types test

bench: .venv/installed-dev
	$(BIN)/python -m benchmarks

clean:
	rm -rf .venv

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable .
	touch $@

.venv/installed-dev: .venv/installed
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@
