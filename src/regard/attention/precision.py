"""The dtype in which the factors of a distance do not cancel (docs/math.md, 6.23)."""

from __future__ import annotations

from dataclasses import replace

import torch

from regard import _check
from regard.affinity import Shifted
from regard.attention.call import Call

ROUNDING = 1e-3  # of a score: factors of a wider dtype are taken where theirs may be larger


def precise(call: Call) -> Call:
    """The call in the narrowest dtype, from its own on, in which factors round no score by more than `ROUNDING`.

    A squared distance by factors is a small difference of large products where the keys lie far apart against the
    temperature. Where values cannot be read, half precision becomes float32, and nothing else changes.
    """
    if not isinstance(call.affinity, Shifted) or call.empty:
        return call
    dtype = torch.promote_types(call.q.dtype, torch.float32)
    q, k = call.q.detach(), call.k.detach()
    if _check.values_checked(q) and bool(q.isfinite().all() & k.isfinite().all()):
        with torch.no_grad():
            cancelled = float(call.affinity.cancelled(q.double(), k.double()))
        dtypes = (call.q.dtype, dtype, torch.float64)
        dtype = next((x for x in dtypes if cancelled * torch.finfo(x).eps <= ROUNDING), torch.float64)
    return replace(call, q=call.q.to(dtype), k=call.k.to(dtype), v=call.v.to(dtype))
