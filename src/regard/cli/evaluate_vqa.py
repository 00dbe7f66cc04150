"""`regard evaluate` for models that answer questions; `regard.cli.evaluate` chooses it by the kind of the model."""

from __future__ import annotations

from pathlib import Path

import typer


def evaluate_vqa(model: Path, data: Path | None, test: Path | None, out: Path | None) -> None:
    """Accuracy and attention quality, with the attention it was trained with and with others."""
    from regard._problem import Problem
    from regard.vqa.judge import judge

    asked = test or data
    if asked is None:
        raise Problem("this model answers questions: say which. Example: regard evaluate out/vqa out/scenes")
    typer.echo(judge(model, asked, out=out))
    if out is not None:
        typer.echo(f"Numbers and answers: {out}")
