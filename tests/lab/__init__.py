"""The lab: a world of servers, databases, model endpoint and ledger, which scenarios disturb.

A scenario has an entry of each of four lists: a deployment (`tests.lab.world`), a workload, some
disturbances (`tests.lab.disturbances`), and what it adds to the judge (`tests.lab.judge`).

    python -m tests.lab                the scenarios
    python -m tests.lab crashes --deployment sqlite --minutes 5
"""
