"""Shards from a server: how cost grows with the number of pictures, and other readers of shards.

python -m benchmarks.streaming             # growth: 10^4 to 10^7 pictures, then readers; a few minutes
python -m benchmarks.streaming --readers   # readers alone; webdataset, if it is installed

A server on the loopback has shards of 10,000 tiny pictures each, all links to one tar. Each size is measured in a fresh
process: seconds from opening the URL to the first batch of 256, the largest memory of the process, and processor time
per picture of 100 further batches, with shards read ahead into an empty cache.
"""

import argparse
import io
import json
import math
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

from PIL import Image

from tests.shard_server import served

EACH = 10_000  # pictures in a shard
SIZES = (10**4, 10**5, 10**6, 10**7)
BATCH, BATCHES = 256, 100
# What the code promises: the exponent in the number of pictures, at shards of one size.
PROMISED = {"first batch": 0.0, "memory": 0.0, "processor time per picture": 0.0}


def one_shard(path, each=EACH, side=8):
    """A tar of pictures of some colours."""
    colours = []
    for i in range(16):
        file = io.BytesIO()
        Image.new("RGB", (side, side), (i, 2 * i, 3 * i)).save(file, "PNG")
        colours.append(file.getvalue())
    with tarfile.open(path, "w") as tar:
        for i in range(each):
            member = tarfile.TarInfo(f"{i:06d}.png")
            member.size = len(colours[i % 16])
            tar.addfile(member, io.BytesIO(colours[i % 16]))


def shards(folder, count):
    """A folder of links to one tar, with its index, which is made for one and said of all."""
    from regard.pictures import CacheSettings, Tars

    folder.mkdir(parents=True)
    one_shard(folder / "000000.tar")
    Tars.at(folder, cache=CacheSettings(folder.parent / "made")).write_index()
    index = folder / "regard-index"
    manifest = json.loads((index / "index.json").read_text())
    (_, size, header) = manifest["shards"][0]
    for i in range(1, count):
        os.link(folder / "000000.tar", folder / f"{i:06d}.tar")
        os.link(index / "000000.tar.idx", index / f"{i:06d}.tar.idx")
    manifest["shards"] = [[f"{i:06d}.tar", size, header] for i in range(count)]
    (index / "index.json").write_text(json.dumps(manifest))


def measure(url, cache):
    """In a process of its own: what a run does until its first batch, and then."""
    import torch

    from regard.pictures import CacheSettings, open_pictures
    from regard.swav._canvases import Canvases
    from regard.training import Order

    torch.set_num_threads(1)
    imported = _memory()
    begun = time.perf_counter()
    data = Canvases(open_pictures(url, cache=CacheSettings(Path(cache))), 8, keep=False)
    order = Order(len(data), BATCH, 0, groups=data.sample_groups)

    def batch(number):
        data.ahead(order.groups_ahead(number))
        epoch, indices = order.at(number % order.per_epoch)
        return data.batch(indices, epoch)

    batch(0)
    first = time.perf_counter() - begun
    if data.pictures._ahead is not None:
        data.pictures._ahead.wait(60)
    begun, used = time.perf_counter(), time.process_time()
    for number in range(1, BATCHES + 1):
        batch(number)
    pictures = BATCH * BATCHES
    return {
        "pictures": len(data),
        "first batch": first,
        "memory": _memory(),
        "memory of imports": imported,
        "processor time per picture": (time.process_time() - used) / pictures,
        "pictures per second": pictures / (time.perf_counter() - begun),
    }


def _memory():
    """The largest memory so far, in MB; the kernel's figure for the program, not the one that a parent passes on."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def exponent(sizes, values):
    """The slope of the logarithms, by least squares."""
    x, y = ([math.log(v) for v in values_] for values_ in (sizes, values))
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / sum((a - mean_x) ** 2 for a in x)


def growth(place):
    rows = []
    for size in SIZES:
        folder = place / f"{size}"
        shards(folder, size // EACH)
        with served(place) as server:
            command = [sys.executable, "-m", "benchmarks.streaming", "--measure", f"{server.url}/{size}"]
            output = subprocess.run([*command, str(place / "cache")], check=True, capture_output=True, text=True)
        rows.append(json.loads(output.stdout.splitlines()[-1]))
        shutil.rmtree(place / "cache", ignore_errors=True)
        shutil.rmtree(folder)
        row = rows[-1]
        print(
            f"{size:>10,} pictures: first batch {row['first batch']:.2f} s, memory {row['memory']:.0f} MB (imports "
            f"{row['memory of imports']:.0f}), {1e6 * row['processor time per picture']:.0f} us of processor and "
            f"{row['pictures per second']:.0f} pictures/s",
            flush=True,
        )
    for name, promised in PROMISED.items():
        fitted = exponent([row["pictures"] for row in rows], [row[name] for row in rows])
        print(f"{name}: exponent {fitted:+.3f}, promised {promised:+.1f}")
    print(f"memory at 10^7 over that at 10^4: {rows[-1]['memory'] / rows[0]['memory']:.3f}")


def readers(place, count=6):
    """Undecoded pictures per second of processor and of wall time, from the loopback."""
    import fsspec

    from regard.pictures import CacheSettings, Tars
    from regard.training import Order, SampleGroups

    shards(place / "peers", count)

    def ours(url):
        source = Tars.at(url, cache=CacheSettings(place / "cache"))
        order = Order(len(source), BATCH, 0, groups=SampleGroups(source.counts, 2))
        for number in range(order.per_epoch):
            source.ahead(order.groups_ahead(number))
            for i in order.at(number)[1]:
                yield source._content(*source._place(i))

    def plain(url):
        for i in range(count):
            with fsspec.open(f"{url}/{i:06d}.tar") as file, tarfile.open(fileobj=file, mode="r|") as tar:
                for member in tar:
                    yield tar.extractfile(member).read()

    def webdataset(url):
        import webdataset as wds

        tars = f"{url}/{{000000..{count - 1:06d}}}.tar"
        for sample in wds.WebDataset(tars, shardshuffle=count).shuffle(2 * EACH):
            yield sample["png"]

    for name, reader in (("regard", ours), ("fsspec and tarfile", plain), ("webdataset", webdataset)):
        with served(place) as server:
            try:
                begun, used = time.perf_counter(), time.process_time()
                found = sum(1 for _ in reader(f"{server.url}/peers"))
                seconds, used = time.perf_counter() - begun, time.process_time() - used
            except ImportError as error:
                print(f"{name}: {error}")
                continue
        print(
            f"{name}: {found} pictures, {found / seconds:.0f} per second, {1e6 * used / found:.0f} us of processor each"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", nargs=2, metavar=("URL", "CACHE"), help="one size, in this process")
    parser.add_argument("--readers", action="store_true", help="the comparison of readers alone")
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(*arguments.measure)))
        return
    with tempfile.TemporaryDirectory() as place:
        if not arguments.readers:
            growth(Path(place))
        readers(Path(place))


if __name__ == "__main__":
    main()
