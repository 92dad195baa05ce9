"""Any content of the file gives settings or a one-line error, never another exception."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from agentctl.config import SAMPLE_CONFIG, effective_settings, load_settings
from agentctl.config.tables import ENTRY_TABLES, section_keys
from agentctl.errors import InvalidConfiguration

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
scalars = st.one_of(st.booleans(), st.integers(), st.floats(), texts, st.dates(), st.none())
keys = st.one_of(texts, st.sampled_from(["id", "model", "members", "steps", "name", "url", "port"]))
values = st.recursive(
    scalars.filter(lambda value: value is not None),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=6,
)


def check_load(data: bytes, environ: dict[str, str]) -> None:
    """Load a file, and assert that an error has one line."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "agentctl.toml"
        file.write_bytes(data)
        detail = error_of(file, environ)
        assert detail is None or detail.isprintable()


def error_of(file: Path, environ: dict[str, str]) -> str | None:
    try:
        effective_settings(load_settings(file, environ))
    except InvalidConfiguration as refusal:
        return refusal.detail
    return None


@given(st.binary(max_size=60) | texts.map(str.encode))
def test_any_bytes_give_settings_or_one_line(data: bytes) -> None:
    check_load(data, {})


@given(st.sampled_from([*section_keys(), *ENTRY_TABLES]), values)
def test_any_value_gives_settings_or_one_line(key: str, value: Any) -> None:
    section, _, name = key.partition(".")
    document = {section: {name: value}} if name else {section: value}
    check_load(tomli_w.dumps(document).encode(), {})


@given(
    st.sampled_from([*ENTRY_TABLES]),
    st.lists(st.dictionaries(keys, values, max_size=4), max_size=3),
)
def test_any_entries_give_settings_or_one_line(name: str, entries: list[dict[str, Any]]) -> None:
    check_load(tomli_w.dumps({name: entries}).encode(), {})


@given(st.sampled_from(section_keys()), st.text(max_size=20))
def test_any_variable_gives_settings_or_one_line(key: str, text: str) -> None:
    check_load(SAMPLE_CONFIG.encode(), {f"AGENTCTL_{key.replace('.', '__')}".upper(): text})
