"""Tests forget the modules that they write, and no others."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from tests.kit.user_modules import forget_user_modules


def test_next_module_of_the_same_name_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = []
    before = set(sys.modules)
    for answer in ("one", "two"):
        (tmp_path / answer).mkdir()
        (tmp_path / answer / "shop_of_this_test.py").write_text(f"ANSWER = {answer!r}\n")
        with monkeypatch.context() as patch:
            patch.syspath_prepend(tmp_path / answer)
            answers.append(importlib.import_module("shop_of_this_test").ANSWER)
        forget_user_modules()
    assert answers == ["one", "two"]
    assert set(sys.modules) >= before


def test_modules_that_a_caller_keeps_are_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kept_of_this_test.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("kept_of_this_test")
    forget_user_modules({"kept_of_this_test"})
    assert sys.modules.pop("kept_of_this_test")
