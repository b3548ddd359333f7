"""What `nc HOST PORT` does, where it isn't installed: what is typed goes to the socket, what comes is printed."""

from __future__ import annotations

import socket
import sys
import threading


def main(host: str, port: int) -> None:
    with socket.create_connection((host, port)) as connection:

        def prints() -> None:
            while data := connection.recv(65_536):
                sys.stdout.buffer.write(data)
                sys.stdout.buffer.flush()

        printing = threading.Thread(target=prints, daemon=True)
        printing.start()
        while typed := sys.stdin.buffer.readline():
            connection.sendall(typed)
        printing.join()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
