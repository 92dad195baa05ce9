"""Key files: modes, links, and paths that are not regular files."""

from __future__ import annotations

import errno
import os
import resource
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agentctl.auth.keys.files import (
    MAXIMUM_KEY_FILE,
    read_key_file,
    read_private_key,
    write_private_key,
)
from agentctl.auth.keys.keyring import read_key_files
from agentctl.config.settings import Authorization
from agentctl.errors import InvalidKey
from tests.kit.forged_tokens import SECRET, rsa_pair


def test_private_key_file_has_mode_0600(tmp_path: Path) -> None:
    path = tmp_path / "new" / "signing.pem"
    before = os.umask(0)
    try:
        write_private_key(path, b"secret")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert read_private_key(path) == b"secret"


def test_key_file_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "signing.pem"
    write_private_key(path, b"first")
    with pytest.raises(InvalidKey):
        write_private_key(path, b"second")
    assert path.read_bytes() == b"first"


def test_writing_does_not_follow_a_link(tmp_path: Path) -> None:
    path = tmp_path / "signing.pem"
    target = tmp_path / "elsewhere"
    path.symlink_to(target)
    with pytest.raises(InvalidKey):
        write_private_key(path, b"secret")
    assert not target.exists()


@pytest.mark.parametrize("name", ["file/signing.pem", "file/sub/signing.pem", "x" * 300])
def test_unwritable_folder_is_an_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidKey) as refusal:
        write_private_key(tmp_path / name, b"secret")
    assert refusal.value.detail.endswith("cannot be written")
    assert refusal.value.cause


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Limit the size of written files, to simulate a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_incomplete_key_file_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "signing.pem"
    with files_of_at_most(100), pytest.raises(InvalidKey) as refusal:
        write_private_key(path, b"x" * 1_000)
    assert refusal.value.detail.endswith("cannot be written")
    assert refusal.value.cause == os.strerror(errno.EFBIG).lower()
    assert not path.exists()


def test_read_error_is_reported() -> None:
    """The memory of a process is a regular file, and nothing is mapped at its beginning."""
    with pytest.raises(InvalidKey) as refusal:
        read_key_file(Path("/proc/self/mem"))
    assert refusal.value.cause == os.strerror(errno.EIO).lower()


def test_growing_file_is_rejected() -> None:
    """The page map of a process claims to be empty and has gigabytes."""
    with pytest.raises(InvalidKey) as refusal:
        read_key_file(Path("/proc/self/pagemap"))
    assert "larger than" in refusal.value.detail


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660, 0o700, 0o601, 0o4600])
def test_wide_mode_is_rejected_with_a_hint(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "signing.pem"
    write_private_key(path, b"secret")
    path.chmod(mode)
    with pytest.raises(InvalidKey) as refusal:
        read_private_key(path)
    assert refusal.value.hint == f"chmod 600 {path}"


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_narrow_mode_is_accepted(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "signing.pem"
    write_private_key(path, b"secret")
    path.chmod(mode)
    assert read_private_key(path) == b"secret"


def test_public_key_file_must_not_be_world_writable(tmp_path: Path) -> None:
    path = tmp_path / "public.pem"
    path.write_text(rsa_pair().pem)
    path.chmod(0o644)
    authorization = Authorization(verification_key_files=(path,))
    assert read_key_files(authorization)
    path.chmod(0o646)
    with pytest.raises(InvalidKey):
        read_key_files(authorization)


def test_readable_secret_file_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(SECRET)
    path.chmod(0o644)
    authorization = Authorization(algorithm="HS256", verification_key_files=(path,))
    with pytest.raises(InvalidKey):
        read_key_files(authorization)
    path.chmod(0o600)
    assert read_key_files(authorization) == {path: SECRET}


def _missing(path: Path) -> None:
    pass


def _folder(path: Path) -> None:
    path.mkdir()


def _fifo(path: Path) -> None:
    os.mkfifo(path, 0o600)


def _large(path: Path) -> None:
    path.touch(0o600)
    os.truncate(path, MAXIMUM_KEY_FILE + 1)


def _loop(path: Path) -> None:
    path.symlink_to(path)


def _dangling(path: Path) -> None:
    path.symlink_to(path.with_name("nowhere"))


@pytest.mark.parametrize("make", [_missing, _folder, _fifo, _large, _loop, _dangling])
def test_fifos_and_folders_are_rejected(tmp_path: Path, make: object) -> None:
    """The open of a FIFO would wait for a writer for ever."""
    path = tmp_path / "key"
    make(path)  # type: ignore[operator]
    for private in (True, False):
        with pytest.raises(InvalidKey):
            read_key_file(path, private=private)


@pytest.mark.parametrize("path", ["/dev/null", "/dev/zero"])
def test_devices_are_rejected(path: str) -> None:
    with pytest.raises(InvalidKey):
        read_key_file(Path(path))


def test_reading_follows_a_link(tmp_path: Path) -> None:
    target = tmp_path / "target"
    link = tmp_path / "link"
    write_private_key(target, b"secret")
    link.symlink_to(target)
    assert read_private_key(link) == b"secret"


def test_path_with_nul_is_rejected() -> None:
    with pytest.raises(InvalidKey):
        read_key_file(Path("/tmp/a\0b"))
