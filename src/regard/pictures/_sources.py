"""Sources of pictures, indexed like a list: files in a folder tree, arrays; broken ones are skipped by `take`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from regard._problem import Problem
from regard.pictures._read import read
from regard.pictures._store import is_url

if TYPE_CHECKING:
    from regard.pictures._shard_cache import CacheSettings

SUFFIXES = frozenset([".bmp", ".gif", ".jfif", ".jpeg", ".jpg", ".png", ".ppm", ".pgm", ".tif", ".tiff", ".webp"])
GIVE_UP = 1000  # unreadable pictures in a row, after which `take` is an error


class Unreadable(Problem):
    """Many pictures that cannot be read, as those of a shard that is gone.

    `name`: what cannot be read.
    `instead`: the index of the picture to take in place of the one that was asked for.

    >>> Unreadable("0.tar does not exist.", "0.tar", 1000).instead
    1000
    """

    def __init__(self, text: str, name: str = "", instead: int = 0) -> None:
        super().__init__(text)
        self.name, self.instead = name, instead


@runtime_checkable
class Pictures(Protocol):
    """The interface of a source. `labels` is None, or a number per picture, an index into `classes`.

    >>> source = as_pictures(torch.zeros(4, 3, 8, 8))
    >>> isinstance(source, Pictures), len(source), source.labels
    (True, 4, None)
    """

    classes: list[str]

    @property
    def labels(self) -> list[int] | None:
        """The class of each picture."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Tensor:
        """The picture (3, H, W) uint8; a `Problem` that names it if it cannot be read."""

    def name(self, index: int) -> str:
        """The name of the picture in messages."""


class Files:
    """The picture files of a folder tree, at any depth, in the order of their names.

    If every picture lies in a first-level folder and there are several of these, their names are the classes.

    >>> import tempfile
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for kind in ("cats", "dogs"):
    ...         (Path(folder) / kind).mkdir()
    ...         Image.new("RGB", (6, 4)).save(Path(folder) / kind / "1.png")
    ...     files = Files(folder)
    ...     files.classes, files.labels, files[0].shape
    (['cats', 'dogs'], [0, 1], torch.Size([3, 4, 6]))
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise Problem(f"{folder} is not a folder. Check the path.")
        files = (p for p in self.folder.rglob("*") if p.suffix.lower() in SUFFIXES and not p.name.startswith("."))
        self.paths = sorted(p for p in files if p.is_file())
        if not self.paths:
            raise Problem(f"{folder} holds no pictures. Name a folder with PNG, JPEG or similar files, at any depth.")
        relative = [p.relative_to(self.folder).parts for p in self.paths]
        self.classes = sorted({parts[0] for parts in relative})
        self.labels: list[int] | None = None
        if len(self.classes) > 1 and all(len(parts) > 1 for parts in relative):
            number = {name: i for i, name in enumerate(self.classes)}
            self.labels = [number[parts[0]] for parts in relative]
        else:
            self.classes = []

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Tensor:
        return read(self.paths[index])

    def name(self, index: int) -> str:
        """The path of the picture."""
        return str(self.paths[index])


class Arrays:
    """Pictures that are in memory: (N, 3, H, W) or (N, H, W, 3), grey ones also without the channel.

    uint8, or floats from 0 to 1. The axis of size 1 or 3 is that of the channels; if both are, the second.

    >>> Arrays(torch.rand(5, 8, 8))[0].shape
    torch.Size([3, 8, 8])
    """

    def __init__(self, pictures: Any, labels: Sequence[int] | None = None, classes: Sequence[str] = ()) -> None:
        x = torch.as_tensor(pictures)
        if x.dim() == 3:
            x = x.unsqueeze(1)
        if x.dim() == 4 and x.shape[1] not in (1, 3) and x.shape[-1] in (1, 3):
            x = x.permute(0, 3, 1, 2)
        if x.dim() != 4 or x.shape[1] not in (1, 3) or 0 in x.shape:
            raise Problem(f"an array of shape {tuple(x.shape)} is no set of pictures. Give (N, 3, H, W) or (N, H, W).")
        if x.dtype != torch.uint8:
            if not x.is_floating_point() or not bool(((x >= 0) & (x <= 1)).all()):
                raise Problem("pictures in an array must be uint8, or floats from 0 to 1. Convert or rescale them.")
            x = (x * 255).round().to(torch.uint8)
        if labels is not None and len(labels) != len(x):
            raise Problem(f"{len(labels)} labels for {len(x)} pictures. Give one for each.")
        self.pictures = x.expand(-1, 3, -1, -1).contiguous()
        self.labels = None if labels is None else [int(label) for label in labels]
        count = max(self.labels, default=-1) + 1 if self.labels else 0
        self.classes = list(classes) or [str(i) for i in range(count)]

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> Tensor:
        return self.pictures[index]

    def name(self, index: int) -> str:
        """The number of the picture."""
        return f"picture {index}"


@dataclass(frozen=True)
class Taken:
    """Result of `take`: a picture, its index, and name and error of each broken picture that was skipped.

    >>> taken = take(Arrays(torch.zeros(3, 2, 2)), 1)
    >>> taken.picture.shape, taken.index, taken.broken
    (torch.Size([3, 2, 2]), 1, ())
    """

    picture: Tensor
    index: int
    broken: tuple[tuple[str, str], ...] = ()


def take(pictures: Pictures, index: int) -> Taken:
    """The picture at `index`, or the next one that can be read.

    The choice depends on the files alone, so that a resumed run sees the same pictures: a server that does not answer
    is an error that is not passed over (`regard.pictures.Unreachable`). In place of a picture of a shard that is gone,
    the one at the same place of the next shard is taken.

    >>> take(Arrays(torch.zeros(3, 2, 2)), 2).index
    2
    """
    broken: list[tuple[str, str]] = []
    i = index
    for _ in range(min(len(pictures), GIVE_UP)):
        try:
            return Taken(pictures[i], i, tuple(broken))
        except Unreadable as problem:
            broken.append((problem.name, str(problem)))
            i = problem.instead
        except Problem as problem:
            broken.append((pictures.name(i), str(problem)))
            i = (i + 1) % len(pictures)
    raise Problem(f"{len(broken)} pictures in a row cannot be read, the first because: {broken[0][1]}")


def square(picture: Tensor, size: int) -> Tensor:
    """A picture (3, H, W) resized to (3, size, size) with antialiasing, whatever its aspect ratio.

    >>> square(torch.full((3, 10, 30), 9, dtype=torch.uint8), 4).unique()
    tensor([9], dtype=torch.uint8)
    """
    if picture.shape[-2:] == (size, size):
        return picture
    small = interpolate(picture[None].float(), (size, size), mode="bilinear", antialias=True, align_corners=False)
    return small[0].round_().clamp_(0, 255).to(torch.uint8)


def open_pictures(
    path: Path | str,
    *,
    cache: CacheSettings | None = None,
    patience: float = 300.0,
    say: Callable[[str], None] | None = None,
) -> Pictures:
    """The source at `path`; its kind is recognised by names of files.

    A folder tree of pictures (`Files`); a tar file or a folder with tar files, also behind a URL such as
    s3://bucket/shards (`Tars`); a folder that `datasets` saved (`SavedDataset`); a .npy or .npz file (`Arrays`; labels
    in an entry "labels" or "y").

    `path`: a path, or the URL of tars or of their folder.
    `cache`, `patience`, `say`: as in `Tars`; other sources need none of them.

    >>> import tempfile
    >>> import numpy
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     numpy.savez(f"{folder}/all.npz", pictures=numpy.zeros((5, 8, 8, 3), "uint8"), labels=[0, 1, 0, 1, 1])
    ...     source = open_pictures(f"{folder}/all.npz")
    >>> source[0].shape, source.labels
    (torch.Size([3, 8, 8]), [0, 1, 0, 1, 1])
    """
    from regard.pictures._shard_names import is_tar
    from regard.pictures._stored import SavedDataset
    from regard.pictures._tars import Tars

    if is_url(path):
        return Tars.at(path, cache=cache, patience=patience, say=say)
    path = Path(path)
    if not path.exists():
        raise Problem(f"{path} does not exist. Check the path.")
    if path.is_file():
        if path.suffix in (".npy", ".npz"):
            return _load_arrays(path)
        if is_tar(path):
            return Tars([path], cache=cache, say=say)
        raise Problem(f"{path} is one file. Name a folder of pictures, a tar, or an .npy or .npz array.")
    if any((path / name).is_file() for name in ("state.json", "dataset_info.json", "dataset_dict.json")):
        return SavedDataset(path)
    if next(path.glob("*.tar"), None) is not None:
        return Tars.at(path, cache=cache, say=say)
    return Files(path)


def as_pictures(source: Any) -> Pictures:
    """A source from a path, a tensor or an array; a source is returned unchanged.

    >>> len(as_pictures(torch.zeros(4, 3, 8, 8)))
    4
    """
    from regard.pictures._tars import Tars

    if isinstance(source, (str, Path)):
        return open_pictures(source)
    # Before the protocol, which looks at all attributes: the labels of shards are read when they are looked at.
    return source if isinstance(source, Tars) or isinstance(source, Pictures) else Arrays(source)  # noqa: SIM101


def _load_arrays(path: Path) -> Arrays:
    """The pictures in a .npy or .npz file, with its labels if it has any."""
    import numpy as np

    try:
        if path.suffix == ".npy":
            arrays = {"pictures": np.load(path, allow_pickle=False)}
        else:
            with np.load(path, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file}
    except Exception as error:
        raise Problem(f"{path} is not an array that numpy can load without pickle ({error}). Save it again.") from error
    label = next((n for n in ("labels", "label", "y") if n in arrays), None)
    pictures = [n for n, array in arrays.items() if n != label and (array.ndim >= 3 or path.suffix == ".npy")]
    if len(pictures) != 1:
        names = ", ".join(arrays)
        raise Problem(f"{path} must hold one array of pictures and may hold 'labels'; it holds {names}.")
    try:
        return Arrays(arrays[pictures[0]], None if label is None else arrays[label].reshape(-1).tolist())
    except (ValueError, TypeError) as error:  # from Arrays, or from torch for an array that is not of numbers
        raise Problem(f"{path}: {error}") from error
