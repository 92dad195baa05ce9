"""Files of a run: the access to their bytes, and how messages for models show them (docs/files.md).

A message of the user has `files`, the references of its files as JSON objects. No message, event or
checkpoint has bytes: these are read for each call of a model, and for the code that asks for them.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import orjson

from agentctl.errors import AgentctlError
from agentctl.records.files import FileReference
from agentctl.runtime.failures import ExecutionError

FileKind = Literal["text", "image", "pdf", "audio"]

MEDIA: tuple[FileKind, ...] = ("image", "pdf", "audio")
"""The kinds that a model may be able to take; every model gets the text of a text file."""

Message = Mapping[str, Any]

_AUDIO_FORMATS = {"mpeg": "mp3", "x-wav": "wav", "mp4": "m4a", "x-flac": "flac"}
"""Names of formats that are not the second part of the type."""

MAXIMUM_FILE_BYTES = 104_857_600
"""Maximum size of the files in the messages of a request; the newest files count first."""

_MEDIA_SIZES: dict[FileKind, tuple[int, int, int]] = {
    "image": (1, 4_800, 4_800),
    "pdf": (33, 4_500, 300_000),
    "audio": (333, 300, 300_000),
}
"""Estimate of a file in a request: a byte of text for this number of bytes, with a minimum and a
maximum. Providers count areas, pages and seconds, which only a decoder knows."""

_STEP_BYTES = 262_144
"""Bytes that are encoded in one step of the event loop, which takes about 0.2 ms."""


class FileAccess(Protocol):
    """The bytes of the files of a run and of its session.

    The methods that read raise NotFound if the file was deleted.
    """

    async def read(self, file: FileReference) -> bytes:
        """Return all bytes of a file."""
        ...

    def stream(self, file: FileReference) -> AsyncIterator[bytes]:
        """Yield the bytes of a file in parts."""
        ...

    async def path(self, file: FileReference) -> Path:
        """Return the path of a copy that only the run uses, and that ends with it."""
        ...

    async def save(self, name: str, data: bytes) -> FileReference:
        """Store a file that the run makes.

        Raises:
            ValidationFailed, TooLarge: the name, the type of the bytes or their size is refused.
        """
        ...

    async def find(self, file_ids: Iterable[str]) -> dict[str, FileReference]:
        """Return those files of the session that exist, by their ids."""
        ...


class LoadedFile(NamedTuple):
    """A file with its bytes, in a message from or for a library of agents; it is never stored."""

    reference: FileReference
    data: bytes

    @property
    def base64(self) -> str:
        return base64.b64encode(self.data).decode()

    @property
    def url(self) -> str:
        """The bytes as a `data` URL."""
        return f"data:{self.reference.media_type};base64,{self.base64}"


MessageFile = FileReference | Mapping[str, Any] | LoadedFile
"""A file of a message: its reference, stored as a JSON object, or the bytes that a library has."""


def find_kind(media_type: str) -> FileKind:
    """Return the kind of a file by its type, such as `image/png`."""
    group, _, _ = media_type.partition("/")
    if group == "text" or media_type == "application/json":
        return "text"
    if group == "image":
        return "image"
    return "audio" if group == "audio" else "pdf"


def find_format(file: FileReference) -> str:
    """Return the format of a sound as the interfaces of OpenAI name it: `wav`, `mp3`."""
    subtype = file.media_type.partition("/")[2]
    return _AUDIO_FORMATS.get(subtype, subtype)


def build_inline(data: bytes | str, media_type: str, name: str | None = None) -> LoadedFile:
    """Return the bytes in a message of a library, or their base64 form, as a file."""
    data = base64.b64decode(data) if isinstance(data, str) else data
    digest = hashlib.sha256(data).hexdigest()
    return LoadedFile(FileReference("", name or "file", media_type, len(data), digest), data)


def read_data_url(url: str, name: str | None = None) -> LoadedFile | None:
    """Return the bytes in a `data` URL as a file; None for another URL."""
    head, comma, data = url.partition(",")
    if not comma or not head.startswith("data:") or not head.endswith(";base64"):
        return None
    return build_inline(data, head[5:-7].partition(";")[0], name)


def load_references(references_json: str | None) -> list[FileReference]:
    """Return the references in a JSON array of a run; empty for None."""
    return [*map(get_reference, orjson.loads(references_json or "[]"))]


def build_files(references_json: str | None) -> dict[str, Any]:
    """Return the member `files` of a message, from the references of its run; empty for None."""
    return {} if references_json is None else {"files": orjson.loads(references_json)}


def get_reference(file: MessageFile) -> FileReference:
    """Return the reference of a file; a JSON object may have further members."""
    if isinstance(file, FileReference):
        return file
    if isinstance(file, LoadedFile):
        return file.reference
    return FileReference(**{name: file[name] for name in FileReference.__dataclass_fields__})


def dump_references(files: Iterable[MessageFile]) -> str | None:
    """Return the references of files as a JSON array; None without files."""
    records = list_references(files)
    return orjson.dumps(records).decode() if records else None


def list_references(files: Iterable[MessageFile]) -> list[dict[str, Any]]:
    """Return the references of files as JSON objects."""
    return [asdict(get_reference(file)) for file in files]


async def show_files(
    messages: Sequence[Message], takes: Iterable[FileKind], access: FileAccess | None
) -> Sequence[Message]:
    """Return messages as a model gets them, with `files` as references or loaded files it takes.

    The text of a text file is part of the content. A line replaces a file that the model does not
    take, or that was deleted. Messages without files are returned unchanged. A message of the user
    after the results of tools has their files, since providers take none with a result.
    """
    all_files = [file for message in messages for file in message.get("files", ())]
    if not all_files:
        return messages

    references = [get_reference(file) for file in all_files if not isinstance(file, LoadedFile)]
    present: Collection[str] = ()
    if access is not None and references:
        present = await access.find(file.file_id for file in references)

    shown_messages: list[Message] = []
    result_files: list[FileReference | LoadedFile] = []

    for message in messages:
        if message["role"] != "tool":
            shown_messages += _list_result_files(result_files)
        if "files" in message:
            message = await _show_message(message, present, takes, access)
        if message["role"] == "tool" and (files := message.get("files")):
            result_files += files
            message = {**message, "files": []}
        shown_messages.append(message)

    return [*shown_messages, *_list_result_files(result_files)]


async def _show_message(
    message: Message, present: Collection[str], takes: Iterable[FileKind], access: FileAccess | None
) -> Message:
    parts = [message["content"]]
    attached = list[FileReference | LoadedFile]()

    for file in message["files"]:
        reference = get_reference(file)
        kind = find_kind(get_reference(file).media_type)
        is_loaded = isinstance(file, LoadedFile)
        if not is_loaded and reference.file_id not in present:
            parts.append(format_note(reference, "was deleted"))
        elif kind == "text":
            data = (await _load(file if is_loaded else reference, access)).data
            text = data.decode("utf-8-sig", errors="replace")
            parts.append(f"File {reference.name}:\n\n{text}")
        elif kind in takes:
            attached.append(file if is_loaded else reference)
        else:
            parts.append(format_note(reference, f"is not shown: this model takes no {kind}"))

    content = "\n\n".join(filter(None, parts))
    return {**message, "content": content, "files": attached}


def _list_result_files(files: list[FileReference | LoadedFile]) -> list[Message]:
    """Return the message with the files of the results before it; forget them."""
    if not files:
        return []
    names = ", ".join(get_reference(file).name for file in files)
    text = f"Files of the results of tools: {names}"
    message = {"role": "user", "content": text, "files": [*files]}
    files.clear()
    return [message]


async def load_files(
    messages: Sequence[Message], access: FileAccess | None, takes: Iterable[FileKind] = MEDIA
) -> Sequence[Message]:
    """Return messages as `show_files`, with `files` as loaded files."""
    shown_messages = await show_files(messages, takes, access)
    if shown_messages is messages:
        return shown_messages

    return [
        {**message, "files": [await _load(file, access) for file in message.get("files", ())]}
        for message in shown_messages
    ]


async def _load(file: FileReference | LoadedFile, access: FileAccess | None) -> LoadedFile:
    if isinstance(file, LoadedFile):
        return file
    assert access is not None
    with _as_failure():
        return LoadedFile(file, await access.read(file))


@contextmanager
def _as_failure() -> Iterator[None]:
    try:
        yield
    except AgentctlError as error:
        text = f"A file of the run cannot be read: {error.detail}"
        raise ExecutionError("INTERNAL", text) from error


async def stream_bytes(
    file: FileReference | LoadedFile, access: FileAccess | None
) -> AsyncIterator[bytes]:
    """Yield the bytes of a file of a message in parts."""
    if isinstance(file, LoadedFile):
        yield file.data
        return
    assert access is not None
    with _as_failure():
        async for part in access.stream(file):
            yield part


def format_note(file: FileReference, fact: str) -> str:
    """Return the line that replaces a file in a message."""
    return f"[The file {file.name} ({file.media_type}) {fact}.]"


def measure_base64(size: int) -> int:
    """Return the characters of the base64 form of a number of bytes."""
    return -(-size // 3) * 4


async def encode_base64(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the base64 form of bytes that arrive in parts, without all of them in memory."""
    rest = b""
    async for part in parts:
        for start in range(0, len(part), _STEP_BYTES):
            data = rest + part[start : start + _STEP_BYTES]
            end = len(data) - len(data) % 3
            rest = data[end:]
            yield binascii.b2a_base64(data[:end], newline=False)

    yield binascii.b2a_base64(rest, newline=False)


def measure_file(file: MessageFile) -> int:
    """Return the estimated size of a file in a request: bytes of text with as many tokens."""
    reference = get_reference(file)
    kind = find_kind(reference.media_type)
    if kind == "text":
        return reference.size
    divisor, least, most = _MEDIA_SIZES[kind]
    return min(max(reference.size // divisor, least), most)


def leave_out_files(messages: Sequence[Message]) -> list[Message]:
    """Return messages with lines for the files that would make a request too large."""
    start = find_files_start(messages)
    return [
        leave_out_files_of(message) if at < start and message.get("files") else message
        for at, message in enumerate(messages)
    ]


def find_files_start(messages: Sequence[Message]) -> int:
    """Return the index from which the files of messages have at most `MAXIMUM_FILE_BYTES`."""
    size = 0
    for index in range(len(messages) - 1, -1, -1):
        files = messages[index].get("files", ())
        size += sum(get_reference(file).size for file in files)
        if files and size > MAXIMUM_FILE_BYTES:
            return index + 1
    return 0


def leave_out_files_of(message: Message) -> Message:
    """Return a message with a line for each of its files."""
    notes = (format_note(get_reference(file), "is left out") for file in message["files"])
    rest = {name: value for name, value in message.items() if name != "files"}
    return {**rest, "content": "\n\n".join(filter(None, (message["content"], *notes)))}
