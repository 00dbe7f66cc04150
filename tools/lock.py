"""Pin what `make` installs, each package to one version with the hashes of its wheels: `make lock`.

python tools/lock.py        # writes requirements/torch.txt, demo.txt, dev.txt, docs.txt, fuzz.txt, cuda.txt

pip resolves the versions once, under constraints.txt, for everything together. The index that pip is configured with
gives the hashes of every wheel of these versions, so that the files work on any platform and on every Python from 3.11
to 3.14, and the requirements of packages on other platforms. A package without a wheel for one of them is named.
"""

import io
import json
import re
import subprocess
import sys
import tempfile
import tomllib
import urllib.error
import urllib.request
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

from packaging.requirements import Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
# What each file has beside those before it; "demo" is installed alone, "dev" has what it has too.
FILES = {"demo": ("vqa", "explore"), "dev": ("dev",), "docs": ("dev", "docs"), "fuzz": ("dev", "fuzz")}
EXTRAS = tuple(sorted({extra for extras in FILES.values() for extra in extras}))
WHAT = {"demo": "`make demo`", "dev": "`make test`", "docs": "`make docs`", "fuzz": "`make fuzz`"}
HEAD = "# Written by `make lock`: {what}, with the hashes of its wheels.\n--only-binary :all:\n"
SYSTEMS = [("Linux", "x86_64"), ("Linux", "aarch64"), ("Darwin", "arm64"), ("Windows", "AMD64")]
OLDEST, NEWEST = 11, 14  # Python 3
NAMES = {"Linux": ("linux", "posix"), "Darwin": ("darwin", "posix"), "Windows": ("win32", "nt")}
PLACES = [
    {
        "platform_system": system,
        "platform_machine": machine,
        "sys_platform": NAMES[system][0],
        "os_name": NAMES[system][1],
        "python_version": f"3.{minor}",
        "python_full_version": f"3.{minor}.0",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
    }
    for system, machine in SYSTEMS
    for minor in range(OLDEST, NEWEST + 1)
]
EVERYWHERE = frozenset(range(len(PLACES)))


@dataclass(frozen=True)
class Wheel:
    """A file of the index."""

    address: str
    version: Version
    sha256: str


class Links(HTMLParser):
    """The addresses on a page of the index."""

    def __init__(self) -> None:
        """Start with none."""
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Called by the parser."""
        self.addresses += [value for name, value in attrs if tag == "a" and name == "href" and value]


def usable(name: str) -> bool:
    """Whether a wheel is for a Python that regard runs on.

    >>> [usable(f"a-1-{tags}-any.whl") for tags in ("py3-none", "cp310-cp310", "cp38-abi3", "pp311-pypy311_pp73")]
    [True, False, True, False]
    >>> usable("a-1-py36+-none-any.whl")
    False
    """
    try:
        tags = parse_wheel_filename(name)[3]
    except InvalidWheelFilename:  # of old releases
        return False
    return any(
        tag.interpreter.startswith("py") or tag.abi == "abi3" or re.fullmatch(rf"cp3({OLDEST}|1[2-9])", tag.interpreter)
        for tag in tags
        if not tag.interpreter.startswith("pp")
    )


@cache
def index() -> str:
    """The address of the index that pip is configured with, or of its default."""
    configured = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", "global.index-url"], capture_output=True, text=True
    )
    if configured.returncode == 0:
        return configured.stdout.strip()
    from pip._internal.models.index import PyPI

    return PyPI.simple_url


@cache
def wheels(name: str) -> list[Wheel]:
    """All usable wheels of a package on the index."""
    page = f"{index().rstrip('/')}/{name}/"
    links = Links()
    with urllib.request.urlopen(page) as answer:
        links.feed(answer.read().decode())
    usable_wheels = []
    for link in links.addresses:
        address, fragment = urldefrag(urljoin(page, link))
        file = file_name(address)
        if file.endswith(".whl") and usable(file):
            version = parse_wheel_filename(file)[1]
            usable_wheels.append(Wheel(address, version, fragment.removeprefix("sha256=")))
    return usable_wheels


@cache
def requirements_of(name: str, version: Version) -> list[Requirement]:
    """The requirements of a version of a package, from the metadata of one of its wheels."""
    files = [w for w in wheels(name) if w.version == version]
    chosen = min(files, key=lambda w: ("manylinux" not in w.address or "x86_64" not in w.address, w.address))
    try:
        with urllib.request.urlopen(f"{chosen.address}.metadata") as answer:
            text = answer.read().decode()
    except urllib.error.HTTPError:  # an index need not serve it separately; the wheel contains it
        with urllib.request.urlopen(chosen.address) as answer, zipfile.ZipFile(io.BytesIO(answer.read())) as wheel:
            text = wheel.read(next(n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))).decode()
    return [Requirement(line) for line in re.findall(r"^Requires-Dist: (.*)$", text, re.MULTILINE)]


def own_requirements(extras: tuple[str, ...]) -> Iterator[Requirement]:
    """The requirements of regard with these extras, extras of extras resolved."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *(line for extra in extras for line in project["optional-dependencies"][extra])]
    for requirement in map(Requirement, lines):
        if requirement.name == project["name"]:
            yield from own_requirements(tuple(requirement.extras))
        else:
            yield requirement


def holds(requirement: Requirement, extra: str) -> frozenset[int]:
    """The indices of the platforms (PLACES) on which a requirement applies."""
    if requirement.marker is None:
        return EVERYWHERE
    marker = requirement.marker
    return frozenset(i for i, place in enumerate(PLACES) if marker.evaluate({**place, "extra": extra}))


def closure(
    extras: tuple[str, ...], versions: dict[str, Version], known: dict[str, list[Requirement]], *, cuda: bool
) -> dict[str, frozenset[int]]:
    """Every package that extras need, and on which platforms. Without `cuda`, torch is a build without CUDA packages.

    A package that only another platform needs, so that pip has not chosen it here, gets the newest version that fits.
    """
    places: dict[tuple[str, str], frozenset[int]] = defaultdict(frozenset)  # by name and extra
    waiting = [(requirement, EVERYWHERE) for requirement in own_requirements(extras)]
    while waiting:
        # Requirements that pin a version come first.
        waiting.sort(key=lambda item: "==" not in str(item[0].specifier))
        requirement, where = waiting.pop(0)
        name = canonicalize_name(requirement.name)
        if name not in versions:
            fitting = [w.version for w in wheels(name) if requirement.specifier.contains(w.version)]
            versions[name] = max(fitting)
        elif not requirement.specifier.contains(versions[name], prereleases=True):
            sys.exit(f"{requirement} is required, and {name} {versions[name]} was chosen: change constraints.txt")
        for extra in ("", *requirement.extras):
            if where <= places[name, extra]:
                continue
            places[name, extra] |= where
            for needed in known[name] if name in known else requirements_of(name, versions[name]):
                of_cuda = name == "torch" and "platform_system" in str(needed.marker)
                if (there := holds(needed, extra) & where) and (cuda or not of_cuda):
                    waiting.append((needed, there))
    together: dict[str, frozenset[int]] = defaultdict(frozenset)
    for (name, _), where in places.items():
        together[name] |= where
    return together


@dataclass(frozen=True)
class Chosen:
    """The version of a package that pip would install here."""

    version: Version
    sha256: str
    requires: list[Requirement]


def chosen_by_pip() -> dict[str, Chosen]:
    """By name, the packages that pip would install in an empty environment."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = ["install", "--quiet", "--dry-run", "--ignore-installed", "--report", str(report)]
        what = ["--constraint", "constraints.txt", f".[{','.join(EXTRAS)}]"]
        subprocess.run([sys.executable, "-m", "pip", *command, *what], cwd=ROOT, check=True)
        installed = json.loads(report.read_text())["install"]
    return {
        canonicalize_name(item["metadata"]["name"]): Chosen(
            Version(item["metadata"]["version"]),
            item["download_info"]["archive_info"]["hashes"]["sha256"],
            [Requirement(line) for line in item["metadata"].get("requires_dist", [])],
        )
        for item in installed
        if "archive_info" in item["download_info"]  # all but regard
    }


def entry(name: str, version: Version, where: frozenset[int], here: str | None) -> str:
    """The lines of one package; `here` is the hash of a build that is not on the index (the CPU-only torch)."""
    hashes = {w.sha256 for w in wheels(name) if w.version == version} | ({here} if here else set())
    systems = sorted({PLACES[i]["platform_system"] for i in where})
    marker = "" if where == EVERYWHERE else " ; " + " or ".join(f'platform_system == "{system}"' for system in systems)
    return (
        " \\\n".join([f"{name}=={version}{marker}", *(f"    --hash=sha256:{value}" for value in sorted(hashes))]) + "\n"
    )


def without_wheel(name: str, version: Version) -> list[str]:
    """The Pythons for which a version of a package has no wheel at all."""
    tags = {tag for w in wheels(name) if w.version == version for tag in parse_wheel_filename(file_name(w.address))[3]}

    def fits(minor: int) -> bool:
        return any(
            tag.interpreter in ("py3", "py2.py3", f"py3{minor}", f"cp3{minor}")
            or (tag.abi == "abi3" and int(tag.interpreter.removeprefix("cp3") or 0) <= minor)
            or (tag.abi == "none" and tag.interpreter.startswith("py3"))
            for tag in tags
        )

    return [f"3.{minor}" for minor in range(OLDEST, NEWEST + 1) if not fits(minor)]


def file_name(address: str) -> str:
    """The name of the file at an address."""
    return unquote(urlsplit(address).path.rsplit("/", 1)[1])


def main() -> None:
    """Query pip and the index, and write the files."""
    chosen = chosen_by_pip()
    # Local builds, such as torch 2.13.0+cpu; the builds on the index have more requirements.
    builds = {name: here.sha256 for name, here in chosen.items() if here.version.local}
    versions = {name: Version(here.version.public) for name, here in chosen.items()}
    known = {name: here.requires for name, here in chosen.items() if name not in builds}
    for name in known:
        if chosen[name].sha256 not in {w.sha256 for w in wheels(name)}:
            sys.exit(f"{name} {versions[name]} here is no file of the index: its hash is {chosen[name].sha256}")
    parts = {file: closure(extras, versions, known, cuda=False) for file, extras in FILES.items()}
    everything = closure(EXTRAS, versions, known, cuda=True)
    plain = {name for part in parts.values() for name in part}
    for file, names, what in (
        ("torch", {"torch"}, "the torch that `make` installs"),
        *(
            (file, set(part) - {"torch"} - (set(parts["dev"]) if file in ("docs", "fuzz") else set()), WHAT[file])
            for file, part in parts.items()
        ),
        ("cuda", set(everything) - plain, "what a build of torch with CUDA needs besides"),
    ):
        what = f"what {what} installs besides torch" if file in WHAT else what
        places = parts["demo"] if file == "demo" else everything
        lines = [entry(name, versions[name], places[name], builds.get(name)) for name in sorted(names)]
        for name in sorted(names):
            if lacking := without_wheel(name, versions[name]):
                print(f"{name} {versions[name]} has no wheel for Python {', '.join(lacking)}")
        place = ROOT / "requirements" / f"{file}.txt"
        beside = place.with_suffix(".new")
        beside.write_text(HEAD.format(what=what) + "".join(lines))
        beside.replace(place)
        print(f"{place.relative_to(ROOT)}: {len(lines)} packages, {sum(e.count('--hash') for e in lines)} hashes")


if __name__ == "__main__":
    main()
