"""The local backend: the operations on databases, with policy, audit log and data scoping.

A family of operations is a module. Programs for administrators that are no operations are in
`admin`, and the execution of runs in `runs`.
"""
