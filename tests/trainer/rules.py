"""The protocol's rules over a history of the harness, each as a function that names the first record which breaks it.

A second opinion beside chaoskit's probes, kept small on purpose: what a rule says here fits on a few lines.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

from tests.trainer.harness import World

Records = list[dict[str, Any]]


def version_chain(records: Records) -> Iterator[str]:
    """S1"""
    newest: dict[int, tuple[int, str]] = {}
    for record in records:
        if record["kind"] == "init":
            newest[record["fragment"]] = (0, record["digest"])
        if record["kind"] == "merge":
            version, digest = newest[record["fragment"]]
            if (record["version"], record["h_in"]) != (version + 1, digest):
                yield f"merge {record['version']} of fragment {record['fragment']} does not follow {version}"
            newest[record["fragment"]] = (record["version"], record["h_out"])


def no_fork(records: Records) -> Iterator[str]:
    """S2"""
    digests: dict[tuple[int, int], str] = {}
    for record in records:
        if record["kind"] in ("merge", "publish", "adopt", "init"):
            digest = record.get("digest") or record["h_out"]
            if digests.setdefault((record["fragment"], record["version"]), digest) != digest:
                yield f"two digests of fragment {record['fragment']} version {record['version']}"


def distinct_quorum(records: Records) -> Iterator[str]:
    """S3"""
    K = next(record["quorum"] for record in records if record["kind"] == "config")
    for record in records:
        if record["kind"] == "merge":
            learners = [part["learner"] for part in record["contributions"]]
            if len(set(learners)) < K or len(set(learners)) != len(learners):
                yield f"round {record['round']} merged {learners} under quorum {K}"


def fencing(records: Records) -> Iterator[str]:
    """S4 and S5"""
    newest: dict[str, int] = {}
    for record in records:
        if record["kind"] == "join" and record["role"] == "syncer":
            if record["incarnation"] <= newest.get(record["learner"], 0):
                yield f"{record['learner']} joined again as incarnation {record['incarnation']}"
            newest[record["learner"]] = record["incarnation"]
        parts = record["contributions"] if record["kind"] == "merge" else [record] if record["kind"] == "accept" else []
        for part in parts:
            if part["incarnation"] != newest[part["learner"]]:
                yield f"{record['kind']} of {part['id']} under incarnation {newest[part['learner']]}"


def tokens_once(records: Records) -> Iterator[str]:
    """S6 and S17"""
    merged: dict[tuple[Any, ...], int] = defaultdict(int)
    ids: set[str] = set()
    for record in records:
        for part in record["contributions"] if record["kind"] == "merge" else []:
            key = (part["learner"], part["incarnation"], record["fragment"])
            if part["lo"] < merged[key] or part["hi"] <= part["lo"]:
                yield f"{part['id']} owns tokens ({part['lo']}, {part['hi']}], merged up to {merged[key]}"
            if part["id"] in ids:
                yield f"{part['id']} merged twice"
            merged[key] = part["hi"]
            ids.add(part["id"])


def integrity(records: Records) -> Iterator[str]:
    """S8"""
    sent = {record["id"]: record["digest"] for record in records if record["kind"] == "send"}
    for record in records:
        for part in record["contributions"] if record["kind"] == "merge" else []:
            if sent.get(part["id"]) != part["digest"]:
                yield f"{part['id']} was merged with another digest than it was sent with"


def staleness(records: Records) -> Iterator[str]:
    """S9"""
    limit = next(record["staleness_max"] for record in records if record["kind"] == "config")
    for record in records:
        for part in record["contributions"] if record["kind"] == "merge" else []:
            if not record["version"] - 1 - limit <= part["base"] <= record["version"] - 1:
                yield f"{part['id']} from base {part['base']} in version {record['version']}"


def monotone_adoption(records: Records) -> Iterator[str]:
    """S12; a copy that was found bad may be overwritten with the version that is held."""
    held: dict[tuple[Any, ...], int] = {}
    for record in records:
        if record["kind"] == "adopt":
            key = (record["role"], record["incarnation"], record["fragment"])
            again = record["cause"] == "reject" and held.get(key) == record["version"]
            if key in held and record["version"] <= held[key] and not again:
                yield f"{key} adopted {record['version']} after {held[key]}"
            held[key] = record["version"]


def silence_before_ready(records: Records) -> Iterator[str]:
    """S14"""
    ready: set[tuple[str, int]] = set()
    for record in records:
        if record["kind"] == "ready":
            ready.add((record["role"], record["incarnation"]))
        if record["kind"] in ("send", "step") and (record["role"], record["incarnation"]) not in ready:
            yield f"{record['role']} did {record['kind']} as incarnation {record['incarnation']} before ready"


RULES: tuple[Callable[[Records], Iterator[str]], ...] = (
    version_chain, no_fork, distinct_quorum, fencing, tokens_once, integrity, staleness, monotone_adoption,
    silence_before_ready,
)  # fmt: skip


def broken(world: World) -> list[str]:
    """The names of the rules that the history breaks, each with its first case."""
    records = world.records()
    return [f"{rule.__name__}: {case}" for rule in RULES for case in list(rule(records))[:1]]
