# make demo: train an agent on the CPU and show the effect of drafts. make test: test every guarantee.
SHELL := /bin/bash
unexport PYTHONDONTWRITEBYTECODE  # without cached bytecode, each test process recompiles its imports

# Versions of the engines, one environment each: requirements/NAME.txt. `make test` takes the first, `make test-all` all.
VLLM := vllm-0.28 vllm-0.24
SGLANG := sglang-0.5.12

.PHONY: demo docs test test-all test-trainings test-cpu test-fast test-fast-agents test-fast-others test-fast-verl kernels test-engines test-site \
  test-interop test-vllm test-sglang test-mutants test-times dist lint env gpu-env clean
demo:
	py=$$(scripts/venv.sh cpu)/bin/python && $$py -m turntree.agents.cli demo $(DEMO)

# Longest first, with two that wait for engines or Ray beside one that computes.
PARTS := kernels test-trainings test-sglang $(if $(TESTS),test-fast,test-fast-agents test-fast-others) test-vllm \
  $(if $(TESTS),,test-fast-verl) test-site
KIND := not release
RUN_TESTS := $${PYTHON:-python3} scripts/run_tests.py
test:
	$(RUN_TESTS) $(PARTS) -- VLLM=$(firstword $(VLLM)) SGLANG=$(firstword $(SGLANG))

test-times:  # like test, and writes each file's CPU seconds to tests/cpu_seconds.toml; run nothing else meanwhile
	$(RUN_TESTS) --times $(PARTS) -- VLLM=$(firstword $(VLLM)) SGLANG=$(firstword $(SGLANG))

test-all:  # every version of the engines, every combination, long statistics: before a release
	$(RUN_TESTS) $(PARTS) test-interop -- KIND="release or not release" VLLM="$(VLLM)" SGLANG="$(SGLANG)"

HERE = not vllm and not sglang and not site and not interop
test-engines: test-site test-vllm test-sglang

kernels:  # compiled once, instead of by all parts at the same time
	py=$$(scripts/venv.sh cpu)/bin/python && $$py -c "import torch; from turntree.agents.engines.drafting import chain_rows; \
	  from turntree.agents.engines.local.forward import compiled; from turntree.spec_tree.store import warm_up; \
	  warm_up.warm_up(); compiled.warm_up(torch.float32); chain_rows.warm_up()"

test-trainings:
	py=$$(scripts/venv.sh cpu)/bin/python && $$py -m pytest -m "slow and ($(KIND)) and $(HERE)" \
	  $(or $(TESTS),$(shell grep -rl "mark.slow" tests --include=test_*.py))

test-fast:
	py=$$(scripts/venv.sh cpu)/bin/python && $$py -m pytest -m "not slow and ($(KIND)) and $(HERE)" $(TESTS)

test-fast-agents:
	$(MAKE) --no-print-directory test-fast TESTS="tests/agents --ignore=tests/agents/verl"

test-fast-verl:
	$(MAKE) --no-print-directory test-fast TESTS=tests/agents/verl

test-fast-others:
	$(MAKE) --no-print-directory test-fast TESTS="tests --ignore=tests/agents"

test-cpu: test-trainings test-fast

test-site:
	py=$$(scripts/venv.sh site)/bin/python && $$py -m pytest -m "site and ($(KIND))" $(or $(TESTS),tests/docs tests/agents/viewer)

test-interop:  # bridges, BFCL and the gateway's clients against the packages themselves; nothing is downloaded
	py=$$(scripts/venv.sh interop)/bin/python && HF_HUB_OFFLINE=1 $$py -m pytest -m "interop and ($(KIND))" \
	  $(or $(TESTS),tests/envs/bridges tests/envs/bfcl tests/envs/checking tests/agents/gateway/clients tests/agents/harness tests/docs/test_pages.py)

VLLM_FILES := $(sort $(shell grep -rlE "mark.vllm|pytest.mark, engine" tests --include=test_*.py))
test-vllm:  # tests marked "once" run with the first version only
	which=vllm; for name in $(VLLM); do py=$$(scripts/venv.sh $$name)/bin/python && \
	  $$py tests/support/warm_engine.py vllm -m "$$which and ($(KIND))" -- $(or $(TESTS),$(VLLM_FILES)) || exit 1; \
	  which="vllm and not once"; done

SGLANG_FILES := $(sort $(shell grep -rlE "mark.sglang|pytest.mark, engine" tests --include=test_*.py))
# A process for each file: SGLang's engine changes the process that starts it. -s: when a scheduler fails, SGLang kills
# that process, and with it the output that pytest has captured.
test-sglang:
	files="$(or $(TESTS),$(SGLANG_FILES))"; for name in $(SGLANG); do py=$$(scripts/venv.sh $$name)/bin/python && \
	  $$py tests/support/warm_engine.py sglang -s -m "sglang and ($(KIND))" -- $$files || exit 1; \
	  files="$$(grep -L "mark.once" $$files || :)"; done  # grep -L exits with 1 if no file has the mark

test-mutants:  # one-line faults that the tests must notice: tests/mutants.toml
	py=$$(scripts/venv.sh cpu)/bin/python && $$py scripts/mutants.py $(MUTANTS)

docs:
	py=$$(scripts/venv.sh site)/bin/python && $$py -m sphinx -W --keep-going -q docs build/site && echo build/site/index.html

dist:  # dist/turntree-VERSION: wheel and sdist
	rm -rf build/lib dist && py=$$(scripts/venv.sh cpu)/bin/python && $$py -c \
	  "from setuptools import build_meta as b; print('dist/' + b.build_sdist('dist')); print('dist/' + b.build_wheel('dist'))"

lint:
	py=$$(scripts/venv.sh cpu)/bin/python && PY=$$py scripts/lint.sh

env:
	@scripts/venv.sh cpu

gpu-env:  # on a machine with NVIDIA GPUs: make gpu-env ENGINE=sglang; Python 3.12
	scripts/gpu_env.sh $(or $(ENGINE),vllm)

clean:
	rm -rf build .mypy_cache .ruff_cache .pytest_cache
