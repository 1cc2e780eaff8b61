# make demo: trains an agent on the CPU and shows what speculation did. make test: every test.
SHELL := /bin/bash

.PHONY: demo test test-fast lint env clean
demo:
	py=$$(scripts/venv.sh cpu)/bin/python && $$py -m turntree.agents.cli demo $(DEMO)

test:
	py=$$(scripts/venv.sh cpu)/bin/python && $$py -m pytest $(TESTS)

test-fast:
	py=$$(scripts/venv.sh cpu)/bin/python && $$py -m pytest -m "not slow" $(TESTS)

lint:
	py=$$(scripts/venv.sh cpu)/bin/python && PY=$$py scripts/lint.sh

env:
	@scripts/venv.sh cpu

clean:
	rm -rf build .mypy_cache .ruff_cache .pytest_cache
