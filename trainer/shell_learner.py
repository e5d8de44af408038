"""The learner as a process: the main thread trains, a background thread owns the socket.

    main thread     ... step | apply what has arrived | step | ...            never waits for the network
                                 ▲ inbox       │ outbox
    network thread  connect, read, write, ping, connect again, for ever

The two meet in two bounded queues, at step boundaries only.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import queue
import signal
import socket
import threading
import time
from pathlib import Path
from types import FrameType

from trainer.config import Config, ConfigError, Timing
from trainer.effects import (
    Close,
    Closed,
    Effect,
    Event,
    Finish,
    ForgetMoments,
    Opened,
    Received,
    Record,
    Send,
    Stepped,
    Terminate,
)
from trainer.fragments import fragments_of
from trainer.learner import Learner
from trainer.messages import Hello, Message, Welcome
from trainer.network import Conversation, Outbox, tune
from trainer.options import RoleOptions
from trainer.stopwatch import Stopwatch
from trainer.tape import Tape
from trainer.text import Corpus
from trainer.wire import Decoder, Frame

log = logging.getLogger("trainer.learner")

INBOX_MAX = 256
INBOX_RETRY_S = 0.005
FIRST_STATE_POLL_S = 0.1
PORT_MAX = 65535
ADDRESS_VARIABLE = "TRAINER_SYNCER"
"""host:port of the syncer, or of whatever stands between; without it the syncer's own address file is read."""


class AddressError(Exception):
    """The syncer's address cannot be used."""


def read_address(state_dir: Path) -> tuple[str, int]:
    """Where to connect now: read anew at every connect, for a restarted syncer has another port.

    Raises:
        AddressError: there is no usable address yet.
    """
    text = os.environ.get(ADDRESS_VARIABLE, "")
    source = ADDRESS_VARIABLE
    if not text:
        path = state_dir / "syncer.address"
        source = str(path)
        try:
            text = path.read_text(encoding="ascii").strip()
        except OSError:
            raise AddressError(f"{path} does not exist yet, and {ADDRESS_VARIABLE} is not set") from None
        except UnicodeDecodeError as error:
            raise AddressError(f"{path} is no text: {error}") from None
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) <= PORT_MAX:
        raise AddressError(f"{source} = {text!r}: expected host:port, for example 127.0.0.1:4000")
    return host, int(port)


class Network(threading.Thread):
    """Owns the connection to the syncer. All public methods may be called from the main thread."""

    def __init__(self, state_dir: Path, timing: Timing, payload_bytes_max: int) -> None:
        super().__init__(name="network", daemon=True)
        self.inbox: queue.Queue[Event] = queue.Queue(INBOX_MAX)
        self._state_dir, self._timing, self._payload_bytes_max = state_dir, timing, payload_bytes_max
        self._outbox: tuple[int, Outbox] | None = None
        self._ending = threading.Event()
        self._backoff_s = timing.backoff_s_min

    def send(self, connection: int, message: Message, payload: bytes) -> None:
        """Queue for the connection; a message for one that is gone is dropped, for its incarnation is gone too."""
        current = self._outbox
        if current and current[0] == connection:
            current[1].put(message, payload)

    def close(self, connection: int, why: str) -> None:
        current = self._outbox
        if current and current[0] == connection:
            current[1].close(why)

    def end(self) -> None:
        """Send what is queued, close, end the thread (it is a daemon: a stuck one does not keep the process)."""
        self._ending.set()
        if current := self._outbox:
            current[1].close("this learner ends")
        self.join(timeout=2.0)

    def run(self) -> None:
        asyncio.run(self._connect_for_ever())

    async def _connect_for_ever(self) -> None:
        number = 0
        while not self._ending.is_set():
            connection = await self._connect()
            if connection:
                number += 1
                await self._converse(number, *connection)
            if not self._ending.is_set():
                await asyncio.sleep(self._backoff_s)
                self._backoff_s = min(2 * self._backoff_s, self._timing.backoff_s_max)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            tune(sock, self._timing)
            sock.setblocking(False)
            async with asyncio.timeout(self._timing.connect_s):
                await asyncio.get_running_loop().sock_connect(sock, read_address(self._state_dir))
                return await asyncio.open_connection(sock=sock)
        except (OSError, TimeoutError, AddressError, UnicodeError) as error:  # the last: no possible host name
            log.debug("cannot connect: %s", error)
            sock.close()
            return None

    async def _converse(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        def deliver(frame: Frame) -> None:
            if isinstance(frame.message, Welcome):
                self._backoff_s = self._timing.backoff_s_min
            self._hand_over(Received(number, frame.message, frame.payload))

        conversation = Conversation(reader, writer, self._timing, Decoder(self._payload_bytes_max), deliver)
        conversation.greeted = True  # it is this side that says hello
        self._outbox = (number, conversation.outbox)
        self._hand_over(Opened(number))
        try:
            ending = await conversation.run()
        finally:
            self._outbox = None
        self._hand_over(Closed(number, ending.why, ending.bad_frame))

    def _hand_over(self, event: Event) -> None:
        """Blocking this thread when the inbox is full is the back-pressure: TCP then slows the syncer down."""
        while not self._ending.is_set():
            try:
                self.inbox.put(event, timeout=INBOX_RETRY_S)
            except queue.Full:
                continue
            return


def run(options: RoleOptions, name: str, index: int) -> int:
    """Train until told to stop; returns the exit code.

    Raises:
        ConfigError: the text is too short, name and index do not belong together, or TRAINER_SYNCER is no address (the
            address file is waited for instead: it may still be mended).
    """
    M = options.config.protocol.M
    if not 0 <= index < M or name != f"learner-{index}":
        raise ConfigError(
            f"--learner {name} --index {index}: expected learner-N with index N, 0 to {M - 1} (protocol.M = {M}); two "
            "learners of one index would train on the same shard"
        )
    if os.environ.get(ADDRESS_VARIABLE):
        try:
            read_address(options.state)
        except AddressError as error:
            raise ConfigError(str(error)) from None
    asked_to_end: list[str] = []
    training = False

    def on_signal(number: int, _frame: FrameType | None) -> None:
        asked_to_end.append(signal.Signals(number).name)
        if not training:
            os._exit(0)  # still loading: nothing to leave in order, and an import cannot be interrupted cleanly

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    tape = Tape(options.tape, name, time.monotonic())
    config = options.config
    fragments = fragments_of(config.model, config.protocol.P)
    corpus = Corpus(config, options.seed)
    process = f"{os.getpid()}-{time.time_ns():x}"
    machine = Learner(config, fragments, name, options.run_id, process)
    network = Network(options.state, config.timing, max(fragment.payload_bytes for fragment in fragments))
    trainer = _Trainer(config, machine, network, tape, corpus, index)
    training = True
    network.start()
    code = trainer.run(asked_to_end)
    network.end()
    tape.close()
    return code


class _Trainer:
    """The main thread: steps, and between two steps everything else."""

    def __init__(
        self, config: Config, machine: Learner, network: Network, tape: Tape, corpus: Corpus, index: int
    ) -> None:
        from trainer.model import Transformer, inner_optimiser, use_one_thread  # late: importing torch takes seconds

        use_one_thread()
        self.config, self.machine, self.network, self.tape = config, machine, network, tape
        self.corpus, self.index = corpus, index
        self.transformer = Transformer(config.model, machine.fragments, machine.theta)
        self.optimiser = inner_optimiser(self.transformer, config.task)
        self.exit_code: int | None = None
        self.away_s = 0.0
        """How long this process has been trying to join."""

    def run(self, asked_to_end: list[str]) -> int:
        from trainer.model import train_step

        stopwatch = Stopwatch()
        turn_at = time.monotonic()
        while self.exit_code is None:
            begun_at, turn_at = turn_at, time.monotonic()
            if self._is_lost(turn_at - begun_at):
                return 1
            if asked_to_end:
                self._dispatch(Terminate(asked_to_end[0]))
                break
            if not self.machine.has_state:
                self._wait_for_first_state()
                stopwatch.restart()
                continue
            batch = self.corpus.batch_for(self.index, self.machine.cursor)
            loss = train_step(self.transformer, self.optimiser, batch)
            step_s, blocked_s = stopwatch.lap()
            self._take_what_arrived()
            if self.exit_code is None:
                self._dispatch(Stepped(loss, step_s, blocked_s))
        return self.exit_code or 0

    def _is_lost(self, turn_s: float) -> bool:
        """One that has missed the end of the run must not train for ever. A pause of this process counts little."""
        timing = self.config.timing
        if not self.network.is_alive():
            log.error("the network thread has ended (its traceback stands above); start this learner again")
            return True
        self.away_s = 0.0 if self.machine.state == "ready" else self.away_s + min(turn_s, timing.idle_s)
        name = "rejoin_s" if self.machine.has_state else "first_join_s"
        limit_s = getattr(timing, name)
        lost: bool = self.away_s > limit_s
        if lost:
            log.error(
                "no syncer took this learner in within %s s (timing.%s) at %s; is it running, or has the run ended?",
                limit_s, name, os.environ.get(ADDRESS_VARIABLE, "its address file"),
            )  # fmt: skip
        return lost

    def _wait_for_first_state(self) -> None:
        with contextlib.suppress(queue.Empty):
            self._dispatch(self.network.inbox.get(timeout=FIRST_STATE_POLL_S))

    def _take_what_arrived(self) -> None:
        for _ in range(INBOX_MAX):
            try:
                self._dispatch(self.network.inbox.get_nowait())
            except queue.Empty:
                return

    def _dispatch(self, event: Event) -> None:
        for effect in self.machine.handle(time.monotonic(), event):
            self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Record(kind, fields):
                self.tape.write(time.monotonic(), kind, fields)
            case Send(connection, message, payload):
                self.network.send(connection, message, payload)
                if isinstance(message, Hello):
                    log.info("hello from incarnation %d", message.incarnation)
            case Close(connection, why):
                self.network.close(connection, why)
            case ForgetMoments():
                self.optimiser.state.clear()
            case Finish(reason, error):
                if error:
                    log.error("%s", reason)
                self.exit_code = 1 if error else 0
