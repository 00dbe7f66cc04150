# make demo    set up, then run the main job
# make test    set up, then lint, types, tests, and a fifth of the core's tests again as on each of four other processors
# make test-torch  the tests of the core, the modules and Hugging Face on the oldest, the pinned and the newest torch
# make sanitize  the tests of the native kernels under the address and undefined-behaviour sanitizers
# make bench   set up, then measure against peers (results in benchmarks/results/)
# make docs    set up, then build the site into build/site
# make docs-both  the same by a second builder into build/site-zensical, and compare the two
# make lock    choose anew what make installs, and write its hashes
# make fuzz    random cases against slow truth, random damage, random requests, for FUZZ_SECONDS (default 300)
# make load    200 askers beside 50 slow ones press the page's server for a minute, then SIGTERM
# make notebooks  run the tutorials from top to bottom
# make release build sdist and wheel, and try them in a clean environment; its steps: make sdist, make wheel, make wheel-test
# make release-all  the same with every Python from 3.11 that is found
# make hf-models  try every architecture of transformers in a tiny model, and compare with docs/hf-models.md (some minutes)
# make kills   kill long commands at some moments, run them again, and compare the results
# make s3      pretraining from an S3 server on the loopback beside the same shards on a disk (about two minutes)
# make test-all   test, all of the core's tests as on other processors, kills, pretraining from S3, every architecture of transformers, notebooks, docs, the site in a browser, release
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
APP    := $(VENV)/.app
SITE   := $(VENV)/.site
FUZZ   := $(VENV)/.fuzz
FUZZ_SECONDS ?= 300
RESTART := tests/training/test_faults.py::test_killed_and_started_again

# bfloat16 products die with an illegal instruction on machines that announce AMX and lack it.
export ONEDNN_MAX_CPU_ISA ?= AVX512_CORE_BF16

.PHONY: demo test test-all test-torch hf-models lint types check kills s3 fuzz load machines machines-all bench sanitize browser docs docs-both lock site-check \
  notebooks sdist wheel wheel-test release release-all clean

# What the application needs is less than what its tests need.
demo: $(if $(wildcard $(READY)),$(READY),$(APP))
	$(BIN)/regard demo

test: lint types check machines

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

# Two processes of one thread each are faster on two cores than two threads, because most tests are short.
check: $(READY) browser
	$(BIN)/pytest -ra --numprocesses 2 --dist worksteal --ignore tests/test_kills.py --deselect $(RESTART)

# Minutes of one core: commands that are killed and run again. `python tools/kills.py` tries more moments.
kills: $(READY)
	$(BIN)/pytest -ra tests/test_kills.py $(RESTART)

# moto serves the protocol of S3; it has an environment of its own, because it needs another botocore than s3fs.
s3: $(READY) .s3/bin/moto_server
	$(BIN)/python -m tools.s3 .s3/bin/moto_server

.s3/bin/moto_server:
	$(PYTHON) -m venv .s3
	.s3/bin/python -m pip install --quiet 'moto[s3,server]==5.2.5'

# What is found is printed with the number of its case, which `python -m tools.fuzz TARGET --case NUMBER` tries again.
fuzz: $(FUZZ)
	OMP_NUM_THREADS=1 $(BIN)/python -m tools.fuzz --seconds $(FUZZ_SECONDS)

# On loopback alone, for about a minute.
load: $(READY)
	$(BIN)/python tools/load.py

# Other instruction sets, one and two threads, each variant of the kernels and none: what a machine lacks is said.
machines: $(READY)
	$(BIN)/python tools/machines.py --share 5

# All of the core's tests in every setting, not a fifth in each.
machines-all: $(READY)
	$(BIN)/python tools/machines.py

# In environments of their own under .nox: about 5 GB and some minutes for each torch that is not here yet.
test-torch: $(READY)
	$(BIN)/nox --session tests

# `python -m tools.hf_models` writes the page anew.
hf-models: $(READY)
	$(BIN)/python -m tools.hf_models --check

# The page is tested in a real browser. Debian's needs no download of its own.
browser:
	@command -v chromium >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null \
	  && echo 'Installing chromium for the tests of the page (about a minute, once) ...' \
	  && apt-get update -qq >/dev/null && apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null; } \
	  || echo 'No chromium, and no way to install it here (root and apt): the browser tests will be skipped.'

# Strict: a broken link or an unknown name stops it (with --quiet it would not). The banner of mkdocs-material is about
# another project.
docs: $(SITE)
	$(BIN)/python tools/site_pages.py docs build/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build
	@echo 'The site: build/site/index.html'

# Zensical keeps pages of earlier builds and does not see that a docstring has changed: it starts from nothing.
docs-both: docs
	rm -rf build/site-zensical
	SITE_DIR=build/site-zensical $(BIN)/zensical build --clean --strict
	$(BIN)/python tools/compare_sites.py build/site build/site-zensical

site-check: docs-both browser
	$(BIN)/python tools/check_site.py build/site
	$(BIN)/python tools/check_site.py build/site-zensical

notebooks: $(SITE)
	$(BIN)/python tools/notebooks.py docs/tutorials/*.ipynb

sdist:
	$(PYTHON) tools/release.py sdist

# From the sdist in dist/.
wheel:
	$(PYTHON) tools/release.py wheel

wheel-test:
	$(PYTHON) tools/release.py test

release:
	$(PYTHON) tools/release.py sdist
	$(PYTHON) tools/release.py wheel
	$(PYTHON) tools/release.py test

release-all:
	$(PYTHON) tools/release.py sdist
	$(PYTHON) tools/release.py wheel
	$(PYTHON) tools/release.py test --every-python

test-all: test machines-all kills s3 hf-models notebooks site-check release

bench: $(READY)
	$(BIN)/python -m benchmarks

sanitize: $(READY)
	mkdir -p build/sanitized
	g++ -O1 -g -std=c++17 -Wno-psabi -fPIC -shared -fopenmp -fsanitize=address,undefined -fno-sanitize-recover=undefined -DREGARD_INTERFACE=$$($(BIN)/python -c 'from regard.native import _signatures; print(_signatures.INTERFACE)') src/regard/native/*.cpp -o build/sanitized/_kernels.so
	LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libubsan.so)" ASAN_OPTIONS=detect_leaks=0 REGARD_NATIVE=$(CURDIR)/build/sanitized/_kernels.so $(BIN)/pytest tests/test_twins.py tests/native tests/attention/test_*_kernel.py tests/attention/test_kernel_dtypes.py tests/maps/*/test_kernel.py -k 'not process'

define EMPTY_VENV
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo 'regard needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)'; exit 1; }
@echo 'Setting up $(VENV) (about two minutes, once) ...'
@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
endef

$(READY) $(APP) $(SITE) $(FUZZ): pyproject.toml setup.py $(wildcard src/regard/native/*.cpp src/regard/native/*.h) src/regard/native/_signatures.py constraints.txt \
  $(wildcard requirements/*.txt)
$(READY): EXTRA := dev
$(SITE): EXTRA := dev,docs
$(FUZZ): EXTRA := dev,fuzz
$(APP): LOCKS := demo
$(READY): LOCKS := dev
$(SITE): LOCKS := dev docs
$(FUZZ): LOCKS := dev fuzz
PIP    := $(BIN)/python -m pip
HASHED := install --quiet --require-hashes --no-deps --requirement

# Everything is installed by hash: every wheel must be one of those that `make lock` has seen, for Python 3.11 to 3.14.
# Of torch there are builds for CPUs alone, which pip takes where it finds one, but not when it chooses by hash: it is chosen
# first and checked then. A build for CUDA asks for packages of its own.
# UNLOCKED=1 leaves the choice of what constraints.txt does not name to pip, for other Pythons and platforms.
ifdef UNLOCKED
$(READY) $(SITE) $(FUZZ):
	$(EMPTY_VENV)
	@$(PIP) install --quiet --constraint constraints.txt --editable '.[$(EXTRA)]' 2>pip.log || { cat pip.log; exit 1; }
	@touch $@
$(APP):
else
$(READY) $(APP) $(SITE) $(FUZZ):
endif
	$(EMPTY_VENV)
	@rm -rf build/wheels
	@{ $(PIP) download --quiet --no-deps --only-binary :all: --dest build/wheels --constraint constraints.txt torch \
	  && $(PIP) $(HASHED) requirements/torch.txt --no-index --find-links build/wheels && rm -rf build/wheels \
	  && $(foreach lock,$(LOCKS),$(PIP) $(HASHED) requirements/$(lock).txt &&) \
	  { $(BIN)/python -c 'import importlib.metadata as m, sys; sys.exit("nvidia" in str(m.requires("torch")))' \
	       || $(PIP) $(HASHED) requirements/cuda.txt; } \
	  && $(PIP) install --quiet --no-deps --editable . && $(PIP) check; } >pip.log 2>&1 || { cat pip.log; exit 1; }
	@touch $@

lock: $(READY)
	$(BIN)/python tools/lock.py

clean:
	rm -rf $(VENV) out build dist .cache pip.log
