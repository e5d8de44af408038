"""A run as its user sees it: preflight, control run, the run itself, judging, report.

chaoskit run PLAN
  ├─ preflight            no side effect before it has passed
  ├─ control run          the same plan and seed without faults; kept for as long as what it depends on stays
  ├─ run                  guardian ─▶ daemon ─▶ target   (the live view follows the files they write)
  └─ judge and report     pure functions of the two histories
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from chaoskit.control_run import CONTROL, cached_control, control_key
from chaoskit.daemon.control import ask
from chaoskit.daemon.ledger import LEDGER, read_ledger
from chaoskit.daemon.recover import Recovery, end_run, needs_recovery, owners_alive
from chaoskit.daemon.spec import Expectation, RunSpec, read_spec
from chaoskit.errors import ChaoskitError, ExitCode, JournalError, ResidueError, UsageError
from chaoskit.faults import FAULTS
from chaoskit.journal import AppendLog, history
from chaoskit.plan import Expect, Plan, Target
from chaoskit.plans import load
from chaoskit.probes import judge
from chaoskit.report import Conclusion, summarise, write_reports

REFRESH_S = 0.2
OWNERS_DEADLINE_S = 10.0
"""How long the daemon may heal by itself after its guardian died, before the runner ends the run."""
LISTENING_DEADLINE_S = 20.0
"""How long an interrupt waits for a daemon that is still starting, before it goes through the guardian."""
REPLAY_DEADLINE_S = 180.0
REPLAY_BYTES_MAX = 256 << 20


class View(Protocol):
    """What is shown while a run is on."""

    def refresh(self) -> None:
        """Called a few times a second; must be cheap."""


OpenView = Callable[[Path], AbstractContextManager[View]]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Finished:
    """What a judged run leaves: its folder, its reports by format, and its conclusion."""

    run_dir: Path
    reports: dict[str, Path]
    conclusion: Conclusion


class ControlRunError(ChaoskitError):
    """The control run did not complete, so there is nothing to compare with and no fault was injected."""

    def __init__(self, message: str, exit_code: ExitCode) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Interrupts:
    """Counts SIGINT and SIGTERM while a run is on. The first one heals; no number of them skips the healing."""

    def __init__(self) -> None:
        self.count = 0

    def _note(self, *_: object) -> None:
        self.count += 1

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Take the two signals over, and give them back afterwards."""
        before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def run_plan(
    plan_path: Path, *, seed: int | None, reports_dir: Path, open_view: OpenView, fresh_control: bool, say: Say
) -> Finished:
    """Make a run of a plan and judge it; `say` takes lines for the user. Raises ChaoskitError if none could be made."""
    plan, target = load(plan_path)
    reports_dir = reports_dir.resolve()
    chosen_seed = plan.run.seed if seed is None else seed
    preflight(target, reports_dir)
    interrupts = Interrupts()
    with interrupts.caught():
        control_dir = _control(plan, target, chosen_seed, reports_dir, open_view, interrupts, say, fresh=fresh_control)
        run_dir = _new_folder(reports_dir, f"{plan.name}-s{chosen_seed}-{time.strftime('%Y%m%d-%H%M%S')}")
        say(f"run: {run_dir.name}")
        control = os.path.relpath(control_dir, run_dir)
        execute(
            run_dir, plan, target, _spec(plan, chosen_seed, with_faults=True, control=control), open_view, interrupts
        )
        if not interrupts.count:
            replay(run_dir, target)
    return report(run_dir)


def preflight(target: Target, reports_dir: Path) -> None:
    """Everything a run needs, looked at without touching it; then what an earlier run left is ended.

    Raises UsageError or ResidueError.
    """
    existing = next(folder for folder in (reports_dir, *reports_dir.parents) if folder.exists())
    if not (existing.is_dir() and os.access(existing, os.W_OK)):
        raise UsageError(
            f"{reports_dir}: no run folder can be made, because {existing} is not a writable folder; use --reports"
        )
    check_programs(target)
    for run_dir in _run_dirs(reports_dir):
        if needs_recovery(run_dir) and not _is_on(run_dir):
            recovery = end_run(run_dir, "next run")
            if recovery.unproved:
                raise ResidueError(f"{run_dir}: an earlier run left something: {'; '.join(recovery.unproved)}")


def check_programs(target: Target) -> None:
    """Raises UsageError where a role's program cannot be executed."""
    for role in target.roles:
        program = role.command[0].replace("{python}", sys.executable)
        if shutil.which(program) is None:
            raise UsageError(
                f"{target.path}:{role.line}: role {role.name!r}: {program!r} is not an executable; expected one on PATH"
            )


def execute(
    run_dir: Path, plan: Plan, target: Target, spec: RunSpec, open_view: OpenView, interrupts: Interrupts
) -> None:
    """Make one run in its folder and return when nothing of it is left. What happened stands in its journal."""
    for source, name in ((plan.path, "plan.toml"), (target.path, "target.toml")):
        shutil.copyfile(source, run_dir / name)
    spec.write(run_dir)
    (run_dir / "logs").mkdir()
    # The daemon and the guardian see this pipe's end close when we die, however we die.
    life_fd, our_life_fd = os.pipe()
    with (run_dir / "logs" / "daemon.log").open("wb") as log:
        guardian = subprocess.Popen(
            [sys.executable, "-P", "-m", "chaoskit.daemon.guardian", str(run_dir), "--life-fd", str(life_fd)],
            pass_fds=(life_fd,),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    os.close(life_fd)
    try:
        with open_view(run_dir) as view:
            _follow(guardian, run_dir, view, interrupts)
    finally:
        os.close(our_life_fd)
        _make_sure_it_ended(run_dir)
    if not (run_dir / "journal.jsonl").exists():
        said = run_dir / "logs" / "daemon.log"
        raise ChaoskitError(f"the daemon ended before the run began, and nothing was injected; it says why in {said}")


def _follow(guardian: subprocess.Popen[bytes], run_dir: Path, view: View, interrupts: Interrupts) -> None:
    noticed_at: float | None = None
    asked = False
    while True:
        if interrupts.count and not asked:
            noticed_at = noticed_at or time.monotonic()
            asked = _ask_to_end(run_dir)
            if not asked and time.monotonic() > noticed_at + LISTENING_DEADLINE_S:
                guardian.terminate()
                asked = True
        try:
            guardian.wait(timeout=REFRESH_S)
        except subprocess.TimeoutExpired:
            view.refresh()
            continue
        view.refresh()
        return


def _ask_to_end(run_dir: Path) -> bool:
    """Whether the daemon has heard it. It does not listen before it has started, nor any more once it is ending."""
    try:
        ask(run_dir, "interrupt")
    except UsageError:
        return False
    return True


def _make_sure_it_ended(run_dir: Path) -> None:
    """The third line: the guardian has ended; if the run has not, wait for its daemon, then end what is left."""
    deadline = time.monotonic() + OWNERS_DEADLINE_S
    while _is_on(run_dir) and time.monotonic() < deadline:
        time.sleep(REFRESH_S)
    if needs_recovery(run_dir) or not (run_dir / LEDGER).exists():
        end_run(run_dir, "runner")


def replay(run_dir: Path, target: Target) -> None:
    """Let the target recompute its outer updates, and put what it says into the journal (probe `replay` compares)."""
    if target.replay is None:
        return
    values = {
        "{python}": sys.executable,
        "{run}": str(run_dir),
        "{state}": str(run_dir / "target"),
        "{here}": str(Path(target.path).parent),
        "{seed}": str(read_spec(run_dir).seed),
        "{run_id}": run_dir.name,
    }
    command = list(target.replay)
    for placeholder, value in values.items():
        command = [word.replace(placeholder, value) for word in command]
    with AppendLog(run_dir / "journal.jsonl") as journal:
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, timeout=REPLAY_DEADLINE_S, check=False
            )
            if done.returncode != 0:
                journal.append(
                    "replay-failed", why=f"exit code {done.returncode}: {done.stderr[-500:].decode(errors='replace')}"
                )
                return
            for line in done.stdout[:REPLAY_BYTES_MAX].splitlines():
                record = msgspec.json.decode(line, type=dict[str, str | int])
                journal.append(
                    "replay", fragment=record["fragment"], version=record["version"], digest=record["digest"]
                )
        except (OSError, subprocess.TimeoutExpired, msgspec.DecodeError, KeyError) as error:
            journal.append("replay-failed", why=f"{type(error).__name__}: {error}")


def report(run_dir: Path) -> Finished:
    """Judge a run from its folder and write its reports. Raises UsageError or JournalError."""
    spec = read_spec(run_dir)
    run = history(run_dir)
    try:
        control = history(run_dir / spec.control) if spec.control else None
    except JournalError:
        # Moved or deleted since: the probes that need it say so.
        control = None
    expects = [Expect(probe=expect.probe, tolerance=expect.tolerance, line=expect.line) for expect in spec.expects]
    results = judge(run, control, expects)
    fidelity = {kind: (fault.stands_for, fault.does_not_certify) for kind, fault in FAULTS.items()}
    summary = summarise(run, control, results, command=spec.command, fidelity=fidelity, about=spec.about)
    return Finished(run_dir, write_reports(run_dir, summary), summary.conclusion)


def unfinished_runs(reports_dir: Path) -> list[Path]:
    """Run folders that nobody closed and whose daemon is dead."""
    return [run_dir for run_dir in _run_dirs(reports_dir) if needs_recovery(run_dir) and not _is_on(run_dir)]


def _control(
    plan: Plan,
    target: Target,
    seed: int,
    reports_dir: Path,
    open_view: OpenView,
    interrupts: Interrupts,
    say: Say,
    *,
    fresh: bool,
) -> Path:
    name = f"{target.name}-s{seed}-{control_key(plan, target, seed)}"
    cached = None if fresh else cached_control(reports_dir, name)
    if cached is not None:
        say(f"control run: {cached.name}, made before")
        return cached
    run_dir = _new_folder(reports_dir / CONTROL, f"{name}-{time.strftime('%Y%m%d-%H%M%S')}")
    say(f"control run: {run_dir.name}, made first, without faults, and kept")
    execute(run_dir, plan, target, _spec(plan, seed, with_faults=False, control=None), open_view, interrupts)
    end = history(run_dir).end
    outcome, why = (
        (str(end["outcome"]), str(end["why"])) if end else ("internal", f"see {run_dir / 'logs' / 'daemon.log'}")
    )
    if outcome == "finished":
        # Nobody judges it, but what it recorded for a replay may be large, and the replay clears that away.
        replay(run_dir, target)
        return run_dir
    codes = {"interrupted": ExitCode.INTERRUPTED, "target-died": ExitCode.TARGET_DIED, "internal": ExitCode.INTERNAL}
    residue = list(end["residue"]) if end else []
    code = ExitCode.RESIDUE if residue else codes.get(outcome, ExitCode.INCONCLUSIVE)
    raise ControlRunError(
        f"the control run ended as {outcome!r}: {why}; nothing was injected; its folder: {run_dir}", code
    )


def _spec(plan: Plan, seed: int, *, with_faults: bool, control: str | None) -> RunSpec:
    return RunSpec(
        plan=str(Path(plan.path).resolve()),
        plan_sha=plan.source_sha,
        about=plan.about,
        seed=seed,
        with_faults=with_faults,
        control=control,
        command=f"chaoskit run {shlex.quote(str(plan.path))} --seed {seed}",
        expects=[
            Expectation(probe=expect.probe, tolerance=dict(expect.tolerance), line=expect.line)
            for expect in plan.expects
        ],
    )


def _new_folder(parent: Path, name: str) -> Path:
    """A fresh folder; a number is added where the second is taken already. Raises UsageError."""
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for suffix in ("", *(f"-{number}" for number in range(2, 100))):
            folder = parent / (name + suffix)
            if not folder.exists():
                folder.mkdir()
                return folder
    except OSError as error:
        raise UsageError(
            f"{parent / name}: the run folder cannot be made: {error.strerror}; use --reports to name another place"
        ) from error
    raise UsageError(f"{parent / name}: a hundred runs in one second; wait a moment")


def _run_dirs(reports_dir: Path) -> list[Path]:
    return sorted(path.parent for pattern in ("*", f"{CONTROL}/*") for path in reports_dir.glob(f"{pattern}/{LEDGER}"))


def _is_on(run_dir: Path) -> bool:
    """Whether a daemon or guardian of this run is alive."""
    try:
        return bool(owners_alive(read_ledger(run_dir)))
    except JournalError:
        return False


__all__ = [
    "ControlRunError",
    "Finished",
    "Interrupts",
    "Recovery",
    "View",
    "execute",
    "preflight",
    "report",
    "run_plan",
    "unfinished_runs",
]
