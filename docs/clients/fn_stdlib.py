#!/usr/bin/env python3
"""A function that gets a ready PostgreSQL connection from pghandoff and runs a query: standard library only.

Usage: fn_stdlib.py HANDOFF-SOCKET ROUTE [SQL]
"""
import json
import socket
import struct
import sys


def acquire(path, **request):
    """Return a socket that stands at ReadyForQuery, and what pghandoff says about it."""
    request = {"v": 1, "op": "acquire", "state": "ready", "transport": "bridge", **request}
    with socket.socket(socket.AF_UNIX) as control:
        control.connect(path)
        control.sendall(json.dumps(request).encode() + b"\n")
        line, fds = b"", []
        while not line.endswith(b"\n"):
            data, more, _, _ = socket.recv_fds(control, 65536, 1, socket.MSG_CMSG_CLOEXEC)
            if not data:
                raise ConnectionError("pghandoff closed the connection")
            line, fds = line + data, fds + more
    reply = json.loads(line)
    if not reply["ok"]:
        raise PermissionError(f"{reply['message']} (SQLSTATE {reply['sqlstate']})")
    return socket.socket(fileno=fds[0]), reply


def query(conn, sql):
    """Run a simple query and return its rows, values as text."""
    body = sql.encode() + b"\0"
    conn.sendall(b"Q" + struct.pack("!i", len(body) + 4) + body)
    rows, stream = [], conn.makefile("rb")
    while True:
        kind, length = struct.unpack("!ci", stream.read(5))
        body = stream.read(length - 4)
        if kind == b"D":
            count, at, row = struct.unpack("!h", body[:2])[0], 2, []
            for _ in range(count):
                size = struct.unpack("!i", body[at:at + 4])[0]
                row.append(None if size < 0 else body[at + 4:at + 4 + size].decode())
                at += 4 + max(size, 0)
            rows.append(row)
        elif kind == b"E":
            raise RuntimeError(dict((f[:1].decode(), f[1:].decode()) for f in body.split(b"\0") if f)["M"])
        elif kind == b"Z":
            return rows


if __name__ == "__main__":
    connection, told = acquire(sys.argv[1], database=sys.argv[2], user="app")
    with connection:
        for values in query(connection, sys.argv[3] if len(sys.argv) > 3 else "select 'hello'"):
            print(*values, sep="|")
