"""`regard features`."""

from __future__ import annotations

from pathlib import Path

import typer


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(features)


def features(
    data: Path = typer.Argument(..., help="A folder in the form of VQA-v2, a JSONL or a CSV file."),
    backbone: str = typer.Option(
        ..., help="A run of regard pretrain, a transformers model, or efficientnet-lite0 to 2."
    ),
    out: Path = typer.Option(Path("out/features"), help="Where to store the features."),
    split: list[str] = typer.Option(["train", "val", "test"], help="Splits; those that are not there are left out."),
    pictures: Path | None = typer.Option(None, help="Where the pictures are, if elsewhere."),
    size: int | None = typer.Option(None, min=8, help="Side that pictures are brought to."),
    stages: bool = typer.Option(False, help="The maps of all stages (layer1, layer2, ...) side by side."),
    batch: int = typer.Option(64, min=1, help="Pictures at a time."),
) -> None:
    """Run a backbone once over the pictures and store its grids of features, in half precision.

    Stopped, it goes on where it was. Pictures that cannot be read are left out and named. `--stages` puts the maps of
    all stages side by side: a backbone that was pretrained on whole pictures keeps colour and outline in the first.

        regard features out/scenes --backbone out/swav --stages
        regard features mine.jsonl --backbone microsoft/resnet-18 --size 448 --out out/features
    """
    from regard._problem import Problem
    from regard.backbones import make_backbone, save_backbone
    from regard.vqa.features import make_features
    from regard.vqa.read import read_questions

    found: dict[str, Path] = {}
    for name in split if data.is_dir() else ["train"]:
        try:
            found |= read_questions(data, name, pictures).pictures
        except Problem as problem:
            if "has no file" not in str(problem):
                raise
            typer.echo(f"{name}: not there")
    network = make_backbone(backbone, size=size)
    kept = save_backbone(network, out / "backbone")

    def progress(done: int, of: int) -> None:
        typer.echo(f"\r{done} of {of} pictures", err=True, nl=done == of)

    store, skipped = make_features(
        out, found, network, name=str(kept.resolve()), stages=stages, batch=batch, progress=progress
    )
    height, width, dim = store.shape
    typer.echo(f"{len(store.names)} pictures, {height} x {width} x {dim}, fingerprint {store.fingerprint}: {out}")
    if skipped:
        typer.echo(str(skipped))
