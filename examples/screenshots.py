"""Screenshots of the web page: start `regard explore`, then `python examples/screenshots.py --out docs/pictures`.

The page opens on the model's own samples; without a model, only the views that need none are taken.
"""

import argparse
import json
import shutil
import sys
from pathlib import Path
from urllib.request import urlopen

VIEWS = {
    "look": (1280, 900, "light", "#tab=look&picture=cat&region=0.29_0.25~0.46_0.25~0.47_0.5~0.3_0.5"),
    "ask": (1280, 900, "light", "#tab=ask&sample=scene-3&attention=mixture-2"),
    "playground": (1280, 1010, "light", "#tab=playground"),
    "transport": (1280, 830, "dark", "#tab=transport&t.eps=0.02"),
}


def main() -> None:
    """Open each view in a browser and write its screenshot."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--address", default="http://127.0.0.1:8000", help="of the server (default this machine)")
    arguments.add_argument("--out", type=Path, default=Path("out/screenshots"), help="folder (default out/screenshots)")
    options = arguments.parse_args()
    browser = shutil.which("chromium")
    if browser is None:
        sys.exit("there is no chromium here: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    try:
        with urlopen(f"{options.address}/api/state") as told:
            has_model = json.load(told)["model"] is not None
    except OSError as error:
        sys.exit(f"nothing answers at {options.address} ({error}): start regard explore first")
    options.out.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        for name, (width, height, scheme, view) in VIEWS.items():
            if name == "ask" and not has_model:
                print("ask is left out: the server has no model")
                continue
            page = chromium.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
            page.goto(f"{options.address}/{view}")
            page.wait_for_selector("html[data-ready]")
            page.wait_for_load_state("networkidle")
            page.screenshot(path=options.out / f"{name}.png")
            page.close()
        chromium.close()


if __name__ == "__main__":
    main()
