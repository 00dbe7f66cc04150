# make demo    set up, then run the main job
# make test    set up, then lint, types, tests, and the core's tests again as on other processors
# make test-torch  the tests of the core, the modules and Hugging Face on the oldest, the pinned and the newest torch
# make sanitize  the tests of the native kernels under the address and undefined-behaviour sanitizers
# make bench   set up, then measure against peers (results in benchmarks/results/)
# make docs    set up, then build the site into build/site
# make notebooks  run the tutorials from top to bottom
# make release build sdist and wheel, and try them in a clean environment; its steps: make sdist, make wheel, make wheel-test
# make release-all  the same with every Python from 3.11 that is found
# make test-all   test, notebooks, docs, the site in a browser, release
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
APP    := $(VENV)/.app
SITE   := $(VENV)/.site

# bfloat16 products die with an illegal instruction on machines that announce AMX and lack it.
export ONEDNN_MAX_CPU_ISA ?= AVX512_CORE_BF16

.PHONY: demo test test-all test-torch lint types check machines bench sanitize browser docs site-check notebooks \
  sdist wheel wheel-test release release-all clean

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
	$(BIN)/pytest -ra --numprocesses 2 --dist worksteal

# Other instruction sets, one and two threads, each variant of the kernels and none: what a machine lacks is said.
machines: $(READY)
	$(BIN)/python tools/machines.py

# In environments of their own under .nox: about 5 GB and some minutes for each torch that is not here yet.
test-torch: $(READY)
	$(BIN)/nox --session tests

# The page is tested in a real browser. Debian's needs no download of its own.
browser:
	@command -v chromium >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null \
	  && echo 'Installing chromium for the tests of the page (about a minute, once) ...' \
	  && apt-get update -qq >/dev/null && apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null; } \
	  || echo 'No chromium, and no way to install it here (root and apt): the browser tests will be skipped.'

# Strict: a broken link or an unknown name stops it. The banner of mkdocs-material is about another project.
docs: $(SITE)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo 'The site: build/site/index.html'

site-check: docs browser
	$(BIN)/python tools/check_site.py build/site

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

test-all: test notebooks site-check release

bench: $(READY)
	$(BIN)/python -m benchmarks

sanitize: $(READY)
	mkdir -p build/sanitized
	g++ -O1 -g -std=c++17 -Wno-psabi -fPIC -shared -fopenmp -fsanitize=address,undefined -fno-sanitize-recover=undefined src/regard/native/*.cpp -o build/sanitized/_kernels.so
	LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libubsan.so)" ASAN_OPTIONS=detect_leaks=0 REGARD_NATIVE=$(CURDIR)/build/sanitized/_kernels.so $(BIN)/pytest tests/test_native*.py -k 'not process'

$(READY): EXTRA := dev
$(APP): EXTRA := vqa,explore
$(SITE): EXTRA := dev,docs
$(READY) $(APP) $(SITE): pyproject.toml setup.py $(wildcard src/regard/native/*.cpp src/regard/native/*.h) constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo 'regard needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)'; exit 1; }
	@echo 'Setting up $(VENV) (about two minutes, once) ...'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[$(EXTRA)]' 2>pip.log || { cat pip.log; exit 1; }
	@touch $@

clean:
	rm -rf $(VENV) out build dist pip.log
