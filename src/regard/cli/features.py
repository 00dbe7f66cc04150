"""`regard features`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from regard.backbones._known import BACKBONE_NAMES
from regard.cli._complete import among
from regard.cli._folders import default_folder
from regard.cli._options import SHARED, applied, derived, only_first_speaks
from regard.training._settings import Running
from regard.vqa.splits import SPLIT_NAMES


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(features)


@derived(running=SHARED)
def features(
    running: dict[str, Any],
    data: Path = typer.Argument(..., help="A folder in the form of VQA-v2, a JSONL or a CSV file."),
    backbone: str = typer.Option(
        ...,
        help="A run of regard pretrain, a model of transformers, efficientnet-lite0 to 2, or small (untrained).",
        autocompletion=among(BACKBONE_NAMES),
    ),
    out: Path | None = typer.Option(
        None, help="The folder of the features; rerun to resume. (default: out/DATA-features)", show_default=False
    ),
    split: list[str] | None = typer.Option(
        None,
        help="A split; repeat for several. (default: train, val and test if present; of a file all rows)",
        autocompletion=among(SPLIT_NAMES),
    ),
    pictures: Path | None = typer.Option(None, help="The folder of the pictures. (default: beside the questions)"),
    size: int | None = typer.Option(
        None, min=8, help="Side that pictures are resized to, in pixels. (default: the backbone's)"
    ),
    stages: bool = typer.Option(False, help="Concatenate the feature maps of all stages; else the last one only."),
    seed: int | None = typer.Option(None, help="Of the weights of an untrained backbone, such as small. (default: 0)"),
    batch: int | None = typer.Option(
        None, min=1, help="Pictures per batch. (default: 4 on a CPU, where more only take memory; 64 elsewhere)"
    ),
    fresh: bool = typer.Option(False, "--fresh", help="Start over, in place of other features in the folder."),
) -> None:
    """Run a backbone once over the pictures and store its grids of features, in half precision.

    Rerun to resume, to add pictures, and after pictures have changed: only those rows are made. Pictures that cannot be
    read are skipped and listed. `--stages` concatenates the feature maps of all stages: a backbone that was pretrained
    on whole pictures keeps colour and outline in the first. The folder also stores the backbone; a second backbone for
    the same folder is an error. With several processes (`--devices`, or under torchrun) each makes a part of the rows.

        regard features out/scenes --backbone out/swav --stages
        regard features mine.jsonl --backbone microsoft/resnet-18 --size 448 --out out/large
        torchrun --nproc-per-node 8 --no-python regard features vqa/ --backbone out/swav --device cuda
    """
    only_first_speaks()
    from regard._lock import writing_to
    from regard.pictures import squeezed
    from regard.training._progress import counted
    from regard.training._together import together
    from regard.vqa.features import check_pictures, is_untrained, kept_backbone, make_features
    from regard.vqa.own import NoSplit, read_own
    from regard.vqa.read import read_questions

    out = out or default_folder(data, "features")
    files: dict[str, Path] = {}
    if data.is_file() and not split:
        files = read_own(data, None, pictures).pictures
    else:
        for name in split or ["train", "val", "test"]:
            try:
                files |= read_questions(data, name, pictures).pictures
            except NoSplit:
                if split or data.is_file():  # one that was asked for
                    raise
                typer.echo(f"{name}: not there")
    check_pictures(files, out)  # before anything is written
    if warning := squeezed(files.values()):
        typer.echo(f"Warning: {warning}", err=True)
    with together(applied(Running(), running)) as group, writing_to(out):
        if not group.first:
            group.gather(None)  # until the first has saved what the others load
        network, stored = kept_backbone(out / "backbone", backbone, size, seed, fresh=fresh and group.first)
        if group.first:
            group.gather(None)
        store, skipped = make_features(
            out,
            files,
            network.to(group.device),
            name=str(stored.resolve()),
            stages=stages,
            batch=batch,
            progress=counted("picture", shown=group.first),
            untrained=is_untrained(backbone),
            fresh=fresh,
            group=group,
        )
    height, width, dim = store.shape
    typer.echo(
        f"{len(store.names)} pictures, {height} x {width} x {dim}, fingerprint {store.description.fingerprint}: {out}"
    )
    if store.description.untrained:
        typer.echo("Untrained: the weights of this backbone are random, and so are its features. Take a trained one.")
    if skipped:
        typer.echo(str(skipped))
