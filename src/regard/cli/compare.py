"""`regard compare`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from regard.cli._complete import among
from regard.cli._folders import default_folder
from regard.cli._hide import checked_hide
from regard.cli._options import Derived, applied, derived, only_first_speaks
from regard.cli._shares import SharesShown
from regard.training._settings import Running
from regard.vqa.hide_names import HIDE_NAMES
from regard.vqa.kinds import COMPARED, NAMES
from regard.vqa.settings import TRAIN_PRESETS, TrainSettings
from regard.vqa.splits import SPLIT_NAMES

COMPARED_NAMES = list(map(str, COMPARED))


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(compare)


@derived(
    changes=Derived(
        TrainSettings,
        "The runs",
        presets={name: make() for name, make in TRAIN_PRESETS.items()},
        inner={"model": "The models"},
        without=frozenset({"attention", "seed", "patience"}),
    ),
    running=Derived(
        Running, "How they run", only=frozenset({"device", "precision", "log_every", "checkpoint_every", "resume"})
    ),
)
def compare(
    changes: dict[str, Any],
    running: dict[str, Any],
    data: Path = typer.Argument(..., help="A folder in the form of VQA-v2, or a file with a column split."),
    pictures: Path | None = typer.Option(None, help="The folder of the pictures. (default: beside the questions)"),
    regions: Path | None = typer.Option(
        None, help="The folder of masks of what answers rest on. (default: those that the questions name, beside them)"
    ),
    features: Path | None = typer.Option(
        None, help="The folder written by regard features. (default: out/DATA-features)", show_default=False
    ),
    out: Path | None = typer.Option(
        None,
        help="The folder of the runs; rerun to resume, or to add seeds. (default: out/DATA-compare)",
        show_default=False,
    ),
    attention: list[str] = typer.Option(
        COMPARED_NAMES,
        help="An output attention to train; repeat for several. regard ask --help lists them.",
        autocompletion=among(NAMES),
    ),
    seeds: int = typer.Option(3, min=1, help="Trainings per attention."),
    preset: str = typer.Option(
        "relations",
        help="Defaults of the settings below: relations, small, full (large) or thesis (Table 6.1 as printed).",
        autocompletion=among(TRAIN_PRESETS),
    ),
    test: str = typer.Option(
        "test", help="The split to evaluate on; it must have answers.", autocompletion=among(SPLIT_NAMES)
    ),
    unseen: str | None = typer.Option(
        "pairs",
        help="A split for the last column; left out if it has no questions or no features.",
        autocompletion=among(SPLIT_NAMES),
    ),
    faithfulness: int = typer.Option(
        0,
        min=0,
        help="Questions of the test split for which cells of the picture are hidden in the order of the attention, to "
        "see whether the answer rests on what is shown.",
    ),
    hide: str | None = typer.Option(
        None,
        help="What takes the place of a hidden cell: mean, blur or features; see regard evaluate --help. (default: "
        "mean; features without pictures or backbone)",
        autocompletion=among(HIDE_NAMES),
    ),
    shared_epochs: int = typer.Option(
        0,
        min=0,
        help="Passes over the data that all attentions of a seed share, with discrete softmax, before each goes on for "
        "--epochs: less work, and no comparison of trainings from the first step.",
    ),
    workers: int | None = typer.Option(
        None, min=1, help="Trainings at the same time, one core each. (default: 2; for each process of torchrun 1)"
    ),
    join: bool = typer.Option(
        False,
        "--join",
        help="Share the runs with other processes that were started so, on any machine that sees the folder. What one "
        "leaves undone for a minute, another takes over. (default: under torchrun alone)",
    ),
) -> None:
    """Train several attentions with several seeds each, and print the tables of the thesis with intervals.

    The tables also have two baselines that see no picture, the question alone and the commonest answer, and two
    attentions that do not look, an even spread and a blob in the centre. Finished runs in the folder are reused: rerun
    to resume, or with more `--seeds` to add some. Runs on other data are refused; `--fresh` trains them again. Models
    with continuous-softmax are also evaluated with the number of components chosen per question (test-MCA), at four
    prices, or at that of `--price`. `--faithfulness 100` adds tables of what hiding cells does to the answers.

        regard compare out/scenes --seeds 3
        regard compare out/scenes --attention discrete-softmax --attention mixture-2 --epochs 8
        torchrun --nproc-per-node 8 --no-python regard compare vqa/ --preset full --device cuda
    """
    only_first_speaks()
    from regard._problem import Problem
    from regard._ranks import is_first, launched
    from regard.training._device import choose_device
    from regard.vqa.compare import PRICES, compare_kinds, comparison_needs
    from regard.vqa.features import FeatureStore
    from regard.vqa.folder import ComparisonFolder
    from regard.vqa.kinds import parse
    from regard.vqa.masks import check_folder
    from regard.vqa.needs import check_splits
    from regard.vqa.own import NoSplit
    from regard.vqa.read import read_questions
    from regard.vqa.settings import preset_training

    features = features or default_folder(data, "features")
    out = out or default_folder(data, "compare")
    settings = applied(preset_training(preset), changes)
    check_folder("--regions", regions)
    hiding = checked_hide(hide, faithfulness)
    check_splits(data, comparison_needs(test, None))
    for kind in attention:
        try:
            parse(kind)
        except ValueError as error:
            raise Problem(str(error)) from error
    if unseen:
        try:
            unseen_pictures = read_questions(data, unseen, pictures).pictures
        except NoSplit:
            unseen_pictures = {}
        if not unseen_pictures or not any(map(FeatureStore.open(features).has, unseen_pictures)):
            unseen = None
    how, ranks = applied(Running(progress=False), running), launched()
    device = choose_device(how.device, needs_float64=True)
    if ranks.size > 1 and device.type == "cuda" and device.index is None:
        how = replace(how, device=f"cuda:{ranks.local_rank}")  # every process its own
    result = compare_kinds(
        out,
        data,
        features,
        settings,
        attention,
        seeds=seeds,
        workers=workers or (2 if ranks.size == 1 else 1),
        running=how,
        prices=(settings.model.price,) if "price" in changes else PRICES,
        test=test,
        unseen=unseen,
        progress=SharesShown() if is_first() else None,
        pictures=pictures,
        regions=regions,
        faithfulness=faithfulness,
        hide=hiding,
        shared=join,
        shared_epochs=shared_epochs,
    )
    typer.echo(result.tables())
    typer.echo(f"\nNumbers: {ComparisonFolder(out).results}")
