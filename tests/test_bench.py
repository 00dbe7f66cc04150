"""`regard bench` runs benchmarks by name, and the page is made of what they recorded."""

import json

import pytest
import typer
from typer.testing import CliRunner

import regard
from benchmarks import harness, page
from regard._problem import Problem
from regard.cli import bench


@pytest.fixture
def run():
    app = typer.Typer()
    bench.add(app)
    return lambda *arguments: CliRunner().invoke(app, arguments)


def test_an_unknown_name_lists_the_known_ones(run):
    done = run("nothing")
    assert done.exit_code == 1
    assert "there are: " in str(done.exception)
    assert "maps" in str(done.exception)


def test_without_the_benchmarks_it_says_where_they_are(run, monkeypatch, tmp_path):
    monkeypatch.setattr(regard, "__file__", str(tmp_path / "a" / "b" / "__init__.py"))
    found = run("maps").exception
    assert isinstance(found, Problem)
    assert "make bench" in str(found)


def test_the_page_says_what_was_recorded(monkeypatch, tmp_path):
    for module in (harness, page):
        monkeypatch.setattr(module, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(page, "DOCS", tmp_path)
    rows = [
        {"case": f"attention, sparsemax, N = {n}, forward+backward", "unit": "ms", "ours": n / 4, "theirs": n}
        | {"peer": "SDPA's softmax", "promise": "at most 1 times its time", "kept": True, "ratio": 4.0}
        for n in (1024, 4096)
    ]
    machine = {"processor": "some", "threads": 3, "versions": {"torch": "9.9"}}
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "maps.json").write_text(json.dumps({"benchmark": "maps", "machine": machine, "rows": rows}))
    page.main()
    told = (tmp_path / "benchmarks.md").read_text()
    assert "some, 3 threads, torch 9.9" in told
    assert "N = 4096, forward+backward | 1.02e+03 ms | SDPA's softmax | 4.1e+03 ms | 4.00x" in told
    assert (tmp_path / "pictures" / "speed.png").stat().st_size > 5000
