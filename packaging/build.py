"""Build what a release consists of: `make dist`, or `python packaging/build.py --out FOLDER`.

- `agentctl-VERSION-py3-none-any.whl`, the wheel
- `agentctl_client-VERSION-py3-none-any.whl`, the modules of `agentctl.client` alone, for programs
  that use a server
- `agentctl-VERSION.tar.gz`, the source archive: every file of the commit, and PKG-INFO
- `agentctl-client-VERSION.tgz`, the TypeScript client as a package for npm
- `agentctl-guide-VERSION.tgz`, the documentation site as static files (`packaging/site`)
- `agentctl-VERSION.cdx.json`, the software bill of materials (CycloneDX): the locked packages, and
  the libraries inside of the console
- `requirements.lock`, the locked packages with their hashes, for `pip install --require-hashes`
- `SHA256SUMS`, for `sha256sum --check`

The files depend on the commit and on the versions of the tools alone: two builds are the same
bytes. Times are those of the commit. Changes that are not committed are not part of a build.
"""

from __future__ import annotations

import argparse
import base64
import email
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LOCK = "requirements.lock"
CLIENT = "packaging/typescript"
CLIENT_FILES = ("package.json", "agentctl.js", "agentctl.d.ts", "api.d.ts")
VENDORED = "agentctl/server/console/vendor/vendor.json"

CLIENT_PARTS = ("client", "errors", "extensions", "interface", "records", "remote")
"""The parts of the package that `agentctl.client` imports; tests/clients/test_imports.py."""

CLIENT_LIBRARIES = ("httpx2", "orjson", "typing-extensions")
_CLIENT_METADATA = ("Metadata-Version", "Version", "License-Expression", "Requires-Python")

_BUILD_WHEEL = "import setuptools.build_meta as b, sys; b.build_wheel(sys.argv[1])"


def main() -> None:
    """Build all files into an empty folder and print their hashes.

    Raises:
        SystemExit: the folder is not empty, or a tool failed.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="an absent or empty folder")
    parser.add_argument("--commit", default="HEAD", help="the commit to build (default: HEAD)")
    parser.add_argument("--no-bom", action="store_true", help="without the bill of materials")
    parser.add_argument("--no-guide", action="store_true", help="without the documentation site")
    options = parser.parse_args()
    folder: Path = options.out.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise SystemExit(f"error: {folder} is not empty\n  hint: remove it: rm -r {folder}")
    os.umask(0o022)  # The modes of files are part of both archives.
    with tempfile.TemporaryDirectory() as temporary:
        tree = Path(temporary, "tree")
        _export(options.commit, tree)
        epoch = int(_git("log", "-1", "--format=%ct", options.commit))
        environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch), "PYTHONHASHSEED": "0"}
        wheel = _build_wheel(tree, folder, environment)
        _write_client_wheel(wheel, epoch)
        _export(options.commit, source := Path(temporary, "source"))
        _write_source_archive(source, wheel, epoch)
        _write_client_package(source / CLIENT, wheel, epoch)
        if not options.no_guide:
            _write_guide(source, wheel, epoch)
        if not options.no_bom:
            _write_bill_of_materials(source, wheel, environment)
        shutil.copyfile(source / LOCK, folder / LOCK)
    sums = [
        f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n"
        for file in sorted(folder.iterdir())
    ]
    (folder / "SHA256SUMS").write_text("".join(sums))
    print("".join(sums), end="")


def _git(*arguments: str) -> bytes:
    command = ["git", "-C", str(ROOT), "-c", "tar.umask=0022", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout


def _export(commit: str, folder: Path) -> None:
    """Write the files of a commit into a new folder, with its time and fixed modes."""
    with tarfile.open(fileobj=io.BytesIO(_git("archive", "--format=tar", commit))) as content:
        content.extractall(folder, filter="data")


def _build_wheel(tree: Path, folder: Path, environment: dict[str, str]) -> Path:
    command = [sys.executable, "-c", _BUILD_WHEEL, str(folder)]
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr.decode())
    return next(folder.glob("agentctl-*.whl"))


def _write_client_wheel(wheel: Path, epoch: int) -> None:
    """Write the wheel of the client: its modules in the wheel, and metadata of its own."""
    name = "-".join(wheel.name.split("-")[:2])
    info = name.replace("agentctl-", "agentctl_client-") + ".dist-info"
    with zipfile.ZipFile(wheel) as content:
        metadata = email.message_from_bytes(content.read(f"{name}.dist-info/METADATA"))
        files = {
            entry: content.read(entry)
            for entry in content.namelist()
            if entry in ("agentctl/__init__.py", "agentctl/py.typed")
            or entry.split("/")[1].removesuffix(".py") in CLIENT_PARTS
        }
        tags = content.read(f"{name}.dist-info/WHEEL")
    lines = [f"{field}: {metadata[field]}" for field in _CLIENT_METADATA if field in metadata]
    lines[1:1] = ["Name: agentctl-client", "Summary: The Python client of agentctl servers"]
    lines += [
        f"Requires-Dist: {needed}"
        for needed in metadata.get_all("Requires-Dist", [])
        if re.split("[^a-z0-9-]", needed)[0] in CLIENT_LIBRARIES and ";" not in needed
    ]
    files[f"{info}/METADATA"] = "\n".join([*lines, "", ""]).encode()
    files[f"{info}/WHEEL"] = tags
    record = f"{info}/RECORD"
    rows = [f"{entry},sha256={_hash_entry(data)},{len(data)}\n" for entry, data in files.items()]
    files[record] = "".join([*rows, f"{record},,\n"]).encode()
    target = wheel.with_name(wheel.name.replace("agentctl-", "agentctl_client-"))
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for entry, data in files.items():
            place = zipfile.ZipInfo(entry, time.gmtime(epoch)[:6])
            place.external_attr = 0o100644 << 16
            place.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(place, data)


def _hash_entry(data: bytes) -> str:
    """Return a hash in the form of the RECORD of a wheel (PEP 376, PEP 427)."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
    return digest.rstrip(b"=").decode()


def _write_source_archive(tree: Path, wheel: Path, epoch: int) -> None:
    """Write the files of the commit with the metadata of the wheel as PKG-INFO (PEP 625)."""
    name = "-".join(wheel.name.split("-")[:2])
    with zipfile.ZipFile(wheel) as content:
        metadata = content.read(f"{name}.dist-info/METADATA")
    (tree / "PKG-INFO").write_bytes(metadata)
    files = {f"{name}/{file.relative_to(tree)}": file for file in tree.rglob("*") if file.is_file()}
    _write_archive(wheel.with_name(f"{name}.tar.gz"), files, epoch)


def _write_client_package(folder: Path, wheel: Path, epoch: int) -> None:
    """Write the package of the client with the version of the wheel, as `npm pack` does."""
    version = wheel.name.split("-")[1]
    description = folder / "package.json"
    described = json.loads(description.read_text())
    description.write_text(json.dumps(described | {"version": version}, indent=2) + "\n")
    files = {f"package/{name}": folder / name for name in CLIENT_FILES}
    files["package/LICENSE"] = folder.parents[1] / "LICENSE"
    _write_archive(wheel.with_name(f"agentctl-client-{version}.tgz"), files, epoch)


def _write_guide(tree: Path, wheel: Path, epoch: int) -> None:
    """Write the documentation site of the commit, in a folder `guide`."""
    site = tree / "build" / "guide"
    command = [sys.executable, str(tree / "packaging/site/build.py"), "--out", str(site)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)

    files = {f"guide/{file.relative_to(site)}": file for file in site.rglob("*") if file.is_file()}
    version = wheel.name.split("-")[1]
    _write_archive(wheel.with_name(f"agentctl-guide-{version}.tgz"), files, epoch)


def _write_archive(target: Path, files: dict[str, Path], epoch: int) -> None:
    """Write files, by their names in the archive, with fixed modes and owners."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, file in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size = file.stat().st_size
            entry.mtime = epoch
            entry.mode = 0o755 if os.access(file, os.X_OK) else 0o644
            with file.open("rb") as data:
                archive.addfile(entry, data)
    target.write_bytes(gzip.compress(packed.getvalue(), mtime=epoch))


def _write_bill_of_materials(tree: Path, wheel: Path, environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "cyclonedx_py", "requirements", LOCK]
    command += ["--pyproject", "pyproject.toml", "--output-reproducible", "--of", "JSON"]
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, check=False)
    if done.returncode:
        raise SystemExit(f"{done.stderr.decode()}error: the bill of materials failed")
    bill: dict[str, Any] = json.loads(done.stdout)
    vendored = json.loads((tree / VENDORED).read_text())
    components = bill["components"]
    for component in components:
        # The description is the text of the line with its hashes, the reference its number.
        del component["description"]
        component["bom-ref"] = component["purl"]
    components += [_describe_vendored(name, package) for name, package in vendored.items()]
    components.sort(key=lambda component: component["bom-ref"])
    references = [component["bom-ref"] for component in components]
    root = bill["metadata"]["component"]["bom-ref"]
    bill["dependencies"] = [
        {"ref": root, "dependsOn": references},
        *({"ref": reference} for reference in references),
    ]
    name = "-".join(wheel.name.split("-")[:2])
    wheel.with_name(f"{name}.cdx.json").write_text(json.dumps(bill, indent=2) + "\n")


def _describe_vendored(name: str, package: dict[str, Any]) -> dict[str, Any]:
    """Return a package of npm whose files are inside of the console."""
    digest = base64.b64decode(package["integrity"].removeprefix("sha512-")).hex()
    url = f"pkg:npm/{name}@{package['version']}"
    return {
        "bom-ref": url,
        "type": "library",
        "name": name,
        "version": package["version"],
        "purl": url,
        "licenses": [{"license": {"id": package["license"]}}],
        "hashes": [{"alg": "SHA-512", "content": digest}],
    }


if __name__ == "__main__":
    main()
