"""Images as values: the bytes of a file, from whatever a row or a request names, and how they travel.

In a message's text a mark stands for an image, in a dataset's row a data URI, on the wire an attachment.
"""

import base64
import binascii
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any

from cachetools import LRUCache

from areal.errors import DataError

IMAGE = "image"
"""Kind of an attachment: an image of its sequence, in the order in which they stand there."""
MARK = "\ufffc"
"""Stands for an image in a message's text."""
MOST_BYTES = 4 << 20  # of an image's file
_WHOLE: LRUCache[str, bool] = LRUCache(4096)  # keys of images that were decoded once


@dataclass(frozen=True)
class Image:
    """The bytes of an image's file."""

    data: bytes

    @cached_property
    def key(self) -> str:
        """sha256 of the bytes."""
        return hashlib.sha256(self.data).hexdigest()

    @cached_property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels, by the file's header. Raises DataError where it is no image."""
        found = opened(self.data)
        width, height = found.size
        return (height, width) if found.getexif().get(0x0112, 1) > 4 else (width, height)  # it lies on its side

    @property
    def uri(self) -> str:
        """As a data URI. Raises DataError where it is no image."""
        return f"data:{opened(self.data).get_format_mimetype()};base64,{base64.b64encode(self.data).decode()}"


def greyed(image: Image) -> Image:
    """A grey one of the same size, which as many tokens stand for. Raises DataError where it is no image."""
    return _grey(*image.size)


@lru_cache(64)
def _grey(width: int, height: int) -> Image:
    import PIL.Image

    written = BytesIO()
    PIL.Image.new("RGB", (width, height), (128, 128, 128)).save(written, "PNG")
    return Image(written.getvalue())


def opened(data: bytes) -> Any:
    """Pillow's image of a file's bytes, not decoded yet. Raises DataError where they are none."""
    import PIL.Image

    try:
        return PIL.Image.open(BytesIO(data))
    except (OSError, SyntaxError, ValueError, PIL.Image.DecompressionBombError) as error:
        raise DataError(f"{len(data)} bytes are no image: {error}", fix="use PNG, JPEG, WebP or GIF") from None


def image_of(given: object, folder: Path | None = None) -> Image:
    """The image that a row or a request names: bytes, a data URI, `{"bytes": …}` or `{"path": …}`, or Pillow's object.

    With a `folder`, a path in it is read, too. Raises DataError for anything else, and for more than `MOST_BYTES`.
    """
    if isinstance(given, Mapping):
        given = next((given[name] for name in ("bytes", "url", "path", "image") if given.get(name) is not None), None)
    if isinstance(given, str):
        head, comma, coded = given.partition(",")
        if comma and head.startswith("data:") and head.endswith(";base64"):
            try:
                given = base64.b64decode(coded, validate=True)
            except binascii.Error as error:
                raise DataError(f"an image's data URI is no base64: {error}", fix="encode its file anew") from None
        elif folder is not None and "://" not in given:
            try:
                given = (folder / given).read_bytes()
            except (OSError, ValueError) as error:
                raise DataError(f"cannot read the image {given!r}: {error}", fix=f"paths begin in {folder}") from None
        else:
            raise DataError(
                f"an image is {given[:80]!r}: nothing is fetched here", fix="give data:image/png;base64,… instead"
            )
    elif hasattr(given, "save") and hasattr(given, "getexif"):  # Pillow's, as `datasets` decodes a column
        drawn = BytesIO()
        given.save(drawn, "PNG")
        given = drawn.getvalue()
    if not isinstance(given, bytes):
        raise DataError(f"an image is a {type(given).__name__}", fix="give its file's bytes, a data URI or a path")
    if len(given) > MOST_BYTES:
        raise DataError(f"an image has {len(given):,} bytes, {MOST_BYTES:,} at most", fix="make it smaller")
    made = Image(given)
    if (
        made.key not in _WHOLE
    ):  # a header alone says a size; who computes with the pixels must not find the rest missing
        try:
            opened(given).load()
        except (OSError, SyntaxError, ValueError) as error:
            raise DataError(f"an image of {len(given)} bytes is broken: {error}", fix="replace the file") from None
        _WHOLE[made.key] = True
    return made
