"""Conditions on stored texts that no index has: the metadata of a row and the error of a run.

They are for `Listing.read_compared`, which bounds the number of rows that are compared.
"""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from agentctl.interface.requests.list_filters import TAGS
from agentctl.store.database import Value
from agentctl.store.listing import Conditions, fold_ascii

MAXIMUM_METADATA = 8_192
"""Bytes of the largest metadata that filters are compared with (docs/contract.md "Lists")."""

MAXIMUM_COMPARED_METADATA = 2_000
"""Rows whose metadata is compared for a page: each one is parsed for each filter. To find that of a
run, SQLite reads the whole row."""

ERROR_TEXT = "lower(error_code || ' ' || coalesce(error_detail, ''))"
"""The text of the error of a run, NULL without one."""


def match_metadata(metadata: Sequence[str], tags: Sequence[str]) -> Conditions:
    """Return the condition that the metadata of a row has some values and tags.

    Args:
        metadata: `KEY=VALUE`. The value is a text, or the JSON text of another value.
        tags: texts of the array `tags`.
    """
    texts = list[str]()
    values = dict[str, Value]()
    for number, pair in enumerate(metadata):
        values[f"key_{number}"], _, text = pair.partition("=")
        values[f"text_{number}"], values[f"json_{number}"] = orjson.dumps(text).decode(), text
        member = f"json_member(metadata, :key_{number})"
        texts.append(f"{member} IN (:text_{number}, :json_{number})")
    for number, tag in enumerate(tags):
        values[f"tag_{number}"] = tag
        texts.append(f"json_has(metadata, '{TAGS}', :tag_{number})")
    if not texts:
        return Conditions()
    return Conditions().with_condition(
        # The condition of a CASE precedes the rest: a large text is not parsed, nor one with an
        # escaped NUL, which PostgreSQL refuses to read. It can be in an imported session.
        f"CASE WHEN octet_length(metadata) <= {MAXIMUM_METADATA}"
        r" AND metadata NOT LIKE '%\u0000%' ESCAPE '!'"
        f" THEN {' AND '.join(texts)} ELSE FALSE END",
        **values,
    )


def match_text(column: str, text: str) -> Conditions:
    """Return the condition that a column in lower case has a text, in any case of ASCII letters."""
    lowered = fold_ascii(text)
    for special in ("\\", "%", "_"):
        lowered = lowered.replace(special, f"\\{special}")
    return Conditions().with_condition(f"{column} LIKE :error ESCAPE '\\'", error=f"%{lowered}%")
