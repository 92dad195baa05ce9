"""Changes of key files during verification (docs/internals/security-cases.md K06 to K12)."""

from __future__ import annotations

import itertools
import json
import logging
import os
import threading
import time
from pathlib import Path

import pytest

from agentctl.auth.keys.keyring import MAXIMUM_POLLS
from agentctl.auth.verifier import Verifier
from agentctl.config.settings import Authorization, Settings
from agentctl.errors import InvalidKey, InvalidToken
from tests.auth.verifiers import NEW, OLD, Clock, bearer, jwks, replace_file, verifier
from tests.kit.conditions import PATIENCE, wait_for
from tests.kit.forged_tokens import b64, compact, rsa_pair


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "jwks.json"
    path.write_text(jwks(("old", OLD)))
    return path


def test_changed_jwks_is_used(clock: Clock, file: Path) -> None:
    one = verifier(clock, Authorization(jwks_file=(file,)))
    old = bearer({"sub": "o"}, OLD, kid="old")
    new = bearer({"sub": "n"}, NEW, kid="new")
    assert one.identify_jwt(old)
    with pytest.raises(InvalidToken):
        one.identify_jwt(new)

    replace_file(file, jwks(("old", OLD), ("new", NEW)))
    clock.move(1)
    assert one.identify_jwt(old)
    assert one.identify_jwt(new)

    replace_file(file, jwks(("new", NEW)))
    clock.move(0.9)
    assert one.identify_jwt(old), "looked at once a second at most"
    clock.move(0.1)
    with pytest.raises(InvalidToken):
        one.identify_jwt(old)
    assert one.identify_jwt(new)


def test_foreign_entry_of_a_file_is_left_out(
    clock: Clock, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """At the start and at a reload; a byte order mark is no fault."""
    document = json.loads(jwks(("old", OLD)))
    document["keys"] += ["x", {"kty": "RSA", "kid": "broken", "n": "AQAB"}]
    file.write_text("\ufeff" + json.dumps(document))
    one = verifier(clock, Authorization(jwks_file=(file,)))
    assert one.identify_jwt(bearer({"sub": "o"}, OLD, kid="old"))
    assert one.leaves_out_keys
    assert "JWKS key 3 ('broken') of the key files is left out" in caplog.text

    document["keys"] += json.loads(jwks(("new", NEW)))["keys"]
    replace_file(file, json.dumps(document))
    clock.move(1)
    assert one.identify_jwt(bearer({"sub": "n"}, NEW, kid="new"))


def test_keys_of_two_jwks_files_count(clock: Clock, file: Path, tmp_path: Path) -> None:
    """Those of the configuration and of JWT_JWKS_FILE; a change of either is used."""
    second = tmp_path / "second.json"
    second.write_text(jwks(("new", NEW)))
    one = verifier(clock, Authorization(jwks_file=(file, second)))
    old = bearer({"sub": "o"}, OLD, kid="old")
    new = bearer({"sub": "n"}, NEW, kid="new")
    assert one.identify_jwt(old)
    assert one.identify_jwt(new)

    replace_file(second, jwks(("newer", NEW)))
    clock.move(1)
    assert one.identify_jwt(old)
    assert one.identify_jwt(bearer({"sub": "n"}, NEW, kid="newer"))
    with pytest.raises(InvalidToken):
        one.identify_jwt(new)

    replace_file(file, jwks(("old", OLD), ("newer", OLD)))
    clock.move(1)
    assert one.identify_jwt(old), "the previous keys stay in use"
    assert "different keys with the kid 'newer'" in (one.problem or "")
    with pytest.raises(InvalidKey, match="different keys"):
        verifier(clock, Authorization(jwks_file=(file, second)))


BROKEN = {
    "empty": "",
    "list": "[]",
    "null": "null",
    "no keys": "{}",
    "no key": '{"keys": []}',
    "truncated": jwks(("new", NEW))[:-9],
    "not UTF-8": "\xff",
    "too large": "x" * 2_000_000,
    "kid twice": jwks(("a", NEW), ("a", OLD)),
    "only a bad key": '{"keys": [{"kty": "RSA", "kid": "x"}]}',
    "member twice": '{"keys": [], "keys": []}',
}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
def test_invalid_file_keeps_the_previous_keys(clock: Clock, file: Path, broken: str) -> None:
    one = verifier(clock, Authorization(jwks_file=(file,)))
    header = bearer({"sub": "me"}, OLD, kid="old")
    file.write_text(broken, encoding="latin-1")
    one.reload_keys()
    for _ in range(3):
        clock.move(40)
        assert one.identify_jwt(header).subject == "me"
        assert one.problem is not None
        assert str(file) in one.problem
    replace_file(file, jwks(("new", NEW)))
    one.reload_keys()
    assert one.problem is None
    with pytest.raises(InvalidToken):
        one.identify_jwt(header)


def test_removed_file_can_return(clock: Clock, file: Path) -> None:
    one = verifier(clock, Authorization(jwks_file=(file,)))
    away = file.with_suffix(".away")
    file.rename(away)
    one.reload_keys()
    assert one.problem is not None
    assert one.identify_jwt(bearer({}, OLD, kid="old"))
    away.rename(file)
    one.reload_keys()
    assert one.problem is not None, "it may still be written"
    one.reload_keys()
    assert one.problem is None


def test_change_with_equal_size_and_time_is_detected(clock: Clock, file: Path) -> None:
    file.write_text(jwks(("aaa", OLD)))
    one = verifier(clock, Authorization(jwks_file=(file,)))
    found = file.stat()
    file.write_text(jwks(("bbb", NEW)))
    os.utime(file, ns=(found.st_atime_ns, found.st_mtime_ns))
    assert file.stat().st_size == found.st_size
    one.reload_keys()
    one.reload_keys()
    assert one.identify_jwt(bearer({}, NEW, kid="bbb"))


def test_touched_file_keeps_the_cache(clock: Clock, file: Path) -> None:
    one = verifier(clock, Authorization(jwks_file=(file,)))
    header = bearer({"sub": "me"}, OLD, kid="old")
    first = one.identify_jwt(header)
    file.touch()
    one.reload_keys()
    assert one.identify_jwt(header) is first


def test_pem_files_are_watched(clock: Clock, tmp_path: Path) -> None:
    path = tmp_path / "public.pem"
    path.write_text(OLD.pem)
    one = verifier(clock, Authorization(verification_key_files=(path,)))
    old = bearer({"sub": "o"}, OLD)
    new = bearer({"sub": "n"}, NEW)
    assert one.identify_jwt(old)
    replace_file(path, NEW.pem)
    clock.move(1)
    assert one.identify_jwt(new)
    with pytest.raises(InvalidToken):
        one.identify_jwt(old)


def test_keys_of_all_sources_are_combined(clock: Clock, file: Path, tmp_path: Path) -> None:
    third = rsa_pair(3)
    path = tmp_path / "public.pem"
    path.write_text(third.pem)
    given = Authorization(
        verification_keys=(NEW.pem,), verification_key_files=(path,), jwks_file=(file,)
    )
    one = verifier(clock, given)
    assert one.keys is not None
    assert len(one.keys.keys) == 3
    for pair, header in ((OLD, {"kid": "old"}), (NEW, {}), (third, {"kid": "other"})):
        assert one.identify_jwt(bearer({"sub": "me"}, pair, **header))


def is_rejected(one: Verifier, header: str) -> bool:
    """Return True if a token is rejected with InvalidToken."""
    try:
        one.identify_jwt(header)
    except InvalidToken:
        return True
    return False


def kids(one: Verifier) -> set[str | None]:
    assert one.keys is not None
    return {key.kid for key in one.keys.keys}


def test_slowly_written_file_is_never_read_by_half(clock: Clock, file: Path) -> None:
    """K08: every state in between is a sound set, of an old key and a new one."""
    before = jwks(("old-1", OLD), ("old-2", NEW))
    after = jwks(("new-1", rsa_pair(3)), ("new-2", rsa_pair(4)))
    assert len(before) == len(after)
    file.write_text(before)
    one = verifier(clock, Authorization(jwks_file=(file,)))
    half = len(before) // 2
    with file.open("r+") as writing:
        for start, end in ((0, half), (half, len(after))):
            writing.seek(start)
            writing.write(after[start:end])
            writing.flush()
            one.reload_keys()
            assert kids(one) == {"old-1", "old-2"}
    one.reload_keys()
    assert kids(one) == {"new-1", "new-2"}


def test_truncated_file_is_reported_only_if_it_stays(clock: Clock, file: Path) -> None:
    one = verifier(clock, Authorization(jwks_file=(file,)))
    text = jwks(("new", NEW))
    with file.open("w") as writing:
        writing.write(text[:100])
        writing.flush()
        one.reload_keys()
        assert (one.problem, kids(one)) == (None, {"old"})
        one.reload_keys()
        assert one.problem is not None
        writing.write(text[100:])
    for _ in range(2):
        one.reload_keys()
    assert (one.problem, kids(one)) == (None, {"new"})


def test_constantly_changing_file_is_read(clock: Clock, file: Path) -> None:
    one = verifier(clock, Authorization(jwks_file=(file,)))
    for number in range(MAXIMUM_POLLS + 1):
        assert kids(one) == {"old"}
        file.write_text(jwks(("new", NEW)) + " " * number)
        one.reload_keys()
    assert kids(one) == {"new"}
    assert MAXIMUM_POLLS + 1 < 5, "seconds in which a removed key has to be dead"


def test_constantly_changing_file_does_not_hide_another(
    clock: Clock, file: Path, tmp_path: Path
) -> None:
    path = tmp_path / "public.pem"
    path.write_text(NEW.pem)
    given = Authorization(verification_key_files=(path,), jwks_file=(file,))
    one = verifier(clock, given)
    third = rsa_pair(3)
    replace_file(path, third.pem)
    for number in range(MAXIMUM_POLLS + 1):
        file.write_text(jwks(("old", OLD)) + " " * number)
        one.reload_keys()
    assert not is_rejected(one, bearer({}, third))
    assert is_rejected(one, bearer({}, NEW))


def test_valid_tokens_pass_during_a_rotation(clock: Clock, file: Path) -> None:
    """K06: add the new key, then remove the old one, again and again, with requests on the way."""
    third = rsa_pair(3)
    sets = [jwks(("stays", third), (name, pair)) for name, pair in (("old", OLD), ("new", NEW))]
    file.write_text(sets[0])
    one = verifier(clock, Authorization(jwks_file=(file,)))
    headers = {
        f"u{number}": bearer({"sub": f"u{number}"}, third, kid="stays") for number in range(20)
    }
    rotations = 0
    done = threading.Event()

    def rotate() -> None:
        nonlocal rotations
        while not done.is_set():
            rotations += 1
            replace_file(file, sets[rotations % 2])
            one.reload_keys()

    rotating = threading.Thread(target=rotate)
    rotating.start()
    try:
        while rotations < 100:
            for subject, header in headers.items():
                assert one.identify_jwt(header).subject == subject
    finally:
        done.set()
        rotating.join()


def test_unknown_kid_does_not_reload_the_file(clock: Clock, file: Path) -> None:
    """K09: the file is broken, and many requests for other keys do not bring it to light."""
    one = verifier(clock, Authorization(jwks_file=(file,)))
    replace_file(file, "broken")
    first, second, third = bearer({}, kid="old").removeprefix("Bearer ").split(".")
    for number in range(500):
        header = b64(compact({"alg": "RS256", "kid": f"k{number}"}))
        assert is_rejected(one, f"Bearer {header}.{second}.{third}")
    assert one.problem is None
    clock.move(1)
    assert is_rejected(one, f"Bearer {first}.{second}.{second}")
    assert one.problem is not None


def test_cache_is_dropped_with_its_keys(clock: Clock, file: Path) -> None:
    """K12: the cache is dropped with the keys, also if they return."""
    one = verifier(clock, Authorization(jwks_file=(file,)))
    header = bearer({"sub": "me"}, OLD, kid="old")
    first = one.identify_jwt(header)
    replace_file(file, jwks(("new", NEW)))
    one.reload_keys()
    assert is_rejected(one, header)
    replace_file(file, jwks(("old", OLD)))
    one.reload_keys()
    again = one.identify_jwt(header)
    assert again == first
    assert again is not first


def test_files_are_watched_without_requests(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "agentctl.auth")
    steady = CountedReads()
    settings = Settings(authorization=Authorization(jwks_file=(file,)))
    one = Verifier(settings, monotonic=steady)
    header = bearer({"sub": "me"}, OLD, kid="old")
    assert one.identify_jwt(header)
    with one.watch_key_files():
        replace_file(file, "broken")
        wait_for(lambda: one.problem is not None)
        assert one.identify_jwt(header), "the last good keys stay in force"
        seen = steady.asked
        wait_for(lambda: steady.asked > seen + 1)
        replace_file(file, jwks(("new", NEW)))
        wait_for(lambda: kids(one) == {"new"})
        assert is_rejected(one, header)
    assert one.problem is None
    told = [record.getMessage() for record in caplog.records if record.name == "agentctl.auth"]
    assert [str(file) in line for line in told] == [True, False, False], "a failure is told once"
    replace_file(file, jwks(("old", OLD)))
    wait_for(lambda: not is_rejected(one, header))


def test_requests_read_no_file_while_a_thread_watches(file: Path) -> None:
    one = Verifier(
        Settings(authorization=Authorization(jwks_file=(file,))), monotonic=ManualTicks()
    )
    header = bearer({"sub": "me"}, OLD, kid="old")
    started = time.monotonic()
    with one.watch_key_files():
        replace_file(file, "broken")
        for _ in range(5):
            assert one.identify_jwt(header)
        unseen = one.problem is None
        assert unseen or time.monotonic() - started >= 1, "only the watch looks"
    assert one.identify_jwt(header)
    assert one.problem is not None


class CountedReads:
    """A steady clock that counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self) -> float:
        self.asked += 1
        return time.monotonic()


class ManualTicks:
    """A clock on which each look is an hour after the one before."""

    def __init__(self) -> None:
        self.hours = itertools.count(1)

    def __call__(self) -> float:
        return 3_600.0 * next(self.hours)


def test_failing_log_does_not_end_the_watch_thread(file: Path) -> None:
    failed = threading.Event()

    def fail(record: logging.LogRecord) -> bool:
        if record.levelno == logging.ERROR and not failed.is_set():
            failed.set()
            raise OSError("no space left for logs")
        return True

    log = logging.getLogger("agentctl.auth")
    one = Verifier(Settings(authorization=Authorization(jwks_file=(file,))))
    log.addFilter(fail)
    try:
        with one.watch_key_files():
            replace_file(file, "broken")
            assert failed.wait(PATIENCE)
            replace_file(file, jwks(("new", NEW)))
            wait_for(lambda: kids(one) == {"new"})
    finally:
        log.removeFilter(fail)


def test_authorization_off_watches_no_file() -> None:
    before = threading.active_count()
    one = Verifier(Settings(authorization=Authorization(enabled=False)))
    with one.watch_key_files():
        assert threading.active_count() == before


def test_path_with_nul_is_rejected(clock: Clock, tmp_path: Path) -> None:
    with pytest.raises(InvalidKey):
        verifier(clock, Authorization(jwks_file=(tmp_path / "a\0b",)))
