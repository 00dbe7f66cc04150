"""Run notebooks from top to bottom, each in a fresh kernel and an empty folder, and print the time of each.

python tools/notebooks.py docs/tutorials/*.ipynb            # check them
python tools/notebooks.py docs/tutorials/*.ipynb --write    # and store their outputs
"""

import argparse
import base64
import io
import os
import re
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from PIL import Image

SECONDS = 120  # the limit that the documentation states
LARGEST = 400_000  # bytes of a notebook with its pictures
KEPT = ("image/png", "text/plain")


def smaller(png: str) -> str:
    """A PNG, in base64, converted to a palette: a third of the size."""
    palette = io.BytesIO()
    Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB").quantize(96).save(palette, "png", optimize=True)
    return base64.b64encode(palette.getvalue()).decode()


def tidy(notebook: Any) -> None:
    """Keep text and pictures of the outputs; remove execution counts, times and other metadata."""
    for cell in notebook.cells:
        cell.metadata = {name: value for name, value in cell.metadata.items() if name == "alt"}
        if cell.cell_type != "code":
            continue
        cell.execution_count = None
        outputs: list[Any] = []
        for output in cell.outputs:
            if output.output_type != "stream":
                outputs.append(output)
            elif output.name == "stdout" and outputs and outputs[-1].output_type == "stream":
                outputs[-1].text += output.text  # it arrives in pieces
            elif output.name == "stdout":
                outputs.append(output)
        cell.outputs = outputs
        for output in cell.outputs:
            if "data" in output:
                output.data = {kind: output.data[kind] for kind in KEPT if kind in output.data}
                output.metadata = {}
                if "image/png" in output.data:
                    output.data["image/png"] = smaller(output.data["image/png"])
            if "execution_count" in output:
                output.execution_count = None


def run(path: Path) -> tuple[Any, float]:
    """The notebook with its outputs, and the smaller of wall time and CPU time in seconds."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        began, cpu_seconds = time.perf_counter(), _cpu_seconds()
        resources = {"metadata": {"path": folder}}
        NotebookClient(notebook, timeout=600, resources=resources, extra_arguments=["--log-level=ERROR"]).execute()
        # On a busy machine the CPU time of the notebook counts.
        return notebook, min(time.perf_counter() - began, _cpu_seconds() - cpu_seconds)


def _cpu_seconds() -> float:
    """CPU time of child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Run all; exit status 1 if one fails, takes too long or is too large."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("notebooks", nargs="+", type=Path, help="files")
    arguments.add_argument("--write", action="store_true", help="store the outputs in the files")
    options = arguments.parse_args()
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    wrong = 0
    for path in options.notebooks:
        try:
            notebook, seconds = run(path)
        except CellExecutionError as error:
            wrong += 1
            print(re.sub(r"\x1b\[[\d;]*m", "", f"{path.name}: {error}"))
            continue
        verdict = "" if seconds <= SECONDS else f", more than {SECONDS} s"
        if options.write:
            tidy(notebook)
            nbformat.write(notebook, path)
        if path.stat().st_size > LARGEST:
            verdict += f", {path.stat().st_size} bytes are more than {LARGEST}"
        wrong += bool(verdict)
        print(f"{path.name}: {seconds:.0f} s{verdict}", flush=True)
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
