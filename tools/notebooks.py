"""Run notebooks from top to bottom, each in a fresh kernel and an empty folder, and say how long it took.

python tools/notebooks.py docs/tutorials/*.ipynb            # check them
python tools/notebooks.py docs/tutorials/*.ipynb --write    # and keep what they print and draw
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

SECONDS = 120  # what a reader is told
LARGEST = 400_000  # bytes of a notebook with its pictures
KEPT = ("image/png", "text/plain")


def smaller(png: str) -> str:
    """A picture, in base64, with a palette: a third of the bytes."""
    written = io.BytesIO()
    Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB").quantize(96).save(written, "png", optimize=True)
    return base64.b64encode(written.getvalue()).decode()


def tidy(notebook: Any) -> None:
    """Keep text and pictures; neither counts, times nor what is meant for other programs."""
    for cell in notebook.cells:
        cell.metadata = {name: value for name, value in cell.metadata.items() if name == "alt"}
        if cell.cell_type != "code":
            continue
        cell.execution_count = None
        kept: list[Any] = []
        for output in cell.outputs:
            if output.output_type != "stream":
                kept.append(output)
            elif output.name == "stdout" and kept and kept[-1].output_type == "stream":
                kept[-1].text += output.text  # it arrives in pieces
            elif output.name == "stdout":
                kept.append(output)
        cell.outputs = kept
        for output in cell.outputs:
            if "data" in output:
                output.data = {kind: output.data[kind] for kind in KEPT if kind in output.data}
                output.metadata = {}
                if "image/png" in output.data:
                    output.data["image/png"] = smaller(output.data["image/png"])
            if "execution_count" in output:
                output.execution_count = None


def run(path: Path) -> tuple[Any, float]:
    """The notebook with its outputs, and the seconds it took."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        began, worked = time.perf_counter(), _worked()
        where = {"metadata": {"path": folder}}
        NotebookClient(notebook, timeout=600, resources=where, extra_arguments=["--log-level=ERROR"]).execute()
        # A machine that is busy with other things counts only what the notebook itself has worked.
        return notebook, min(time.perf_counter() - began, _worked() - worked)


def _worked() -> float:
    """Seconds of a processor that ended child processes have used."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Run all; the status says whether all went well and in time."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("notebooks", nargs="+", type=Path)
    arguments.add_argument("--write", action="store_true", help="keep the outputs in the files")
    given = arguments.parse_args()
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    wrong = 0
    for path in given.notebooks:
        try:
            notebook, seconds = run(path)
        except CellExecutionError as error:
            wrong += 1
            print(re.sub(r"\x1b\[[\d;]*m", "", f"{path.name}: {error}"))
            continue
        verdict = "" if seconds <= SECONDS else f", more than {SECONDS} s"
        if given.write:
            tidy(notebook)
            nbformat.write(notebook, path)
        if path.stat().st_size > LARGEST:
            verdict += f", {path.stat().st_size} bytes are more than {LARGEST}"
        wrong += bool(verdict)
        print(f"{path.name}: {seconds:.0f} s{verdict}", flush=True)
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
