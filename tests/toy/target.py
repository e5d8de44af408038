"""A target that is not a trainer: a counter that opens rounds, and workers that send it bytes. It starts in 0.1 s.

The daemon must not care what it runs. So its undo matrix is tried on this one, and the reference trainer is left to the
tests that are about training. Only the standard library, so that nothing but the interpreter's start takes time.

    python target.py counter --state DIR --tape FILE      (rounds in TOY_ROUNDS)
    python target.py worker  --tape FILE            (address in TOY_COUNTER)
"""

import argparse
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

ROUND_S = 0.02
STEP_S = 0.01
MESSAGE = b"x" * 1024
CONNECT_DEADLINE_S = 30.0


class Tape:
    def __init__(self, path: Path, role: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self.write("start", role=role, pid=os.getpid(), format=1)

    def write(self, kind: str, **fields: object) -> None:
        os.write(self._fd, json.dumps({"t": time.monotonic(), "kind": kind, **fields}).encode() + b"\n")


def counter(tape: Tape, state: Path, rounds: int) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    address = state / "counter.address.new"
    address.write_text(f"127.0.0.1:{listener.getsockname()[1]}")
    address.rename(state / "counter.address")
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    for number in range(1, rounds + 1):
        tape.write("round", round=number, fragment=0, attempt=1)
        deadline = time.monotonic() + ROUND_S
        while (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                take(listener, selector, key.fileobj)
    tape.write("stop", reason="all rounds done")


def take(listener: socket.socket, selector: selectors.BaseSelector, ready: socket.socket) -> None:
    if ready is listener:
        connection, _ = listener.accept()
        connection.setblocking(False)
        selector.register(connection, selectors.EVENT_READ)
        return
    try:
        data = ready.recv(65536)
        if data:
            ready.send(data[:64])
            return
    except OSError:
        pass
    selector.unregister(ready)
    ready.close()


def worker(tape: Tape, host: str, port: int) -> None:
    step = 0
    deadline = time.monotonic() + CONNECT_DEADLINE_S
    while time.monotonic() < deadline:
        try:
            with socket.create_connection((host, port), timeout=1) as connection:
                connection.settimeout(0.5)
                connection.sendall(MESSAGE)
                if not connection.recv(65536):
                    raise ConnectionError("the counter is not there yet")
                deadline = time.monotonic() + CONNECT_DEADLINE_S
                while True:
                    step += 1
                    tape.write("step", step=step)
                    connection.settimeout(30)
                    connection.sendall(MESSAGE)
                    if not connection.recv(65536):
                        break
                    time.sleep(STEP_S)
        except OSError:
            time.sleep(STEP_S)
        if step and not alive(host, port):
            return


def alive(host: str, port: int) -> bool:
    """Whether the counter is still behind the proxy: the proxy closes at once when it is not."""
    try:
        with socket.create_connection((host, port), timeout=1) as probe:
            probe.settimeout(0.2)
            probe.sendall(b"?")
            return bool(probe.recv(1))
    except TimeoutError:
        return True
    except OSError:
        return False


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=["counter", "worker", "dies", "leaves"])
    parser.add_argument("--role", default="")
    parser.add_argument("--state", type=Path)
    parser.add_argument("--tape", type=Path)
    parser.add_argument("--child", choices=["near", "apart"], help="start a process, apart: in a session of its own")
    arguments = parser.parse_args()
    if arguments.part == "dies":
        sys.exit("this role dies at start, as it was asked to")
    if arguments.part == "leaves":
        sys.exit(0)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    tape = Tape(arguments.tape, arguments.role)
    if arguments.child:
        child = subprocess.Popen(["sleep", "60"], start_new_session=arguments.child == "apart")
        tape.write("child", pid=child.pid)
    if arguments.part == "counter":
        counter(tape, arguments.state, int(os.environ.get("TOY_ROUNDS", "200")))
    else:
        host, port = os.environ["TOY_COUNTER"].rsplit(":", 1)
        worker(tape, host, int(port))


if __name__ == "__main__":
    main()
