"""Hand a command to the process of `tests.forking`, and end with its exit code."""

# pathlib is not imported: it would double the time.
import json
import os
import socket
import sys

with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(sys.argv[1])
    request = {"words": sys.argv[2:], "folder": os.getcwd(), "environment": dict(os.environ)}  # noqa: PTH109
    body = json.dumps(request).encode()
    socket.send_fds(connection, [b"%8d" % len(body)], [0, 1, 2])
    connection.sendall(body)
    _process_id, code = connection.recv(8, socket.MSG_WAITALL), int(connection.recv(8))
    sys.exit(code if code >= 0 else 128 - code)
