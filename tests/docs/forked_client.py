"""Hand a command to the process of `tests.docs.forked`, and end with its exit code."""

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
    sys.exit(int(connection.recv(8)))
