# Two commands set everything up: `make demo` and `make test`. Both work again offline once installed.
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
OUT ?= demo

.PHONY: demo test lint install install-test clean
.DEFAULT_GOAL := help

help:
	@echo "make demo   install SITS, fetch a 135M-parameter model, benchmark it, write a report (about 3 minutes)"
	@echo "make test   install what the tests need, then lint, type-check and test"
	@echo "make lint   ruff, mypy and the import contracts only"
	@echo "make clean  remove $(VENV) and build leftovers (the model cache stays)"

install: $(VENV)/.installed-engine
install-test: $(VENV)/.installed-test

$(VENV)/.installed-engine: pyproject.toml constraints.txt scripts/setup.sh
	@PYTHON=$(PYTHON) bash scripts/setup.sh $(VENV) engine

$(VENV)/.installed-test: pyproject.toml constraints.txt scripts/setup.sh
	@PYTHON=$(PYTHON) bash scripts/setup.sh $(VENV) test

demo: install
	@$(BIN)/sits models fetch smollm2-135m
	@$(BIN)/sits bench --model smollm2-135m --quick --out $(OUT) || { code=$$?; [ $$code -eq 3 ] || exit $$code; \
	    echo "The figures did not settle (exit code 3): other work on this machine? The files above are whole."; }

lint: install-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check src/sits tests benchmarks
	$(BIN)/mypy
	$(BIN)/lint-imports

test: install-test lint
	$(BIN)/sits models fetch smollm2-135m
	$(BIN)/python -m pytest tests

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
