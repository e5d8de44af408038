"""Safety of updates: who may contribute to a merge, with which work, and how often.

    learner   welcome ─ adopt.. ─ ready ─ step ─ step ─ send ──────────────────────▶ adopt
                  ▲                                      │ update = (incarnation, fragment, base, (lo, hi], id, digest)
    syncer      join                                     ▼
                                                      accept ─▶ merge(fragment, version, contributions) ─▶ publish

Order between processes is taken from the clock only where a rule is about order (join before merge); everything
else is matched by identity (update id, fragment and version), so that a late tape line alarms nobody.
"""

from __future__ import annotations

from itertools import pairwise

from chaoskit.journal import History, Record
from chaoskit.probes.base import Violations, safety


@safety(
    "S3",
    "distinct-quorum",
    "Every merge has at least K distinct learners in it, each at most once.",
    needs=("merge", "config"),
)
def distinct_quorum(history: History, violations: Violations) -> str:
    quorum = 0
    for record in history.of("config", "merge"):
        if record.kind == "config":
            quorum = record["quorum"]
            continue
        learners = [update["learner"] for update in record["contributions"]]
        distinct = len(set(learners))
        if distinct < len(learners):
            twice = next(learner for learner in learners if learners.count(learner) > 1)
            violations.add(
                f"{twice} is {learners.count(twice)} times in {_merge(record)}; expected each learner at most once.",
                record.n,
            )
        elif distinct < quorum:
            violations.add(
                f"{_merge(record)} has {distinct} distinct learners ({', '.join(learners)}); "
                f"expected at least K = {quorum}.",
                record.n,
            )
    return f"{len(history.of('merge'))} merges each had at least K = {quorum} distinct learners."


@safety(
    "S4",
    "fencing",
    "An update is accepted and merged only under the newest incarnation of its learner that has joined by then.",
    needs=("merge", "join"),
)
def fencing(history: History, violations: Violations) -> str:
    newest: dict[str, int] = {}
    checked = 0
    for record in history.of("join", "accept", "merge"):
        if record.kind == "join":
            newest[record["learner"]] = record["incarnation"]
            continue
        for update in record["contributions"] if record.kind == "merge" else (record.data,):
            checked += 1
            learner = update["learner"]
            if update["incarnation"] != newest.get(learner):
                where = _merge(record) if record.kind == "merge" else f"an accept for fragment {record['fragment']}"
                violations.add(
                    f"Update {update['id']} of {learner} under incarnation {update['incarnation']} is in {where}; "
                    f"expected incarnation {newest.get(learner, 'none: it never joined')}, the newest that had joined.",
                    record.n,
                )
    return f"{checked} accepted or merged updates were of the newest incarnation of their learner."


@safety(
    "S5",
    "incarnations",
    "The incarnations of a learner strictly increase from join to join, and each belongs to one process.",
    needs=("join",),
)
def incarnations(history: History, violations: Violations) -> str:
    newest: dict[str, tuple[int, int]] = {}
    process: dict[str, Record] = {}
    owner: dict[tuple[str, int], tuple[int, Record]] = {}
    for record in history.of("start", "join", "welcome", "ready", "send"):
        if record.kind == "start":
            process[record.node] = record
        elif record.kind == "join":
            learner, incarnation = record["learner"], record["incarnation"]
            last, last_n = newest.get(learner, (-1, record.n))
            if incarnation <= last:
                violations.add(
                    f"{learner} joined as incarnation {incarnation}; expected more than {last}, which it had already.",
                    last_n,
                    record.n,
                )
            newest[learner] = (incarnation, record.n)
        else:
            _check_owner(record, process.get(record.node), owner, violations)
    return f"{len(history.of('join'))} joins of {len(newest)} learners, each incarnation in one process."


def _check_owner(
    record: Record,
    process: Record | None,
    owner: dict[tuple[str, int], tuple[int, Record]],
    violations: Violations,
) -> None:
    start = -1 if process is None else process.n
    key = (record.node, record["incarnation"])
    owner_start, welcome = owner.setdefault(key, (start, record))
    if owner_start != start:
        pid = "an untold pid" if process is None else f"pid {process.get('pid')}"
        violations.add(
            f"Incarnation {key[1]} of {key[0]} is used by {pid} ({record.kind}); "
            "expected only the process that was welcomed with it.",
            welcome.n,
            record.n,
        )
    elif record.kind == "welcome" and welcome is not record:
        violations.add(
            f"{key[0]} was welcomed twice as incarnation {key[1]}; expected a new incarnation for each welcome.",
            welcome.n,
            record.n,
        )


@safety(
    "S6",
    "tokens-once",
    "Per (learner, incarnation, fragment) the token intervals of merged updates are disjoint, and none ends beyond "
    "the tokens processed when it was sent.",
    needs=("merge", "step", "send"),
)
def tokens_once(history: History, violations: Violations) -> str:
    processed = _processed_at_send(history)
    merged: dict[tuple[str, int, int], list[tuple[int, int, Record]]] = {}
    count = 0
    for record in history.of("merge"):
        fragment = record["fragment"]
        for update in record["contributions"]:
            count += 1
            lo, hi = update["lo"], update["hi"]
            merged.setdefault((update["learner"], update["incarnation"], fragment), []).append((lo, hi, record))
            there = processed.get(update["id"], hi)
            if hi > there or hi < lo:
                violations.add(
                    f"Update {update['id']} of fragment {fragment} claims tokens ({lo}, {hi}] in {_merge(record)}; "
                    f"expected an end of at most {there}, the tokens processed when it was sent.",
                    record.n,
                )
    for (learner, incarnation, fragment), intervals in merged.items():
        intervals.sort(key=_interval)
        for (lo_before, hi_before, before), (lo, hi, record) in pairwise(intervals):
            if lo < hi_before:
                violations.add(
                    f"Tokens ({lo}, {min(hi, hi_before)}] of {learner} incarnation {incarnation}, fragment {fragment}, "
                    f"are in two merges: ({lo_before}, {hi_before}] to version {before['version']} and ({lo}, {hi}] to "
                    f"version {record['version']}; expected disjoint intervals.",
                    before.n,
                    record.n,
                )
    return f"The token intervals of {count} merged updates are disjoint and were processed before they were sent."


def _interval(entry: tuple[int, int, Record]) -> tuple[int, int]:
    return entry[0], entry[1]


def _processed_at_send(history: History) -> dict[str, int]:
    """Update id -> tokens its learner had processed under that incarnation when it was sent."""
    tokens: dict[tuple[str, int], int] = {}
    at_send: dict[str, int] = {}
    for record in history.of("step", "send"):
        data = record.data
        if record.kind == "step":
            tokens[record.node, data["incarnation"]] = data["tokens"]
        else:
            at_send.setdefault(data["id"], tokens.get((record.node, data["incarnation"]), 0))
    return at_send


SENT_FIELDS = ("incarnation", "fragment", "base", "lo", "hi", "digest")


@safety(
    "S8",
    "integrity",
    "Every accepted or merged update is, in digest, base and token interval, what its learner recorded before sending.",
    needs=("merge", "send"),
)
def integrity(history: History, violations: Violations) -> str:
    """A tape line is written before the socket, so an update without a send record was never sent by that learner,
    not even by one that was killed right after."""
    sent = {record["id"]: record for record in history.of("send")}
    checked = 0
    for record in history.of("accept", "merge"):
        updates = record["contributions"] if record.kind == "merge" else (record.data,)
        for update in updates:
            checked += 1
            send = sent.get(update["id"])
            if send is None or send.node != update["learner"]:
                violations.add(
                    f"Update {update['id']} is in {record.node}'s {record.kind} of fragment "
                    f"{record['fragment']}, but the tape of {update['learner']} has no send of it; "
                    "expected one before it reached the socket.",
                    record.n,
                )
                continue
            told = send.data
            for field in SENT_FIELDS:
                value = record["fragment"] if field == "fragment" else update[field]
                if value != told[field]:
                    violations.add(
                        f"Update {update['id']} of {update['learner']}, fragment {told['fragment']}, has {field} "
                        f"{value} in {record.node}'s {record.kind}; expected {told[field]}, as sent.",
                        send.n,
                        record.n,
                    )
                    break
    return f"{checked} accepted or merged updates are as their learners sent them."


@safety(
    "S9",
    "staleness",
    "Every update in the merge to version v has a base version from v - 1 - S to v - 1.",
    needs=("merge", "config"),
)
def staleness(history: History, violations: Violations) -> str:
    staleness_max = 0
    lag_seen_max = 0
    for record in history.of("config", "merge"):
        if record.kind == "config":
            staleness_max = record["staleness_max"]
            continue
        newest = record["version"] - 1
        for update in record["contributions"]:
            lag = newest - update["base"]
            lag_seen_max = max(lag_seen_max, lag)
            if not 0 <= lag <= staleness_max:
                violations.add(
                    f"Update {update['id']} of {update['learner']} in {_merge(record)} is based on version "
                    f"{update['base']}; expected {max(0, newest - staleness_max)} to {newest}.",
                    record.n,
                )
    return f"No merged update was staler than {lag_seen_max} versions (S = {staleness_max})."


@safety(
    "S14",
    "silence-before-ready",
    "A learner sends no update under an incarnation before that incarnation is ready.",
    needs=("send", "ready"),
)
def silence_before_ready(history: History, violations: Violations) -> str:
    ready: set[tuple[str, int]] = set()
    for record in history.of("ready", "send"):
        key = (record.node, record["incarnation"])
        if record.kind == "ready":
            ready.add(key)
        elif key not in ready:
            violations.add(
                f"{key[0]} sent update {record['id']} of fragment {record['fragment']} under incarnation {key[1]} "
                "before it was ready; expected silence until then.",
                record.n,
            )
    return f"{len(history.of('send'))} updates were sent by {len(ready)} incarnations, all of them ready."


@safety("S17", "idempotence", "An update is merged at most once.", needs=("merge",))
def idempotence(history: History, violations: Violations) -> str:
    merged: dict[str, Record] = {}
    for record in history.of("merge"):
        for update in record["contributions"]:
            if update["id"] not in merged:
                merged[update["id"]] = record
            else:
                first = merged[update["id"]]
                violations.add(
                    f"Update {update['id']} of {update['learner']} is in {_merge(first)} and again in "
                    f"{_merge(record)}; expected at most one merge.",
                    first.n,
                    record.n,
                )
    return f"{len(merged)} updates were merged, each once."


def _merge(record: Record) -> str:
    """For sentences: the merge of fragment 3 to version 7."""
    return f"the merge of fragment {record['fragment']} to version {record['version']}"
