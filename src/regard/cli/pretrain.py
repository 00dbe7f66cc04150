"""`regard pretrain`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer

from regard.cli._devices import Devices, NumNodes, Precision, Strategy, chosen, only_first_speaks


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(pretrain)


def pretrain(
    pictures: Path = typer.Argument(
        None,
        help="A folder of pictures (at any depth), a tar or a folder of tars, an .npy or .npz file, a saved HF "
        "dataset. Without it: scikit-learn's digits.",
        show_default=False,
    ),
    out: Path = typer.Option(Path("out/pretrain"), help="The folder of the run; a run that is there goes on."),
    preset: str = typer.Option(None, help="digits, small (32 px), scenes (80 px) or photos (224 px)."),
    steps: int = typer.Option(None, help="Updates of the weights."),
    batch_size: int = typer.Option(None, help="Pictures in a step, over all processes."),
    backbone: str = typer.Option(None, help="small, small-wide, a saved folder, or a transformers model."),
    set_: list[str] = typer.Option([], "--set", help="Any other setting, as name=value: --set prototypes=30."),
    seed: int = typer.Option(0, help="Decides all that is random."),
    fresh: bool = typer.Option(False, "--fresh", help="Begin again, also if the folder has a checkpoint."),
    workers: int = typer.Option(0, help="Processes that read pictures."),
    log: str = typer.Option("csv", help="csv, tensorboard or none."),
    log_every: int = typer.Option(10, min=1, help="Steps between lines of the log."),
    checkpoint_every: int = typer.Option(200, min=1, help="Steps between checkpoints."),
    devices: Devices = "1",
    num_nodes: NumNodes = 1,
    strategy: Strategy = "auto",
    precision: Precision = "32-true",
) -> None:
    """Pretrain a backbone on pictures without labels, by swapped assignments between views (SwAV).

    The folder of the run gets `backbone/` (the result), `log.csv`, `prototypes.png` and checkpoints. The same command
    goes on where it was stopped. Labels, if the pictures have any, are used only to evaluate at the end.

        regard pretrain                                          # scikit-learn's digits, a few minutes
        regard pretrain photos/ --preset small --steps 3000 --out out/photos
        regard pretrain shards/ --preset photos --devices 8 --strategy ddp --precision 16-mixed
    """
    import warnings

    from regard._files import replacing
    from regard._problem import Problem
    from regard.pictures import Pictures, open_pictures
    from regard.swav import CollapseWarning, digits, evaluate_backbone, run, sheet

    warnings.showwarning = lambda message, kind, *_: (
        typer.echo(f"Warning: {message}", err=True) if issubclass(kind, CollapseWarning) else None
    )
    warnings.simplefilter("always", CollapseWarning)
    only_first_speaks()
    test: Pictures | None = None
    source: Pictures
    if pictures is None:
        source, test = digits()
        typer.echo(f"scikit-learn's digits: {len(source)} pictures to learn from, {len(test)} to test on.")
    else:
        source = open_pictures(pictures)
        typer.echo(
            f"{pictures}: {len(source)} pictures" + (f", {len(source.classes)} classes" if source.labels else "")
        )
    changes: dict[str, Any] = {"steps": steps, "batch_size": batch_size, "backbone": backbone, "seed": seed}
    changes = {name: value for name, value in changes.items() if value is not None} | _parsed(set_)
    if backbone is not None:
        changes.setdefault("backbone_options", {})
    if log not in ("csv", "tensorboard", "none"):
        raise Problem(f"--log must be csv, tensorboard or none, not {log}.")
    result = run(
        source,
        out=out,
        preset_name=preset or ("digits" if pictures is None else "small"),
        resume=not fresh,
        workers=workers,
        log=log,
        log_every=log_every,
        checkpoint_every=checkpoint_every,
        **chosen(devices, num_nodes, strategy, precision),
        **changes,
    )
    if not result.first:
        return
    if result.fitted.resumed:
        typer.echo(f"Went on from step {result.fitted.resumed}.")
    if result.broken:
        names = sorted(result.broken)
        more = f", and {len(names) - 3} more" if len(names) > 3 else ""
        listed = f"{out / 'broken.txt'}"
        typer.echo(f"{len(names)} broken files skipped: {', '.join(names[:3])}{more}; all are in {listed}")
    if source.labels:
        report = evaluate_backbone(result.task.backbone, source, test)
        with replacing(out / "evaluation.json") as beside:
            beside.write_text(json.dumps(report.as_dict(), indent=2) + "\n")
        typer.echo(report.table())
    typer.echo(f"Prototypes: {sheet(result.task, source, out / 'prototypes.png')}")
    typer.echo(f"Backbone: {result.backbone}")


def _parsed(given: list[str]) -> dict[str, Any]:
    """name=value pairs; values as JSON, or words."""
    from regard._problem import Problem

    values: dict[str, Any] = {}
    for pair in given:
        name, equals, value = pair.partition("=")
        if not equals:
            raise Problem(f"--set {pair}: write it as name=value, such as --set prototypes=30.")
        try:
            parsed = json.loads(value)
        except ValueError:
            parsed = value
        values[name.strip().replace("-", "_")] = tuple(parsed) if isinstance(parsed, list) else parsed
    return values
