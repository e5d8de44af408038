"""What is known of a run while it is on: small, and moved on by one record of its journal or tapes at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from chaoskit.report.text import link_name, pairs_text, without_hold

EVENTS_KEPT_MAX = 200
EVALS_KEPT_MAX = 600
STEPS_KEPT_MAX = 48
"""Steps over which the rate of a learner is taken."""

State = Literal["waiting", "joining", "up", "paused", "down", "ended"]


@dataclass(frozen=True)
class Event:
    """One line of what happened; `t` is monotonic. `loud` is false for what only fills a log."""

    t: float
    text: str
    style: str = ""
    loud: bool = True


@dataclass
class RoleState:
    """One lane. `incarnation` is a learner's, or the number of another role's process."""

    state: State = "waiting"
    paused: bool = False
    learner: bool = False
    incarnation: int = 0
    steps: int = 0
    loss: float | None = None
    step_times: deque[float] = field(default_factory=lambda: deque(maxlen=STEPS_KEPT_MAX))
    adopted: dict[int, int] = field(default_factory=dict)

    def shown(self) -> State:
        """The state, with a pause laid over it: a dead process is not paused."""
        return "paused" if self.paused and self.state in ("joining", "up") else self.state

    def rate(self, now: float) -> float | None:
        """Steps a second over the last steps; it falls towards zero while no step comes."""
        if len(self.step_times) < 2:
            return None
        span_s = max(now, self.step_times[-1]) - self.step_times[0]
        return (len(self.step_times) - 1) / span_s if span_s > 0 else None


@dataclass
class ActiveFault:
    """An injection that acts now."""

    injection: str
    fault: str
    targets: tuple[str, ...]
    settings: str
    hold_s: float | None
    start_t: float | None = None


class RunState:
    """All that the view knows of a run, moved on by one record at a time. No clock, no file, no terminal."""

    def __init__(self) -> None:
        self.run = ""
        self.plan = ""
        self.seed: int | None = None
        self.chaos = True
        self.phase = "starting"
        self.start_t: float | None = None
        """Time of the first record."""
        self.now_t = 0.0
        """The latest time of any record."""
        self.round = 0
        self.total_rounds: int | None = None
        self.merges = 0
        self.below_quorum = False
        self.roles: dict[str, RoleState] = {}
        self.faults: dict[str, ActiveFault] = {}
        self.clock: dict[int, int] = {}
        """Newest version of each fragment."""
        self.evals: deque[tuple[int, float]] = deque(maxlen=EVALS_KEPT_MAX)
        self.events: deque[Event] = deque(maxlen=EVENTS_KEPT_MAX)
        self.event_count = 0
        """Events so far, those that were dropped from `events` included."""
        self.outcome = ""

    def apply(self, record: Mapping[str, Any], role: str = "") -> None:
        """Take in one record of the journal, or of the tape of `role`. Unknown kinds and odd fields are passed over."""
        t = float(record["t"])
        self.now_t = max(self.now_t, t)
        if self.start_t is None:
            self.start_t = t
        handler = _HANDLERS.get(str(record.get("kind")))
        if handler is not None:
            handler(self, t, record, role)

    def tell(self, t: float, text: str, style: str = "", *, loud: bool = True) -> None:
        """Add one event. What cannot be printed (a control code in a role's name, say) is made visible."""
        shown = "".join(letter if letter.isprintable() else "�" for letter in text)
        self.events.append(Event(t, shown, style, loud))
        self.event_count += 1

    def lag(self, role: RoleState) -> int | None:
        """How many versions the role's oldest fragment is behind the newest; None before it adopted anything."""
        if not role.adopted:
            return None
        return max(self.clock.get(fragment, version) - version for fragment, version in role.adopted.items())

    def role(self, name: str) -> RoleState:
        """The lane of this role, made where it is not known yet."""
        return self.roles.setdefault(name, RoleState())


# What each kind of record does to the state. Journal first, then the tapes.

Handler = Callable[[RunState, float, Mapping[str, Any], str], None]


def _opened(state: RunState, _t: float, record: Mapping[str, Any], _role: str) -> None:
    state.run, state.plan = str(record.get("run", "")), str(record.get("plan", ""))
    seed = record.get("seed")
    state.seed = seed if type(seed) is int else None
    state.chaos = record.get("with_faults") is not False


def _phase(state: RunState, t: float, record: Mapping[str, Any], _role: str) -> None:
    state.phase = str(record.get("phase", ""))
    state.tell(t, f"phase: {state.phase}", "bold")


def _spawned(state: RunState, t: float, record: Mapping[str, Any], _role: str) -> None:
    name = str(record.get("role", ""))
    role = state.role(name)
    role.state = "joining"
    if not role.learner:
        role.incarnation = _integer(record, "start", role.incarnation)
    if record.get("cause") == "restart":
        state.tell(t, f"{name}: started again, process {record.get('pid')}")


def _exited(state: RunState, t: float, record: Mapping[str, Any], _role: str) -> None:
    name = str(record.get("role", ""))
    role = state.role(name)
    role.step_times.clear()
    if record.get("expected") and not record.get("injection"):
        role.state = "ended"
        return
    role.state = "down"
    how = f"signal {record.get('signal')}" if record.get("signal") else f"exit code {record.get('code')}"
    why = f", by {record['injection']}" if record.get("injection") else ""
    style = "" if record.get("expected") else "bold red"
    outside = "" if record.get("expected") else ", outside any fault"
    state.tell(t, f"{name}: ended, {how}{why}{outside}", style)


def _up(state: RunState, _t: float, record: Mapping[str, Any], _role: str) -> None:
    role = state.role(str(record.get("role", "")))
    if not role.learner:
        role.state = "up"


def _intended(state: RunState, _t: float, record: Mapping[str, Any], _role: str) -> None:
    settings = record.get("settings") or {}
    hold_s = settings.get("hold_s")
    injection = str(record.get("injection", ""))
    state.faults[injection] = ActiveFault(
        injection=injection,
        fault=str(record.get("fault", "")),
        targets=tuple(str(target) for target in record.get("targets") or ()),
        settings=", ".join(pairs_text(without_hold(settings))),
        hold_s=float(hold_s) if isinstance(hold_s, (int, float)) else None,
    )


def _applied(state: RunState, t: float, record: Mapping[str, Any], _role: str) -> None:
    fault = state.faults.get(str(record.get("injection", "")))
    if fault is None:
        return
    fault.start_t = t
    where = ", ".join(map(link_name, fault.targets))
    settings = f" ({fault.settings})" if fault.settings else ""
    state.tell(t, f"{fault.injection}: {fault.fault} on {where}{settings}", "magenta")
    _set_paused(state, fault, paused=True)


def _landed(state: RunState, t: float, record: Mapping[str, Any], _role: str) -> None:
    landed = record.get("landed") is True
    text = f"{record.get('injection')}: {'landed' if landed else 'DID NOT LAND'}{_evidence(record)}"
    state.tell(t, text, "" if landed else "bold red")


def _undone(state: RunState, t: float, record: Mapping[str, Any], _role: str) -> None:
    injection = str(record.get("injection", ""))
    fault = state.faults.pop(injection, None)
    if fault is not None:
        _set_paused(state, fault, paused=False)
    clean = record.get("clean") is True
    text = f"{injection}: {'undone' if clean else 'UNDO NOT VERIFIED'}{_evidence(record)}"
    state.tell(t, text, "" if clean else "bold red")


def _skipped(state: RunState, t: float, record: Mapping[str, Any], _role: str) -> None:
    state.faults.pop(str(record.get("injection", "")), None)
    state.tell(t, f"{record.get('injection')}: not injected, {record.get('why')}", "yellow")


def _aborted(state: RunState, t: float, record: Mapping[str, Any], _role: str) -> None:
    state.tell(t, f"abort: {record.get('why')}", "bold red")


def _ended(state: RunState, t: float, record: Mapping[str, Any], _role: str) -> None:
    state.outcome = str(record.get("outcome", ""))
    state.faults.clear()
    why = f", {record.get('why')}" if record.get("why") else ""
    state.tell(t, f"end: {state.outcome}{why}", "bold")


def _guarded(state: RunState, t: float, record: Mapping[str, Any], _role: str) -> None:
    state.tell(t, f"guardian: {record.get('event')}", "bold red")


def _configured(state: RunState, _t: float, record: Mapping[str, Any], _role: str) -> None:
    rounds = _integer(record, "rounds", 0)
    if rounds > 0:
        state.total_rounds = rounds


def _round(state: RunState, _t: float, record: Mapping[str, Any], _role: str) -> None:
    state.round = max(state.round, _integer(record, "round", 0))


def _merged(state: RunState, _t: float, record: Mapping[str, Any], _role: str) -> None:
    state.merges += 1
    state.below_quorum = False
    state.clock[_integer(record, "fragment", 0)] = _integer(record, "version", 0)


def _below_quorum(state: RunState, t: float, record: Mapping[str, Any], _role: str) -> None:
    state.below_quorum = True
    state.tell(t, f"below quorum: {record.get('ready')} of {record.get('quorum')} learners", "yellow")


def _welcomed(state: RunState, _t: float, record: Mapping[str, Any], name: str) -> None:
    role = state.role(name)
    role.learner, role.state = True, "joining"
    role.incarnation = _integer(record, "incarnation", role.incarnation)
    role.adopted.clear()


def _ready(state: RunState, t: float, record: Mapping[str, Any], name: str) -> None:
    role = state.role(name)
    role.learner, role.state = True, "up"
    role.incarnation = _integer(record, "incarnation", role.incarnation)
    if role.incarnation > 1:
        state.tell(t, f"{name}: trains again, as incarnation {role.incarnation}", "green")


def _stepped(state: RunState, t: float, record: Mapping[str, Any], name: str) -> None:
    role = state.role(name)
    role.steps = _integer(record, "step", role.steps + 1)
    role.step_times.append(t)
    loss = record.get("loss")
    role.loss = float(loss) if isinstance(loss, (int, float)) else None


def _adopted(state: RunState, _t: float, record: Mapping[str, Any], name: str) -> None:
    state.role(name).adopted[_integer(record, "fragment", 0)] = _integer(record, "version", 0)


def _disconnected(state: RunState, t: float, record: Mapping[str, Any], name: str) -> None:
    role = state.role(name)
    if role.state == "up" and state.phase != "stop":
        role.state = "joining"
        state.tell(t, f"{name}: connection lost, {record.get('why')}", "yellow")


def _evaluated(state: RunState, t: float, record: Mapping[str, Any], _role: str) -> None:
    loss = record.get("loss")
    if isinstance(loss, (int, float)):
        state.evals.append((_integer(record, "merges", 0), float(loss)))
        state.tell(t, f"loss {loss:.4f} after {_integer(record, 'merges', 0)} merges", loud=False)


_HANDLERS: Mapping[str, Handler] = {
    "journal": _opened,
    "phase": _phase,
    "spawn": _spawned,
    "exit": _exited,
    "up": _up,
    "intent": _intended,
    "applied": _applied,
    "landed": _landed,
    "undone": _undone,
    "skipped": _skipped,
    "abort": _aborted,
    "end": _ended,
    "guardian": _guarded,
    "config": _configured,
    "round": _round,
    "merge": _merged,
    "below-quorum": _below_quorum,
    "welcome": _welcomed,
    "ready": _ready,
    "step": _stepped,
    "adopt": _adopted,
    "disconnect": _disconnected,
    "eval": _evaluated,
}


def _set_paused(state: RunState, fault: ActiveFault, *, paused: bool) -> None:
    if fault.fault == "process.pause":
        for target in fault.targets:
            state.role(target).paused = paused


def _evidence(record: Mapping[str, Any]) -> str:
    evidence = record.get("evidence")
    return ", " + ", ".join(pairs_text(evidence)) if isinstance(evidence, Mapping) and evidence else ""


def _integer(record: Mapping[str, Any], name: str, default: int) -> int:
    value = record.get(name)
    return value if type(value) is int else default
