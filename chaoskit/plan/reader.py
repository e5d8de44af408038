"""Strict reading of plan files.

    read_plan("faults/kill-and-rejoin.toml", kinds=KINDS, probes=PROBES)   ->   Plan

A plan that is wrong must not run, since a fault that silently does not happen makes everything look well. So
every mistake is refused, all of them are told at once, each as "path:line: what happened; expected ...; did
you mean 'x'?", and nothing is guessed. Reading has no side effect.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from chaoskit.errors import PlanError, nearest
from chaoskit.plan.catalogue import KindSpec, ProbeSpec, Setting, SettingValue, defaults
from chaoskit.plan.files import ExpectTable, FaultTable, LimitsTable, PlanFile, RunTable
from chaoskit.plan.locate import Path as KeyPath
from chaoskit.plan.locate import line_of
from chaoskit.plan.model import (
    Expect,
    FaultSpec,
    Limits,
    Plan,
    RunSettings,
    SelectorError,
    Target,
    TimeTrigger,
    matches,
    resolve,
)
from chaoskit.plan.source import Source, keys_of, read_source, shown_path, valid_or_none, validate
from chaoskit.plan.target_reader import read_target
from chaoskit.plan.units import UnitError, shown


def read_plan(
    path: str | os.PathLike[str],
    *,
    kinds: Mapping[str, KindSpec],
    probes: Mapping[str, ProbeSpec] | None,
    target: str | os.PathLike[str] | None = None,
) -> Plan:
    """The plan in this file, checked against the kinds of fault, the probes and its target file.

    `target` names the target file in the place of the one the plan names (a run's folder has copies of both
    side by side). Without `probes`, `expects` is empty and [[expect]] is not checked against any: so reads
    the daemon, which injects and does not judge, a plan that the runner has read whole before.

    Raises PlanError with every problem of both files.
    """
    source = read_source(path, "a fault plan in TOML")
    shape = validate(source, PlanFile)
    target_path = Path(target) if target is not None else _target_path(source)
    system = _read_target_of(source, target_path) if target_path is not None else None
    settings = _settings_of_faults(source, kinds)
    # The daemon injects and does not judge: it has no catalogue of probes, and the runner has checked
    # [[expect]].
    tolerances = _tolerances_of_expects(source, probes) if probes is not None else {}
    faults = _faults(source, kinds, settings, system)
    run = _run_settings(source)
    limits = _limits(source, system)
    _check_unique(source, "fault", {index: fault.name for index, fault in faults.items()}, "name")
    named = {index: table["probe"] for index, table in _tables(source, "expect") if isinstance(table.get("probe"), str)}
    _check_unique(source, "expect", named, "probe")
    if run is not None:
        _check_times(source, run, faults)
    if limits is not None:
        _check_limits(source, limits, faults)
    source.raise_problems()
    assert shape is not None, "a file that does not fit the shape has problems"
    assert run is not None, "[run] does not fit, so it has problems"
    assert limits is not None, "[limits] does not fit, so it has problems"
    return Plan(
        name=shape.name,
        about=shape.about,
        path=str(source.path),
        source_sha=source.sha,
        target=str(target_path),
        run=run,
        limits=limits,
        faults=tuple(faults.values()),
        expects=_expects(source, tolerances, probes) if probes is not None else (),
        defaulted=not shape.expect,
    )


def _target_path(source: Source) -> Path | None:
    """The target file that the plan names, from where we are."""
    named = source.values.get("target")
    return source.path.parent / named if isinstance(named, str) and named else None


def _read_target_of(source: Source, target_path: Path) -> Target | None:
    try:
        return read_target(target_path)
    except PlanError as error:
        source.add(("target",), f"target: {shown_path(target_path)} is no usable target file; see the next lines")
        source.foreign_problems += error.problems
        return None


def _settings_of_faults(source: Source, kinds: Mapping[str, KindSpec]) -> dict[int, dict[str, SettingValue]]:
    """Index in the file -> settings, for every [[fault]] of a known kind.

    Works on the raw tables, so that a mistake in one key hides none in the others.
    """
    settings: dict[int, dict[str, SettingValue]] = {}
    for index, table in _tables(source, "fault"):
        kind = table.get("kind")
        if not isinstance(kind, str):
            continue
        place = ("fault", index)
        spec = kinds.get(kind)
        if spec is None:
            source.add((*place, "kind"), _unknown("kind of fault", kind, kinds))
            continue
        if spec.needs_hold and "for" not in table:
            source.add(place, f'{kind} has no end; expected for = "4 s" or so')
        if not spec.needs_hold and "for" in table:
            ends_by = " or ".join(setting.name for setting in spec.settings) or "itself"
            source.add((*place, "for"), f"{kind} takes no 'for': it ends by {ends_by}; expected no such key")
        common = [key for key in keys_of(FaultTable) if spec.needs_hold or key != "for"]
        own = {key: value for key, value in table.items() if key != "for"}
        settings[index] = _read_settings(source, place, own, spec.settings, common, kind)
    return settings


def _tolerances_of_expects(source: Source, probes: Mapping[str, ProbeSpec]) -> dict[int, dict[str, SettingValue]]:
    """Index in the file -> tolerances, for every [[expect]] of a known probe."""
    tolerances: dict[int, dict[str, SettingValue]] = {}
    for index, table in _tables(source, "expect"):
        name = table.get("probe")
        if not isinstance(name, str):
            continue
        place = ("expect", index)
        probe = probes.get(name)
        if probe is None:
            source.add((*place, "probe"), _unknown("probe", name, probes))
            continue
        tolerances[index] = _read_settings(source, place, table, probe.tolerances, keys_of(ExpectTable), name)
    return tolerances


def _unknown(what: str, name: str, valid: Iterable[str]) -> str:
    valid = sorted(valid)
    return f"unknown {what} {shown(name)}; expected one of {', '.join(valid)}{nearest(name[:64], valid)}"


def _tables(source: Source, name: str) -> list[tuple[int, dict[str, Any]]]:
    """The raw [[name]] tables with their index; what is no table is left out, the shape has told of it."""
    tables = source.values.get(name)
    if not isinstance(tables, list):
        return []
    return [(index, table) for index, table in enumerate(tables) if isinstance(table, dict)]


def _read_settings(
    source: Source,
    place: KeyPath,
    table: Mapping[str, Any],
    settings: Iterable[Setting],
    common: list[str],
    who: str,
) -> dict[str, SettingValue]:
    """The settings that a table gives, by their names in code; every problem is added to the source."""
    by_name = {setting.name: setting for setting in settings}
    read = defaults(tuple(by_name.values()))
    for key, value in table.items():
        if key in common:
            continue
        if key not in by_name:
            valid = [*by_name, *common]
            message = (
                f"unknown key {shown(key)} for {who}; expected one of {', '.join(valid)}{nearest(key[:64], valid)}"
            )
            source.add((*place, key), message)
            continue
        try:
            read[by_name[key].key] = by_name[key].read(value)
        except UnitError as error:
            source.add((*place, key), f"{key}: {error}")
    for name, setting in by_name.items():
        if setting.required and name not in table:
            source.add(place, f"{who} needs the key {name!r}; expected {name} = ... ({setting.about})")
    return read


def _faults(
    source: Source,
    kinds: Mapping[str, KindSpec],
    settings: Mapping[int, dict[str, SettingValue]],
    target: Target | None,
) -> dict[int, FaultSpec]:
    """Index in the file -> fault, for the tables that are right in themselves."""
    faults: dict[int, FaultSpec] = {}
    numbers: Counter[str] = Counter()
    for index, raw in _tables(source, "fault"):
        if index not in settings:
            continue
        spec = kinds[raw["kind"]]
        targets = _resolve_on(source, index, raw.get("on"), spec, target)
        numbers[spec.kind] += 1
        table = valid_or_none(FaultTable, raw)
        if table is None:
            continue
        faults[index] = FaultSpec(
            name=table.name or f"{table.kind}-{numbers[table.kind]}",
            kind=table.kind,
            acts_on=spec.acts_on,
            downs_role=spec.acts_on == "role" and spec.downs_role,
            on=tuple(table.on),
            targets=targets,
            at=table.at,
            hold_s=table.for_,
            settings=settings[index],
            line=line_of(source.lines, ("fault", index)),
        )
    return faults


def _run_settings(source: Source) -> RunSettings | None:
    table = valid_or_none(RunTable, source.values.get("run", {}))
    return None if table is None else RunSettings(table.seed, table.steady, table.heal, table.deadline)


def _limits(source: Source, target: Target | None) -> Limits | None:
    table = valid_or_none(LimitsTable, source.values.get("limits", {}))
    return None if table is None else Limits(table.down_max, _resolve_keep(source, table.keep, target))


def _resolve_on(source: Source, index: int, on: object, spec: KindSpec, target: Target | None) -> tuple[str, ...]:
    """The roles or directions that a raw `on` names. Of what is no text, the shape has told."""
    if target is None:
        return ()
    found: set[str] = set()
    for number, selector in enumerate(on if isinstance(on, list) else [on]):
        if not isinstance(selector, str) or not selector:
            continue
        try:
            found.update(resolve([selector], target, spec.acts_on))
        except SelectorError as error:
            names = [*target.roles_by_name] if spec.acts_on == "role" else [*target.link_names()]
            several = f"{selector}-*" if any(role.name == selector and role.count for role in target.roles) else ""
            hint = f"; did you mean {several!r}?" if several else nearest(selector[:128], names)
            source.add(("fault", index, "on", number), f"on: {shown(selector)} {error}{hint}")
    return tuple(name for name in (*target.roles_by_name, *target.link_names()) if name in found)


def _resolve_keep(source: Source, keep: list[str], target: Target | None) -> tuple[str, ...]:
    if target is None:
        return ()
    found: set[str] = set()
    for number, pattern in enumerate(keep):
        kept = {name for name in target.roles_by_name if matches(name, pattern)}
        if not kept:
            names = list(target.roles_by_name)
            source.add(
                ("limits", "keep", number),
                f"keep: {shown(pattern)} matches no role of the target; expected one of {', '.join(names[:8])}"
                f"{nearest(pattern[:64], names)}",
            )
        found |= kept
    return tuple(name for name in target.roles_by_name if name in found)


def _check_unique(source: Source, table: str, names: Mapping[int, str], key: str) -> None:
    first: dict[str, int] = {}
    for index, name in names.items():
        if name in first:
            line = line_of(source.lines, (table, first[name]))
            source.add(
                (table, index, key),
                f"{key} {name!r} is used already, by the [[{table}]] of line {line}; expected another",
            )
        first.setdefault(name, index)


def _check_times(source: Source, run: RunSettings, faults: Mapping[int, FaultSpec]) -> None:
    """What can never happen within the run's deadline."""
    left_s = run.deadline_s - run.steady_s
    if left_s <= 0:
        source.add(
            ("run", "steady"),
            f"steady: the gate holds for {run.steady_s:g} s, but the run's deadline is {run.deadline_s:g} s;"
            " expected less than the deadline",
        )
        return
    room = f"expected less than {left_s:g} s, which [run] deadline less steady leaves for chaos"
    for index, fault in faults.items():
        after_s = fault.at.after_s if isinstance(fault.at, TimeTrigger) else 0.0
        if after_s >= left_s:
            source.add(("fault", index, "at"), f"at: {fault.at.text!r} never comes; {room}")
        elif fault.hold_s is not None and after_s + fault.hold_s >= left_s:
            source.add(
                ("fault", index, "for"),
                f"for: {fault.name} would end {after_s + fault.hold_s:g} s after chaos begins; {room}",
            )
        for name, value in fault.settings.items():
            if name.endswith("_s") and not name.endswith("_bit_s") and float(value) >= left_s:
                key = name.removesuffix("_s").replace("_", "-")
                source.add(("fault", index, key), f"{key}: {float(value):g} s is longer than the run; {room}")


def _check_limits(source: Source, limits: Limits, faults: Mapping[int, FaultSpec]) -> None:
    """Faults that the plan's own limits would never allow."""
    for index, fault in faults.items():
        if fault.acts_on != "role":
            continue
        kept = [name for name in fault.targets if name in limits.keep]
        if kept:
            source.add(
                ("fault", index, "on"),
                f"on: {fault.name} touches {', '.join(kept)}, which [limits] keep protects; expected other roles,"
                " or keep without them",
            )
        if fault.downs_role and len(fault.targets) > limits.down_max:
            source.add(
                ("fault", index, "on"),
                f"on: {fault.name} takes {len(fault.targets)} roles down at once, but [limits] down-max is"
                f" {limits.down_max}; expected fewer roles, or down-max = {len(fault.targets)}",
            )


def _expects(
    source: Source, tolerances: Mapping[int, dict[str, SettingValue]], probes: Mapping[str, ProbeSpec]
) -> tuple[Expect, ...]:
    """What the plan expects, and after it the probes it does not mention, with their defaults."""
    told = [
        Expect(source.values["expect"][index]["probe"], read, line_of(source.lines, ("expect", index)))
        for index, read in tolerances.items()
    ]
    mentioned = {expect.probe for expect in told}
    by_default = [
        Expect(name, defaults(probe.tolerances), None) for name, probe in probes.items() if name not in mentioned
    ]
    return (*told, *by_default)
