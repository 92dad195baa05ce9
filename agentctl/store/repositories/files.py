"""Files: a row each, in the database of their session. Their bytes are in a `BlobStore`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import NamedTuple

from agentctl.config.files import Files
from agentctl.config.quotas import Quotas
from agentctl.errors import QuotaExceeded, Unavailable
from agentctl.records.files import FileOrigin, FileReference
from agentctl.store.blobs import build_owner_key
from agentctl.store.database import Sql, Statement, Steps, Value, Work, build_insert, unit
from agentctl.store.listing import ID_GROUP, Listing, RowPage, Slice, as_columns, read_by_ids
from agentctl.store.repositories.quotas import LOCK_OWNER, check_added, check_bytes
from agentctl.store.totals import ListTotals
from agentctl.store.visibility import IS_VISIBLE, Visibility

MAXIMUM_DAY_FILES = 10_000
"""Files that a user stores in one day, UTC."""

DELETED_ROWS = 500
"""Rows that one unit deletes."""

DAY = 86_400_000_000
"""Microseconds of a day."""


class FileBytes(NamedTuple):
    """Bytes that files name."""

    blob: str
    """Their key."""

    size: int
    """The least size that a file names."""

    largest: int
    """The largest size that a file names."""

    file_id: str
    """The id of one of the files."""


@dataclass(frozen=True, slots=True)
class FileRow:
    """A stored file; see `records.files.FileRecord`. Times are microseconds UTC."""

    file_id: str
    user_id: str | None

    session_id: str | None
    """Its session, which is in the same database; None until one is named."""

    run_id: str | None
    """The run that created it; None for an upload."""

    name: str
    media_type: str
    size: int
    sha256: str

    blob: str
    """The key of its bytes (`store.blobs.build_key`)."""

    origin: FileOrigin
    version: int
    created_at: int

    def build_reference(self) -> FileReference:
        """Return the file as runs hold it."""
        return FileReference(self.file_id, self.name, self.media_type, self.size, self.sha256)


_NAMES = tuple(field.name for field in fields(FileRow))
_COLUMNS = ", ".join(_NAMES)

LISTING = Listing(table="files", columns=_COLUMNS, id="file_id")

_CREATE = build_insert("files", _NAMES)

_GET = Sql(f"SELECT {_COLUMNS} FROM files WHERE file_id = :file_id AND {IS_VISIBLE}")
_GET_ALL = Sql(f"SELECT {_COLUMNS} FROM files WHERE file_id IN ({ID_GROUP}) AND {IS_VISIBLE}")

_OF_RUN = Sql(f"SELECT {_COLUMNS} FROM files WHERE session_id = :session_id AND run_id = :run_id")

_NEXT_VERSION = "SELECT coalesce(max({0}.version), 0) + 1 FROM files AS {0} WHERE {0}.session_id ="

_FIND_VERSION = Sql(f"{_NEXT_VERSION.format('named')} :session_id AND named.name = :name")

_BIND = Sql(
    "UPDATE files SET session_id = :session_id, version ="
    f" ({_NEXT_VERSION.format('named')} :session_id AND named.name = files.name)"
    " WHERE file_id = :file_id AND session_id IS NULL RETURNING file_id"
)

_COPY = Sql(
    f"INSERT INTO files ({_COLUMNS}) SELECT cast(:copy_id as text), user_id,"
    " cast(:session_id as text), run_id, name, media_type, size, sha256, blob, origin,"
    f" ({_NEXT_VERSION.format('named')} :session_id AND named.name = files.name), created_at"
    " FROM files WHERE file_id = :file_id AND coalesce(user_id, '') = :owner FOR SHARE"
)

_READ_DAY = Sql("SELECT files, bytes FROM file_days WHERE owner = :owner AND day >= :day")

# A server whose clock is a little behind, at midnight, does not begin an earlier day again.
_COUNT_IN_DAY = Sql(
    "INSERT INTO file_days (owner, day, files, bytes) VALUES (:owner, :day, 1, :size)"
    " ON CONFLICT (owner) DO UPDATE SET"
    " files = CASE WHEN file_days.day >= excluded.day THEN file_days.files + 1 ELSE 1 END,"
    " bytes = excluded.bytes"
    " + CASE WHEN file_days.day >= excluded.day THEN file_days.bytes ELSE 0 END,"
    " day = CASE WHEN file_days.day >= excluded.day THEN file_days.day ELSE excluded.day END"
)

# A day in the future comes from a clock that was wrong.
_OTHER_DAYS = "FROM file_days WHERE day < :day OR day > :day + 1"
_HAS_OTHER_DAYS = Sql(f"SELECT 1 {_OTHER_DAYS} LIMIT 1")
_DELETE_OTHER_DAYS = Sql(
    f"DELETE FROM file_days WHERE owner IN (SELECT owner {_OTHER_DAYS} LIMIT {DELETED_ROWS})"
    " RETURNING owner"
)

_DELETE = Sql("DELETE FROM files WHERE file_id = :file_id RETURNING file_id")

_DELETE_LOOSE = Sql(
    f"DELETE FROM files WHERE file_id IN ({ID_GROUP}) AND session_id IS NULL RETURNING file_id"
)

_UNBOUND = "FROM files WHERE session_id IS NULL AND created_at < :before"
_HAS_UNBOUND = Sql(f"SELECT 1 {_UNBOUND} LIMIT 1")
_DELETE_UNBOUND = Sql(
    f"DELETE FROM files WHERE file_id IN (SELECT file_id {_UNBOUND} LIMIT {DELETED_ROWS})"
    " RETURNING file_id"
)

_RESERVE = Sql(
    "INSERT INTO blob_checks (blob, size, noted_at) VALUES (:blob, :size, :noted_at) RETURNING seq"
)
_END_RESERVATION = Sql("DELETE FROM blob_checks WHERE seq = :seq RETURNING seq")
_LIST_CHECKS = Sql(
    "SELECT seq, blob FROM blob_checks WHERE NOT (noted_at BETWEEN :before AND :after)"
    " ORDER BY seq LIMIT :limit"
)
_DELETE_CHECK = Sql("DELETE FROM blob_checks WHERE seq = :seq")
_HAS_BLOB = Sql("SELECT 1 FROM files WHERE blob = :blob LIMIT 1")

_LIST_BYTES = Sql(
    "SELECT blob, min(size), max(size), min(file_id) FROM files WHERE blob > :after"
    " GROUP BY blob ORDER BY blob LIMIT :limit"
)


def _build_find(table: str) -> Sql:
    return Sql(f"SELECT DISTINCT blob FROM {table} WHERE blob IN ({ID_GROUP})")


_FIND_NAMED = _build_find("files")
_FIND_CHECKED = _build_find("blob_checks")

_NEWEST = Sql(f"SELECT {_COLUMNS} FROM files ORDER BY created_at DESC, file_id DESC LIMIT :limit")


@unit
def check_room(
    user_id: str | None, size: int, at: int, settings: Files, quotas: Quotas
) -> Steps[None]:
    """Check early, and without a lock, that a user may store a further file.

    Only `reserve` is binding: other files may take the room meanwhile.

    Args:
        size: bytes of the further file, as far as they are known.
        at: microseconds UTC.

    Raises:
        QuotaExceeded: it is too much, in the day or altogether.
    """
    yield from _check_day(user_id, size, at, settings)
    yield from check_bytes(quotas, user_id, size)


def _check_day(user_id: str | None, size: int, at: int, settings: Files) -> Steps[None]:
    values: dict[str, Value] = {"owner": build_owner_key(user_id), "day": at // DAY}
    rows = yield Statement(_READ_DAY, values)
    count, stored_bytes = rows[0] if rows else (0, 0)
    if stored_bytes + size > settings.user_day_bytes:
        raise QuotaExceeded(
            f"{settings.user_day_bytes} bytes of files a day", "files.user_day_bytes"
        )
    if count >= MAXIMUM_DAY_FILES:
        raise QuotaExceeded(f"A user can store {MAXIMUM_DAY_FILES} files a day, UTC")


@unit
def reserve(row: FileRow, settings: Files, quotas: Quotas) -> Steps[int]:
    """Take the place of a file in the quotas of its user, before its bytes are kept.

    The bytes count in the day from now on, even if their file is deleted, or if the upload ends
    before it has a file. In the quota of bytes the reservation counts until `create`, or until the
    cleanup has removed the bytes.

    Returns:
        The number of the reservation, for `create`.

    Raises:
        QuotaExceeded: the file exceeds the quota of the day or of bytes. Nothing is reserved.
    """
    # Take the lock first: of two uploads of one owner, the second sees the place of the first.
    yield Statement(LOCK_OWNER, {"owner": row.user_id or ""})
    yield from _check_day(row.user_id, row.size, row.created_at, settings)

    day_values: dict[str, Value] = {
        "owner": build_owner_key(row.user_id),
        "day": row.created_at // DAY,
        "size": row.size,
    }
    yield Statement(_COUNT_IN_DAY, day_values)

    reservation: dict[str, Value] = {"blob": row.blob, "size": row.size, "noted_at": row.created_at}
    ((seq,),) = yield Statement(_RESERVE, reservation)

    yield from check_added(quotas, row.user_id)
    return int(seq)


@unit
def create(row: FileRow, reservation: int) -> Steps[FileRow]:
    """Store a new file in its reserved place; return it with its version.

    Raises:
        Unavailable: the reservation has ended, so that the bytes may be removed already.
    """
    if not (yield Statement(_END_RESERVATION, {"seq": reservation})):
        raise Unavailable("The file took too long to store", hint="store it again")

    if row.session_id is not None:
        values: dict[str, Value] = {"session_id": row.session_id, "name": row.name}
        ((version,),) = yield Statement(_FIND_VERSION, values)
        row = replace(row, version=version)

    yield Statement(_CREATE, asdict(row))
    return row


def get(file_id: str, visibility: Visibility) -> Work[FileRow | None]:
    """Return the visible file with this id."""
    return _GET.first(FileRow, file_id=file_id, **visibility.parameters())


def get_all(file_ids: Sequence[str], visibility: Visibility) -> Work[list[FileRow]]:
    """Return the visible files with some ids, in any order."""
    return read_by_ids(_GET_ALL, file_ids, FileRow, **visibility.parameters())


def bind(file_id: str, session_id: str) -> Work[bool]:
    """Give a file without a session to a session; return False if it has one, or does not exist."""
    return _BIND.has_rows(file_id=file_id, session_id=session_id)


def copy(file_id: str, copy_id: str, session_id: str, user_id: str | None) -> Work[int]:
    """Give a copy of a file to a session. Return 0 if the user has no such file."""
    return _COPY.count_rows(
        file_id=file_id, copy_id=copy_id, session_id=session_id, owner=user_id or ""
    )


def list_of_run(session_id: str, run_id: str) -> Work[list[FileRow]]:
    """Return the files that a run has saved."""
    return _OF_RUN.rows(FileRow, session_id=session_id, run_id=run_id)


def list_page(
    visibility: Visibility,
    user_id: str | None,
    session_id: str | None,
    page: Slice,
    totals: ListTotals | None = None,
) -> Work[RowPage[FileRow]]:
    """Read a page of the visible files of a user and of a session, with their total.

    Args:
        user_id: None for all users.
        session_id: None for all sessions.
        totals: the remembered totals of the database.
    """
    conditions = visibility.conditions().with_equal(user_id=user_id, session_id=session_id)
    return LISTING.list_page(conditions, page, FileRow, totals)


def delete(file_id: str) -> Work[bool]:
    """Delete the row of a file; return False if there is none."""
    return _DELETE.has_rows(file_id=file_id)


@unit
def delete_loose(file_ids: Sequence[str]) -> Steps[list[str]]:
    """Delete the files that no session has got meanwhile; return their ids."""
    return (yield from read_by_ids(_DELETE_LOOSE, file_ids, str))


def has_unbound(before: int) -> Work[bool]:
    """Return True if files without a session were stored before a time, microseconds UTC."""
    return _HAS_UNBOUND.has_rows(before=before)


def delete_unbound(before: int) -> Work[int]:
    """Delete some files without a session; return their number. Call it again until it is 0."""
    return _DELETE_UNBOUND.count_rows(before=before)


def has_other_days(at: int) -> Work[bool]:
    """Return True if there are counts of other days than the day of `at`, microseconds UTC."""
    return _HAS_OTHER_DAYS.has_rows(day=at // DAY)


def delete_other_days(at: int) -> Work[int]:
    """Delete some of these counts; return their number. Call it again until it is 0."""
    return _DELETE_OTHER_DAYS.count_rows(day=at // DAY)


def list_checks(limit: int, before: int, after: int) -> Work[list[tuple[int, str]]]:
    """Return number and key of the oldest bytes that may have no file.

    Bytes that were noted from `before` to `after`, microseconds UTC, are left out: their upload may
    be under way.
    """
    return _LIST_CHECKS.rows(as_columns, limit=limit, before=before, after=after)


def has_blob(blob: str) -> Work[bool]:
    """Return True if a file has the bytes with this key."""
    return _HAS_BLOB.has_rows(blob=blob)


def list_bytes(after: str, limit: int) -> Work[list[FileBytes]]:
    """Return bytes that files name, in the order of their keys, after a key."""
    return _LIST_BYTES.rows(FileBytes, after=after, limit=limit)


@unit
def find_known(blobs: Sequence[str]) -> Steps[set[str]]:
    """Return the keys that files name, or that are noted because a cleanup decides about them."""
    named_keys = yield from read_by_ids(_FIND_NAMED, blobs, str)
    noted_keys = yield from read_by_ids(_FIND_CHECKED, blobs, str)
    return {*named_keys, *noted_keys}


def end_check(seq: int) -> Work[None]:
    """Delete the note with this number."""
    return _DELETE_CHECK.execute(seq=seq)


def list_newest(limit: int) -> Work[list[FileRow]]:
    """Return the newest files."""
    return _NEWEST.rows(FileRow, limit=limit)
