"""Rotations: in every layout, interrupted at each step, and of unsuitable configurations."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentctl.auth.keys import files as replacing
from agentctl.auth.keys import signing
from agentctl.auth.keys.rotation import (
    REMOVE_AFTER_MEMBER,
    JwksFile,
    PemFile,
    Rotation,
    open_rotation,
)
from agentctl.auth.keys.signing import load_signing_key
from agentctl.auth.tokens import mint
from agentctl.auth.tokens.algorithms import get_algorithm
from agentctl.auth.verifier import Verifier
from agentctl.config.settings import Authorization, Settings, Signing
from agentctl.errors import Conflict, InvalidKey, InvalidToken
from agentctl.records.times import format_rfc3339
from tests.kit.forged_tokens import b64

LATER = 2_000_000_000_000_000

Layout = Callable[[Path], Settings]


def write_keys(folder: Path, algorithm: str = "ES256") -> tuple[Path, bytes]:
    file = folder / "signing.pem"
    private = signing.generate_key(algorithm)
    replacing.write_private_key(file, private)
    return file, private


def pem_layout(folder: Path, algorithm: str = "ES256", key_id: str = "") -> Settings:
    file, private = write_keys(folder, algorithm)
    public = folder / "signing.pub.pem"
    public.write_bytes(b"# ours\n" + signing.build_public_pem(private, algorithm))
    given = Authorization(algorithm=algorithm, verification_key_files=(public,))  # type: ignore[arg-type]
    return Settings(authorization=given, signing=Signing(file, key_id))


def jwks_layout(folder: Path, algorithm: str = "ES256", **members: Any) -> Settings:
    file, private = write_keys(folder, algorithm)
    entry = signing.build_jwk(load_signing_key(private, get_algorithm(algorithm))) | members
    entry = {name: value for name, value in entry.items() if value is not None}
    return with_jwks(folder, file, {"issuer": "us", "keys": [entry]}, algorithm)


def with_jwks(
    folder: Path, file: Path, document: dict[str, Any], algorithm: str = "ES256"
) -> Settings:
    jwks = folder / "jwks.json"
    jwks.write_text(json.dumps(document))
    jwks.chmod(0o600)
    given = Authorization(algorithm=algorithm, jwks_file=(jwks,))  # type: ignore[arg-type]
    return Settings(authorization=given, signing=Signing(file))


def both_layouts(folder: Path) -> Settings:
    settings = jwks_layout(folder)
    public = folder / "signing.pub.pem"
    public.write_bytes(signing.build_public_pem(settings.signing.key_file.read_bytes(), "ES256"))
    given = replace(settings.authorization, verification_key_files=(public,))
    return replace(settings, authorization=given)


LAYOUTS: dict[str, Layout] = {
    "pem": pem_layout,
    "pem with a key_id": lambda folder: pem_layout(folder, key_id="ours"),
    "pem, RSA": lambda folder: pem_layout(folder, "RS256"),
    "pem, EdDSA": lambda folder: pem_layout(folder, "EdDSA"),
    "jwks": jwks_layout,
    "jwks of secrets": lambda folder: jwks_layout(folder, "HS256"),
    "both": both_layouts,
}
every_layout = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())


def is_accepted(settings: Settings, token: str) -> bool:
    """Return True if a server that starts now accepts the token."""
    try:
        Verifier(settings).identify_jwt(f"Bearer {token}")
    except InvalidToken:
        return False
    return True


def published(settings: Settings) -> dict[Path, bytes]:
    given = settings.authorization
    jwks = list(given.jwks_file)
    return {path: path.read_bytes() for path in (*given.verification_key_files, *jwks)}


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@every_layout
def test_rotation_replaces_the_signing_key(layout: Layout, tmp_path: Path) -> None:
    settings = layout(tmp_path)
    key_file = settings.signing.key_file
    private = key_file.read_bytes()
    before = files(tmp_path)
    old = mint.mint_token(settings, "me")
    with open_rotation(settings) as rotation:
        rotation.check()
        assert (rotation.unfinished, rotation.removable) == (False, {})
        new = rotation.publish_new_key(LATER)
        assert key_file.read_bytes() == private
        assert is_accepted(settings, old)
        assert is_accepted(settings, mint.mint_token(settings, "me"))
        aside = rotation.activate_new_key(keep=True)
    assert aside is not None
    assert aside.read_bytes() == private
    assert key_file.read_bytes() != private
    assert {stat.S_IMODE(path.stat().st_mode) for path in (aside, key_file)} == {0o600}
    second = mint.mint_token(settings, "me")
    assert is_accepted(settings, old)
    assert is_accepted(settings, second)
    with open_rotation(settings) as rotation:
        assert (rotation.old_thumbprint, rotation.unfinished) == (new, False)
        assert list(rotation.removable.values()) == [LATER]
        rotation.remove_old_keys()
    assert is_accepted(settings, second)
    assert not is_accepted(settings, old)
    assert files(tmp_path) == before | {aside.name}
    with open_rotation(settings) as rotation:
        assert (rotation.removable, rotation.unfinished) == ({}, False)


def test_old_key_keeps_its_kid_without_key_id(tmp_path: Path) -> None:
    settings = jwks_layout(tmp_path, kid="2026")
    signing = replace(settings.signing, key_id="2026")
    old = mint.mint_token(replace(settings, signing=signing), "me")
    rotate(settings)
    assert is_accepted(settings, old)
    assert is_accepted(settings, mint.mint_token(settings, "me"))
    Rotation(settings).remove_old_keys()
    assert not is_accepted(settings, old)


def test_old_private_key_can_be_deleted(tmp_path: Path) -> None:
    settings = pem_layout(tmp_path)
    before = files(tmp_path)
    with open_rotation(settings) as rotation:
        rotation.publish_new_key(LATER)
        assert rotation.activate_new_key(keep=False) is None
    assert files(tmp_path) == before


def test_new_rsa_key_has_the_size_of_the_old_one(tmp_path: Path) -> None:
    settings = pem_layout(tmp_path, "RS256")
    private = signing.generate_key("RS256", rsa_bits=2_304)
    settings.signing.key_file.write_bytes(private)
    (public,) = settings.authorization.verification_key_files
    public.write_bytes(signing.build_public_pem(private, "RS256"))
    with open_rotation(settings) as rotation:
        rotation.publish_new_key(LATER)
        rotation.activate_new_key(keep=False)
    key = load_signing_key(settings.signing.key_file.read_bytes(), get_algorithm("RS256")).material
    assert not isinstance(key, bytes)
    assert getattr(key, "key_size", None) == 2_304


def test_other_content_of_a_pem_file_stays(tmp_path: Path) -> None:
    settings = pem_layout(tmp_path)
    (public,) = settings.authorization.verification_key_files
    other = (
        signing.build_public_pem(signing.generate_key("ES256"), "ES256")
        .decode()
        .replace("\n", "\r\n")
    )
    before = f"{public.read_text()}# theirs\r\n{other}# end \udcff"
    public.write_bytes(before.encode("utf-8", "surrogateescape"))
    with open_rotation(settings) as rotation:
        rotation.publish_new_key(LATER)
        between = public.read_bytes().decode("utf-8", "surrogateescape")
        rotation.activate_new_key(keep=False)
    assert between.count("-----BEGIN PUBLIC KEY-----") == 3
    assert f"# ours\nagentctl: remove after {format_rfc3339(LATER)}\n-----BEGIN" in between
    with open_rotation(settings) as rotation:
        rotation.remove_old_keys()
    after = public.read_bytes().decode("utf-8", "surrogateescape")
    new = signing.build_public_pem(settings.signing.key_file.read_bytes(), "ES256").decode()
    assert after == f"{new}# ours\n# theirs\r\n{other}# end \udcff"


def test_other_content_of_a_jwks_stays(tmp_path: Path) -> None:
    settings = jwks_layout(tmp_path)
    jwks = tmp_path / "jwks.json"
    document = json.loads(jwks.read_text())
    others = [
        {"kty": "RSA", "use": "enc", "kid": "theirs", "n": "\ud800", "e": "AQAB"},
        {"kty": "odd", "use": "enc", "x": {"y": [1, 2.5, None]}},
    ]
    document["keys"] += others
    jwks.write_text(json.dumps(document))
    jwks.chmod(0o604)
    with open_rotation(settings) as rotation:
        rotation.publish_new_key(LATER)
        rotation.activate_new_key(keep=False)
    between = json.loads(jwks.read_text())
    assert between["keys"][0] == document["keys"][0] | {REMOVE_AFTER_MEMBER: format_rfc3339(LATER)}
    assert (between["issuer"], between["keys"][1:3]) == ("us", others)
    with open_rotation(settings) as rotation:
        rotation.remove_old_keys()
    assert json.loads(jwks.read_text())["keys"] == between["keys"][1:]
    assert stat.S_IMODE(jwks.stat().st_mode) == 0o604


class Killed(BaseException):
    """The process is no more."""


STEPS = ("write_with_mode_of", "replace_file", "link_old_file", "move_file")


def rotate_until_killed(settings: Settings, survived: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Rotate as a process that is killed after some changes of files.

    Return True if the rotation is complete, since it has no more changes than that.
    """
    left = survived

    def make_mortal(step: Callable[..., None]) -> Callable[..., None]:
        def run(*arguments: Any) -> None:
            nonlocal left
            if not left:
                raise Killed
            left -= 1
            step(*arguments)

        return run

    with monkeypatch.context() as patched:
        for name in STEPS:
            patched.setattr(replacing, name, make_mortal(getattr(replacing, name)))
        try:
            rotate(settings)
        except Killed:
            return False
    return True


@every_layout
@pytest.mark.parametrize("survived", range(9))
def test_interrupted_rotation_can_be_repeated(
    layout: Layout, survived: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before or after any change of a file, the keys work and a repeat completes."""
    settings = layout(tmp_path)
    old = mint.mint_token(settings, "me")

    is_complete = rotate_until_killed(settings, survived, monkeypatch)
    assert is_accepted(settings, old)
    assert is_accepted(settings, mint.mint_token(settings, "me"))

    if not is_complete:
        with open_rotation(settings) as rotation:
            if not rotation.removable:
                assert rotation.unfinished == (survived > 0)
                rotation.publish_new_key(LATER + 1)
                rotation.activate_new_key(keep=True)

    with open_rotation(settings) as rotation:
        assert len(rotation.removable) == 1
        assert not rotation.unfinished
        rotation.remove_old_keys()
    assert is_accepted(settings, mint.mint_token(settings, "me"))
    assert not is_accepted(settings, old)
    assert not [name for name in files(tmp_path) if name.endswith((".new", ".next"))]


def rotate(settings: Settings) -> None:
    with open_rotation(settings) as rotation:
        complete(rotation)


def complete(rotation: Rotation) -> None:
    rotation.publish_new_key(LATER)
    rotation.activate_new_key(keep=True)


def test_incomplete_new_key_is_generated_again(tmp_path: Path) -> None:
    settings = pem_layout(tmp_path)
    following = tmp_path / "signing.pem.next"
    following.write_bytes(settings.signing.key_file.read_bytes()[:50])
    following.chmod(0o600)
    (tmp_path / ".signing.pub.pem.new").write_text("half")
    with open_rotation(settings) as rotation:
        assert rotation.unfinished
        rotation.publish_new_key(LATER)
        rotation.activate_new_key(keep=False)
    assert files(tmp_path) == {"signing.pem", "signing.pub.pem"}
    assert is_accepted(settings, mint.mint_token(settings, "me"))


def test_links_stay_links(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    settings = pem_layout(tmp_path / "real")
    private = tmp_path / "link.pem"
    public = tmp_path / "link.pub.pem"
    private.symlink_to("real/signing.pem")
    public.symlink_to("real/signing.pub.pem")
    linked = replace(
        settings,
        authorization=replace(settings.authorization, verification_key_files=(public,)),
        signing=Signing(private),
    )
    rotate(linked)
    assert private.is_symlink()
    assert public.is_symlink()
    assert is_accepted(settings, mint.mint_token(settings, "me"))


def test_concurrent_rotation_is_a_conflict(tmp_path: Path) -> None:
    settings = pem_layout(tmp_path)
    with (
        open_rotation(settings),
        pytest.raises(Conflict, match="Another process"),
        open_rotation(settings),
    ):
        pass
    with open_rotation(settings):
        pass


def test_unfinished_rotation_is_a_conflict(tmp_path: Path) -> None:
    settings = pem_layout(tmp_path)
    rotate(settings)
    with pytest.raises(Conflict, match="not finished"):
        Rotation(settings).check()


def inline(folder: Path) -> Settings:
    settings = pem_layout(folder)
    (public,) = settings.authorization.verification_key_files
    other = signing.build_public_pem(signing.generate_key("ES256"), "ES256").decode()
    given = replace(settings.authorization, verification_keys=(other, public.read_text()))
    return replace(settings, authorization=given)


def foreign(folder: Path) -> Settings:
    settings = pem_layout(folder)
    settings.signing.key_file.write_bytes(signing.generate_key("ES256"))
    return settings


def secret_file(folder: Path) -> Settings:
    file, _ = write_keys(folder, "HS256")
    given = Authorization(algorithm="HS256", verification_key_files=(file,))
    return Settings(authorization=given, signing=Signing(file))


def named(folder: Path) -> Settings:
    settings = jwks_layout(folder, kid="ours")
    return replace(settings, signing=replace(settings.signing, key_id="ours"))


@pytest.mark.parametrize(
    ("layout", "told", "hint"),
    [
        (inline, "in the configuration itself", "verification_key_files"),
        (foreign, "has the public key of", "agentctl keys jwks"),
        (secret_file, "one shared secret", "jwks_file"),
        (named, "the kid 'ours' of the old one", "remove key_id"),
    ],
)
def test_unsuitable_configurations_are_rejected(
    layout: Layout, told: str, hint: str, tmp_path: Path
) -> None:
    settings = layout(tmp_path)
    before = published(settings)
    there = files(tmp_path)
    with pytest.raises(InvalidKey, match=told) as refusal:
        Rotation(settings).check()
    assert hint in str(refusal.value.hint)
    assert (published(settings), files(tmp_path)) == (before, there)


def test_entry_without_kid_cannot_be_rotated(tmp_path: Path) -> None:
    settings = jwks_layout(tmp_path, kid=None)
    before = published(settings)
    rotation = Rotation(settings)
    rotation.check()
    with pytest.raises(InvalidKey, match="no kid") as refusal:
        rotation.publish_new_key(LATER)
    assert rotation.old_thumbprint in str(refusal.value.hint)
    assert published(settings) == before


def test_invalid_new_set_is_not_written(tmp_path: Path) -> None:
    settings = jwks_layout(tmp_path)
    rotate(settings)
    jwks = tmp_path / "jwks.json"
    document = json.loads(jwks.read_text())
    del document["keys"][1]
    jwks.write_text(json.dumps(document))
    with open_rotation(settings) as rotation, pytest.raises(InvalidKey, match="is not valid"):
        rotation.remove_old_keys()
    assert json.loads(jwks.read_text()) == document


def test_malformed_mark_is_rejected(tmp_path: Path) -> None:
    settings = jwks_layout(tmp_path, **{REMOVE_AFTER_MEMBER: "soon"})
    with pytest.raises(InvalidKey, match="may be removed"):
        Rotation(settings)


@pytest.mark.parametrize("step", ["replace_file", "write_with_mode_of", "link_old_file"])
def test_write_error_leaves_files_unchanged(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = pem_layout(tmp_path)
    before = published(settings)
    private = settings.signing.key_file.read_bytes()
    (tmp_path / ".signing.pub.pem.new").mkdir() if step == "replace_file" else None
    rotation = Rotation(settings)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "the text of the system")

    if step != "replace_file":
        monkeypatch.setattr(replacing, step, full)
    with pytest.raises(InvalidKey) as failure:
        complete(rotation)
    assert failure.value.cause in {
        os.strerror(errno.ENOSPC).lower(),
        os.strerror(errno.EISDIR).lower(),
    }
    assert settings.signing.key_file.read_bytes() == private
    if step != "link_old_file":
        assert published(settings) == before


def test_existing_backup_file_is_kept(tmp_path: Path) -> None:
    settings = pem_layout(tmp_path)
    rotation = Rotation(settings)
    rotation.publish_new_key(LATER)
    stranger = tmp_path / f"signing.{rotation.old_thumbprint[:8]}.pem"
    stranger.write_text("precious")
    with pytest.raises(InvalidKey, match="cannot replace"):
        rotation.activate_new_key(keep=True)
    assert stranger.read_text() == "precious"


def test_missing_folder_is_an_error(tmp_path: Path) -> None:
    settings = Settings(signing=Signing(tmp_path / "none" / "signing.pem"))
    with pytest.raises(InvalidKey, match="cannot be opened"), open_rotation(settings):
        pass


def test_published_files_list_their_keys() -> None:
    key = load_signing_key(signing.generate_key("ES256"), get_algorithm("ES256"))
    name = signing.key_thumbprint(key)
    text = signing.encode_public_pem(key)
    assert PemFile(text, key.spec).removal_times() == {name: None}
    marked = PemFile(text, key.spec).with_new_key(name, key, LATER)
    assert PemFile(marked, key.spec).removal_times() == {name: LATER}
    assert (
        PemFile(marked, key.spec)
        .with_new_key(name, key, 0)
        .startswith(b"agentctl: remove after 1970")
    )
    assert PemFile(marked, key.spec).without_keys({name}) == b""
    entries = [signing.build_jwk(key, "a"), {"kty": "oct", "k": b64(b"x")}, {"kty": "odd"}]
    file = JwksFile(json.dumps({"keys": entries}).encode())
    assert set(file.removal_times()) == {name, signing.key_thumbprint(hmac_key(b"x"))}


def hmac_key(secret: bytes) -> Any:
    from agentctl.auth.keys.signing import SigningKey

    return SigningKey(get_algorithm("HS256"), secret)
