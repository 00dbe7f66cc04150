"""`python -m benchmarks [NAME ...]` runs all benchmarks, or the named ones."""

import importlib
import pkgutil
import sys
from pathlib import Path

# The last two are programs of their own, for a peer that must be set up.
HELPERS = {"__main__", "harness", "swav_peer", "swav_cifar"}
names = sorted(m.name for m in pkgutil.iter_modules([str(Path(__file__).parent)]) if m.name not in HELPERS)
names.sort(key="page".__eq__)  # it reads what the others wrote
unknown = set(sys.argv[1:]) - set(names)
if unknown:
    sys.exit(f"no benchmark named {', '.join(sorted(unknown))}; there are: {', '.join(names)}")
for name in sys.argv[1:] or names:
    print(f"## {name}", flush=True)
    importlib.import_module(f"benchmarks.{name}").main()
