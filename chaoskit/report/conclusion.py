"""How a run ended: the one place where a history and its probe results become a verdict and an exit code.

What is most urgent for the reader wins: a machine that may still be harmed comes before everything, then a run that
proves nothing because the tool failed, then an end that was not the plan's own, then what the probes say.
"""

from __future__ import annotations

from collections.abc import Sequence

from chaoskit.errors import ExitCode
from chaoskit.journal import History
from chaoskit.probes import ProbeResult, Verdict
from chaoskit.report.model import Conclusion
from chaoskit.report.text import shortened

WORDS = {
    ExitCode.PASSED: "PASSED",
    ExitCode.PROBE_FAILED: "FAILED",
    ExitCode.INCONCLUSIVE: "INCONCLUSIVE",
    ExitCode.RESIDUE: "RESIDUE",
    ExitCode.ABORTED: "ABORTED",
    ExitCode.INTERNAL: "INTERNAL ERROR",
    ExitCode.TARGET_DIED: "TARGET DIED",
    ExitCode.INTERRUPTED: "INTERRUPTED",
}
_ENDS = {
    "internal": ExitCode.INTERNAL,
    "target-died": ExitCode.TARGET_DIED,
    "aborted": ExitCode.ABORTED,
    "interrupted": ExitCode.INTERRUPTED,
}
_NAMES_MAX = 4


def conclude(history: History, results: Sequence[ProbeResult]) -> Conclusion:
    """The verdict of a run. A history without a clean end is never a pass, nor is one that no probe judged."""
    code, why = _decide(history, results)
    return Conclusion(WORDS[code], int(code), why)


def residue_of(history: History) -> tuple[str, ...]:
    """What could not be proved undone, in words; empty when everything was."""
    told = history.end.get("residue") if history.end is not None else None
    found = [str(item) for item in told] if isinstance(told, (list, tuple)) else []
    for entry in history.injections:
        begun = entry.t_intent is not None or entry.t_applied is not None
        if begun and entry.clean is not True and not any(entry.id in item for item in found):
            ending = "its undo was never recorded" if entry.clean is None else "its undo could not be verified"
            found.append(f"{entry.id} ({entry.fault} on {', '.join(entry.targets)}): {ending}")
    return tuple(found)


def _decide(history: History, results: Sequence[ProbeResult]) -> tuple[ExitCode, str]:
    residue = residue_of(history)
    if residue:
        return ExitCode.RESIDUE, f"Not everything could be proved undone: {_listed(residue)}. Run `chaoskit recover`."
    if history.end is None:
        return ExitCode.INTERNAL, "The journal has no end: chaoskit itself was stopped, so this run proves nothing."
    outcome, reason = str(history.end.get("outcome", "")), str(history.end.get("why") or "")
    if outcome in _ENDS:
        return _ENDS[outcome], _end_sentence(_ENDS[outcome], reason)
    judged = [result for result in results if result.verdict is not Verdict.NOT_RUN]
    failed = [result for result in judged if result.verdict is Verdict.FAIL]
    unknown = [result for result in judged if result.verdict is Verdict.UNKNOWN]
    if failed:
        first = failed[0]
        more = f" Also failed: {_listed([result.probe for result in failed[1:]])}." if len(failed) > 1 else ""
        return ExitCode.PROBE_FAILED, f"{_probe_name(first)} failed: {_sentence(first.detail)}{more}"
    if outcome != "finished":
        return ExitCode.INCONCLUSIVE, _sentence(reason or f"the run ended as {outcome!r}")
    missing = [entry.id for entry in history.injections if entry.skipped is not None]
    if missing:
        return ExitCode.INCONCLUSIVE, f"Never injected: {_listed(missing)}. A fault that did not happen proves nothing."
    not_landed = [entry.id for entry in history.injections if entry.landed is not True]
    if not_landed:
        return ExitCode.INCONCLUSIVE, f"No proof that these faults took effect: {_listed(not_landed)}."
    if unknown:
        return ExitCode.INCONCLUSIVE, f"{_probe_name(unknown[0])} is unknown: {_sentence(unknown[0].detail)}"
    if not judged:
        return ExitCode.INCONCLUSIVE, "No probe judged this run."
    return ExitCode.PASSED, _passed_sentence(history, len(judged), len(results) - len(judged))


def _passed_sentence(history: History, judged: int, not_run: int) -> str:
    injections = len(history.injections)
    if not_run:
        # Said first: a green verdict must not hide how little was there to judge.
        probes = f"{judged} of {judged + not_run} probes ran, and passed (the report says why the others did not)"
    else:
        probes = f"All {judged} probes passed"
    if injections == 0:
        return f"{probes}; no fault was injected."
    if injections == 1:
        return f"{probes}; the fault landed, and its undo was verified."
    return f"{probes}; all {injections} faults landed, and each undo was verified."


def _end_sentence(code: ExitCode, reason: str) -> str:
    opening = {
        ExitCode.INTERNAL: "A part of chaoskit failed, so this run proves nothing",
        ExitCode.TARGET_DIED: "A role of the target died outside any fault",
        ExitCode.ABORTED: "A safety condition ended the run",
        ExitCode.INTERRUPTED: "The run was interrupted, and everything it had injected was undone",
    }[code]
    return f"{opening}: {_sentence(reason)}" if reason else f"{opening}."


def _probe_name(result: ProbeResult) -> str:
    return f"{result.id} {result.probe}" if result.id and result.id != result.probe else result.probe


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_NAMES_MAX])
    return shown if len(names) <= _NAMES_MAX else f"{shown} and {len(names) - _NAMES_MAX} more"


def _sentence(text: str) -> str:
    text = shortened(" ".join(text.split()))
    return text if text.endswith((".", "!", "?")) else text + "."
