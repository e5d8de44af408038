"""Strict reading of target files: the system under test and how to start it.

read_target("faults/targets/text.toml")   ->   Target
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable

from chaoskit.errors import nearest
from chaoskit.plan.files import TargetFile
from chaoskit.plan.locate import Path as KeyPath
from chaoskit.plan.locate import line_of
from chaoskit.plan.model import LinkSpec, RoleSpec, Target
from chaoskit.plan.source import Source, read_source, validate
from chaoskit.plan.units import shown

PLACEHOLDERS_OF_RUN = ("python", "run", "state", "here", "seed", "run_id")
"""What chaoskit fills in wherever it stands in braces: the interpreter, the run folder, the target's own
folder in it, the target file's folder, the plan's seed, the name of the run folder."""
PLACEHOLDERS_OF_ROLE = (*PLACEHOLDERS_OF_RUN, "role", "index", "tape")
"""And what is known only for one process of a role: its name, its number, its event tape."""

_PLACEHOLDER = re.compile(r"\{([A-Za-z_]{1,32})\}")


def read_target(path: str | os.PathLike[str]) -> Target:
    """The target in this file. Raises PlanError with every problem."""
    source = read_source(path, "a target file in TOML")
    shape = validate(source, TargetFile)
    source.raise_problems()
    assert shape is not None, "a file that does not fit the shape has problems"
    target = Target(
        name=shape.name,
        path=str(source.path),
        source_sha=source.sha,
        done_role=shape.done,
        replay=tuple(shape.replay) if shape.replay is not None else None,
        roles=tuple(
            RoleSpec(
                name=table.name,
                count=table.count,
                command=tuple(table.command),
                env=dict(table.env),
                ready=table.ready,
                stop_signal=table.stop_signal,
                line=line_of(source.lines, ("role", index)),
            )
            for index, table in enumerate(shape.role)
        ),
        links=tuple(
            LinkSpec(table.from_, table.to, table.address, table.env, line_of(source.lines, ("link", index)))
            for index, table in enumerate(shape.link)
        ),
    )
    _check_target(source, target)
    source.raise_problems()
    return target


def _check_target(source: Source, target: Target) -> None:
    names = Counter(name for spec in target.roles for name in spec.instances)
    for index, spec in enumerate(target.roles):
        doubled = [name for name in spec.instances if names[name] > 1]
        if doubled:
            source.add(("role", index, "name"), f"name: the role {doubled[0]!r} exists twice; expected another name")
    if target.done_role not in target.roles_by_name:
        valid = list(target.roles_by_name)
        source.add(
            ("done",),
            f"done: {shown(target.done_role)} is no role; expected one of {', '.join(valid[:8])}"
            f"{nearest(target.done_role[:64], valid)}",
        )
    directions: set[str] = set()
    for index, link in enumerate(target.links):
        if link.to_role not in target.roles_by_name:
            valid = list(target.roles_by_name)
            source.add(
                ("link", index, "to"),
                f"to: {shown(link.to_role)} is no role; expected one of {', '.join(valid[:8])}"
                f"{nearest(link.to_role[:64], valid)}",
            )
        expanded = [one for one in target.links_expanded if one.spec is link]
        if not expanded:
            source.add(
                ("link", index, "from"),
                f"from: {shown(link.from_role)} matches no role that could connect; expected a role or a glob such as"
                " 'learner-*'",
            )
        for one in expanded:
            if one.forward in directions:
                source.add(
                    ("link", index),
                    f"the link {one.forward!r} exists already; expected one link between two roles",
                )
            directions |= {one.forward, one.backward}
    _check_placeholders(source, target)


def _check_placeholders(source: Source, target: Target) -> None:
    """Braces around what is nearly the name of a placeholder: a misspelt one would reach the target's command
    line."""
    places: list[tuple[KeyPath, str, tuple[str, ...]]] = []
    for index, role in enumerate(target.roles):
        known = tuple(name for name in PLACEHOLDERS_OF_ROLE if role.count is not None or name != "index")
        places += [(("role", index, "command", number), word, known) for number, word in enumerate(role.command)]
        places += [(("role", index, "env", name), value, known) for name, value in role.env.items()]
    places += [(("link", i, "address"), link.address, PLACEHOLDERS_OF_RUN) for i, link in enumerate(target.links)]
    places += [(("replay", i), word, PLACEHOLDERS_OF_RUN) for i, word in enumerate(target.replay or ())]
    for place, text, known in places:
        for name in _PLACEHOLDER.findall(text):
            if name not in known and (name in PLACEHOLDERS_OF_ROLE or nearest(name, known)):
                source.add(place, _unknown_placeholder(name, known))


def _unknown_placeholder(name: str, known: Iterable[str]) -> str:
    braces = [f"{{{one}}}" for one in known]
    why = "has no meaning here" if name in PLACEHOLDERS_OF_ROLE else "is no placeholder"
    return f"{shown('{' + name + '}')} {why}; expected one of {', '.join(braces)}{nearest('{' + name + '}', braces)}"
