"""What a probe is: a function of a history, and the rules by which many findings become one verdict.

    history ─┐
    control ─┼─▶ probe.check(case) ─▶ Finding ─▶ ProbeResult ─▶ combine ─▶ one verdict of the run
    plan ────┘          │
                        └── raises ─▶ UNKNOWN, with the exception in the detail

No probe looks at a live process, a file or a clock, so a run can be judged again years later and gives the
same answer. A probe also never guesses: what the tape does not tell is NOT_RUN, what the tape tells but does
not settle is UNKNOWN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from chaoskit.errors import nearest
from chaoskit.journal import History
from chaoskit.plan import Expect, ProbeSpec, Setting, SettingValue
from chaoskit.plan.catalogue import defaults

EVIDENCE_COUNT_MAX = 20
"""A broken trainer breaks the same rule thousands of times; the first records tell as much as all of them."""


class Verdict(IntEnum):
    """Ordered, so that the verdict of many is the greatest: PASS < UNKNOWN < FAIL. NOT_RUN never weighs."""

    NOT_RUN = 0
    """The tape tells too little, or the situation that the probe is about never arose."""
    PASS = 1
    UNKNOWN = 2
    FAIL = 3

    @property
    def word(self) -> str:
        """As written in reports: "not run", "pass", "unknown", "fail"."""
        return self.name.lower().replace("_", " ")


def combine(verdicts: Iterable[Verdict]) -> Verdict:
    """The verdict of all together; NOT_RUN when there is none or none was run."""
    return max(verdicts, default=Verdict.NOT_RUN)


@dataclass(frozen=True)
class Case:
    """What a probe is given: the run, its control run (same seed, no faults) if there is one, its tolerances."""

    history: History
    control: History | None
    tolerance: Mapping[str, float]


@dataclass(frozen=True)
class Finding:
    """What a probe found. `detail` is one sentence; `evidence` are numbers of records of the history."""

    verdict: Verdict
    detail: str
    measured: float | None = None
    tolerance: float | None = None
    unit: str = ""
    evidence: tuple[int, ...] = ()


@dataclass(frozen=True)
class ProbeResult:
    """One row of the probe table. `measured` and `tolerance` are in `unit`, None where there is no number."""

    probe: str
    id: str
    verdict: Verdict
    statement: str
    detail: str
    measured: float | None
    tolerance: float | None
    unit: str
    evidence: tuple[int, ...]


@dataclass(frozen=True)
class Probe:
    """A measurement with a tolerance. `needs` are the tape and journal kinds without which it is not run."""

    id: str
    name: str
    statement: str
    needs: tuple[str, ...]
    settings: tuple[Setting, ...]
    check: Callable[[Case], Finding]

    @property
    def spec(self) -> ProbeSpec:
        """What the plan reader must know of this probe."""
        return ProbeSpec(name=self.name, id=self.id, tolerances=self.settings, about=self.statement)

    @property
    def defaults(self) -> dict[str, SettingValue]:
        """The tolerances in force where the plan gives none, under the keys a plan is read to."""
        return defaults(self.settings)


PROBES: dict[str, Probe] = {}
"""Every probe by its name: safety, liveness, outcome, each by number."""


def place(id: str) -> tuple[int, int]:
    """Where a probe stands in the table: safety (S1, S2, ...), liveness (L1, ...), convergence (C1)."""
    return "SLC".index(id[0]), int(id[1:])


Check = Callable[[Case], Finding]


def probe(
    id: str,
    name: str,
    statement: str,
    *,
    needs: tuple[str, ...],
    settings: tuple[Setting, ...] = (),
) -> Callable[[Check], Check]:
    """Register the function below as the probe of this name."""

    def register(check: Check) -> Check:
        assert name not in PROBES, f"two probes are named {name!r}"
        assert all(setting.default is not None for setting in settings), f"{name}: a tolerance lacks a default"
        PROBES[name] = Probe(id, name, statement, needs, settings, check)
        return check

    return register


class Violations:
    """What a safety rule collects on its pass: every violation counted, the first told, few kept as evidence."""

    def __init__(self) -> None:
        self.count = 0
        self.first = ""
        self.evidence: list[int] = []

    def add(self, told: str, *numbers: int) -> None:
        """One violation: a sentence with learner, fragment, version, values, and what was expected."""
        self.count += 1
        self.first = self.first or told
        if len(self.evidence) < EVIDENCE_COUNT_MAX:
            self.evidence += numbers

    def finding(self, summary: str) -> Finding:
        """PASS with the summary of what was checked, or FAIL with the first violation."""
        more = f" ({self.count - 1} more)" if self.count > 1 else ""
        return Finding(
            verdict=Verdict.FAIL if self.count else Verdict.PASS,
            detail=f"{self.first}{more}" if self.count else summary,
            measured=float(self.count),
            tolerance=0.0,
            unit="violations",
            evidence=tuple(self.evidence),
        )


Rule = Callable[[History, Violations], str]


def safety(id: str, name: str, statement: str, *, needs: tuple[str, ...]) -> Callable[[Rule], Rule]:
    """Register a rule: it adds every violation it sees and returns one sentence on what it checked."""

    def register(rule: Rule) -> Rule:
        @probe(id, name, statement, needs=needs)
        def check(case: Case) -> Finding:
            violations = Violations()
            summary = rule(case.history, violations)
            return violations.finding(summary)

        return rule

    return register


def judge(history: History, control: History | None, expects: Sequence[Expect] = ()) -> list[ProbeResult]:
    """Run every probe over the history, each guarded: one that raises is UNKNOWN and the others still run.

    A probe that the plan expects uses the plan's tolerances. One that the plan names in a line of its own and that
    is NOT_RUN becomes UNKNOWN: the plan asked for a proof that this run does not give.
    """
    wanted = {expect.probe: expect for expect in expects}
    results = [_judge_one(probe, history, control, wanted.get(probe.name)) for probe in PROBES.values()]
    return results + [_no_such_probe(expect) for name, expect in wanted.items() if name not in PROBES]


def _judge_one(probe: Probe, history: History, control: History | None, expect: Expect | None) -> ProbeResult:
    tolerance = {
        key: float(value) for key, value in (probe.defaults | dict(expect.tolerance if expect else {})).items()
    }
    missing = [kind for kind in probe.needs if not history.of(kind)]
    if missing:
        told = "; this probe needs them" if len(missing) > 1 else "; this probe needs it"
        finding = Finding(Verdict.NOT_RUN, f"The history has no record of kind {', '.join(missing)}{told}.")
    else:
        try:
            finding = probe.check(Case(history, control, tolerance))
        except Exception as error:  # noqa: BLE001  a probe's own fault must not hide what the others found
            finding = Finding(
                Verdict.UNKNOWN,
                f"The probe raised {type(error).__name__}: {error}. A field that the tape lacks shows like this, "
                "and so does a fault of the probe.",
            )
    verdict, detail = finding.verdict, finding.detail
    if verdict is Verdict.NOT_RUN and expect is not None and expect.line is not None:
        verdict, detail = Verdict.UNKNOWN, f"{detail} The plan expects it (line {expect.line})."
    if verdict is Verdict.PASS and history.damaged:
        verdict = Verdict.UNKNOWN
        detail += (
            f" But {history.damaged} damaged lines are left out of the tapes, {history.damaged_at[0]} first:"
            " what they told is not known."
        )
    return ProbeResult(
        probe=probe.name,
        id=probe.id,
        verdict=verdict,
        statement=probe.statement,
        detail=detail,
        measured=finding.measured,
        tolerance=finding.tolerance,
        unit=finding.unit,
        evidence=finding.evidence[:EVIDENCE_COUNT_MAX],
    )


def _no_such_probe(expect: Expect) -> ProbeResult:
    told = f"Line {expect.line} of the plan expects {expect.probe!r}, which is no probe{nearest(expect.probe, PROBES)}."
    return ProbeResult(expect.probe, "", Verdict.UNKNOWN, "", told, None, None, "", ())
