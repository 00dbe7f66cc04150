"""The variants of the kernels: which is taken, what happens to a wish that cannot be fulfilled, and that all agree."""

import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner

import regard
from regard import native
from regard._problem import Problem
from regard.cli import doctor
from regard.continuous import quadrature
from regard.maps.sinkhorn.products import scaled_rows
from regard.maps.tvmax.operator import tv_regions
from regard.native import _choose, _load

pytestmark = pytest.mark.skipif(not native.variants(), reason="no C++ compiler when the package was installed")
ROOT = Path(__file__).parents[2]
NATIVE = Path(native.__file__).parent


@pytest.fixture
def choose(monkeypatch):
    """The library for a value of REGARD_NATIVE, chosen anew."""
    anew = _choose.chosen.__wrapped__

    def run(wish):
        monkeypatch.setenv("REGARD_NATIVE", wish)
        return anew()

    return run


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """Copies of the libraries, to take away and to break."""
    for name in native.variants():
        shutil.copy(_load.path_of(name), tmp_path)
    files = {name: tmp_path / _load.path_of(name).name for name in _load.VARIANTS}
    monkeypatch.setattr(_load, "path_of", files.get)
    return tmp_path


def name_of(library):
    return Path(library._name).stem.removeprefix("_kernels_")


def results():
    """What every kernel computes, from inputs that are the same everywhere."""
    draw = torch.Generator().manual_seed(0)

    def random(*shape, dtype=torch.float32):
        return torch.randn(*shape, generator=draw, dtype=torch.float64).to(dtype)

    out = {}
    for dtype in (torch.float32, torch.float64):
        for n in (7, 33, 196, 513, 2000):
            for alpha in (2.0, 1.5, 1.3):
                x = random(9, n, dtype=dtype).requires_grad_()
                p = regard.entmax(x, alpha)
                out[f"entmax {alpha}, {n}, {dtype}"] = p.detach()
                out[f"its gradient {alpha}, {n}, {dtype}"] = torch.autograd.grad(p, x, random(9, n, dtype=dtype))[0]
        s, gamma, mask = random(20, 63, dtype=dtype), random(20, 1, dtype=dtype).abs(), random(20, 63) < 1.3
        out[f"regions {dtype}"], out[f"pull {dtype}"] = tv_regions(s, gamma, mask, 9)
        matrix, v, a = (random(*size, dtype=dtype).abs() for size in ((100, 33), (33,), (100,)))
        out[f"sums {dtype}"], out[f"scales {dtype}"], _ = scaled_rows(matrix, v, a)
    q, k, v = (random(1, 600, 8).requires_grad_() for _ in range(3))
    for map_ in (regard.sparsemax, regard.entmax):
        c = regard.attend(q, k, v, map=map_)
        out[f"attend by {map_.__name__}"] = c.detach()
        for name, slope in zip("qkv", torch.autograd.grad(c, (q, k, v), random(1, 600, 8)), strict=True):
            out[f"attend by {map_.__name__}, gradient in {name}"] = slope
    short = 1.5 + random(3, 1, 1).abs()
    flat = [4 * random(3, 17, 1), 4 * random(3, 17, 1), short + 1, short]
    nodes, reach = quadrature.RULES[torch.float32]
    for power in (1, 2):
        by_kernel = quadrature._by_kernel(flat, power, nodes, reach)
        expected = quadrature._block(*(x.double() for x in flat), 1, power, nodes, reach)
        out[f"chords {power}"] = (expected if by_kernel is None else by_kernel).double()
    return out


@pytest.mark.parametrize("name", _load.VARIANTS)
def test_a_variant_in_a_process_of_its_own_agrees_with_plain_torch(name, tmp_path, plain):
    """One that this machine lacks is refused there."""
    code = (
        "import sys, torch, regard, test_variants as here;"
        "torch.save(here.results(), sys.argv[1]); print(regard.native_kernels())"
    )
    folders = os.pathsep.join(map(str, (ROOT / "src", Path(__file__).parent)))
    environment = os.environ | {"REGARD_NATIVE": name, "PYTHONPATH": folders}
    command = [sys.executable, "-c", code, str(tmp_path / "results.pt")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if name not in native.variants():
        assert f"Problem: REGARD_NATIVE: got '{name}', expected one that" in done.stderr
        return
    assert done.stdout.startswith(f"on: {name} "), done.stderr
    found, expected = torch.load(tmp_path / "results.pt"), plain(results)
    assert set(found) == set(expected)
    for key, theirs in expected.items():
        scale = 1 + float(theirs.double().abs().max())
        close = 1e-10 if theirs.dtype == torch.float64 and "chords" not in key else 5e-5
        torch.testing.assert_close(found[key], theirs, rtol=0, atol=close * scale, msg=lambda m, key=key: f"{key}: {m}")


def test_the_widest_that_can_run_is_taken_if_nothing_is_asked_for(choose):
    assert name_of(choose("")) == native.variants()[-1]


@pytest.mark.parametrize("name", native.variants())
def test_a_variant_can_be_asked_for(name, choose, monkeypatch):
    assert name_of(choose(name)) == name
    monkeypatch.setattr(_choose, "chosen", lambda: choose(name))
    assert native.cpu_kernels() == f"on: {name} (of {', '.join(native.variants())})"


def test_none_can_be_asked_for(choose, monkeypatch):
    assert choose("0") is None
    monkeypatch.setattr(_choose, "chosen", lambda: None)
    assert native.cpu_kernels() == "off: REGARD_NATIVE=0; plain PyTorch does the work"


@pytest.mark.parametrize("wish", ["avx3", "1", "AVX2", "/nowhere/kernels.so"])
def test_an_unknown_value_is_refused(wish, choose):
    with pytest.raises(Problem, match=f"REGARD_NATIVE: got '{wish}', expected 0, baseline, avx2, avx512 or the path"):
        choose(wish)


def test_a_variant_that_was_not_built_is_refused(choose, folder):
    widest = native.variants()[-1]
    (folder / f"_kernels_{widest}{_load.SUFFIX}").unlink()
    rest = ", ".join(native.variants()) or "there is none"
    with pytest.raises(Problem, match=rf"got '{widest}', expected one that was built \({rest}\)"):
        choose(widest)


def test_a_variant_that_the_processor_lacks_is_refused(choose, folder, monkeypatch):
    for name in _load.VARIANTS:
        shutil.copy(NATIVE / f"_kernels_baseline{_load.SUFFIX}", folder / f"_kernels_{name}{_load.SUFFIX}")
    monkeypatch.setattr(_load, "variants", lambda: ("baseline",))
    with pytest.raises(Problem, match=r"got 'avx2', expected one that this processor can run \(baseline\)"):
        choose("avx2")


def test_what_is_not_a_library_is_refused(choose, tmp_path):
    (tmp_path / "notes.so").write_text("not a library")
    with pytest.raises(Problem, match=r"expected a library of these kernels \(.*notes.so") as caught:
        choose(str(tmp_path / "notes.so"))
    assert "\n" not in str(caught.value)


def test_another_release_is_refused_if_asked_for_and_passed_over_if_not(choose, monkeypatch):
    path = _load.path_of("baseline")
    monkeypatch.setattr(_load, "INTERFACE", 99)
    with pytest.raises(Problem, match=r"has interface \d+, and this release of regard needs 99"):
        choose(str(path))
    assert native.variants() == ()
    assert choose("") is None
    monkeypatch.setattr(_choose, "chosen", lambda: None)
    assert re.fullmatch(r"off: _kernels_baseline\S+ has interface \d+, and .* needs 99; plain .*", native.cpu_kernels())


def test_one_that_is_broken_is_passed_over(choose, folder):
    here = native.variants()
    (folder / f"_kernels_{here[-1]}{_load.SUFFIX}").write_text("broken")
    found = choose("")
    assert (name_of(found) if found else None) == (here[-2] if len(here) > 1 else None)


def test_torch_lends_its_threads_where_it_keeps_them_to_itself(monkeypatch):
    """As builds for ARM do: the first attempt misses OpenMP, then torch's own is made known, then it works."""
    opened, real = [], _load.ctypes.CDLL

    def open_library(name, mode=0):
        opened.append(name)
        if len(opened) == 1:
            raise OSError("undefined symbol: GOMP_parallel")
        return real(name, mode)

    monkeypatch.setattr(_load.ctypes, "CDLL", open_library)
    path = _load.path_of("baseline")
    assert _load.load(path).regard_version() == _load.INTERFACE
    assert opened[0] == opened[2] == str(path)
    assert _load.OPENMP.match(Path(opened[1]).name)
    assert "torch" in opened[1]


def test_the_doctor_repeats_a_refusal(choose, monkeypatch):
    monkeypatch.setattr(_choose, "chosen", lambda: choose("avx3"))
    app = typer.Typer()
    doctor.add(app)
    told = CliRunner().invoke(app, [])
    assert told.exit_code == 0
    assert "native kernels  refused: REGARD_NATIVE: got 'avx3'" in told.output


def test_nothing_was_built_without_a_baseline(folder, choose, monkeypatch):
    (folder / f"_kernels_baseline{_load.SUFFIX}").unlink()
    assert native.variants() == ()
    assert choose("") is None
    monkeypatch.setattr(_choose, "chosen", lambda: None)
    assert native.cpu_kernels() == "off: not built; plain PyTorch does the work"


@pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64", reason="asks Linux about an x86 processor"
)
def test_the_level_is_that_of_the_processor():
    flags = set(re.search(r"^flags\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)[1].split())
    asked = [{"bmi": "bmi1"}.get(name, name) for name in re.findall(r'supports\("(\w+)"\)', source("checks.cpp"))]
    two, four = ({name for name in asked if ("512" in name) is wide} for wide in (False, True))
    level = _load.load(_load.path_of("baseline")).regard_level()
    assert level == (two <= flags) + (two | four <= flags)


def source(name):
    return (NATIVE / name).read_text()


def test_what_is_compiled_for_is_what_is_asked_for():
    stated = dict(re.findall(r'^(AVX\w+) = f?"(.*)"$', (ROOT / "setup.py").read_text(), re.MULTILINE))
    flags = stated["AVX512"].replace("{AVX2}", stated["AVX2"]).replace("-m", "").split()
    assert sorted(flags) == sorted(re.findall(r'supports\("(\w+)"\)', source("checks.cpp")))
