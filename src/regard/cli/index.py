"""`regard index`."""

from __future__ import annotations

from pathlib import Path

import typer


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(index)


def index(
    shards: Path = typer.Argument(..., help="A folder of tars, or its URL (s3://, gs://, memory://).", path_type=str),
    cache: Path | None = typer.Option(
        None, help="Where what was read so far is kept. (default: $REGARD_CACHE, else ~/.cache/regard)"
    ),
) -> None:
    """Index shards: read each tar once, and write beside them where each picture is, so that nobody has to again.

    The folder `regard-index` beside the shards gets 16 bytes per picture (place, size, checksum, label). Commands that
    read the shards then begin at once, on any machine. Run it again after shards were added or changed; a command
    that was stopped goes on where it was. Tars are not changed. Broken ones are named, and used as far as they are
    whole.

        regard index shards/
        regard index s3://mine/shards
    """
    from regard._problem import Problem
    from regard.pictures import CacheSettings, Tars
    from regard.pictures._shard_names import is_tar

    if is_tar(shards):
        raise Problem(f"{shards} names tars. Name their folder, which gets the index.")
    tars = Tars.at(shards, cache=CacheSettings(cache), say=typer.echo, indexed=False)
    place = tars.write_index()
    classes = f", {len(tars.classes)} classes" if tars.classes else ""
    typer.echo(f"{len(tars.shards)} shards, {len(tars)} pictures{classes}")
    typer.echo(f"Index: {place}")
