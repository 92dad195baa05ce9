"""Every two operations at once: one is stopped at each of its points while another runs through.

Two servers work on one database, SQLite or PostgreSQL. A schedule has a scene (a run that is new,
about to pause, paused, decided, in an approved call, about to end, lost, ended, or waits for
another run or for a slot), a first and a second operation. The first one is stopped at its point N:
before and after each write, at each statement, and at each await of its tasks. The second one runs
to its end, or until it waits for the first. Then the first goes on. N counts up until the first
operation ends without reaching it. Schedules of three operations stop two of them, at random points
with a printed seed.

`schedule` has the points, `servers` the servers and their death, `operations` the scenes and the
operations, `queued` those of runs that wait, and what the model endpoint must have seen, `judge`
the rules that hold afterwards, and `search` chooses the schedules and prints the table.

    python -m tests.pairs --engine sqlite --kinds agent,team --seed 1
"""
