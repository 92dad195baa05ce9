"""New ids."""

from __future__ import annotations

import os
import time
import uuid

from agentctl.records.text import new_id


def test_id_is_a_uuid_of_its_time() -> None:
    before = time.time_ns() // 1_000_000
    made = [new_id() for _ in range(1_000)]
    after = time.time_ns() // 1_000_000
    assert len(set(made)) == len(made)
    for text in made:
        parsed = uuid.UUID(text)
        assert str(parsed) == text
        assert (parsed.version, parsed.variant) == (7, uuid.RFC_4122)
        assert before <= parsed.int >> 80 <= after


def test_forked_process_creates_other_ids() -> None:
    new_id()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writing, "".join(new_id()[-12:] for _ in range(50)).encode())
        os._exit(0)
    os.close(writing)
    ours = {new_id()[-12:] for _ in range(50)}
    with os.fdopen(reading, encoding="ascii") as pipe:
        theirs = pipe.read()
    assert os.waitpid(pid, 0)[1] == 0
    assert len(theirs) == 50 * 12
    assert not ours & {theirs[at : at + 12] for at in range(0, len(theirs), 12)}
