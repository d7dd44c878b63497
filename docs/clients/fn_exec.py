#!/usr/bin/env python3
"""A function that was started with a ready PostgreSQL connection on a descriptor: standard library only.

Usage: pghandoff exec -d ROUTE --state ready -- fn_exec.py [SQL]
"""
import os
import socket
import sys

from fn_stdlib import query

if __name__ == "__main__":
    if os.environ.get("PGHANDOFF_STATE") != "ready":
        sys.exit("start me with: pghandoff exec --state ready -- " + sys.argv[0])
    descriptor = int(os.environ["PGHANDOFF_FDS"].split(",")[0])
    os.set_inheritable(descriptor, False)  # the lease ends with its last copy: children shall have none
    with socket.socket(fileno=descriptor) as connection:
        for values in query(connection, sys.argv[1] if len(sys.argv) > 1 else "select 'hello'"):
            print(*values, sep="|")
