"""The JSON Schema of `agentctl.toml`, for editors and other tools (`agentctl config schema`).

It is made of the declarations that validate the configuration, with the comments of `sample.toml`
as descriptions. The loader checks more: what two keys mean together, and names in other tables.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from agentctl.config.load import SAMPLE_CONFIG
from agentctl.config.tables import FORMER_KEYS
from agentctl.config.validation import build_schema

DIALECT = "http://json-schema.org/draft-07/schema#"
"""The dialect that editors of TOML understand."""

_SECTION = re.compile(r"^(?:# )?\[\[?([a-z_.]+)\]\]?(?: +# (.+))?")
"""The header of a table in the sample, which may be commented out: its path and its comment."""

_KEY = re.compile(r"^(?:# )?([a-z_]+) = [^#]*?(?:\"[^\"]*\"[^#]*)*# (.+)$")
"""A key in the sample, which may be commented out: its name and its comment."""

_MORE = re.compile(r"^(?:# )? {20,}# (.+)$")
"""A further line of the comment of a key."""


def build_json_schema() -> dict[str, Any]:
    """Return the schema of a configuration file, with the tables of extensions."""
    schema: dict[str, Any] = _to_draft_7(build_schema())
    for table in schema["definitions"].values():
        # The rest of a docstring is for readers of the code.
        table["description"] = table["description"].partition("\n")[0]

    schema["$schema"] = DIALECT
    schema["title"] = "agentctl.toml"
    schema["description"] = (
        "Configuration of agentctl; `agentctl config check` checks the whole file"
    )

    for path, comment in _read_comments():
        _describe(schema, path, comment)
    for key, value in FORMER_KEYS.items():
        _add_former_key(schema, key.split("."), value)
    return schema


def _to_draft_7(part: Any) -> Any:
    """Return a copy of a schema in the words of draft 7, such as `definitions`."""
    if isinstance(part, list):
        return [_to_draft_7(item) for item in part]
    if not isinstance(part, dict):
        return part

    converted = {name: _to_draft_7(value) for name, value in part.items()}
    if "$defs" in converted:
        converted["definitions"] = converted.pop("$defs")
    if isinstance(converted.get("$ref"), str):
        # Draft 7 ignores what stands beside a reference.
        reference = {"$ref": converted.pop("$ref").replace("#/$defs/", "#/definitions/")}
        return {"allOf": [reference], **converted} if converted else reference
    return converted


def _read_comments() -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the path of each key of the sample with its comment: `("server", "port")`."""
    table: tuple[str, ...] = ()
    key: tuple[str, ...] | None = None
    words: list[str] = []

    for line in SAMPLE_CONFIG.splitlines():
        more = _MORE.match(line)
        if more is not None and key is not None:
            words.append(more[1])
            continue
        if key is not None:
            yield key, " ".join(words)
            key = None

        section = _SECTION.match(line)
        commented_key = _KEY.match(line)
        if section is not None:
            table = tuple(section[1].split("."))
            if len(table) > 1 and section[2] is not None:
                key = table
                words = [section[2]]
        elif commented_key is not None:
            key = (*table, commented_key[1])
            words = [commented_key[2]]

    if key is not None:
        yield key, " ".join(words)


def _describe(schema: dict[str, Any], path: tuple[str, ...], comment: str) -> None:
    """Put a comment before the description of a key; keys that the schema lacks are left out."""
    part = _find_table(schema, path[:-1])
    if part is None or path[-1] not in part["properties"]:
        return

    key = part["properties"][path[-1]]
    words = key.get("description")
    key["description"] = comment if words is None else f"{comment} ({words})"


def _find_table(schema: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any] | None:
    """Return the schema of a table, or of the entries of a list of tables; None if it has none."""
    part: Any = schema
    for name in path:
        part = part.get("properties", {}).get(name)
        if part is None:
            return None
        part = _resolve(schema, part.get("items", part))
    return part if "properties" in part else None


def _resolve(schema: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    """Return the definition that a part refers to; the part itself if it refers to none."""
    schemas = [part, *part.get("allOf", ())]
    reference = next((item["$ref"] for item in schemas if "$ref" in item), None)
    if reference is None:
        return part
    definition: dict[str, Any] = schema["definitions"][reference.removeprefix("#/definitions/")]
    return definition


def _add_former_key(schema: dict[str, Any], path: list[str], value: object) -> None:
    """Add a key that is a constant now: the loader still reads it with this value."""
    part = _find_table(schema, tuple(path[:-1]))
    if part is not None:
        words = "A constant now: remove the key"
        part["properties"][path[-1]] = {"const": value, "deprecated": True, "description": words}
