"""Modules in temporary folders, which tests write as users do and load in their process."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Collection
from pathlib import Path

import pytest

_PERMANENT = (
    sys.prefix,
    sys.base_prefix,
    str(Path(__file__).parents[2]),
    # The environment that has the packages: a copy of the repository uses those of its original.
    str(Path(pytest.__file__).parents[1]),
)
"""Folders that may be temporary ones themselves."""


_permanent_names = set[str]()
"""The modules that are known to be in permanent folders: there are thousands of them, and each test
looks for the other ones."""


def forget_user_modules(kept: Collection[str] = ()) -> None:
    """Forget the modules in temporary folders, except `kept`.

    The next test may have another folder with modules of the same names.
    """
    temporary = tempfile.gettempdir()
    # A copy: the thread of a server may import a module meanwhile.
    for name in [name for name in sys.modules.copy() if name not in _permanent_names]:
        file = getattr(sys.modules[name], "__file__", None) or ""
        if file.startswith(temporary) and not file.startswith(_PERMANENT):
            if name not in kept:
                del sys.modules[name]
        elif file:
            _permanent_names.add(name)
