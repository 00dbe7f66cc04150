"""The processes that work on one command together, as the environment variables of their launcher say."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_LAUNCHED = "TORCHELASTIC_RUN_ID"  # set by torchrun, in every process that it starts
# What torchrun and Lightning tell the processes that they start.
_SAID = ("RANK", "LOCAL_RANK", "GROUP_RANK", "NODE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE")


@dataclass(frozen=True)
class Ranks:
    """The number of this process among all (`rank` of `size`) and on its machine (`local_rank` of `local_size`).

    `launch`: the name of the launch and its restarts on this machine; "" without a launcher.

    >>> Ranks(5, 8, 1, 4, "run/0").machines
    2
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    launch: str = ""

    @property
    def machines(self) -> int:
        """The number of machines."""
        return self.size // self.local_size

    @property
    def restarts(self) -> int:
        """How often the launcher has started the processes of this machine again, because one of them had ended."""
        return int(self.launch.rpartition("/")[2] or 0)

    @property
    def may_restart(self) -> bool:
        """Whether the launcher starts them again when one has ended."""
        return bool(self.launch) and os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0"


def launched() -> Ranks:
    """What torchrun says in RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE; one process alone without it.

    >>> launched().size
    1
    """
    if _LAUNCHED not in os.environ:
        return Ranks()
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    rank, size, local_rank, local_size = (int(os.environ[name]) for name in names)
    launch = f"{os.environ[_LAUNCHED]}/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    return Ranks(rank, size, local_rank, local_size, launch)


def is_first() -> bool:
    """Whether this is the first of the processes that work together (rank 0).

    >>> is_first()
    True
    """
    return all(os.environ.get(name, "0") == "0" for name in ("RANK", "LOCAL_RANK", "NODE_RANK"))


@contextmanager
def alone() -> Iterator[None]:
    """A context in which processes start that work alone, whatever this one belongs to."""
    names = [name for name in os.environ if name in _SAID or name.startswith("TORCHELASTIC_")]
    taken = {name: os.environ.pop(name) for name in names}
    try:
        yield
    finally:
        os.environ.update(taken)
