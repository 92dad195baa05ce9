"""Commands that install a missing package into the environment of this process.

The command for an extra names the source of this installation or the requirements of the extra, not
`agentctl` itself: a package index may have another package of this name.
"""

from __future__ import annotations

import re
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

_PACKAGE = "agentctl"

IMAGE_MARK = "image"
"""The file that marks the environment of a container image; the container file creates it."""

_CONTAINER_FILE = "packaging/container/Containerfile"


def build_extra_command(extra: str) -> str:
    """Return the command that installs an extra of this package.

    A clone or folder that was installed is installed again with the extra. After an installation
    from a wheel, the requirements of the extra are installed.
    """
    import json
    from importlib import metadata

    try:
        distribution = metadata.distribution(_PACKAGE)
    except metadata.PackageNotFoundError:
        # A clone on PYTHONPATH.
        return build_install_command("-e", f"{Path(__file__).parents[2]}[{extra}]")

    # PEP 610: where the distribution was installed from; absent after an installation by name.
    source = json.loads(distribution.read_text("direct_url.json") or "{}")
    folder = unquote(urlsplit(source.get("url", "")).path)
    if "dir_info" in source and Path(folder).is_dir():
        editable = ["-e"] if source["dir_info"].get("editable") else []
        return build_install_command(*editable, f"{folder}[{extra}]")

    condition = re.compile(rf"(?P<package>[^;]+?)\s*;\s*extra == .{re.escape(extra)}.")
    matches = map(condition.fullmatch, distribution.requires or ())
    return build_install_command(*(match["package"] for match in matches if match))


def build_install_command(*arguments: str) -> str:
    """Return a shell command that installs into this environment, with pip or else with uv.

    The environment of a container image cannot be changed; there it is the command that builds the
    image.
    """
    if Path(sys.prefix, IMAGE_MARK).exists():
        packages = shlex.quote(f"EXTRAS={' '.join(arguments)}")
        return f"buildah build --format docker --build-arg {packages} -f {_CONTAINER_FILE} ."

    python = shlex.quote(sys.executable)
    pip = f"{python} -m pip install" if find_spec("pip") else f"uv pip install --python {python}"
    return f"{pip} {shlex.join(arguments)}"
