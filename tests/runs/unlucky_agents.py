"""The components whose database calls fail in the tests, and the ledger of what they really did.

Each of them makes three calls that have an effect: `note` at once, `pay` after an approval, and
`note` again in the leg after the pause. The message is a plan: a JSON list of the answers of the
model (`plan` of the model endpoint). Functions and generators ignore it. `unlucky_libraries` has
the agents of libraries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator

import agentctl

ledger: Counter[tuple[str, str]] = Counter()
"""The effects by session and name: the truth outside of the database."""


async def make_note(context: agentctl.RunContext) -> str:
    """Have an effect, and use everything that a run can read and write."""
    ledger[context.session_id, "note"] += 1
    for file in context.files:
        assert await file.read() == b"a text"
        await context.file_path(file)
    saved = await context.save_file("note.txt", b"a note")

    memories = context.memories
    assert memories is not None
    # One word, which no memory of another session has.
    word = context.session_id.replace("-", "")
    kept = await memories.remember(f"train {word}")
    assert await memories.update(kept.memory_id, f"night {word}")
    assert [memory.memory for memory in await memories.recall(word)] == [f"night {word}"]
    assert await memories.forget(kept.memory_id)
    assert not await memories.forget(kept.memory_id)

    context.state["noted"] = True
    return f"noted {saved.name}"


def make_payment(context: agentctl.RunContext) -> str:
    """Have the effect that was approved."""
    ledger[context.session_id, "pay"] += 1
    return "paid"


async def note(context: agentctl.RunContext) -> str:
    """Take a note."""
    return await make_note(context)


@agentctl.tool(approve="user")
async def pay(amount: int, context: agentctl.RunContext) -> str:
    """Pay an amount."""
    return make_payment(context)


async def function(message: str, context: agentctl.RunContext) -> str:
    """Take a note in a step, ask for an approval, pay in a step, and take another note."""

    async def take_note() -> str:
        return await make_note(context)

    async def give() -> str:
        return make_payment(context)

    noted = await context.step("note", take_note)
    await context.approve("pay", {"amount": 1})
    paid = await context.step("pay", give)
    again = await context.step("note", take_note)
    return f"{noted} {paid} {again}"


async def generator(message: str, context: agentctl.RunContext) -> AsyncIterator[str]:
    """Do the same as `function`, with text before and after each step."""

    async def take_note() -> str:
        return await make_note(context)

    async def give() -> str:
        return make_payment(context)

    yield "I take a note. "
    yield str(await context.step("note", take_note))
    yield " I pay. "
    await context.approve("pay", {"amount": 1})
    yield str(await context.step("pay", give))
    yield str(await context.step("note", take_note))
