"""Settings that every test shares."""

import contextlib
import os
import shutil
import zlib

# Before torch is imported: some machines announce AMX and then die on a bfloat16 product.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import pytest
import torch
from hypothesis import settings

from regard import native

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

# One thread: tests are many small operations, and most machines run several processes of them.
torch.set_num_threads(int(os.environ.get("REGARD_TEST_THREADS", "1")))

# Timing on a shared machine says nothing about the code, and a failure must come back on the next run.
settings.register_profile("regard", deadline=None, derandomize=True, max_examples=60)
settings.register_profile("machines", settings.get_profile("regard"), max_examples=10)
settings.load_profile(os.environ.get("REGARD_TEST_PROFILE", "regard"))


def pytest_collection_modifyitems(config, items) -> None:
    """Keep a share of the tests by their names, REGARD_TEST_SHARE=1/3 the second third: see tools/machines.py."""
    number, _, count = os.environ.get("REGARD_TEST_SHARE", "0/1").partition("/")
    kept = [item for item in items if zlib.crc32(item.nodeid.encode()) % int(count) == int(number)]
    if len(kept) < len(items):
        config.hook.pytest_deselected(items=sorted(set(items) - set(kept), key=lambda item: item.nodeid))
        items[:] = kept


@pytest.fixture(autouse=True)
def _same_random_numbers_in_every_run() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session", autouse=True)
def _indexes_of_shards_in_a_folder_of_the_tests(tmp_path_factory):
    os.environ["REGARD_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def limited_files():
    """A context in which no file can grow beyond some bytes: a full disk that needs no disk."""
    resource = pytest.importorskip("resource")

    @contextlib.contextmanager
    def limited(size):
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    return limited


@pytest.fixture
def plain():
    """A function that runs another without the kernels."""

    def run(f, *arguments, **more):
        with native.switched_off():
            return f(*arguments, **more)

    return run


@pytest.fixture(scope="session")
def german(tmp_path_factory):
    """A tiny trained run with its table, records and samples, see german_run.py; tests copy what they change."""
    from german_run import german_run

    return german_run(tmp_path_factory.mktemp("german"))


@pytest.fixture(scope="session")
def browser():
    """A real browser, one for each process of tests: a second beside it cannot be started in the same thread."""
    from playwright.sync_api import sync_playwright

    if CHROMIUM is None:
        pytest.skip("there is no chromium here: apt-get install chromium, to test pages in a browser")
    with sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()
