"""Counts what waits for a device: reads of values, sizes that depend on values, copies to another device.

Operators of regard are looked into, where a mode of torch alone sees one operation.
"""

import contextlib

from torch._library.custom_ops import OPDEFS
from torch.utils._python_dispatch import TorchDispatchMode

from regard import _check

READS = {
    "aten._local_scalar_dense",
    "aten.equal",
    "aten.is_nonzero",
    "aten.item",
    "aten.masked_select",
    "aten.nonzero",
    "aten.nonzero_static",
    "aten.repeat_interleave",
    "aten._unique2",
    "aten.unique_dim",
    "aten.unique_consecutive",
    "aten.bincount",
    "aten._linalg_check_errors",  # of torch.linalg.inv and others, which have a form without: inv_ex
    "aten.lift_fresh",  # numbers of Python become a tensor, which is copied to the device
}
INDEXED = {"aten.index", "aten.index_put", "aten.index_put_"}  # by a boolean mask they need its count


class Waits(TorchDispatchMode):
    """Inside the block every operation is looked at; `names` has those that would wait, with repetitions."""

    def __init__(self):
        super().__init__()
        self.names, self.operations = [], 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = str(function).rsplit(".", 1)[0]
        if name.startswith("regard."):
            with self:  # while an operation is looked at, the mode is off
                return OPDEFS[function._schema.name]._init_fn(*args, **(kwargs or {}))
        self.operations += 1
        by_mask = name in INDEXED and any(x is not None and x.dtype.itemsize == 1 for x in args[1])
        moved = name == "aten._to_copy" and (kwargs or {}).get("device", args[0].device) != args[0].device
        if name in READS or by_mask or moved:
            self.names.append(name)
        return function(*args, **(kwargs or {}))


@contextlib.contextmanager
def as_on_a_device():
    """Tensors on the CPU count as ones whose values cannot be read at once, and are not checked unless asked for."""
    before = _check.readable_at_once, _check.values_checked
    _check.readable_at_once = lambda x: False
    _check.values_checked = lambda x: _check.readable(x) and bool(_check._checks_on.get())
    try:
        yield
    finally:
        _check.readable_at_once, _check.values_checked = before
