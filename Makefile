# The commands of CONTRIBUTING.md. PYTHON is that of an environment with the tests' packages: pip install -e '.[test]'.
PYTHON ?= .venv/bin/python
BENCH ?= tabular

.PHONY: check test fast docs bench ci

check: ## format, lint, types
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m ruff check .
	$(PYTHON) -m mypy

test: ## all tests and doctests
	$(PYTHON) -m pytest -n logical

fast: ## tests of a few seconds each; what a library is missing for is skipped
	$(PYTHON) -m pytest -n logical -m "not slow"

docs: ## the code of the documentation
	$(PYTHON) -m pytest tests/test_docs.py

bench: ## one benchmark; choose another with BENCH=images
	$(PYTHON) -m benchmarks.$(BENCH)

ci: ## everything, in a new environment, as a change must pass it
	bash .ci/run
