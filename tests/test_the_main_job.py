"""The main job as `make demo` runs it: train, kill, rejoin, judge, report; and the same with one check deleted."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from chaoskit.daemon.ledger import read_ledger
from chaoskit.daemon.recover import needs_recovery
from chaoskit.errors import ExitCode
from chaoskit.journal import History, history
from chaoskit.probes import PROBES
from chaoskit.world.process import marked_processes, process_stat

ROOT = Path(__file__).parents[1]
PLAN = ROOT / "faults" / "kill-and-rejoin.toml"
MUTANT = ROOT / "tests" / "mutants" / "fencing_deleted.py"
RUN_DEADLINE_S = 600

pytestmark = [pytest.mark.process, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reports")


def run(plan: Path, reports: Path, *options: str) -> tuple[int, str, Path]:
    """(exit code, output, run folder) of `chaoskit run PLAN`."""
    command = [sys.executable, "-P", "-m", "chaoskit.cli", "run", str(plan), "--reports", str(reports), *options]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=RUN_DEADLINE_S, check=False
    )
    (run_dir,) = reports.glob(f"{plan.stem}-s*")
    return done.returncode, done.stdout, run_dir


@pytest.fixture(scope="module")
def demo(reports: Path) -> tuple[int, str, Path]:
    return run(PLAN, reports / "demo")


@pytest.fixture(scope="module")
def told(demo: tuple[int, str, Path]) -> History:
    return history(demo[2])


def test_the_demo_passes_every_probe_and_names_its_report_last(demo: tuple[int, str, Path]) -> None:
    code, output, run_dir = demo
    assert code == ExitCode.PASSED, output
    verdict, path = output.splitlines()[-2:]
    assert verdict.startswith("PASSED")
    assert path == f"report: {run_dir / 'report.html'}"
    report = json.loads((run_dir / "report.json").read_text())
    verdicts = {probe["id"]: probe["verdict"] for probe in report["probes"]}
    assert verdicts == {probe.id: "pass" for probe in PROBES.values()}
    assert not needs_recovery(run_dir)
    assert marked_processes(run_dir) == []


def test_the_kill_landed_on_the_process_by_pid_and_start_time(told: History) -> None:
    (applied,) = [r for r in told.of("applied") if r["injection"] == "kill-one#1"]
    (pid,), (start_time,) = applied["evidence"]["pids"], applied["evidence"]["start_times_ticks"]
    spawned = {(r["pid"], r["start_time"]) for r in told.of("spawn") if r["role"] == "learner-2"}
    assert (pid, start_time) in spawned
    gone = process_stat(pid)
    assert gone is None or gone.start_time != start_time
    (death,) = [r for r in told.of("exit") if r["pid"] == pid]
    assert death["signal"] == signal.SIGKILL
    # In the middle of a round: one had been opened and had not merged.
    opened = {r["round"] for r in told.of("round") if r.t <= applied.t}
    merged = {r["round"] for r in told.of("merge") if r.t <= applied.t}
    assert opened - merged


def test_the_learner_rejoined_with_a_higher_incarnation_and_contributed_again(told: History) -> None:
    joins = [r["incarnation"] for r in told.of("join") if r["learner"] == "learner-2"]
    assert len(joins) >= 2
    assert all(earlier < later for earlier, later in pairwise(joins))
    (undone,) = [r for r in told.of("undone") if r["injection"] == "kill-one#1"]
    again = [
        part["incarnation"]
        for merge in told.of("merge")
        for part in merge["contributions"]
        if part["learner"] == "learner-2" and merge.t > undone.t
    ]
    assert again
    assert max(again) == joins[-1]


def test_nobody_else_was_slowed_and_every_undo_was_verified(demo: tuple[int, str, Path], told: History) -> None:
    report = json.loads((demo[2] / "report.json").read_text())
    (isolation,) = [probe for probe in report["probes"] if probe["id"] == "L8"]
    assert isolation["verdict"] == "pass"
    assert [entry.landed for entry in told.injections] == [True] * 3
    assert [entry.clean for entry in told.injections] == [True] * 3
    ledger = read_ledger(demo[2])
    assert ledger.closed
    assert ledger.open_injections == {}


def test_the_report_can_be_made_again_from_the_run_folder_alone(demo: tuple[int, str, Path]) -> None:
    run_dir = demo[2]
    before = (run_dir / "report.json").read_bytes()
    page = (run_dir / "report.html").read_bytes()
    done = subprocess.run(
        [sys.executable, "-P", "-m", "chaoskit.cli", "report", str(run_dir)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == ExitCode.PASSED, done.stderr
    assert (run_dir / "report.json").read_bytes() == before
    assert (run_dir / "report.html").read_bytes() == page
    for outside in (b"http://", b"https://", b"<script src", b"@import"):
        links = page.replace(b"http://www.w3.org/", b"").replace(b"https://www.w3.org/", b"")
        assert outside not in links, outside


def test_every_command_of_the_readme_works(demo: tuple[int, str, Path], tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text()
    (plan_text,) = re.findall(r"```toml\n(.*?)```", text, flags=re.DOTALL)
    shell = "\n".join(re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL))
    commands = [line.split("#")[0].strip() for line in shell.splitlines() if line.strip()]
    first = ["validate faults/first.toml", "run faults/first.toml"]
    assert commands == ["make demo", "make test", *(f".venv/bin/chaoskit {words}" for words in first)]
    # `make demo` is the run that this module makes; `make test` is what runs this test.
    recipe = subprocess.run(["make", "--dry-run", "demo"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert f"chaoskit run {PLAN.relative_to(ROOT)}" in recipe.stdout
    plan = tmp_path / "first.toml"
    plan.write_text(plan_text.replace('"targets/', f'"{ROOT}/faults/targets/'))
    valid = [sys.executable, "-P", "-m", "chaoskit.cli", "validate", str(plan)]
    assert subprocess.run(valid, check=False).returncode == ExitCode.PASSED
    # The demo's seed, so that the demo's control run serves here too.
    code, output, _ = run(plan, demo[2].parent, "--seed", "7")
    assert code == ExitCode.PASSED, output
    assert "made before" in output


def test_with_fencing_deleted_the_same_run_fails(reports: Path, tmp_path: Path) -> None:
    target = (ROOT / "faults" / "targets" / "text.toml").read_text()
    mutated = target.replace('"-m", "trainer", "syncer"', f'"{MUTANT}", "syncer"')
    assert mutated != target
    (tmp_path / "mutant.toml").write_text(mutated.replace("{here}", str(ROOT / "faults" / "targets")))
    plan = tmp_path / "kill-and-rejoin.toml"
    plan.write_text(PLAN.read_text().replace("targets/text.toml", "mutant.toml"))
    code, output, run_dir = run(plan, reports / "mutant")
    assert code == ExitCode.PROBE_FAILED, output
    report = json.loads((run_dir / "report.json").read_text())
    failed = {probe["id"] for probe in report["probes"] if probe["verdict"] == "fail"}
    assert "S5" in failed
    assert (run_dir / "report.html").exists()
