"""A pytest plugin that puts regard under a peer's names before the peer's tests are imported."""

import importlib
import os

importlib.import_module(f"shims.{os.environ['REGARD_PEER']}").install()
