"""Settings round-trip through the text for other processes."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentctl.config import SAMPLE_CONFIG, Settings, load_settings
from agentctl.config.tables import SECTIONS, list_sections, settings_from_text, settings_to_text
from agentctl.records.value_types import Range, ValueType, field_types

paths = st.text(st.characters(exclude_characters="\0"), min_size=1, max_size=12).map(Path)
SCALARS: dict[object, st.SearchStrategy[Any]] = {
    str: st.text(max_size=12),
    bool: st.booleans(),
    Path: paths,
    dict: st.dictionaries(st.text(max_size=6), st.integers(0, 9), max_size=3),
}


def values(kind: ValueType) -> st.SearchStrategy[Any]:
    """Everything that a key of this kind can hold, and some texts that it cannot."""
    if kind.is_list:
        made: st.SearchStrategy[Any] = st.lists(values(kind.item), max_size=3).map(tuple)
    elif kind.is_table:
        made = st.dictionaries(st.text(max_size=6), values(kind.item), max_size=3)
    elif dataclasses.is_dataclass(kind.kind):
        made = tables(kind.kind)
    elif kind.choices:
        made = st.sampled_from(kind.choices)
    else:
        made = SCALARS[kind.kind] if kind.kind in SCALARS else numbers(kind)
    return made | st.none() if kind.optional else made


def numbers(kind: ValueType) -> st.SearchStrategy[Any]:
    """Numbers in the range of the key; whole ones where fractions are allowed as well."""
    (bounds,) = (rule for rule in kind.rules if isinstance(rule, Range))
    low = bounds.low
    high = bounds.high
    whole: st.SearchStrategy[Any] = st.integers(int(-(-low // 1)), int(high))
    return whole if kind.kind is int else whole | st.floats(low, high)


def tables(cls: Any) -> st.SearchStrategy[Any]:
    """Any table of this class."""
    built = {name: values(kind) for name, kind in field_types(cls).items() if name != "added"}
    if cls is Settings:
        added = {name: tables(table) for name, table in list_sections().items()}
        built["added"] = st.fixed_dictionaries(
            {name: table for name, table in added.items() if name not in SECTIONS}
        )
    return st.builds(cls, **built)


@given(tables(Settings))
def test_any_settings_round_trip(given: Settings) -> None:
    text = settings_to_text(given)
    back = settings_from_text(text)
    assert back == given
    assert repr(back) == repr(given)  # 1 is 1.0 for `==`
    assert text.isascii()
    assert text.isprintable()


def test_loaded_settings_round_trip_with_secrets(tmp_path: Path) -> None:
    file = tmp_path / "agentctl.toml"
    file.write_text(SAMPLE_CONFIG, encoding="utf-8")
    loaded = load_settings(file, {"JWT_VERIFICATION_KEY": "a secret", "JWT_JWKS_FILE": "keys.json"})
    back = settings_from_text(settings_to_text(loaded))
    assert back == loaded
    assert back.authorization.verification_keys == ("a secret",)
    assert back.sources["authorization.jwks_file"].endswith(", env JWT_JWKS_FILE")


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Settings)])
def test_every_table_round_trips(name: str, tmp_path: Path) -> None:
    file = tmp_path / "agentctl.toml"
    file.write_text(SAMPLE_CONFIG, encoding="utf-8")
    loaded = load_settings(file, {})
    back = settings_from_text(settings_to_text(loaded))
    assert type(getattr(back, name)) is type(getattr(loaded, name))
    assert getattr(back, name) == getattr(loaded, name)
