"""A program that runs the command line and says which heavy packages were imported, for tests."""

HEAVY = {
    *("torch", "numpy", "scipy", "sklearn", "matplotlib", "PIL", "transformers", "huggingface_hub", "safetensors"),
    *("lightning", "lightning_fabric", "fastapi", "uvicorn", "pandas", "tensorboard"),
}
# Runs the program as the shell does, then says which of HEAVY were imported.
PROGRAM = f"""
import atexit, sys
atexit.register(lambda: print("HEAVY", *sorted({HEAVY} & {{*sys.modules}}), file=sys.stderr))
from regard.cli import main
sys.argv[0] = "regard"
main()
"""
