"""The type of a file by its bytes, and the types that are accepted.

A name and an announced type are only compared. Bytes that are two types at once are refused: an
image that is also an archive or a page is another file for another program. A library such as
puremagic knows 1,000 types, returns several, and looks for no second one.
"""

from __future__ import annotations

import codecs
import re
import zipfile
from pathlib import Path

from agentctl.errors import UnsupportedMediaType

_SIGNATURES: tuple[tuple[re.Pattern[bytes], str], ...] = tuple(
    (re.compile(pattern, re.DOTALL), media_type)
    for pattern, media_type in (
        (rb"\x89PNG\r\n\x1a\n", "image/png"),
        (rb"\xff\xd8\xff", "image/jpeg"),
        (rb"GIF8[79]a", "image/gif"),
        (rb"RIFF....WEBP", "image/webp"),
        (rb"%PDF-", "application/pdf"),
        (rb"RIFF....WAVE", "audio/wav"),
        (rb"ID3[\x02-\x04]|\xff[\xf2\xf3\xfa\xfb]", "audio/mpeg"),
        (rb"OggS\0", "audio/ogg"),
        (rb"fLaC\0", "audio/flac"),
        (rb"....ftypM4A ", "audio/mp4"),
    )
)

_TEXT_TYPES = {
    ".txt": "text/plain",
    ".md": "text/markdown",
    ".csv": "text/csv",
    ".json": "application/json",
}
"""Types of texts by the ends of names: their bytes have no signature."""

MEDIA_TYPES = (*(media_type for _, media_type in _SIGNATURES), *_TEXT_TYPES.values())
"""The accepted types."""

_UNKNOWN = ("", "application/octet-stream", "application/x-www-form-urlencoded")
"""Types that clients send if they do not know one."""

_MARKUP = re.compile(rb"<(?:!doctype|html|head|body|script|iframe|\?php)[\s/>]", re.IGNORECASE)
"""Markup that is searched for in all bytes.

By chance, one picture of 10 MB in 80,000 contains it. One in 50 contains `<svg`, which is therefore
searched for only at the beginning, where readers of SVG expect it.
"""

_LONGEST_MARKUP = 10

_HEAD_BYTES = 1_024
"""Bytes in which readers look for the start of a PDF or of an SVG."""

_FIRST_OF_PROGRAM = re.compile(r"<[a-z!?/%]|#!", re.IGNORECASE)
_FIRST_OF_JSON = '{["-0123456789tfn'

_START_BYTES = 4_096


class TypeReader:
    """Finds the type of a file while its bytes arrive, in pieces of `_LONGEST_MARKUP` or more."""

    def __init__(self) -> None:
        # The first bytes, for the signature, and the last bytes of the piece before.
        self._start = b""
        self._last = b""
        self._has_markup = False
        # None once the bytes are no text.
        self._decoder: codecs.IncrementalDecoder | None = codecs.getincrementaldecoder("utf-8")()
        self._text_start = ""

    def feed(self, piece: bytes) -> None:
        """Read the next bytes."""
        is_pdf = self._start.startswith(b"%PDF-") and len(self._start) >= _HEAD_BYTES
        self._start += piece[: _START_BYTES - len(self._start)]
        if not (self._has_markup or is_pdf):
            # The streams of a PDF may be texts about markup.
            searched = piece[:_HEAD_BYTES] if self._start.startswith(b"%PDF-") else piece
            self._has_markup = _MARKUP.search(self._last + searched) is not None
        self._last = piece[-_LONGEST_MARKUP:]
        if self._decoder is not None:
            self._decode(piece, final=False)

    def _decode(self, piece: bytes, *, final: bool) -> None:
        assert self._decoder is not None
        try:
            text = self._decoder.decode(piece, final)
        except UnicodeDecodeError:
            self._decoder = None
            return
        if "\0" in text:
            self._decoder = None
        elif len(self._text_start) < 2:
            self._text_start = (self._text_start + text[:_START_BYTES]).lstrip("\ufeff \t\r\n")[:2]

    def find(self, path: Path, name: str, announced: str) -> str:
        """Return the type of the whole file.

        Args:
            path: the file, whose end is read.
            announced: the `Content-Type` of the request; "" for none.

        Raises:
            UnsupportedMediaType: the type is not accepted, the file is of two types, or another
                type is announced.
        """
        announced = announced.partition(";")[0].strip().lower()
        media_type = self._find_signature()
        if media_type is None:
            media_type = self._find_text_type(name, announced)
        elif self._has_second_type(media_type):
            raise _build_refusal(f"The file is {media_type} and another type at once")

        if zipfile.is_zipfile(path):
            raise _build_refusal("The file is, or contains, a zip archive")

        if announced in (*_UNKNOWN, media_type):
            return media_type
        # Programs name the types of pictures and of sounds differently.
        is_exact = media_type in ("application/pdf", *_TEXT_TYPES.values())
        has_same_main_type = media_type.partition("/")[0] == announced.partition("/")[0]
        if is_exact or not has_same_main_type:
            raise _build_refusal(f"The file is {media_type}, not {announced[:80]}")
        return media_type

    def _find_signature(self) -> str | None:
        """Return the type whose signature the bytes begin with; None if they have none."""
        for pattern, media_type in _SIGNATURES:
            if pattern.match(self._start):
                return media_type
        return None

    def _has_second_type(self, media_type: str) -> bool:
        """Return True if the bytes of a type would be a page or a PDF for another program."""
        head = self._start[:_HEAD_BYTES].lower()
        if self._has_markup or b"<svg" in head:
            return True
        return media_type != "application/pdf" and b"%pdf-" in head

    def _find_text_type(self, name: str, announced: str) -> str:
        if self._decoder is not None:
            self._decode(b"", final=True)
        if self._decoder is None:
            raise _build_refusal("The bytes of the file are of no accepted type")

        if _FIRST_OF_PROGRAM.match(self._text_start):
            raise _build_refusal("HTML, SVG, XML and scripts are not accepted")

        media_type = _TEXT_TYPES.get(Path(name).suffix.lower(), "text/plain")
        if announced in _TEXT_TYPES.values():
            media_type = announced
        if media_type == _TEXT_TYPES[".json"] and self._text_start[:1] not in _FIRST_OF_JSON:
            raise _build_refusal("The file is not JSON")
        return media_type


def _build_refusal(problem: str) -> UnsupportedMediaType:
    return UnsupportedMediaType(f"{problem}; accepted types: {', '.join(MEDIA_TYPES)}")
