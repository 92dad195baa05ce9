"""The vendored libraries of the console: `python -m tests.kit.vendored` fetches them with npm.

`vendor.json` in a folder names the packages with version and integrity, and the files of each with
their SHA-256. A file is stored as its package has it, except for the bare imports, which a browser
cannot resolve, and the reference to a source map. A file named `.xz` is compressed.
"""

from __future__ import annotations

import base64
import hashlib
import json
import lzma
import re
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Any

__all__ = ["FOLDERS", "read_manifest", "read_vendored"]

ROOT = Path(__file__).parents[2]
FOLDERS = (ROOT / "agentctl/server/console/vendor", ROOT / "tests/console/vendor")

_SOURCE_MAP = re.compile(rb"\n//# sourceMappingURL=\S+\s*$")


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the packages of a folder by name."""
    manifest: dict[str, Any] = json.loads((folder / "vendor.json").read_text())
    return manifest


def read_vendored(file: Path) -> bytes:
    """Return the content of a vendored file, decompressed."""
    data = file.read_bytes()
    return lzma.decompress(data) if file.suffix == ".xz" else data


def main() -> None:
    """Fetch every package, check its integrity and write its files, licences and hashes.

    Raises:
        SystemExit: a package is not the one of the manifest.
    """
    for folder in FOLDERS:
        manifest = read_manifest(folder)
        licences = list[str]()
        for name, package in manifest.items():
            archive = _fetch(name, package["version"])
            digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
            if package["integrity"] != f"sha512-{digest}":
                raise SystemExit(f"{name} {package['version']} has the hash sha512-{digest}")
            with tarfile.open(archive) as content:
                for target, file in package["files"].items():
                    data = _adapt(_read(content, file["from"]))
                    file["sha256"] = hashlib.sha256(data).hexdigest()
                    stored = lzma.compress(data) if target.endswith(".xz") else data
                    (folder / target).write_bytes(stored)
                text = _read(content, "package/LICENSE").decode().strip()
            head = f"{name} {package['version']}, {package['license']}"
            licences.append(f"{head}\n{'=' * len(head)}\n\n{text}\n")
            archive.unlink()
        (folder / "vendor.json").write_text(json.dumps(manifest, indent=2) + "\n")
        (folder / "LICENSES").write_text("\n\n".join(licences))


def _fetch(name: str, version: str) -> Path:
    folder = tempfile.mkdtemp()
    subprocess.run(
        ["npm", "pack", "--silent", "--pack-destination", folder, f"{name}@{version}"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return next(Path(folder).iterdir())


def _read(content: tarfile.TarFile, name: str) -> bytes:
    member = content.extractfile(name)
    assert member is not None, name
    return member.read()


def _adapt(data: bytes) -> bytes:
    """Return a module whose imports a browser resolves."""
    return _SOURCE_MAP.sub(b"\n", data).replace(b'from"preact"', b'from"./preact.mjs"')


if __name__ == "__main__":
    main()
