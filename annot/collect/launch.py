"""Turns into the script, with the streams that `annot run` was given; a file that ``nsys profile`` runs.

Nsight Systems puts pipes between a command and the terminal and adds lines of its own; the script's output
has to be what it is without it. Arguments: the descriptor of a socket to `annot run`, the executable, and the
command.
"""

import os
import signal
import socket
import sys


def main(arguments: list[str]) -> None:
    """Take the streams, report in, restore what Python changed, and become the command."""
    with socket.socket(fileno=int(arguments[0])) as channel:
        _, streams, _, _ = socket.recv_fds(channel, 64, 2)
        for own, given in zip((1, 2), streams, strict=True):
            os.dup2(given, own)
            os.close(given)
        channel.send(b"%d" % os.getpid())
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execv(arguments[1], arguments[2:])
    except OSError as problem:
        os.write(2, f"annot: {arguments[1]} cannot be executed: {problem.strerror}\n".encode())
        os._exit(126)


if __name__ == "__main__":
    main(sys.argv[1:])
