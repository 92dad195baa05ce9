"""The interface that the server and both backends have: operations, their requests, declarations.

Records, which operations return, are in `records`. The backends are `service` and `remote`.
"""
