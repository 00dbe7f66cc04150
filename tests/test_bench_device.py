"""`regard bench --device`: the prediction by arithmetic, and the measurement on a CPU by the code that GPUs run."""

import json
import re
from pathlib import Path

import pytest
import torch

import regard
from benchmarks import budget, gpu, gpu_promises, roofline
from benchmarks.roofline import CARDS, Work, flash_work, kept_share, predicted, sparse_work
from regard._problem import Problem
from regard.cli import bench

GUIDE = Path(__file__).parent.parent / "docs" / "guides" / "gpu.md"


def test_a_call_takes_as_long_as_its_slower_half():
    card = roofline.Card("one", operations=100.0, bytes=10.0, launch=0.5)
    assert Work(200.0, 10.0, 2).seconds(card) == 3.0
    assert Work(200.0, 50.0, 0).seconds(card) == 5.0


def test_the_work_of_flash_attention_by_hand():
    forward, both = (flash_work(8, 1000, 64, backward=backward) for backward in (False, True))
    assert forward.operations == 2 * 2 * 8 * 1000 * 1000 * 64  # two products, a multiplication and an addition each
    assert both.operations == 7 * 2 * 8 * 1000 * 1000 * 64
    assert forward.bytes == 4 * 8 * 1000 * 64 * 2  # q, k, v and the context in bfloat16
    assert both.bytes == forward.bytes + 8 * 8 * 1000 * 64 * 2  # and their gradients


def test_ours_has_the_products_that_the_interpreter_counted():
    """The line goes through what tests/gpu/test_attention.py counts; the guide has the same numbers."""
    unit = 2 * 8 * 1000 * 1000 * 64
    assert sparse_work(8, 1000, 64, 0.2, backward=False).operations == pytest.approx(1.9 * unit)
    assert sparse_work(8, 1000, 64, 1.0, backward=True).operations == pytest.approx((4 + 9) * unit)
    told = GUIDE.read_text()
    assert "| 20 % | 1.9 | 1.8 |" in told
    assert "| 4.0; 3.0; 4.5 | 9 |" in told


def test_where_it_should_win_and_lose():
    for card in CARDS:
        assert predicted(16384, 0.05, card, backward=True) > 2
        assert predicted(16384, 1.0, card, backward=False) == pytest.approx(2 / 4, rel=0.02)
        assert predicted(16384, 1.0, card, backward=True) == pytest.approx(7 / 13, rel=0.02)


def test_tiles_with_weight_are_those_of_exact_weights():
    q, k = roofline.data("clustered", 300)
    p = torch.nn.functional.pad(regard.attention_weights(q, k, map=regard.Entmax(1.5)), (0, 20, 0, 20))
    tiles = p.view(5, 64, 10, 32).sum((1, 3)) > 0
    assert kept_share("clustered", 300) == pytest.approx(float(tiles.float().mean()))
    assert kept_share("clustered", 300) < kept_share("gaussian", 300)


def test_the_guide_has_the_prediction():
    found = [re.sub(r" +", " ", line) for line in GUIDE.read_text().splitlines()]
    header, rule, *lines = roofline.table().splitlines()
    at = found.index(header)
    assert found[at + 1] == rule
    for ours, told in zip(lines, found[at + 2 :], strict=False):
        # The share depends on weights near the threshold, which processors round differently.
        (a, b) = ([float(x) for x in re.findall(r"[\d.]+", line.replace(",", " "))] for line in (ours, told))
        assert a == pytest.approx(b, rel=0.1, abs=0.06)


def test_the_whole_measurement_on_a_cpu(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(gpu_promises, "TOKENS", (40,))
    place = gpu.main("cpu", tmp_path / "new" / "bench.json", sizes=(40,), seconds=0.01)
    told = capsys.readouterr().out
    content = json.loads(place.read_text())
    cases = {(row["case"], row["peer"]) for row in content["rows"]}
    for way in ("forward", "both ways"):
        for alpha in (1.5, 2.0, 1.3):
            assert (f"entmax {alpha}, 64 x 1024, {way}", "torch.softmax") in cases
        assert (f"continuous sparsemax, 2, {way}", "without Triton") in cases
        for kind in ("clustered", "gaussian"):
            assert (f"attention, {kind}, N = 40, {way}", "SDPA") in cases
    for row in content["rows"]:
        assert row["ratio"] == pytest.approx(row["theirs"] / row["ours"])
        assert set(row["predicted"]) == ({"A100", "H100"} if row["peer"] in ("SDPA", "torch.softmax") else set())
    assert ("attention, gaussian, N = 40, forward", "FlexAttention") in cases
    assert ("sinkhorn, 3 iterations, 64 x 30", "without Triton") in cases
    kept = {promise["of"]: promise["kept"] for promise in content["promises"]}
    assert kept.pop("rows, alpha 1.5, float32: error of a weight") is True
    assert sorted({str(verdict) for verdict in kept.values()}) == ["None", "True"]
    assert sum(verdict is None for verdict in kept.values()) == 3  # waits, graphs and memory need a GPU
    assert "nothing follows" in told
    assert "open an issue" in told


def test_a_peer_that_fails_is_named_and_left_out(capsys):
    def fail():
        raise NotImplementedError("not on this card\nmore")

    assert list(gpu._able({"other": fail, "one": lambda: None})) == ["one"]
    assert capsys.readouterr().out == "other: cannot be measured here (not on this card)\n"


def test_what_is_not_installed_is_said(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(gpu, "missing", lambda: dict(gpu.PEERS))
    monkeypatch.setattr(gpu, "measure_attention", lambda *_: [])
    monkeypatch.setattr(gpu_promises, "promises", lambda _: [])
    gpu.main("cpu", tmp_path / "bench.json", sizes=(40,), seconds=0.01)
    told = capsys.readouterr().out
    assert "adasplash: not installed, not measured (pip install adasplash)" in told
    assert "entmax: not installed, not measured (pip install entmax)" in told


def test_a_promise_that_is_broken_is_told():
    broken = gpu_promises.Promise("an error", 1e-6, 2e-6)
    assert broken.kept is False
    assert re.fullmatch(r"an error +BROKEN +2e-06 of at most 1e-06", broken.line())
    assert "not measured" in gpu_promises.Promise("waits", 0, None, "no GPU").line()


def test_sinkhorn_is_predicted_to_be_bound_by_launches_of_vectors():
    card = roofline.Card("one", operations=1.0, bytes=1e6, launch=1.0)
    # Scores of 1 MB: softmax moves two in one launch; three iterations read four and write one.
    expected = (2 + 1) / (5 + 57 + 3 * 45)
    assert roofline.predicted_sinkhorn(500, 500, 3, card) == pytest.approx(expected)


def test_the_prediction_is_for_the_card_that_is_there():
    assert [card.name for card in gpu.cards_for("NVIDIA A100-SXM4-80GB")] == ["A100"]
    assert [card.name for card in gpu.cards_for("NVIDIA GeForce RTX 4090")] == ["A100", "H100"]


def test_the_command(monkeypatch, tmp_path):
    called = []
    monkeypatch.setattr(gpu, "main", lambda *given: called.append(given))
    bench.bench([], "cpu", tmp_path / "x.json", busy=False)
    assert called == [("cpu", tmp_path / "x.json")]
    with pytest.raises(Problem, match="--device measures what runs on devices, and not maps"):
        bench.bench(["maps"], "cpu", None, busy=False)
    with pytest.raises(Problem, match="--out is for --device"):
        bench.bench(["maps"], None, tmp_path, busy=False)
    with pytest.raises(Problem, match="Leave out one of --device and --busy"):
        bench.bench([], "cpu", None, busy=True)


def test_a_device_that_is_not_there(monkeypatch):
    monkeypatch.setattr("regard.training._device.devices_here", lambda: ["cpu"])
    with pytest.raises(Problem, match=r"device cuda is not there\. This machine has cpu\."):
        gpu.main("cuda")


def test_a_budget_counted_by_hand():
    with torch.device("meta"):
        layer, x = torch.nn.Linear(10, 20), torch.empty(5, 10)
    found = budget.count(layer, lambda: layer(x).relu().sum())
    assert found.weights == 220
    assert found.operations == 2 * 2 * 5 * 10 * 20  # forward, and the gradient of the weight; x has none
    assert found.kept == 4 * (5 * 10 + 5 * 20)  # the input, and the output of relu
    assert found.memory(state=12) == pytest.approx((220 * 12 + 600) / 1e9)
    card = roofline.Card("one", operations=8000.0, bytes=1.0)
    assert found.hours(3600, card, devices=2) == pytest.approx(found.operations / 8000 / budget.UTILISATION / 2)


def test_the_guide_has_the_budgets(capsys):
    budget.main()
    told = GUIDE.read_text()
    for line in capsys.readouterr().out.splitlines():
        assert line in told
