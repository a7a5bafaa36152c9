# `make demo` and `make test` set up everything they need in .venv.
PYTHON ?= python3.11
BIN := .venv/bin

.PHONY: demo test test-libraries lint types check package size bench clean

demo: .venv/installed
	$(BIN)/memcurse inspect sample_checkpoints/dense_linear_rnn.safetensors \
	  sample_checkpoints/complex_diagonal_rnn.safetensors \
	  sample_checkpoints/lru.safetensors sample_checkpoints/gru.safetensors

# One thread for each of the two workers and for the commands that they run.
test: .venv/installed-dev
	$(BIN)/memcurse inspect sample_checkpoints/lru.safetensors
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --ignore=tests/library

# The libraries themselves write and run what `make test` has as small files.
test-libraries: .venv/installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 tests/library

lint: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: .venv/installed-dev
	$(BIN)/mypy

check: lint types test test-libraries

# The wheel, without any extra, in a fresh environment away from the repository.
package: .venv/installed
	folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && \
	  $(BIN)/pip wheel --quiet --no-deps --wheel-dir "$$folder" . && \
	  $(PYTHON) -m venv "$$folder/venv" && \
	  "$$folder/venv/bin/pip" install --quiet --constraint constraints.txt "$$folder"/*.whl && \
	  cp sample_checkpoints/lru.safetensors "$$folder" && cd "$$folder" && \
	  venv/bin/memcurse inspect lru.safetensors && \
	  venv/bin/memcurse inspect lru.safetensors --format html --output lru.html && \
	  grep -q '</html>' lru.html && ! venv/bin/pip show --quiet torch jax 2>/dev/null

size: .venv/installed-dev
	$(BIN)/python -m benchmarks.size

# Every row beside its peer, then how they grow; the tables go to README.md and docs/.
bench: .venv/installed-bench
	$(BIN)/python -m benchmarks
	$(BIN)/python -m benchmarks.scaling

clean:
	rm -rf .venv

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable .
	touch $@

.venv/installed-dev: .venv/installed
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

.venv/installed-bench: .venv/installed
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[bench]'
	touch $@
