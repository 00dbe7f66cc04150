"""`python -m benchmarks [--busy] [NAME ...]` runs the named benchmarks, default all.

With `--busy` each is run twice, the second time while another process keeps one core busy, and both ratios are printed.
"""

import importlib
import pkgutil
import sys
from pathlib import Path

from benchmarks.harness import RESULTS
from benchmarks.neighbour import busy_neighbour, compare

# The last eight are run as `python -m benchmarks.NAME`: they need another library, an argument, or half an hour.
RUN_ALONE = {"swav_peer", "swav_cifar", "swav_pays", "swav_scenes", "swav_table", "classify", "trust", "unseen_pairs"}
ON_DEVICES = {"gpu", "roofline", "budget"}  # regard bench --device; arithmetic
HELPERS = {"__main__", "harness", "limits", "neighbour", "summary", *RUN_ALONE, *ON_DEVICES}
names = sorted(m.name for m in pkgutil.iter_modules([str(Path(__file__).parent)]) if m.name not in HELPERS)
names.sort(key="page".__eq__)  # last: it reads the results of the others
wanted = [name for name in sys.argv[1:] if name != "--busy"]
unknown = set(wanted) - set(names)
if unknown:
    sys.exit(f"no benchmark named {', '.join(sorted(unknown))}; there are: {', '.join(names)}")
for name in wanted or names:
    print(f"## {name}", flush=True)
    run = importlib.import_module(f"benchmarks.{name}").main
    run()
    if "--busy" in sys.argv[1:] and name != "page":
        print(f"## {name}, with a busy neighbour", flush=True)
        with busy_neighbour():
            run()
        compare(name, RESULTS)
