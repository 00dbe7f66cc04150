"""How many steps of Newton's method are enough, known before they are made (docs/math.md, 2.10.2 to 2.10.4).

On a CPU a loop looks after each step whether it has converged. On another device such a look waits until everything
before it is done, so that the number of steps is fixed instead, by a bound that holds for every row.
"""

from __future__ import annotations

import functools
import math


@functools.lru_cache(maxsize=256)
def newton_steps(n: int, rate: float, close: float) -> int:
    """Steps after which the weights of a row of `n` entries sum to at most 1 + `close`, from any start within (2.8).

    `rate`: |alpha - 1|, at most one; where rows have several, the largest.

    The smallest K with (1 - n^(-rate / K))^K (n^rate - 1) <= rate close (docs/math.md, 2.10.4).

    >>> [newton_steps(n, 0.5, 2.0**-21) for n in (1, 16, 1024, 1 << 20)]
    [1, 9, 13, 19]
    >>> newton_steps(1024, 1.0, 2.0**-21), newton_steps(1024, 1e-9, 2.0**-21)
    (19, 1)
    """
    spread = rate * math.log(n)
    steps = 1
    while (-math.expm1(-spread / steps)) ** steps * math.expm1(spread) > rate * close:
        steps += 1
    return steps
