"""The demonstration at a tiny size: everything is made once, and used again."""

from regard.demo import TRAINED_KINDS, DemoSettings, demo


def test_from_nothing_to_a_report_and_again(tmp_path, capsys):
    settings = DemoSettings({"train": 24, "val": 4, "test": 6, "pairs": 4}, pretraining_steps=2, epochs=1, entries=2)
    made = demo(tmp_path / "demo", settings)
    assert set(made.accuracy) == set(TRAINED_KINDS)
    assert all(0 <= value <= 100 for value in made.accuracy.values())
    assert "question only" in made.table
    assert made.report.read_text().startswith("<!")
    said = capsys.readouterr().err
    for step in ("drawing scenes", "pretraining", "storing features", "training", "report"):
        assert step in said
    weights = sorted((tmp_path / "demo" / "models").rglob("model.safetensors"))
    before = [path.stat().st_mtime_ns for path in weights]
    again = demo(tmp_path / "demo", settings, quiet=True)
    assert again.accuracy == made.accuracy
    assert "backbone" in again.reused
    assert [path.stat().st_mtime_ns for path in weights] == before
    assert capsys.readouterr().err == ""
