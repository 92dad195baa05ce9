"""Work that must truly stop: the run that code belongs to, what that code starts, and its end.

The event loop of a process, its threads, tasks and child processes are here; what a run does is in
`runs` and `runtime`. The room imports nothing of the package but `errors`.
"""
