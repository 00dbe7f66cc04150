"""`regard bench` runs benchmarks by name, and the page is made of what they recorded."""

import json
from dataclasses import asdict

import pytest
import typer
from typer.testing import CliRunner

import regard
from benchmarks import harness, limits, neighbour, nonlocal_, page, summary
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
    assert "| [maps](#maps) | 2 | 4.00x (4.00 to 4.00) |  |  | 2 of 2 |" in told
    assert (tmp_path / "pictures" / "speed.png").stat().st_size > 5000


def row(case, ours, peer, theirs, **more):
    return harness.Row(case, "ms", ours, peer, theirs, **more)


def test_a_summary_counts_the_best_peer_the_limit_and_the_neighbour():
    rows = [row("a", 2.0, "slow", 20.0, limit=1.0, promise="x", kept=False), row("a", 2.0, "fast", 3.0, limit=1.0)]
    rows.append(row("b", 1.0, "slow", 5.0, promise="x", kept=True))
    record = {"benchmark": "some", "rows": [asdict(r) | {"ratio": r.ratio} for r in rows]}
    busy = {"benchmark": "some", "rows": [{"case": "a", "peer": "fast", "ratio": 0.5}]}
    told = summary.summary(record, busy)
    assert told == "| [some](#some) | 2 | 3.25x (1.50 to 5.00) | 0.50x (0.50 to 0.50) | 2.00x (2.00 to 2.00) | 1 of 2 |"
    assert neighbour.both(record, busy) == ["| a | fast | 1.50x | 0.50x |"]


def test_a_line_says_how_far_above_the_limit():
    assert "| 1.50x | 2.00x | good: kept |" in harness.line(
        row("a", 2.0, "b", 3.0, promise="good", kept=True, limit=1.0)
    )
    assert "| 1.50x |  |  |" in harness.line(row("a", 2.0, "b", 3.0))


def test_a_limit_is_the_longer_of_memory_and_products(monkeypatch):
    monkeypatch.setattr(limits, "machine", lambda: limits.Machine(bandwidth=4e9, products=1e10))
    assert limits.limit(numbers=1e9) == pytest.approx(1000)
    assert limits.limit(numbers=1e9, multiplications=3e10) == pytest.approx(3000)


def test_the_rates_of_the_machine_are_measured(monkeypatch):
    monkeypatch.setattr(limits, "BANDWIDTH_BYTES", 1 << 16)
    monkeypatch.setattr(limits, "PRODUCT_SIDE", 64)
    found = limits.measured.__wrapped__(1)
    assert 1e6 < found.bandwidth < 1e14
    assert 1e5 < found.products < 1e15


def test_a_busy_neighbour_works_and_its_results_lie_apart(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(harness, "RESULTS", tmp_path / "results" / "all")
    (tmp_path / "results" / "all").mkdir(parents=True)
    harness.report("some", [row("a", 2.0, "b", 3.0)])
    with neighbour.busy_neighbour() as process:
        assert process.poll() is None
        harness.report("some", [row("a", 2.0, "b", 1.0)])
    assert process.returncode is not None
    assert (tmp_path / "results" / "all" / "busy" / "some.json").exists()
    harness.report("some", [row("a", 2.0, "b", 4.0)])
    neighbour.compare("some", harness.RESULTS)
    assert "| a | b | 2.00x | 0.50x |" in capsys.readouterr().out


def test_every_race_of_non_local_blocks_has_a_verdict(monkeypatch):
    for name, small in (("BATCH", 1), ("CHANNELS", 4), ("SIDE", 3), ("SMALL", 2)):
        monkeypatch.setattr(nonlocal_, name, small)
    monkeypatch.setattr(limits, "machine", lambda: limits.Machine(bandwidth=1e9, products=1e6))

    def race(contestants, **_):
        for run in contestants.values():
            run()
        return {name: harness.Timing(1.0, 1.0, 1.0, 1) for name in contestants}

    monkeypatch.setattr(nonlocal_, "race", race)
    rows = [*nonlocal_.block_rows(), *nonlocal_.attention_rows()]
    assert len(rows) == 8
    for row in rows:
        # Both take 1 ms: as fast as the peer, and kept where the necessary multiplications take about as long.
        assert row.kept is (row.promise.startswith("at most") and nonlocal_.MOST * row.limit >= 1)
        assert row.promise == "at least 50x" or "multiplications" in row.promise
    assert {row.kept for row in rows} == {True, False}
