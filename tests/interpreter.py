"""Triton's interpreter, corrected, so that kernels run on a CPU as they would on a device.

The interpreter of Triton 3.7 passes kernels that are wrong on a device. Here what it does wrong is repaired or refused:

- bfloat16 is multiplied, added and compared as bit patterns: here its numbers are float32 that are rounded to bfloat16,
  to nearest even, wherever they are made;
- `tl.maximum` and `tl.minimum` give NaN for NaN: here the other number, as on a device;
- products ignore `input_precision`: here tf32 rounds to 10 bits, and tf32x3 drops the product of the remainders;
- a constant below float32's normal numbers, and sin and cos, become float64: here any float64 is an error;
- numbers that a launch passes are float64 of Python: here float32;
- approximate functions are exact: here exp2, log2, sqrt and division may err by 2^-22 (`noise`);
- offsets of 32 bits that overflow are not seen: here they are an error;
- memory outside of every tensor of a launch is read: here that is an error;
- programs and threads run one after another: here a race is an error, when two programs use one address that one of
  them writes, or when a program reads what it wrote without a barrier in between.

Kernels are compiled ones (`triton.jit`), so that one process can do both. What is counted: launches, bytes that are
read and written, products of tiles.
"""

import contextlib
import functools
import inspect
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import torch
import triton
import triton.language as tl
from torch.utils._python_dispatch import _disable_current_modes
from triton.runtime import interpreter as theirs
from triton.runtime.jit import JITFunction

from regard import gpu

Handle = theirs.TensorHandle
USES_LANGUAGE = SimpleNamespace(__globals__={"tl": tl})


@dataclass
class Counts:
    """What kernels did: launches, bytes read and written, products of tiles, multiplications, and programs."""

    launches: int = 0
    read: int = 0
    written: int = 0
    products: int = 0
    multiplications: int = 0
    programs: int = 0
    kernels: list[str] = field(default_factory=list)


class Race(RuntimeError):
    """What a device may do in another order."""


class Races:
    """Who wrote and read which address in a launch. Programs run in any order, and all threads of one do between two
    barriers."""

    def __init__(self):
        self.written, self.read, self.program, self.phase = [], [], 0, 0
        self.recent = {}  # the phase in which this program wrote an address

    def begin(self):
        self.program, self.phase, self.recent = self.program + 1, 0, {}

    def loads(self, at):
        if at.size == 1 and self.recent.get(int(at[0])) == self.phase:
            raise Race("threads read what another one of the program wrote, without a barrier in between")
        self.read.append((self.program, at))

    def stores(self, at):
        if at.size == 1:  # by one thread; larger ones are results
            self.recent[int(at[0])] = self.phase
        self.written.append((self.program, at))

    def end(self):
        """At the end of a launch: no address that a program writes is used by another one."""
        writers, written = flattened(self.written)
        if len(written) == 0:
            return
        order = np.argsort(written, kind="stable")
        writers, written = writers[order], written[order]
        if ((written[1:] == written[:-1]) & (writers[1:] != writers[:-1])).any():
            raise Race("two programs write one address")
        readers, read = flattened(self.read)
        place = np.minimum(np.searchsorted(written, read), len(written) - 1)
        if ((written[place] == read) & (writers[place] != readers)).any():
            raise Race("a program reads what another one writes")


def flattened(accesses):
    """The program and the address of each access."""
    if not accesses:
        return np.empty(0, int), np.empty(0, np.uint64)
    return np.repeat([n for n, _ in accesses], [at.size for _, at in accesses]), np.concatenate(
        [at for _, at in accesses]
    )


class Builder(theirs.InterpreterBuilder):
    """The operations, corrected."""

    def __init__(self, noise, seed=0):
        super().__init__()
        self.noise, self.random, self.counts = noise, np.random.default_rng(seed), Counts()
        self.memory = []  # first and last addresses of the tensors of a launch
        self.races = Races()

    def set_grid_idx(self, x, y, z):
        super().set_grid_idx(x, y, z)
        self.races.begin()

    def create_barrier(self):
        self.races.phase += 1

    def inside(self, ptrs, mask, size):
        at = np.broadcast_to(ptrs.data, np.broadcast_shapes(ptrs.data.shape, mask.data.shape))
        at = at[np.broadcast_to(mask.data, at.shape).astype(bool)]
        within = np.zeros(at.shape, bool)
        for first, end in self.memory:
            within |= (at >= first) & (at + np.uint64(size) <= end)
        if not within.all():
            raise IndexError("an address outside of every tensor of the launch")
        return at.ravel()

    # bfloat16 is float32 in here, rounded wherever it is made; memory has its bits.
    def create_masked_load(self, ptrs, mask, other, *rest):
        dtype = ptrs.get_element_ty()
        at = self.inside(ptrs, mask, max(1, dtype.primitive_bitwidth // 8))
        self.races.loads(at)
        self.counts.read += int(mask.data.sum()) * max(1, dtype.primitive_bitwidth // 8)
        if dtype != tl.bfloat16:
            return super().create_masked_load(ptrs, mask, other, *rest)
        bits = None if other is None else Handle(to_bits(other.data), tl.bfloat16)
        raw = super().create_masked_load(ptrs, mask, bits, *rest)
        return Handle(from_bits(raw.data), tl.bfloat16)

    def create_masked_store(self, ptrs, value, mask, *rest):
        dtype = ptrs.get_element_ty()
        at = self.inside(ptrs, mask, max(1, dtype.primitive_bitwidth // 8))
        self.races.stores(at)
        self.counts.written += int(mask.data.sum()) * max(1, dtype.primitive_bitwidth // 8)
        if dtype == tl.bfloat16:
            value = Handle(to_bits(value.data), tl.bfloat16)
        return super().create_masked_store(ptrs, value, mask, *rest)

    def cast_impl(self, src, dst_type):
        kind = dst_type.scalar
        if kind == tl.float64:
            raise TypeError("float64 in a kernel: a constant below 1.2e-38, or a float64 tensor")
        if kind == tl.bfloat16:
            return Handle(rounded(src.data.astype(np.float32)), tl.bfloat16)
        if src.dtype.scalar == tl.bfloat16:
            return Handle(src.data.astype(np_dtype(kind)), kind)
        return super().cast_impl(src, dst_type)

    create_si_to_fp = create_ui_to_fp = create_fp_to_si = create_fp_to_ui = create_fp_ext = create_fp_trunc = (
        lambda self, src, dst: self.cast_impl(src, dst)
    )

    def create_fp_to_fp(self, src, dst_type, rounding_mode):
        return self.cast_impl(src, dst_type)

    def get_fp64(self, value):
        raise TypeError(f"the constant {value} is float64: float32 has no such normal number")

    def get_null_value(self, type):
        return Handle(np.array([0], dtype=np_dtype(type.scalar)), type)

    def binary_op(self, lhs, rhs, op):
        if lhs.dtype.scalar == tl.bfloat16:
            output = op(lhs.data, rhs.data)
            return Handle(output, tl.int1) if output.dtype == bool else Handle(rounded(output), tl.bfloat16)
        result = super().binary_op(lhs, rhs, op)
        if result.data.dtype == bool:
            return Handle(result.data, tl.int1)  # not the dtype of what was compared
        if result.data.dtype == np.int32 and op in (np.add, np.multiply, np.subtract) and lhs.data.dtype == np.int32:
            wide = op(lhs.data.astype(np.int64), rhs.data.astype(np.int64))
            if (wide != result.data).any():
                raise OverflowError("an offset of 32 bits overflows")
        return result

    def noisy(self, handle):
        if self.noise == 0 or handle.data.dtype != np.float32:
            return handle
        factor = 1 + self.noise * self.random.uniform(-1, 1, handle.data.shape)
        return Handle((handle.data * factor).astype(np.float32), handle.dtype)

    def create_exp2(self, arg):
        # The argument's own error too: a device's exp2 is exact to 2^-22 of the result.
        return self.noisy(super().create_exp2(arg))

    def create_log2(self, arg):
        raise NotImplementedError("log2 errs by 2^-22 in absolute terms on a device: use log2_of of regard.gpu")

    create_log = create_sin = create_cos = create_exp = create_log2

    def create_sqrt(self, arg):
        return self.noisy(super().create_sqrt(arg))

    def create_fdiv(self, lhs, rhs):
        return self.noisy(super().create_fdiv(lhs, rhs))

    create_maxnumf = create_maximumf = lambda self, lhs, rhs: self.binary_op(lhs, rhs, np.fmax)
    create_minnumf = create_minimumf = lambda self, lhs, rhs: self.binary_op(lhs, rhs, np.fmin)

    def create_dot(self, a, b, d, input_precision, max_num_imprecise_acc):
        self.counts.products += 1
        self.counts.multiplications += a.data.shape[0] * a.data.shape[1] * b.data.shape[1]
        x, y = a.data.astype(np.float32), b.data.astype(np.float32)
        if a.dtype.scalar == tl.float32:
            if "TF32x3" in str(input_precision):
                high_x, high_y = tf32(x), tf32(y)
                low_x, low_y = tf32(x - high_x), tf32(y - high_y)
                product = low_x @ high_y + high_x @ low_y + high_x @ high_y
                return Handle(product + d.data, d.dtype.scalar)
            if "IEEE" not in str(input_precision):
                x, y = tf32(x), tf32(y)
        return Handle(x @ y + d.data, d.dtype.scalar)


def single(x):
    """A number that a launch passes, as float32."""
    return tl.tensor(Handle(np.array([x], dtype=np.float32), tl.float32), tl.float32)


def np_dtype(dtype):
    """That of numbers in here."""
    return np.dtype(np.float32) if dtype == tl.bfloat16 else theirs._get_np_dtype(dtype)


def rounded(x):
    """float32 numbers rounded to bfloat16, to nearest even."""
    return from_bits(to_bits(x))


def to_bits(x):
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    carried = bits + 0x7FFF + ((bits >> 16) & 1)
    return np.where(np.isnan(x), np.uint32(0x7FC0), carried >> 16).astype(np.uint16).reshape(np.shape(x))


def from_bits(bits):
    return (np.ascontiguousarray(bits).astype(np.uint32) << 16).view(np.float32).reshape(np.shape(bits))


def tf32(x):
    """Rounded to 10 bits after the first."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    return ((bits + 0x1000) & np.uint32(0xFFFFE000)).view(np.float32).reshape(np.shape(x))


def flat(arguments):
    """Arguments of a launch, with those in tuples one by one."""
    for x in arguments:
        if isinstance(x, tuple):
            yield from flat(x)
        else:
            yield x


@functools.cache
def of_source(function):
    """The kernel as Python that runs."""
    return theirs.FunctionRewriter(function).rewrite_ast()


def rewritten(kernel):
    """The same for a compiled kernel."""
    return of_source(kernel.fn)


@contextlib.contextmanager
def interpreted(noise=0.0, device="cpu"):
    """Kernels run here, on CPU tensors, and `regard` takes them for these; gives the counts."""
    builder = Builder(noise)
    before = {
        (theirs, "interpreter_builder"): theirs.interpreter_builder,
        (theirs.interpreter_semantic, "builder"): theirs.interpreter_semantic.builder,
        (JITFunction, "run"): JITFunction.run,
        (JITFunction, "__call__"): JITFunction.__call__,
        (theirs, "_get_np_dtype"): theirs._get_np_dtype,
        (theirs, "_patch_lang"): theirs._patch_lang,
        (theirs, "_validate_np_data_size"): theirs._validate_np_data_size,
        (theirs, "_implicit_cvt"): theirs._implicit_cvt,
    }

    def run(self, *args, grid, warmup=False, **options):
        builder.counts.launches += 1
        builder.counts.kernels.append(self.fn.__name__)
        builder.counts.programs += int(np.prod(grid))
        names = [p.name for p in inspect.signature(self.fn).parameters.values()]
        options = {name: value for name, value in options.items() if name in names}
        stores = [x.untyped_storage() for x in flat((*args, *options.values())) if isinstance(x, torch.Tensor)]
        builder.races = Races()
        builder.memory = [(np.uint64(x.data_ptr()), np.uint64(x.data_ptr() + x.nbytes())) for x in stores]
        triton.knobs.runtime.interpret = True
        try:
            # What the interpreter itself does is no operation of torch on a device.
            with np.errstate(all="ignore"), torch.no_grad(), _disable_current_modes():
                theirs.GridExecutor(rewritten(self), names, grid)(*args, **options)
            builder.races.end()
        finally:
            triton.knobs.runtime.interpret = False

    converted = theirs._implicit_cvt
    theirs._implicit_cvt = lambda x: single(x) if isinstance(x, float) else converted(x)
    asked, fits = theirs._get_np_dtype, theirs._validate_np_data_size
    known = functools.cache(asked)  # a tenth of the time; pointers cannot be kept
    old_dtype = lambda dtype: known(dtype) if type(dtype) is tl.dtype else asked(dtype)  # noqa: E731
    theirs._validate_np_data_size = lambda data, dtype: dtype == tl.bfloat16 or fits(data, dtype)
    theirs.interpreter_builder = theirs.interpreter_semantic.builder = builder
    JITFunction.run = run
    JITFunction.__call__ = lambda self, *args, **more: rewritten(self)(*args, **more)
    # The language is changed once for all launches: looking through its modules takes longer than a small kernel.
    patches = [theirs._patch_lang(x) for x in (tl.standard.max.fn, USES_LANGUAGE)]
    theirs._patch_lang = lambda fn: theirs._LangPatchScope()
    theirs._get_np_dtype = lambda dtype: (
        np.dtype(np.float32) if getattr(dtype, "scalar", dtype) == tl.bfloat16 and not in_memory() else old_dtype(dtype)
    )
    try:
        with gpu.kernels_for(device):
            yield builder.counts
    finally:
        for (owner, name), value in before.items():
            setattr(owner, name, value)
        for patch in reversed(patches):
            patch.restore()


def in_memory():
    """Whether the dtype is asked for by a load or a store, which see the bits."""
    frame = inspect.currentframe().f_back.f_back
    return frame is not None and frame.f_code.co_name in ("create_masked_load", "create_masked_store")
