"""`python -m benchmarks page` writes docs/benchmarks.md and its plot from the recorded results; it measures nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from benchmarks import summary
from benchmarks.harness import HEADER, RESULTS, Row, line
from regard._files import replacing

DOCS = Path(__file__).parent.parent / "docs"


def main() -> None:
    records = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]
    records = [r for r in records if "benchmark" in r]
    busy = {path.stem: json.loads(path.read_text()) for path in RESULTS.glob("busy/*.json")}
    table = "\n".join([summary.HEADER, *(summary.summary(r, busy.get(r["benchmark"])) for r in records)])
    parts = ["# Benchmarks\n", INTRODUCTION, table + "\n", PICTURE]
    for record in records:
        machine = record["machine"]
        parts.append(f"## {record['benchmark']}\n")
        parts.append(
            f"`python -m benchmarks {record['benchmark']}`: {machine['processor']}, {machine['threads']} threads, "
            f"torch {machine['versions']['torch']}{_rates(machine)}.\n"
        )
        if record["benchmark"] in NOTES:
            parts.append(NOTES[record["benchmark"]])
        fields = Row.__dataclass_fields__
        rows = [Row(**{name: value for name, value in row.items() if name in fields}) for row in record["rows"]]
        parts.append("\n".join([HEADER, *(line(row) for row in rows)]) + "\n")
    with replacing(DOCS / "benchmarks.md") as beside:
        beside.write_text("\n".join(parts))
    _plot(records)
    print(f"-> {DOCS / 'benchmarks.md'}\n")


INTRODUCTION = """Written by `python -m benchmarks page` from `benchmarks/results/*.json`; `make bench` measures
again on your machine. A ratio is theirs divided by ours: above one is in our favour. Contestants run interleaved in one
process, so that noise affects all alike; times are medians, and memory is the growth of peak memory in a fresh process.
`python -m benchmarks --busy` measures once more while another process keeps a core busy.

In this table a case counts with its best peer; figures are medians over the cases, in brackets the least and the most.
The machine's limit is the time in which the numbers that a case must read and write pass through memory, or its
multiplications are done at the rate of a large matrix product, whichever is longer; both rates are measured in the same
run. A limit is given where it was counted.
"""

PICTURE = """![Time of sparse and softmax attention against length](pictures/speed.png)
"""

# Explanations, by benchmark.
NOTES = {
    "growth": """The figure is the fitted exponent of N (less is better), and the ratio compares
exponents. Time is CPU time on one thread. For concatenation with
entmax the time per pair rises mostly from N = 1024 to 2048, perhaps because the scores of the former, 4 MB, fit in the
cache; this was not investigated, and on a busy machine the exponent varies by 0.1 or 0.2 from run to run.
""",
    "continuous": """The published form computes the coefficients of the value function first, B = H G, and integrates a
truncated paraboloid along 100 rays. Our integration along chords is a native kernel, because plain PyTorch spent half
of its time allocating memory for temporary arrays.
""",
    "structured": """Most of the time of TVmax in plain PyTorch is the search for regions, many short passes over
small grids. The kernel relaxes the duals of one grid in each lane of a register, ten sweeps mostly, and then checks the
certificate of each grid alone in double precision, which takes half of the time. Softmax is a single pass.
""",
    "transport": """An iteration reads the matrix once: the native kernel scales some rows and adds them to the sums of
the columns while they are in the cache. With three iterations most of the time is the exponential of the scores, so
that the kernel gains little.
""",
    "nonlocal_": """Multiplications limit the gain. With N = 4096 positions, C = 256 channels, c = 128 and
N C c as the unit, the explicit embedded block needs 4 for its projections and 16 + 16 for scores and context, three
times that with the backward pass: 108. Ours needs 124, because scores are recomputed for the gradient; what it saves
is memory traffic. The Gaussian block has queries of width C: 150 against 230, as the fused kernel requires values of
the same width. The dot-product block never forms the scores: 15 against 108, of which 12 are the projections, which
both sides share; folding them into one C x C matrix from x'x, which is not implemented, would leave about 10.5. So the
promise is about the time of the necessary multiplications, which are three times those of the forward pass, at the
measured rate of products.
""",
}


def _rates(machine: dict[str, Any]) -> str:
    """The measured rates, where a benchmark has limits."""
    if "bandwidth" not in machine:
        return ""
    return f", memory at {machine['bandwidth'] / 1e9:.1f} GB/s, products at {machine['products'] / 1e9:.0f} G/s"


def _plot(records: list[dict[str, Any]]) -> None:
    """Time against length, both on logarithmic axes, for what was measured at several lengths."""
    from matplotlib.figure import Figure

    series: dict[str, dict[int, float]] = {}
    for row in (row for record in records if record["benchmark"] == "maps" for row in record["rows"]):
        case = re.fullmatch(r"attention, (.+), N = (\d+), forward\+backward", row["case"])
        if case:
            series.setdefault(case[1], {})[int(case[2])] = row["ours"]
            series.setdefault("softmax (SDPA)", {})[int(case[2])] = row["theirs"]
    figure = Figure(figsize=(6, 4), layout="constrained")
    ax = figure.subplots()
    for style, (name, points) in zip(("o-", "s--", "^:", "d-."), series.items(), strict=False):
        ax.loglog(list(points), list(points.values()), style, label=name)
    ax.set(xlabel="queries and keys", ylabel="milliseconds, forward and backward", title="one head of width 64")
    ax.legend()
    with replacing(DOCS / "pictures" / "speed.png") as beside:
        figure.savefig(beside, dpi=100, format="png")
