"""Triton kernels compiled without a device: registers, spills, shared memory and float64 in the machine code."""

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
POINTERS = {
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.uint8: "*u8",
    torch.int32: "*i32",
}


@dataclass(frozen=True)
class Resources:
    """Of one kernel: registers of a thread, bytes that it spills, bytes of shared memory, and the text of its code."""

    registers: int
    spills: int
    shared: int
    code: str

    @property
    def wide_loads(self) -> bool:
        """Whether it loads 16 bytes at a time."""
        return bool(re.search(r"ld\.global\S*\.v4|ld\.global\S*\.v2\.b64|cp\.async\.c[ag]|dwordx4|b128", self.code))

    @property
    def double(self) -> bool:
        """Whether it computes in float64."""
        return ".f64" in self.code or "_f64" in self.code


def compiled(launch, target):
    """The resources of a launch that was recorded: (kernel, arguments by name, options)."""
    kernel, arguments, options = launch
    signature, constants, attributes = {}, {}, {}
    for place, parameter in enumerate(kernel.params):
        name, value = parameter.name, arguments[parameter.name]
        if parameter.is_constexpr:
            signature[name], constants[(place,)] = "constexpr", value
        else:
            signature[name] = described(value, (place,), constants, attributes)
    source = ASTSource(kernel, signature, constants, attributes)
    built = triton.compile(source, target=TARGETS[target], options=options)
    if target.startswith("sm"):
        return nvidia(built.asm["ptx"], target, built.metadata.shared)
    code = built.asm["amdgcn"]
    number = lambda name: int(re.search(rf"\.{name}:\s+(\d+)", code)[1])  # noqa: E731
    return Resources(number("vgpr_count"), 4 * number("vgpr_spill_count"), number("group_segment_fixed_size"), code)


def described(value, place, constants, attributes):
    """The type of an argument as a launch finds it; one that is 1 is a constant, those in a tuple are one by one."""
    if isinstance(value, tuple):
        return tuple(described(x, (*place, n), constants, attributes) for n, x in enumerate(value))
    if isinstance(value, torch.Tensor):
        attributes[place] = [["tt.divisibility", 16]]
        return POINTERS[value.dtype]
    if isinstance(value, float):
        return "fp32"
    if value == 1:
        constants[place] = 1
        return "constexpr"
    if value % 16 == 0:
        attributes[place] = [["tt.divisibility", 16]]
    return "i32"


def nvidia(code, target, shared):
    """By ptxas, which is part of Triton."""
    ptxas = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(code)
        name = "sm_90a" if target == "sm_90" else target
        command = [str(ptxas), "-v", "--gpu-name", name, str(source), "-o", str(Path(folder) / "kernel.cubin")]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    spills = int(re.search(r"(\d+) bytes spill stores", told)[1])
    return Resources(int(re.search(r"Used (\d+) registers", told)[1]), spills, shared, code)


class Recorder:
    """Records launches instead of running them: patch `JITFunction.run` with it."""

    def __init__(self):
        self.launches = []

    def __call__(self, kernel, *args, grid, warmup=False, **options):
        names = [parameter.name for parameter in kernel.params]
        arguments = dict(zip(names, args, strict=False)) | {k: v for k, v in options.items() if k in names}
        self.launches.append((kernel, arguments, {k: v for k, v in options.items() if k not in names}))
