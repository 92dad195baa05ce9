"""Hand a command to the process of `tests.kit.forking`, and end with its exit code."""

# pathlib is not imported: it would double the time.
import json
import os
import signal
import socket
import sys

with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(sys.argv[1])
    request = {"words": sys.argv[2:], "folder": os.getcwd(), "environment": dict(os.environ)}  # noqa: PTH109
    body = json.dumps(request).encode()
    socket.send_fds(connection, [b"%8d" % len(body)], [0, 1, 2])
    connection.sendall(body)
    process = int(connection.recv(8, socket.MSG_WAITALL))
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda number, _: os.kill(process, number))
    code = int(connection.recv(8))
    sys.exit(code if code >= 0 else 128 - code)
