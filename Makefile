# Everything runs on a fresh clone with Python 3.11 or later, gcc and make.
#   make setup   one virtual environment per SGLang release (2 GB and a minute or two each, the first time)
#   make test    unit tests once, then the tests on the real SGLang in each release's environment
#                (those marked `once` on the last)
#   make demo    the demo on the first release
#   make lint    ruff and mypy
#   make contract  hold every released SGLang against the contract; docs/compatibility.md must say the same
# RELEASES="0.5.12.post1 0.5.17 0.5.23" chooses releases, WORKERS the test processes for the real engine;
# VENVS says where the environments are kept.

PYTHON ?= python3
RELEASES ?= 0.5.12.post1 0.5.23
VENVS ?= .venvs
override VENVS := $(abspath $(VENVS))
FIRST := $(firstword $(RELEASES))
LAST := $(lastword $(RELEASES))
PYTEST_ARGS ?=
WORKERS ?= 2
DEMO_ARGS ?=

READY := $(RELEASES:%=ready-%)
REAL_TESTS := $(RELEASES:%=test-real-%)

.PHONY: setup test test-unit demo lint contract clean $(READY) $(REAL_TESTS)

setup: $(READY)

$(READY): ready-%:
	@$(PYTHON) -m specswitch.cpu_engine.install --release $* --venv $(VENVS)/$*

# one after the other, also under make -j: each run keeps the processors busy by itself
test: setup
	@status=0; \
	$(MAKE) --no-print-directory test-unit || status=1; \
	for release in $(RELEASES); do $(MAKE) --no-print-directory test-real-$$release || status=1; done; \
	exit $$status

test-unit: ready-$(FIRST)
	@echo "== unit tests"
	@$(VENVS)/$(FIRST)/bin/python -m pytest -m "not real and not http" -n $(WORKERS) $(PYTEST_ARGS)

# what does not depend on the release line runs on the last one alone
$(REAL_TESTS): ONCE = $(if $(filter $(LAST),$*),, and not once)
$(REAL_TESTS): test-real-%: ready-%
	@echo "== the real SGLang $*"
	@status=0; \
	$(VENVS)/$*/bin/python -m pytest -m "real$(ONCE)" -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS) || status=1; \
	$(VENVS)/$*/bin/python -m pytest -m "http$(ONCE)" $(PYTEST_ARGS) || status=1; \
	exit $$status

demo: ready-$(FIRST)
	@$(VENVS)/$(FIRST)/bin/python -m specswitch.cli demo $(DEMO_ARGS)

lint: ready-$(FIRST)
	@$(VENVS)/$(FIRST)/bin/ruff check .
	@$(VENVS)/$(FIRST)/bin/mypy

# fetches the wheels once, about 300 MB, into ~/.cache/specswitch
contract: ready-$(FIRST)
	@$(VENVS)/$(FIRST)/bin/python scripts/compatibility.py --verify

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache demo-out
