# Two commands do everything, from a fresh clone on a fresh machine:
#   make run    sets up .venv, and says whether your second device is worth it
#   make test   the same set-up, then the package's own tests
# More tests: make smoke (half a minute), slow, check-docs, check-parity (PyTorch, d2l),
# check-teaching, check-peers.
# With an NVIDIA GPU of compute capability 5.0-8.9: make run EXTRA=cu112
# Another interpreter: make test PYTHON=/path/to/python3.13, in .venv-python3.13
# Beside MXNet 2 (2.0.0b1, CPU, Python 3.9-3.12): make test MXNET=2, in .venv-mxnet2

EXTRA ?= cpu
PYTHON ?=
MXNET ?= 1
VENV ?= .venv$(if $(PYTHON),-$(notdir $(PYTHON)))$(if $(filter 2,$(MXNET)),-mxnet2)
# Modules are compiled when they are first imported, not all of them here; where this
# variable is set, as in many containers, each process would compile MXNet again.
unexport PYTHONDONTWRITEBYTECODE
PIP_INSTALL = $(VENV)/bin/python -m pip install --quiet --no-compile \
	--disable-pip-version-check
ifeq ($(MXNET),2)
# It asks for an old graphviz; what it imports comes from here.
EXTRA := test
WHEEL = mxnet==2.0.0b1
# What differs between the two stands in d2lpar/_mxnet.py; these are its users.
TESTS = tests/test_mxnet_values.py tests/test_parallel.py tests/test_equivalence.py \
	tests/test_waiting.py tests/test_devices.py tests/test_timing.py tests/lenet \
	tests/gan tests/scaling tests/arrays tests/least_squares tests/kernels \
	tests/low_precision tests/workers tests/memory tests/runs
else
WHEEL = $(if $(findstring cu112,$(EXTRA)),mxnet-cu112,mxnet)==1.9.1
endif
# The versions of constraints/ for this Python; extras with d2l need older ones.
CONSTRAIN = $(if $(findstring book,$(EXTRA)),,$$($(VENV)/bin/python -c 'import os, sys; \
	name = "constraints/%d.%d.txt" % sys.version_info[:2]; \
	print("-c " + name if os.path.exists(name) else "")'))

SMOKE = tests/test_parallel.py tests/test_equivalence.py

# Files run side by side, the tests of one in turn: they share what its fixtures make.
# The slow tests share little, and the file of the longest would keep the others waiting.
PYTEST = $(VENV)/bin/python -m pytest -n logical --maxprocesses 8

.PHONY: run test smoke slow lint check-docs check-parity check-teaching check-peers \
	gallery notebooks book students grader clean

run: $(VENV)/.run-$(EXTRA)
	@$(VENV)/bin/d2lpar run multiple_gpus_concise --preset first; echo
	@$(VENV)/bin/d2lpar run least_squares --preset first --threads 1; echo
	@$(VENV)/bin/d2lpar run scaling --preset first --repeats 4; echo
	@$(VENV)/bin/d2lpar report; echo
	@echo "Next:"
	@echo "  $(VENV)/bin/d2lpar run gan                           a GAN draws faces"
	@echo "  $(VENV)/bin/d2lpar list                              the other chapters"
	@echo "  $(VENV)/bin/d2lpar run multiple_gpus --preset book   all the data, 10 epochs"
	@echo "README.md says what else there is."

test: $(VENV)/.test-$(EXTRA)
	$(PYTEST) --dist loadfile -m "not slow and not parity and not docs and not teaching \
		and not peers $(if $(findstring cu112,$(EXTRA)),,and not gpu)" $(TESTS)

# For the impatient: the four functions, one training, one solve, one record.
smoke: $(VENV)/.test-$(EXTRA)
	$(VENV)/bin/python -m pytest -q $(SMOKE)

check-docs: $(VENV)/.docs-$(EXTRA) $(VENV)/.test-$(EXTRA)
	$(PYTEST) --dist loadfile -m "docs and not slow"

# PyTorch and d2l: pip install torch first where a build for CPUs is wanted.
check-parity: $(VENV)/.parity-$(EXTRA)
	$(PYTEST) --dist loadfile -m "parity and not slow"

check-teaching check-peers: check-%: $(VENV)/.test-$(EXTRA)
	$(PYTEST) --dist loadfile -m "$* and not slow"

slow: $(VENV)/.test-$(EXTRA)
	$(PYTEST) --dist worksteal -m slow


lint: $(VENV)/.test-$(EXTRA)
	$(VENV)/bin/ruff check . && $(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy && $(VENV)/bin/lint-imports --no-logo --no-cache
	$(VENV)/bin/python tools/lines.py
	$(VENV)/bin/hadolint Dockerfile Dockerfile.gpu

# Measures what has no record of this code, hours on a machine with nothing else to do,
# and draws figures/. `make gallery GALLERY=--list` says how long; `GALLERY=--draw` only
# draws.
gallery: $(VENV)/.gallery-$(EXTRA)
	$(VENV)/bin/python tools/gallery.py $(GALLERY)

$(VENV)/.gallery-$(EXTRA): $(VENV)/.test-$(EXTRA)
	$(PIP_INSTALL) -e ".[$(EXTRA),book,peers]"
	@touch $@

$(VENV)/.parity-$(EXTRA): $(VENV)/.test-$(EXTRA)
	$(PIP_INSTALL) -e ".[$(EXTRA),book,test]" "torch>=2.0"
	@touch $@

$(VENV)/bin/python:
	@sh tools/make_venv.sh "$(VENV)" "$(PYTHON)"

# From Python 3.13 the extra leaves MXNet out; elsewhere the second line does nothing.
$(VENV)/.run-$(EXTRA): $(VENV)/bin/python setup.cfg
	$(PIP_INSTALL) -e ".[$(EXTRA)]" $(CONSTRAIN)
	$(PIP_INSTALL) --no-deps $(WHEEL)
	@touch $@

$(VENV)/.test-$(EXTRA): $(VENV)/.run-$(EXTRA)
	$(PIP_INSTALL) -e ".[$(EXTRA),test]" $(CONSTRAIN)
	@touch $@

# Chapters as executed notebooks, quick preset; NOTEBOOKS="gan memory" for some of them.
notebooks: $(VENV)/.notebooks-$(EXTRA)
	$(VENV)/bin/python tools/make_notebooks.py $(NOTEBOOKS)

# With what two chapters compare with, if it is there.
$(VENV)/.notebooks-$(EXTRA): $(VENV)/.docs-$(EXTRA)
	$(PIP_INSTALL) -e ".[$(EXTRA),docs]" "dask[array]"
	@touch $@

# The committed notebooks, guides and API as one static site, for a browser without a
# network. A chapter without a notebook stands there without output.
book: $(VENV)/.docs-$(EXTRA)
	$(VENV)/bin/python -m sphinx -W --keep-going -q -b html -c docs \
		-d build/doctrees . build/book
	@echo "file://$(CURDIR)/build/book/index.html"

# For a class: each chapter and the homework without solutions, in build/students/.
# STUDENTS="homework timing" for some of them.
students: $(VENV)/.docs-$(EXTRA)
	$(VENV)/bin/python tools/make_students.py $(STUDENTS)

# The homework's grader for Gradescope and Otter: build/grader.zip.
grader: $(VENV)/.docs-$(EXTRA)
	$(VENV)/bin/python tools/make_students.py --grader

$(VENV)/.docs-$(EXTRA): $(VENV)/.run-$(EXTRA)
	$(PIP_INSTALL) -e ".[$(EXTRA),docs]"
	@touch $@

clean:
	rm -rf "$(VENV)" build *.egg-info
