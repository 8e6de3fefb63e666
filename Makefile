# make demo | test | lint | types | check | conformance | bench | clean
#
# Everything runs in a virtual environment that the first call makes. To use another interpreter or torch release:
#     make test PYTHON=python3.12 TORCH=2.9.1
# An environment that is there already, with a torch of its own, is taken as it is: make test VENV=/path/to/venv

PYTHON ?= python3
TORCH ?=
# .venv, or .venv-3.12-2.9.1: environments of different interpreters and releases stand side by side.
VENV ?= $(subst $(space),-,$(strip .venv $(patsubst python%,%,$(filter-out python python3,$(notdir $(PYTHON)))) $(TORCH)))
# As many workers as a small machine has cores. Tests of one xdist_group go to one worker, to share what is costly.
PYTEST_ARGS ?= -n 2 --dist loadgroup
SOURCES = src tests examples benchmarks

space := $(subst ,, )
run = $(VENV)/bin/python
stamp = $(VENV)/.installed

.PHONY: demo test lint types check conformance bench clean

demo: $(stamp)
	$(run) examples/demo.py

test: $(stamp)
	$(run) -m pytest $(PYTEST_ARGS)

lint: $(stamp)
	$(run) -m ruff check $(SOURCES)
	$(run) -m ruff format --check $(SOURCES)

types: $(stamp)
	$(run) -m mypy

check: test lint types

# Every entry of PyTorch's databases, dtype and variant, and ten thousand random programs. Continues where it stopped.
conformance: $(stamp)
	$(run) -m tests.conformance --doc
	$(run) -m tests.aliasing.check --programs 10000
	$(run) -m pytest --every-dtype tests/test_same_exceptions.py

# Step times beside torch eager, torch.compile, hand-written JAX and, if BENCH_TORCH_XLA29_PYTHON names an interpreter that
# has it, PyTorch/XLA 2.9; then single ops, and those that used to crawl. docs/performance.md has results.
bench: $(stamp)
	$(run) -m benchmarks
	$(run) -m benchmarks.ops
	$(run) -m benchmarks.crawlers

clean:
	rm -rf .venv .venv-* build demo_output src/*.egg-info

# torch goes first: the package takes whatever torch it finds. On Python 3.11 a fresh environment gets the release that
# the tests are run on every day; elsewhere the newest, unless TORCH names one.
$(stamp): pyproject.toml
	test -x $(run) || $(PYTHON) -m venv $(VENV)
	torch=$$($(run) -c 'import sys; print("$(TORCH)" or ("2.13.0" if sys.version_info[:2] == (3, 11) else ""))') && \
	    $(run) -m pip install --quiet "torch$${torch:+==$$torch}"
	$(run) -m pip install --quiet --editable '.[dev]'
	touch $@
