"""Launcher that ``nsys profile`` runs: take the streams of `annot run`, then execute the script.

Nsight Systems puts pipes between the command and the terminal and adds its own lines. With the original streams, the
output of the script is unchanged. Arguments: file descriptor of a socket to `annot run`, executable, command.
"""

import os
import signal
import socket
import sys


def main(arguments: list[str]) -> None:
    """Receive the streams, send the process id, reset the signals that Python ignores, and execute the command."""
    with socket.socket(fileno=int(arguments[0])) as channel:
        _, streams, _, _ = socket.recv_fds(channel, 64, 2)
        for own, received in zip((1, 2), streams, strict=True):
            os.dup2(received, own)
            os.close(received)
        channel.send(b"%d" % os.getpid())
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # CPython ignores these, and execv keeps ignored signals
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execv(arguments[1], arguments[2:])
    except OSError as problem:
        os.write(2, f"annot: {arguments[1]} cannot be executed: {problem.strerror}\n".encode())
        os._exit(126)


if __name__ == "__main__":
    main(sys.argv[1:])
