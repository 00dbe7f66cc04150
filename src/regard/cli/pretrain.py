"""`regard pretrain`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from regard.cli._complete import among
from regard.cli._folders import default_folder
from regard.cli._options import Derived, applied, derived, only_first_speaks
from regard.swav._presets import PRESETS
from regard.swav._settings import Settings
from regard.training._settings import Running


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(pretrain)


@derived(
    changes=Derived(
        Settings, "The run", presets={name: make() for name, make in PRESETS.items()}, inner={"crops": "The views"}
    ),
    running=Derived(Running, "How it runs"),
)
def pretrain(
    changes: dict[str, Any],
    running: dict[str, Any],
    pictures: Path | None = typer.Argument(
        None,
        help="A folder of pictures (at any depth), a tar or a folder of tars, the URL of either (s3://, gs://, "
        "https://), an .npy or .npz file, a saved Hugging Face dataset. (default: scikit-learn's digits)",
        show_default=False,
        path_type=str,
    ),
    out: Path | None = typer.Option(
        None,
        help="The folder of the run; rerun to resume. (default: out/PICTURES-pretrained, out/digits-pretrained)",
        show_default=False,
    ),
    preset: str | None = typer.Option(
        None,
        help="Defaults of the settings below: digits, small (32 px), scenes (80 px) or photos (224 px). (default: "
        "small; without pictures digits)",
        autocompletion=among(PRESETS),
    ),
    cache: Path | None = typer.Option(
        None, help="Where shards of a URL are kept on this machine. (default: $REGARD_CACHE, else ~/.cache/regard)"
    ),
    cache_gb: float = typer.Option(
        64.0, min=0, help="Gigabytes that they may take, at most half of the free disk; 0 keeps none."
    ),
    patience: float = typer.Option(
        300.0, min=0, help="Seconds for which a server that fails is asked again, before the run ends."
    ),
) -> None:
    """Pretrain a backbone on pictures without labels, by swapped assignments between views (SwAV).

    The folder of the run gets `backbone/` (the result), `log.csv`, `prototypes.png` and checkpoints. Rerun to
    resume. Labels, if the pictures have any, are used only for the evaluation at the end.

        regard pretrain                                          # scikit-learn's digits, a few minutes
        regard pretrain photos/ --preset small --steps 3000 --prototypes 100 --out out/photos
        regard pretrain shards/ --preset photos --devices 8 --strategy ddp --precision 16-mixed
        regard pretrain s3://mine/shards --preset photos --cache-gb 200   # after regard index s3://mine/shards
    """
    import warnings

    from regard.pictures import CacheSettings, Pictures, open_pictures
    from regard.pictures._shard_cache import cache_bytes
    from regard.pictures._store import without_password
    from regard.swav import CollapseWarning, digits, evaluate_backbone, run, sheet
    from regard.swav import preset as named
    from regard.training._device import choose_device

    warnings.showwarning = lambda message, kind, *_: (
        typer.echo(f"Warning: {message}", err=True) if issubclass(kind, CollapseWarning) else None
    )
    warnings.simplefilter("always", CollapseWarning)
    only_first_speaks()
    if "backbone" in changes:  # the options in the preset belong to its own backbone
        changes.setdefault("backbone_options", {})
    settings = named(preset or ("digits" if pictures is None else "small"), **changes)
    out = out or default_folder(pictures or "digits", "pretrained")
    source: Pictures
    test: Pictures | None = None
    if pictures is None:
        source, test = digits()
        typer.echo(f"scikit-learn's digits: {len(source)} pictures to learn from, {len(test)} to test on.")
    else:
        kept = CacheSettings(cache, cache_bytes(cache_gb))
        source = open_pictures(pictures, cache=kept, patience=patience, say=typer.echo)
        typer.echo(
            f"{without_password(str(pictures))}: {len(source)} pictures"
            + (f", {len(source.classes)} classes" if source.classes else "")
        )
    how = applied(Running(), running)
    result = run(source, out=out, settings=settings, running=how)
    if not result.first:
        return
    if result.fitted.resumed:
        typer.echo(f"Resumed from step {result.fitted.resumed}.")
    if result.broken:
        names = sorted(result.broken)
        more = f", and {len(names) - 3} more" if len(names) > 3 else ""
        listed = result.folder.broken
        typer.echo(f"{len(names)} broken files skipped: {', '.join(names[:3])}{more}; all are in {listed}")
    if count := sum(retries.count for retries in result.folder.read_retried().values()):
        typer.echo(f"{count} requests were repeated, because the server failed; all are in {result.folder.retried}")
    result.task.to(choose_device(how.device))
    if source.classes:
        report = evaluate_backbone(result.task.backbone, source, test)
        result.folder.write_evaluation(report.as_dict())
        typer.echo(report.table())
    typer.echo(f"Prototypes: {sheet(result.task, source, result.folder.prototypes)}")
    typer.echo(f"Backbone: {result.backbone}")
