"""The device to compute on: its name as a user writes it, and what there is on this machine.

Names are checked without torch, so that the command line stays quick; torch is imported where a device is chosen.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from regard import _plain
from regard._problem import Problem

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

DEVICE_KINDS = ("cuda", "xpu", "mps", "cpu")  # the best first
DEVICE_NAMES = ("auto", "cpu", "cuda", "cuda:1", "mps", "xpu")
DEVICE_HELP = "Device to compute on: cpu, cuda, cuda:1, mps, xpu, or auto for the best there is."
_INSTALL = "Install a build of torch for it: https://pytorch.org/get-started/locally"


def check_device_name(name: str) -> str:
    """The name of a device, "auto" included; a ValueError if it is none. Whether the device is there is not looked at.

    >>> check_device_name("cuda:1")
    'cuda:1'
    >>> check_device_name("gpu")
    Traceback (most recent call last):
    ValueError: device: got 'gpu', expected auto, cpu, cuda, cuda:1, mps, xpu. For an NVIDIA or AMD GPU: cuda.
    """
    if not isinstance(name, str) or not re.fullmatch(r"auto|cpu|mps|(cuda|xpu)(:\d+)?", name):
        _plain.complain("device", repr(name), ", ".join(DEVICE_NAMES), "For an NVIDIA or AMD GPU: cuda.")
    return name


def devices_here() -> list[str]:
    """The devices of this machine that torch can use, the best first: "cuda:0", "cuda:1", "xpu:0", "mps", "cpu".

    >>> devices_here()[-1]
    'cpu'
    """
    import torch

    found = [f"cuda:{i}" for i in range(torch.cuda.device_count() if torch.cuda.is_available() else 0)]
    found += [f"xpu:{i}" for i in range(torch.xpu.device_count() if torch.xpu.is_available() else 0)]
    found += ["mps"] if torch.backends.mps.is_available() else []
    return [*found, "cpu"]


def choose_device(
    name: str = "auto", *, kinds: tuple[str, ...] = DEVICE_KINDS, needs_float64: bool = False, use: str = "this"
) -> torch.device:
    """The device with a name, which must be there; a Problem that says what there is, and how to get it, if it is not.

    `name`: one of `DEVICE_NAMES`, with any number; default "auto", the best there is.
    `kinds`: those that can be used; default all. Another that is named is a Problem.
    `needs_float64`: leave "mps", which has no float64, to those who name it; default False.
    `use`: what needs a device of these kinds, for the message.

    >>> choose_device("cpu")
    device(type='cpu')
    >>> choose_device("cuda:99")
    Traceback (most recent call last):
    regard._problem.Problem: device cuda:99 is not there. This machine has ...
    """
    import torch

    here = devices_here()
    kind, _, number = check_device_name(name).partition(":")
    if kind == "auto":
        usable = [one.partition(":")[0] for one in here]
        return torch.device(next(k for k in usable if k in kinds and not (needs_float64 and k == "mps")))
    if kind not in kinds:
        raise Problem(f"device {name} cannot be used for {use}. Take one of {', '.join(kinds)}.")
    if not any(one == name if number else one.partition(":")[0] == kind for one in here):
        raise Problem(f"device {name} is not there. This machine has {', '.join(here)}. {_remedy(kind, here)}")
    return torch.device(name)


def _remedy(kind: str, here: list[str]) -> str:
    """What to do about a device that is not there."""
    import torch

    if any(one.startswith(kind) for one in here):
        return "Take one of these."
    if kind == "cuda" and (torch.version.cuda or torch.version.hip):
        return "No GPU is visible: look at nvidia-smi or rocm-smi, and at CUDA_VISIBLE_DEVICES; or take cpu."
    if kind == "mps":
        return "MPS needs a Mac with an Apple processor; take another."
    return f"torch {torch.__version__} is built without {kind}. {_INSTALL}, or take cpu."


@contextmanager
def computing_on(module: nn.Module, device: torch.device) -> Iterator[None]:
    """A module on a device inside the block, and where it was before afterwards."""
    before = next(module.parameters()).device
    module.to(device)
    try:
        yield
    finally:
        module.to(before)


def finish(device: torch.device) -> None:
    """Wait until a device has done all that it was asked, so that a clock can be read."""
    if device.type != "cpu":
        import torch

        torch.accelerator.synchronize(device)


def sent(x: Tensor, device: torch.device) -> Tensor:
    """A tensor of the CPU on a device; to CUDA by pinned memory, without waiting for the copy."""
    return x.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else x.to(device)
