"""The token ledger: every token a learner processed is merged, discarded for a named reason, or still open.

    tokens of (learner-2, incarnation 1), as fragment 3 sees them:

    0            adopt            adopt               adopt    processed
    ├──── merged ──┤─ overlap ─┼──── late ─────────┼── merged ──┤─ open ─┤
         lo..hi       hi..at          lo..at              lo..hi    hi..

Adoptions of a fragment cut the axis into intervals; an update owns the first part of one interval, and what
was done on the fragment after the update and before the next adoption is lost to that fragment. The books
must close exactly: a gap is work lost silently, an overlap is work counted twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from chaoskit.journal import History, Record
from chaoskit.probes.base import Case, Finding, Violations, probe

OVERLAP = "overlap"
"""Done between sending the update that was merged and adopting the fragment."""
NOT_PULLED = "not-pulled"
"""No update was sent between two adoptions."""
UNANSWERED = "unanswered"
"""An update was sent, and neither merged nor rejected before the fragment was overwritten."""
KILLED = "killed"
"""The process died before the fragment was adopted again."""
DISCONNECTED = "disconnected"
"""The incarnation ended and its process went on under a new one."""

Key = tuple[str, int, int]
"""(learner, incarnation, fragment)."""
Report = Callable[..., None]


@dataclass(frozen=True)
class LedgerEntry:
    """Tokens of one (learner, incarnation, fragment): processed = merged + sum of discarded + open."""

    learner: str
    incarnation: int
    fragment: int
    processed: int
    merged: int
    discarded: Mapping[str, int]
    """Reason -> tokens. The reasons are the constants of this file and the syncer's words for a reject."""
    open: int
    """Neither merged nor discarded when the run ended."""

    @property
    def closes(self) -> bool:
        """Whether the books are exact."""
        return self.processed == self.merged + sum(self.discarded.values()) + self.open


@dataclass(frozen=True)
class Ledger:
    """All entries, in order of learner, incarnation and fragment. Totals are fragment tokens: a token counts
    once for every fragment."""

    entries: tuple[LedgerEntry, ...]

    @property
    def processed(self) -> int:
        return sum(entry.processed for entry in self.entries)

    @property
    def merged(self) -> int:
        return sum(entry.merged for entry in self.entries)

    @property
    def open(self) -> int:
        return sum(entry.open for entry in self.entries)

    @property
    def discarded(self) -> dict[str, int]:
        """Reason -> fragment tokens, largest first."""
        totals: dict[str, int] = {}
        for entry in self.entries:
            for reason, tokens in entry.discarded.items():
                totals[reason] = totals.get(reason, 0) + tokens
        return dict(sorted(totals.items(), key=lambda item: -item[1]))


def ledger(history: History, report: Report | None = None) -> Ledger:
    """The books of a run. `report(sentence, *record numbers)` is called for every gap and overlap."""
    books = _Books(history, report or _ignore)
    books.note_updates()
    books.keep()
    books.close()
    entries = [
        LedgerEntry(
            learner=learner,
            incarnation=incarnation,
            fragment=fragment,
            processed=books.processed[learner, incarnation][0],
            merged=account.merged,
            discarded=account.discarded,
            open=account.open,
        )
        for (learner, incarnation, fragment), account in sorted(books.accounts.items())
        if (learner, incarnation) in books.processed
    ]
    return Ledger(tuple(entries))


def _ignore(sentence: str, *numbers: int) -> None:
    """Where only the totals are wanted."""


@dataclass
class _Account:
    """The books of one key while they are being kept."""

    adopted_at: int = 0
    merged: int = 0
    discarded: dict[str, int] = field(default_factory=dict)
    open: int = 0

    @property
    def total(self) -> int:
        return self.merged + sum(self.discarded.values()) + self.open

    def discard(self, reason: str, tokens: int) -> None:
        if tokens:
            self.discarded[reason] = self.discarded.get(reason, 0) + tokens


class _Books:
    """Keeps the accounts of all keys over the passes of one history."""

    def __init__(self, history: History, report: Report) -> None:
        self.history = history
        self.report = report
        self.merged: dict[Key, dict[int, tuple[int, Record]]] = {}
        """Key -> lo -> (hi, merge); an interval that is settled takes its own out."""
        self.rejected: dict[Key, dict[int, str]] = {}
        """Key -> lo -> the last reason."""
        self.sent: set[tuple[str, int, int, int]] = set()
        """(learner, incarnation, fragment, lo)."""
        self.accounts: dict[Key, _Account] = {}
        self.processed: dict[tuple[str, int], tuple[int, Record]] = {}
        """(learner, incarnation) -> (tokens, last step)."""

    def note_updates(self) -> None:
        """Which update owns which interval, and what became of it."""
        sends: dict[str, tuple[Key, int]] = {}
        for record in self.history.of("send"):
            data = record.data
            key, lo = (record.node, data["incarnation"], data["fragment"]), data["lo"]
            sends[data["id"]] = (key, lo)
            self.sent.add((*key, lo))
        for record in self.history.of("reject"):
            if record["id"] in sends:
                key, lo = sends[record["id"]]
                self.rejected.setdefault(key, {})[lo] = record["why"]
        for record in self.history.of("merge"):
            fragment = record["fragment"]
            for update in record["contributions"]:
                key = (update["learner"], update["incarnation"], fragment)
                lo, hi = update["lo"], update["hi"]
                owned = self.merged.setdefault(key, {})
                if lo not in owned:
                    owned[lo] = (hi, record)
                else:
                    hi_before, before = owned[lo]
                    self.report(
                        f"Tokens ({lo}, {min(hi, hi_before)}] of {_of(key)} are merged to version "
                        f"{before['version']} and to version {record['version']}; expected once.",
                        before.n,
                        record.n,
                    )

    def keep(self) -> None:
        """Walk the learners' tapes and settle an interval at every adoption."""
        for record in self.history.of("step", "adopt"):
            data = record.data
            owner = (record.node, data["incarnation"])
            tokens = self.processed[owner][0] if owner in self.processed else 0
            if record.kind == "step":
                if data["tokens"] < tokens:
                    self.report(
                        f"{record.node} incarnation {owner[1]} counts {data['tokens']} tokens after {tokens};"
                        " expected a count that only grows.",
                        record.n,
                    )
                self.processed[owner] = (data["tokens"], record)
                continue
            key = (*owner, data["fragment"])
            account = self.accounts.setdefault(key, _Account())
            lo, at = data["lo"], data["at"]
            if lo != account.adopted_at or at != tokens:
                self.report(
                    f"{_of(key)} adopted version {data['version']} for tokens ({lo}, {at}]; expected "
                    f"({account.adopted_at}, {tokens}], from the last adoption to the last step.",
                    record.n,
                )
            merged = self.settle_merged(key, account, lo, at, record)
            account.discard(OVERLAP if merged else self.reason(key, lo), at - lo - merged)
            account.adopted_at = at

    def close(self) -> None:
        """Settle what is left when an incarnation ends, and report updates that no interval owns."""
        ends = _ends(self.history)
        fragments = {key[2] for key in self.accounts}
        fragments |= {merge["fragment"] for merge in self.history.of("merge")}
        for owner, (tokens, last_step) in self.processed.items():
            for fragment in fragments:
                key = (*owner, fragment)
                account = self.accounts.setdefault(key, _Account())
                lo = account.adopted_at
                rest = tokens - lo - self.settle_merged(key, account, lo, tokens, last_step)
                if owner in ends:
                    account.discard(ends[owner], rest)
                else:
                    account.open += rest
                if account.total != tokens:
                    self.report(
                        f"The books of {_of(key)} add up to {account.total} tokens; expected the {tokens} processed.",
                        last_step.n,
                    )
        for key, owned in self.merged.items():
            for lo, (hi, merge) in owned.items():
                self.report(
                    f"Tokens ({lo}, {hi}] of {_of(key)}, merged to version {merge['version']}, begin at no "
                    "adoption; expected an interval that starts where the fragment was adopted.",
                    merge.n,
                )

    def settle_merged(self, key: Key, account: _Account, lo: int, at: int, record: Record) -> int:
        """Book the update that owns the beginning of (lo, at], and return how many tokens it merged."""
        owned = self.merged.get(key)
        if not owned or lo >= at or lo not in owned:
            return 0
        hi, merge = owned.pop(lo)
        if hi > at:
            self.report(
                f"Tokens ({lo}, {hi}] of {_of(key)} were merged to version {merge['version']}; expected no "
                f"more than ({lo}, {at}], what was processed until the fragment was adopted or the run ended.",
                merge.n,
                record.n,
            )
            hi = at
        account.merged += hi - lo
        return hi - lo

    def reason(self, key: Key, lo: int) -> str:
        """Why an interval without a merged update was lost."""
        rejected = self.rejected.get(key, {})
        return rejected.get(lo) or (UNANSWERED if (*key, lo) in self.sent else NOT_PULLED)


def _of(key: Key) -> str:
    return f"{key[0]} incarnation {key[1]}, fragment {key[2]}"


def _ends(history: History) -> dict[tuple[str, int], str]:
    """(learner, incarnation) -> why it ended; those that lasted until their process stopped are not here."""
    ends: dict[tuple[str, int], str] = {}
    current: dict[str, int] = {}
    for record in history.of("start", "welcome", "stop", "exit"):
        role = record["role"] if record.kind == "exit" else record.node
        if record.kind == "welcome":
            if role in current:
                ends[role, current[role]] = DISCONNECTED
            current[role] = record["incarnation"]
        elif role in current:
            incarnation = current.pop(role)
            if record.kind != "stop":
                ends[role, incarnation] = KILLED
    return ends


@probe(
    "S7",
    "token-ledger",
    "Per (learner, incarnation, fragment) the tokens processed are exactly those merged, discarded by reason"
    " or still open.",
    needs=("merge", "step", "send", "adopt"),
)
def token_ledger(case: Case) -> Finding:
    violations = Violations()
    books = ledger(case.history, violations.add)
    whole = books.processed
    reasons = ", ".join(f"{reason} {_share(tokens, whole)}" for reason, tokens in books.discarded.items())
    return violations.finding(
        f"The books of {len(books.entries)} (learner, incarnation, fragment) close: "
        f"{_share(books.merged, whole)} of {whole} fragment tokens merged, "
        f"{_share(books.open, whole)} open at the end, discarded: {reasons or 'none'}."
    )


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "0 %"
