"""`python -m benchmarks [NAME ...]` runs the named benchmarks, default all."""

import importlib
import pkgutil
import sys
from pathlib import Path

# The last seven are run as `python -m benchmarks.NAME`: they need another library, an argument, or half an hour.
RUN_ALONE = {"swav_peer", "swav_cifar", "swav_pays", "swav_scenes", "swav_table", "classify", "trust"}
ON_DEVICES = {"gpu", "roofline", "budget"}  # regard bench --device; arithmetic
HELPERS = {"__main__", "harness", *RUN_ALONE, *ON_DEVICES}
names = sorted(m.name for m in pkgutil.iter_modules([str(Path(__file__).parent)]) if m.name not in HELPERS)
names.sort(key="page".__eq__)  # last: it reads the results of the others
unknown = set(sys.argv[1:]) - set(names)
if unknown:
    sys.exit(f"no benchmark named {', '.join(sorted(unknown))}; there are: {', '.join(names)}")
for name in sys.argv[1:] or names:
    print(f"## {name}", flush=True)
    importlib.import_module(f"benchmarks.{name}").main()
