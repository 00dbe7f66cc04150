"""Reading pictures: one reader for all formats, and sources of many pictures that are indexed like a list.

    pictures = open_pictures("photos/")        # a folder tree, a tar, a folder of tars, .npy/.npz, a saved HF dataset
    pictures = open_pictures("s3://mine/tars") # tars behind a URL: s3, gs, http, whatever fsspec knows
    pictures[0]                                # (3, H, W) uint8, or a Problem that names the file
    pictures.labels, pictures.classes          # None without labels
    take(pictures, 17)                         # picture 17, or the next that can be read, and notes on broken ones

A source decodes a picture when it is indexed. Training uses `take`, so that a broken file is skipped and reported.
"""

from regard._problem import Unreachable
from regard.pictures._aspect import squeezed
from regard.pictures._read import MAX_PIXELS, read
from regard.pictures._shard_cache import CacheSettings
from regard.pictures._sources import (
    Arrays,
    Files,
    Pictures,
    Taken,
    Unreadable,
    as_pictures,
    open_pictures,
    square,
    take,
)
from regard.pictures._stored import SavedDataset
from regard.pictures._tars import Tars

__all__ = [
    "MAX_PIXELS",
    "Arrays",
    "CacheSettings",
    "Files",
    "Pictures",
    "SavedDataset",
    "Taken",
    "Tars",
    "Unreachable",
    "Unreadable",
    "as_pictures",
    "open_pictures",
    "read",
    "square",
    "squeezed",
    "take",
]
