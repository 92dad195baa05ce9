"""Runs, in rooms of which each imports those before it.

They are log, desk, workers, gate, life, engine, follow and jobs. `states`, which all rooms use, is
outside of them. The work of an agent in a run is in `runtime`, the SQL of runs in `store`, and the
operations of callers in `service`. Times are microseconds UTC. What uses a database raises
Unavailable if the database does not answer.
"""
