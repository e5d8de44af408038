"""Safety of versions: the merged fragments form one chain, and everyone holds a link of it.

init ─▶ merge 1 ─▶ merge 2 ─▶ merge 3 ─▶ ...      per fragment; h_in of each is h_out of the one before
          │           │           │
       publish     publish     publish ─▶ adopt   one digest for each (fragment, version), wherever it is told
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from chaoskit.journal import History, Record
from chaoskit.probes.base import Case, Finding, Verdict, Violations, probe, safety


@safety(
    "S1",
    "version-chain",
    "Per fragment the merges have versions 1, 2, 3, ... and each starts from the digest the one before ended with.",
    needs=("merge",),
)
def version_chain(history: History, violations: Violations) -> str:
    """A merge is durable before it is recorded. A syncer killed between the two comes back one merge ahead of its
    tape, in one fragment: a restore may advance the chain by that one merge, and by no more."""
    heads: dict[int, tuple[int, str | None]] = {}
    for record in history.of("init", "restore", "merge"):
        if record.kind == "init":
            heads.setdefault(record["fragment"], (0, record["digest"]))
        elif record.kind == "restore":
            _restore_chain(heads, record, violations)
        else:
            fragment, version = record["fragment"], record["version"]
            last, digest = heads.get(fragment, (0, None))
            if version != last + 1:
                violations.add(
                    f"Fragment {fragment} was merged to version {version} after version {last}; "
                    f"expected version {last + 1}.",
                    record.n,
                )
            elif digest is not None and record["h_in"] != digest:
                violations.add(
                    f"The merge of fragment {fragment} to version {version} started from {record['h_in']}; "
                    f"expected {digest}, the digest of version {last}.",
                    record.n,
                )
            heads[fragment] = (version, record["h_out"])
    return f"{len(history.of('merge'))} merges of {len(heads)} fragments form unbroken chains."


def _restore_chain(heads: dict[int, tuple[int, str | None]], record: Record, violations: Violations) -> None:
    ahead = 0
    for fragment, version in enumerate(record["versions"]):
        last, _ = heads.get(fragment, (0, None))
        ahead += version == last + 1
        if version < last or version > last + 1 or (version == last + 1 and ahead > 1):
            violations.add(
                f"The syncer was restored to version {version} of fragment {fragment}; expected {last}, "
                "the last that was merged.",
                record.n,
            )
        if version != last:
            heads[fragment] = (version, record["digests"][fragment])


@safety(
    "S2",
    "no-fork",
    "Each (fragment, version) has one digest over all merge, publish, adopt, init and restore records.",
    needs=("merge",),
)
def no_fork(history: History, violations: Violations) -> str:
    known: dict[tuple[int, int], tuple[str, Record]] = {}
    for record, fragment, version, digest in _digests_told(history):
        first, teller = known.setdefault((fragment, version), (digest, record))
        if first != digest:
            violations.add(
                f"Version {version} of fragment {fragment} has digest {digest} in {record.node}'s {record.kind}; "
                f"expected {first}, as in {teller.node}'s {teller.kind}.",
                teller.n,
                record.n,
            )
    return f"{len(known)} versions of fragments have one digest each."


def _digests_told(history: History) -> Iterator[tuple[Record, int, int, str]]:
    """(record, fragment, version, digest) for every place that tells one."""
    for record in history.of("init", "restore", "merge", "publish", "adopt"):
        data = record.data
        if record.kind == "restore":
            for fragment, (version, digest) in enumerate(zip(data["versions"], data["digests"], strict=True)):
                yield record, fragment, version, digest
        elif record.kind == "merge":
            yield record, data["fragment"], data["version"], data["h_out"]
        elif record.kind == "init":
            yield record, data["fragment"], 0, data["digest"]
        else:
            yield record, data["fragment"], data["version"], data["digest"]


@probe(
    "S11",
    "replay",
    "Folding the recorded contributions from the start in canonical order gives every merged version bit for bit.",
    needs=("merge",),
)
def replay(case: Case) -> Finding:
    """The target's own replay command does the folding, after the run; its digests are compared here. A target that
    has none is not judged; one whose command failed leaves it open whether the fold holds."""
    for record in case.history.of("replay-failed"):
        return Finding(
            Verdict.UNKNOWN,
            f"The target's replay command failed: {record.get('why')}; expected the digest of every version.",
            evidence=(record.n,),
        )
    if not case.history.of("replay"):
        return Finding(Verdict.NOT_RUN, "The history has no record of kind replay: the target has no replay command.")
    known = _digest_of_version(case.history)
    violations = Violations()
    up_to: dict[int, int] = {}
    for record in case.history.of("replay"):
        fragment, version, digest = record["fragment"], record["version"], record["digest"]
        up_to[fragment] = max(up_to.get(fragment, 0), version)
        expected = known.get((fragment, version))
        if digest != expected:
            violations.add(
                f"Replaying fragment {fragment} gives {digest} at version {version}; expected "
                f"{expected or 'no such version: none was merged'}.",
                record.n,
            )
    last: dict[int, int] = {}
    for fragment, version in known:
        last[fragment] = max(last.get(fragment, 0), version)
    reached = ", ".join(f"{fragment}: {up_to.get(fragment, 0)} of {last[fragment]}" for fragment in sorted(last))
    finding = violations.finding(f"The replay agrees bit for bit; versions replayed by fragment: {reached}.")
    short = [fragment for fragment in last if up_to.get(fragment, 0) < last[fragment]]
    if finding.verdict is Verdict.PASS and short:
        return Finding(Verdict.UNKNOWN, f"The replay agrees but ends early; versions replayed by fragment: {reached}.")
    return finding


def _digest_of_version(history: History) -> dict[tuple[int, int], str]:
    """(fragment, version) -> the digest that the syncer's durable record gives it."""
    known: dict[tuple[int, int], str] = {}
    for record in history.of("init", "restore", "merge"):
        if record.kind == "merge":
            known.setdefault((record["fragment"], record["version"]), record["h_out"])
        elif record.kind == "init":
            known.setdefault((record["fragment"], 0), record["digest"])
        else:
            for fragment, (version, digest) in enumerate(zip(record["versions"], record["digests"], strict=True)):
                known.setdefault((fragment, version), digest)
    return known


@safety(
    "S12",
    "monotone-adoption",
    "The versions of a fragment that an incarnation adopts strictly increase, and each has the digest it was merged"
    " with.",
    needs=("merge", "adopt"),
)
def monotone_adoption(history: History, violations: Violations) -> str:
    """One exception: after a reject the syncer sends the current fragment again, which may be the version held."""
    known = _digest_of_version(history)
    held: dict[tuple[str, int, int], tuple[int, int]] = {}
    for record in history.of("adopt"):
        data: dict[str, Any] = record.data
        fragment, version = data["fragment"], data["version"]
        key = (record.node, data["incarnation"], fragment)
        last, last_n = held.get(key, (-1, record.n))
        if version < last or (version == last and data.get("cause") != "reject"):
            violations.add(
                f"{record.node} incarnation {data['incarnation']} adopted version {version} of fragment {fragment} "
                f"after version {last}; expected a newer one.",
                last_n,
                record.n,
            )
        expected = known.get((fragment, version))
        if data["digest"] != expected and (version > 0 or expected is not None):
            violations.add(
                f"{record.node} adopted version {version} of fragment {fragment} with digest {data['digest']}; "
                f"expected {expected or 'no such version: none was merged'}.",
                record.n,
            )
        held[key] = (version, record.n)
    return f"{len(history.of('adopt'))} adoptions were of ever newer versions with the digests merged."
