"""Agents with `world_tools` of a deployment, for the configuration of tests of several folders.

`{url}` is the place of the model endpoint.
"""

from __future__ import annotations

__all__ = ["ADD", "OFFICE", "OPEN", "PLANNED"]

PLANNED = """
[[models]]
id = "plan"
provider = "openai"
model = "plan"
base_url = "{url}"
retries = 0

[[agents]]
id = "payer"
model = "plan"
tools = ["world_tools:add"]
approve = {{ add = "user" }}

[[agents]]
id = "careful"
model = "plan"
tools = ["world_tools:add"]
approve = {{ add = "other" }}
"""
"""Agents whose message is the plan of their calls; the user, or somebody else, approves them."""

OFFICE = """
[[agents]]
id = "asker"
model = "tool-add"
tools = ["world_tools:add"]
approve = {{ add = "user" }}

[[teams]]
id = "office"
mode = "route"
model = "delegate"
members = ["asker"]
"""
"""A team whose member asks the user before each call."""

ADD = {"name": "add", "arguments": {"a": 1, "b": 2}}
"""A planned call."""

OPEN = {
    "name": "open_file",
    "description": "Open a file in the page",
    "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
}
"""A tool of the caller."""
