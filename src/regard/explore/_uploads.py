"""Uploaded pictures: kept in memory, within limits, and only in formats that are safe to decode."""

from __future__ import annotations

from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from torch import Tensor

from regard import pictures
from regard._problem import Problem
from regard.explore._limits import Limits

# The first bytes of each allowed format. Decoders of other formats may start programs or write files.
FIRST_BYTES = {
    "PNG": (b"\x89PNG\r\n\x1a\n",),
    "JPEG": (b"\xff\xd8\xff",),
    "GIF": (b"GIF87a", b"GIF89a"),
    "BMP": (b"BM",),
    "TIFF": (b"II*\x00", b"MM\x00*"),
    "WebP": (b"RIFF",),
}


class InMemory(MultiPartParser):
    """A form parser that keeps files in memory; the base class writes those above a megabyte to disk."""

    spool_max_size = 1 << 40

    def close(self) -> None:
        """Close unfinished files, which the base class leaves open when a request breaks off."""
        for file in self._files_to_close_on_error:
            file.close()


async def read_form(request: Request, limits: Limits) -> tuple[dict[str, str], bytes | None]:
    """The text fields of a form, and the bytes of its one file, if it has one."""
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        raise HTTPException(415, "Send a form: multipart/form-data with question or view, and picture or sample.")
    parser = InMemory(
        request.headers, request.stream(), max_files=1, max_fields=8, max_part_size=8 * limits.question_letters + 1000
    )
    fields, upload = {}, None
    try:
        form = await parser.parse()
        for name, value in form.multi_items():
            if isinstance(value, UploadFile):
                upload = await value.read()
            else:
                fields[name] = value
    except (MultiPartException, KeyError) as error:
        raise HTTPException(400, f"The form cannot be read: {_one_line(error)}.") from error
    finally:
        parser.close()
    return fields, upload


def decode(upload: bytes, limits: Limits) -> Tensor:
    """The picture as (3, H, W) bytes, or a Problem that says what is wrong with it."""
    if not upload:
        raise Problem("the picture is empty. Choose a file.")
    if len(upload) > limits.picture_bytes:
        raise Problem(f"the picture has {len(upload)} bytes, more than {limits.picture_bytes}. Make it smaller.")
    kind = next((k for k, signatures in FIRST_BYTES.items() if upload.startswith(signatures)), None)
    if kind is None or (kind == "WebP" and upload[8:12] != b"WEBP"):
        raise Problem(f"the picture is none of {', '.join(FIRST_BYTES)}. Save it as one of these.")
    return pictures.read(upload, max_pixels=limits.picture_pixels, name="the picture")


def _one_line(error: Exception) -> str:
    words = str(error.args[0] if error.args else error).split()
    return " ".join(words)[:200].rstrip(".")
