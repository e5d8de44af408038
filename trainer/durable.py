"""What the syncer keeps on disk: the newest state of each fragment, the members, and the contributions for replay.

    STATE/run.json                                      seed, run and configuration, written once
    STATE/durable/fragment-003.bin                      theta, momentum, version, cursors, the merge's tape record
    STATE/durable/fragment-003.last.bin                 the version before it
    STATE/durable/members.bin                           incarnations, processes, cursors
    STATE/contributions/fragment-003/000012.bin         what was merged into version 12

A file is written beside its place, synced, renamed over it, and its folder synced: at every moment there is one whole
newest file. A reader therefore never sees half a merge, and a syncer that is killed anywhere restarts with what it has
published.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import xxhash

from trainer.config import Config, from_mapping
from trainer.effects import PersistMembers, PersistMerge
from trainer.fragments import Fragment
from trainer.merge import Contribution
from trainer.state import SyncerState

MAGIC = b"DDLS"
_HEAD = struct.Struct("<4sIQ")
_SUM = struct.Struct("<Q")
MIB = 1024 * 1024
HOW_TO_GO_ON = "Bring it back from a copy, or start a new run in an empty folder"


class DurableError(Exception):
    """A state file cannot be used. The text names the file and says how to go on."""


@dataclass(frozen=True)
class StoredFragment:
    """The newest durable version of one fragment."""

    version: int
    theta: np.ndarray
    momentum: np.ndarray
    cursors: dict[str, int]
    record: dict[str, Any] | None
    """Fields of the merge's tape record; None for version 0."""


def pack(meta: dict[str, Any], body: bytes) -> bytes:
    """magic, meta bytes, body bytes | meta (msgpack) | body | xxh3_64 of all before."""
    encoded = msgspec.msgpack.encode(meta)
    head = _HEAD.pack(MAGIC, len(encoded), len(body))
    return b"".join((head, encoded, body, _SUM.pack(xxhash.xxh3_64_intdigest(head + encoded + body))))


def unpack(path: Path) -> tuple[dict[str, Any], bytes]:
    """Inverse of `pack`.

    Raises:
        FileNotFoundError: there is no such file.
        DurableError: the file is damaged.
    """
    data = path.read_bytes()
    whole = len(data) >= _HEAD.size + _SUM.size and data[:4] == MAGIC
    if not whole or _SUM.unpack_from(data, len(data) - _SUM.size)[0] != xxhash.xxh3_64_intdigest(data[: -_SUM.size]):
        last = path.with_name(f"{path.stem}.last.bin")
        hint = HOW_TO_GO_ON
        if last.exists():
            hint = (
                f"If {last.name} is whole, moving it here goes back one version, which learners may have seen: do so "
                "only when all learners are started afresh"
            )
        raise DurableError(f"{path}: damaged (its checksum does not match). {hint}")
    _, meta_bytes, body_bytes = _HEAD.unpack_from(data)
    body = data[_HEAD.size + meta_bytes :][:body_bytes]
    return msgspec.msgpack.decode(data[_HEAD.size : _HEAD.size + meta_bytes]), body


def write_synced(path: Path, data: bytes, keep: Path | None = None) -> None:
    """Replace `path` atomically and durably; the file it had before stays as `keep`."""
    temporary = path.with_name(path.name + ".tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    if keep and path.exists():
        second_name = keep.with_name(keep.name + ".tmp")
        second_name.unlink(missing_ok=True)
        os.link(path, second_name)
        second_name.replace(keep)
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@dataclass(frozen=True)
class RunNote:
    """Content of run.json."""

    seed: int
    config: Config


def read_run(state_dir: Path) -> RunNote:
    """What the first syncer of this state folder was started with.

    Raises:
        FileNotFoundError: no syncer has been here yet.
        DurableError: run.json is damaged.
    """
    path = state_dir / "run.json"
    try:
        about = msgspec.json.decode(path.read_bytes())
        return RunNote(about["seed"], from_mapping(about["config"], str(path)))
    except (msgspec.DecodeError, KeyError, TypeError) as error:
        raise DurableError(f"{path}: damaged ({error!r}). {HOW_TO_GO_ON}") from None


def read_fragment(state_dir: Path, fragment: Fragment) -> StoredFragment:
    """The newest durable version of `fragment`.

    Raises:
        FileNotFoundError: nothing has been stored yet.
        DurableError: the file is damaged or belongs to another model.
    """
    path = _fragment_path(state_dir, fragment.index)
    meta, body = unpack(path)
    values = np.frombuffer(body, dtype="<f4").astype(np.float32)
    if values.size != 2 * fragment.size:
        raise DurableError(f"{path}: holds {values.size} numbers, this model needs {2 * fragment.size}")
    theta, momentum = values[: fragment.size].copy(), values[fragment.size :].copy()
    return StoredFragment(meta["version"], theta, momentum, meta["cursors"], meta["record"])


def _fragment_path(state_dir: Path, index: int) -> Path:
    return state_dir / "durable" / f"fragment-{index:03d}.bin"


class Store:
    """Writer and loader of one syncer's state folder."""

    def __init__(self, state_dir: Path, fragments: Sequence[Fragment], contributions_mib_max: int) -> None:
        """`contributions_mib_max` 0 records no contributions."""
        self.state_dir = state_dir
        self.fragments = tuple(fragments)
        (state_dir / "durable").mkdir(parents=True, exist_ok=True)
        self._bytes_left = contributions_mib_max * MIB - sum(
            path.stat().st_size for path in (state_dir / "contributions").glob("*/*.bin")
        )

    def load(self, seed: int) -> tuple[SyncerState, list[dict[str, Any] | None]]:
        """The state to start from, and the tape record of each fragment's newest merge (all None on a fresh start).

        Raises:
            DurableError: something is damaged; nothing is overwritten then.
        """
        state = SyncerState.fresh(self.fragments, seed)
        if missing := self._missing():
            self._refuse_to_begin_again(missing)
            self._begin(state)
            return state, [None] * len(self.fragments)
        stored = [read_fragment(self.state_dir, fragment) for fragment in self.fragments]
        members, _ = unpack(self._members_path)
        state.theta = [fragment.theta for fragment in stored]
        state.momentum = [fragment.momentum for fragment in stored]
        state.versions = [fragment.version for fragment in stored]
        state.incarnations, state.processes = members["incarnations"], members["processes"]
        for cursors in [members["cursors"], *(fragment.cursors for fragment in stored)]:
            for learner, cursor in cursors.items():
                state.cursors[learner] = max(cursor, state.cursors.get(learner, 0))
        return state, [fragment.record for fragment in stored]

    @property
    def _members_path(self) -> Path:
        return self.state_dir / "durable" / "members.bin"

    def _missing(self) -> list[Path]:
        fragments = [_fragment_path(self.state_dir, fragment.index) for fragment in self.fragments]
        return [path for path in (*fragments, self._members_path) if not path.exists()]

    def _refuse_to_begin_again(self, missing: Sequence[Path]) -> None:
        """`members.bin` is written last at the first start: without it, and without any merge, that start never came
        to its end. In every other case something was lost, and beginning again would overwrite the rest."""
        begun = self._members_path not in missing
        for fragment in self.fragments:
            if _fragment_path(self.state_dir, fragment.index) not in missing:
                begun = begun or read_fragment(self.state_dir, fragment).version > 0
        if begun:
            gone = ", ".join(str(path) for path in missing)
            raise DurableError(f"{gone}: gone, though this run has begun. {HOW_TO_GO_ON}")

    def _begin(self, state: SyncerState) -> None:
        for fragment in self.fragments:
            index = fragment.index
            self._write_fragment(index, 0, state.theta[index], state.momentum[index], {}, None)
        self.persist_members(PersistMembers({}, {}, {}))

    def persist_members(self, members: PersistMembers) -> None:
        meta = {
            "incarnations": dict(members.incarnations), "processes": dict(members.processes),
            "cursors": dict(members.cursors),
        }  # fmt: skip
        write_synced(self._members_path, pack(meta, b""))

    def persist_merge(self, merge: PersistMerge) -> None:
        """Contributions first: a version that is durable can always be replayed."""
        self._record_contributions(merge)
        self._write_fragment(
            merge.fragment, merge.version, merge.theta, merge.momentum, dict(merge.cursors), dict(merge.record)
        )

    def _write_fragment(
        self, index: int, version: int, theta: np.ndarray, momentum: np.ndarray, cursors: dict[str, int],
        record: dict[str, Any] | None,
    ) -> None:  # fmt: skip
        meta = {"fragment": index, "version": version, "cursors": cursors, "record": record}
        body = theta.astype("<f4").tobytes() + momentum.astype("<f4").tobytes()
        path = _fragment_path(self.state_dir, index)
        write_synced(path, pack(meta, body), keep=path.with_name(f"{path.stem}.last.bin"))

    def _record_contributions(self, merge: PersistMerge) -> None:
        parts = [
            {
                "learner": c.learner, "incarnation": c.incarnation, "id": c.id, "base": c.base, "lo": c.lo, "hi": c.hi,
                "steps": c.steps, "digest": c.digest,
            }
            for c in merge.contributions
        ]  # fmt: skip
        body = b"".join(c.theta.astype("<f4").tobytes() for c in merge.contributions)
        data = pack({"fragment": merge.fragment, "version": merge.version, "parts": parts}, body)
        if len(data) > self._bytes_left:
            self._bytes_left = 0  # from here on nothing is kept, so that replay ends at one clear point
            return
        self._bytes_left -= len(data)
        path = contribution_path(self.state_dir, merge.fragment, merge.version)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)  # not synced: the death of this process loses nothing written; that of the machine may


def contribution_path(state_dir: Path, index: int, version: int) -> Path:
    return state_dir / "contributions" / f"fragment-{index:03d}" / f"{version:06d}.bin"


def read_contributions(state_dir: Path, fragment: Fragment, version: int) -> list[Contribution]:
    """What was merged into `version` of `fragment`.

    Raises:
        FileNotFoundError: it was not recorded.
        DurableError: the file is damaged.
    """
    meta, body = unpack(contribution_path(state_dir, fragment.index, version))
    values = np.frombuffer(body, dtype="<f4").astype(np.float32).reshape(len(meta["parts"]), fragment.size)
    return [Contribution(**part, theta=theta) for part, theta in zip(meta["parts"], values, strict=True)]
