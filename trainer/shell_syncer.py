"""The syncer as a process: asyncio around the state machine, numpy only, so that it is up in a fraction of a second."""

from __future__ import annotations

import asyncio
import itertools
import logging
import signal
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from trainer.config import Config
from trainer.durable import DurableError, Store, read_run, write_synced
from trainer.effects import (
    Close,
    Closed,
    Effect,
    Event,
    Finish,
    PersistMembers,
    PersistMerge,
    Received,
    Record,
    Send,
    Terminate,
    Tick,
)
from trainer.fragments import digest_of, fragments_of
from trainer.messages import Hello
from trainer.network import Conversation, tune
from trainer.options import RoleOptions
from trainer.syncer import Syncer, publish_fields
from trainer.tape import Tape, versions_told
from trainer.wire import Decoder, Frame

log = logging.getLogger("trainer.syncer")

CONNECTIONS_PER_LEARNER = 4
STRANGERS_MAX = 64
"""Connections beyond the learners' share that may be open at once; more are closed at once."""
TIMER_S_MIN = 0.0005


def run(options: RoleOptions) -> int:
    """Serve until the run is complete or the process is told to end; returns the exit code."""
    fragments = fragments_of(options.config.model, options.config.protocol.P)
    recording = options.config.recording
    tape = Tape(options.tape, "syncer", time.monotonic())
    store = Store(options.state, fragments, recording.contributions_mib_max if recording.contributions else 0)
    note_or_check_run(options)
    state, records = store.load(options.seed)
    machine = Syncer(options.config, fragments, state, options.run_id)
    listener = _listen(options.config)
    _publish_address(options.state, listener)
    _introduce(tape, options, machine, records)
    shell = _Shell(options, machine, store, tape)
    return asyncio.run(shell.serve(listener))


def note_or_check_run(options: RoleOptions) -> None:
    """Write what `replay` needs to know of this run; of one that has begun, check that it goes on as the same run.

    Raises:
        DurableError: the state folder belongs to another seed or configuration, or its run.json is damaged.
    """
    path = options.state / "run.json"
    if not path.exists():
        content = {"seed": options.seed, "run_id": options.run_id, "config": msgspec.to_builtins(options.config)}
        write_synced(path, msgspec.json.format(msgspec.json.encode(content)) + b"\n")
        return
    about = read_run(options.state)
    for what, begun, now in (
        ("seed", about.seed, options.seed),
        ("configuration", about.config.digest(), options.config.digest()),
    ):
        if begun != now:
            raise DurableError(
                f"{path}: this run began with {what} {begun}, the syncer is started with {now}. Start it as before, or "
                "start a new run in an empty folder"
            )


def _listen(config: Config) -> socket.socket:
    """Port 0: fixed ports collide with ephemeral ones."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    tune(listener, config.timing)
    listener.bind(("127.0.0.1", 0))
    listener.listen(128)
    listener.setblocking(False)
    return listener


def _publish_address(state_dir: Path, listener: socket.socket) -> None:
    host, port = listener.getsockname()[:2]
    temporary = state_dir / "syncer.address.tmp"
    temporary.write_text(f"{host}:{port}\n", encoding="ascii")
    temporary.replace(state_dir / "syncer.address")


def _introduce(tape: Tape, options: RoleOptions, machine: Syncer, records: Sequence[dict[str, Any] | None]) -> None:
    """config, then init or restore; then whatever a killed predecessor made durable but had no time to tell."""
    now, protocol = time.monotonic(), options.config.protocol
    tape.write(now, "config", {
        "learners": protocol.M, "fragments": protocol.P, "steps": protocol.H, "tau": protocol.tau, "quorum": protocol.K,
        "staleness_max": protocol.staleness_max, "grace_s_max": options.config.timing.grace_s_max,
        "outer_lr": protocol.outer_lr, "outer_momentum": protocol.outer_momentum, "rounds": options.config.rounds_total,
    })  # fmt: skip
    merged, published = versions_told(options.tape, "merge"), versions_told(options.tape, "publish")
    started = versions_told(options.tape, "init") if options.tape else {}
    digests = [digest_of(theta) for theta in machine.state.theta]
    if not any(records) and not started:
        for index, digest in enumerate(digests):
            tape.write(now, "init", {"fragment": index, "version": 0, "digest": digest})
        return
    for record in records:
        if record and merged.get(record["fragment"], 0) < record["version"]:
            tape.write(now, "merge", record)
        if record and published.get(record["fragment"], 0) < record["version"]:
            tape.write(now, "publish", publish_fields(record))
    tape.write(now, "restore", {"versions": machine.clock(), "digests": digests})


class _Shell:
    """Carries out effects; every event is handled to its end before the next."""

    def __init__(self, options: RoleOptions, machine: Syncer, store: Store, tape: Tape) -> None:
        self.config = options.config
        self.machine, self.store, self.tape = machine, store, tape
        self.payload_bytes_max = max(fragment.payload_bytes for fragment in machine.fragments)
        self.conversations: dict[int, Conversation] = {}
        self.numbers = itertools.count(1)
        self.finished = asyncio.Event()
        self.timer: asyncio.TimerHandle | None = None
        self.tasks: set[asyncio.Task[Any]] = set()
        self.exit_code = 0

    async def serve(self, listener: socket.socket) -> int:
        loop = asyncio.get_running_loop()
        for name in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(name, self.dispatch, Terminate(name.name))
        server = await asyncio.start_server(self._accepted, sock=listener)
        log.info("listening on %s", listener.getsockname())
        self.dispatch(Tick())
        await self.finished.wait()
        server.close()
        for conversation in self.conversations.values():
            conversation.outbox.close("the syncer ends")
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=2.0)
        self.tape.close()
        return self.exit_code

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self.conversations) >= CONNECTIONS_PER_LEARNER * self.config.protocol.M + STRANGERS_MAX:
            writer.transport.abort()
            return
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        number = next(self.numbers)
        decoder = Decoder(payload_bytes_max=0)  # a stranger may say hello and nothing larger
        conversation: Conversation

        def deliver(frame: Frame) -> None:
            if isinstance(frame.message, Hello):
                conversation.greeted = True
                decoder.payload_bytes_max = self.payload_bytes_max
            self.dispatch(Received(number, frame.message, frame.payload))

        conversation = Conversation(reader, writer, self.config.timing, decoder, deliver)
        self.conversations[number] = conversation
        closed = Closed(number, "its conversation broke off")
        try:
            ending = await conversation.run()
            closed = Closed(number, ending.why, ending.bad_frame)
        finally:
            del self.conversations[number]
            self.tasks.discard(task)
            self.dispatch(closed)

    def dispatch(self, event: Event) -> None:
        """One event through the machine to the end. Whatever goes wrong there ends the process: what is in memory may
        be ahead of the disk then, and a successor starts from what is durable."""
        try:
            self._handle(event)
        except Exception:  # not only OSError: a caller that took a full disk for a broken socket would serve on
            log.exception(
                "cannot go on after %s; start the syncer again, it goes on from its state folder", type(event).__name__
            )
            self.exit_code = 1
            self.machine.finished = True
            self.finished.set()

    def _handle(self, event: Event) -> None:
        """The effects carried out in order, then the timer set anew."""
        for effect in self.machine.handle(time.monotonic(), event):
            self._carry_out(effect)
        if self.timer:
            self.timer.cancel()
            self.timer = None
        wake_at = self.machine.wake_at()
        if not self.machine.finished and wake_at < float("inf"):
            at = max(wake_at, time.monotonic() + TIMER_S_MIN)
            self.timer = asyncio.get_running_loop().call_at(at, self.dispatch, Tick())

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Send(connection, message, payload):
                if conversation := self.conversations.get(connection):
                    conversation.outbox.put(message, payload)
            case Record(kind, fields):
                self.tape.write(time.monotonic(), kind, fields)
            case PersistMerge():
                self.store.persist_merge(effect)
            case PersistMembers():
                self.store.persist_members(effect)
            case Close(connection, why):
                if conversation := self.conversations.get(connection):
                    conversation.outbox.close(why)
            case Finish(reason):
                log.info("finished: %s", reason)
                self.finished.set()
