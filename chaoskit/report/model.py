"""The summary of a run: every figure a report shows, computed once.

The renderers (html, markdown, junit, json) only lay these values out; none of them looks at a journal or derives a
figure again. All times are seconds on the clock of the run, whose zero is the start of the chaos phase; `None` means
the history does not tell.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FORMAT = 1
"""Version of this model, and so of report.json. Raised when a field is removed or changes its meaning."""

State = Literal["down", "joining", "up", "paused"]
ProbeVerdict = Literal["pass", "fail", "unknown", "not run"]
MarkKind = Literal["inject", "undo", "rejoin"]
Family = Literal["kill", "pause", "link", "other"]


@dataclass(frozen=True)
class Conclusion:
    """How the run ended, in one word, one number and one sentence."""

    word: str
    """PASSED, FAILED, INCONCLUSIVE, RESIDUE, ABORTED, TARGET DIED, INTERNAL ERROR or INTERRUPTED."""
    exit_code: int
    why: str


@dataclass(frozen=True)
class KeyFigure:
    """One figure for the head of the report: its name, its value as text, and what to compare it with."""

    name: str
    value: str
    note: str
    measured: float | None = None
    """The same value as a number in `unit`, for machines."""
    unit: str = ""


@dataclass(frozen=True)
class Curve:
    """Evaluations of the global parameters, and the work behind them; parallel tuples of equal length."""

    run: str
    t_s: tuple[float, ...]
    merges: tuple[int, ...]
    loss: tuple[float, ...]
    """Nats per byte on held-out data."""
    not_finite: int
    """Evaluations left out because their loss was not a finite number."""
    work_t_s: tuple[float, ...]
    work_tokens: tuple[float, ...]
    """Tokens merged into the global parameters up to `work_t_s`, averaged over the fragments."""


@dataclass(frozen=True)
class FaultWindow:
    """The time in which one injection was in effect."""

    number: int
    """The row of the fault ledger, from 1."""
    injection: str
    fault: str
    family: Family
    label: str
    targets: tuple[str, ...]
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Mark:
    """A moment worth a sign on the charts."""

    kind: MarkKind
    t_s: float
    role: str
    label: str
    number: int | None = None
    family: Family = "other"


@dataclass(frozen=True)
class Segment:
    """A stretch of a lane in one state."""

    start_s: float
    end_s: float
    state: State
    incarnation: int
    """Of a learner, the incarnation; of any other role, the number of its process."""


@dataclass(frozen=True)
class Lane:
    """The life of one role. `rate` is steps a second, (middle of the bin, rate), empty for roles that take no steps."""

    role: str
    segments: tuple[Segment, ...]
    rate: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class LinkSpan:
    """A stretch of time in which a fault was on a link."""

    start_s: float
    end_s: float
    number: int
    fault: str
    text: str


@dataclass(frozen=True)
class LinkLane:
    """The faults of one link."""

    link: str
    spans: tuple[LinkSpan, ...]


@dataclass(frozen=True)
class Phase:
    """One of preflight, steady, chaos, heal, stop."""

    name: str
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Injection:
    """One row of the fault ledger."""

    number: int
    injection: str
    fault: str
    family: Family
    targets: tuple[str, ...]
    trigger: str
    settings: str
    applied_s: float | None
    ended_s: float | None
    duration_s: float | None
    landed: bool | None
    landed_evidence: tuple[str, ...]
    undone: bool | None
    undone_evidence: tuple[str, ...]
    skipped: str
    """Why it was never injected; empty when it was."""
    records: tuple[int, ...]


@dataclass(frozen=True)
class Probe:
    """One row of the probe table. `measured` and `tolerance` are in `unit`."""

    id: str
    name: str
    verdict: ProbeVerdict
    statement: str
    detail: str
    measured: float | None
    tolerance: float | None
    unit: str
    records: tuple[int, ...]


@dataclass(frozen=True)
class Rejoin:
    """One return of a learner as a new incarnation. Times but `lost_s` are seconds after it was lost."""

    learner: str
    incarnation: int
    cause: str
    lost_s: float | None
    restart_after_s: float | None
    join_after_s: float | None
    ready_after_s: float | None
    merge_after_s: float | None
    versions_join: tuple[int, ...]
    versions_ready: tuple[int, ...]


@dataclass(frozen=True)
class Fidelity:
    """What a fault kind stands for in the real world, and what surviving it does not prove."""

    fault: str
    stands_for: str
    does_not_certify: str


@dataclass(frozen=True)
class Summary:
    """All that is known of a run."""

    format: int
    run: str
    plan: str
    about: str
    target: str
    seed: int | None
    wall_time: str
    command: str
    control_run: str
    """Name of the control run this one is judged against; empty without one."""
    versions: tuple[tuple[str, str], ...]
    conclusion: Conclusion
    figures: tuple[KeyFigure, ...]
    start_s: float
    end_s: float
    phases: tuple[Phase, ...]
    curve: Curve
    control: Curve | None
    gap: tuple[tuple[int, float], ...]
    """(merges, loss of the run as a share above that of the control run after as many merges); empty without a
    control run."""
    windows: tuple[FaultWindow, ...]
    marks: tuple[Mark, ...]
    lanes: tuple[Lane, ...]
    links: tuple[LinkLane, ...]
    injections: tuple[Injection, ...]
    probes: tuple[Probe, ...]
    not_run: tuple[Probe, ...]
    rejoins: tuple[Rejoin, ...]
    fidelity: tuple[Fidelity, ...]
    residue: tuple[str, ...]
    notes: tuple[str, ...]
    """What the reader must know of the records themselves: lines that were cut or damaged."""
