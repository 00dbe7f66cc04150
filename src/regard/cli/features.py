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
        ..., help="A run of regard pretrain, a transformers model, efficientnet-lite0 to 2; untrained: small."
    ),
    out: Path = typer.Option(Path("out/features"), help="Where to store the features."),
    split: list[str] | None = typer.Option(
        None, help="Splits; unless given, train, val and test, those that are there, and all rows of a file."
    ),
    pictures: Path | None = typer.Option(None, help="Where the pictures are, if elsewhere."),
    size: int | None = typer.Option(None, min=8, help="Side that pictures are brought to."),
    stages: bool = typer.Option(False, help="Store the maps of all stages side by side, not the last one alone."),
    seed: int | None = typer.Option(None, help="Draws the weights of a backbone that has none, such as small; or 0."),
    batch: int = typer.Option(64, min=1, help="Pictures at a time."),
) -> None:
    """Run a backbone once over the pictures and store its grids of features, in half precision.

    Stopped, it goes on where it was. Pictures that cannot be read are left out and named. `--stages` puts the maps of
    all stages side by side: a backbone that was pretrained on whole pictures keeps colour and outline in the first.
    The folder keeps the backbone; another one is refused there.

        regard features out/scenes --backbone out/swav --stages
        regard features mine.jsonl --backbone microsoft/resnet-18 --size 448 --out out/features
    """
    from regard.vqa.features import kept_backbone, make_features
    from regard.vqa.own import NoSplit, read_own
    from regard.vqa.read import read_questions

    found: dict[str, Path] = {}
    if data.is_file() and not split:
        found = read_own(data, None, pictures).pictures
    else:
        for name in split or ["train", "val", "test"]:
            try:
                found |= read_questions(data, name, pictures).pictures
            except NoSplit:
                if data.is_file():
                    raise
                typer.echo(f"{name}: not there")
    network, kept = kept_backbone(out / "backbone", backbone, size, seed)

    def progress(done: int, of: int) -> None:
        typer.echo(f"\r{done} of {of} pictures", err=True, nl=done == of)

    store, skipped = make_features(
        out, found, network, name=str(kept.resolve()), stages=stages, batch=batch, progress=progress
    )
    height, width, dim = store.shape
    typer.echo(
        f"{len(store.names)} pictures, {height} x {width} x {dim}, fingerprint {store.description.fingerprint}: {out}"
    )
    if skipped:
        typer.echo(str(skipped))
