"""The plan: what shall happen in a run. Strict reading of plan and target files, units, and the plan's JSON
Schema."""

from chaoskit.plan.catalogue import KindSpec, ProbeSpec, Setting, SettingValue
from chaoskit.plan.model import (
    At,
    Expect,
    FaultSpec,
    Limits,
    Link,
    LinkSpec,
    Plan,
    Role,
    RoleSpec,
    RoundTrigger,
    RunSettings,
    SelectorError,
    Target,
    TimeTrigger,
    matches,
    resolve,
)
from chaoskit.plan.reader import read_plan
from chaoskit.plan.schema import plan_schema
from chaoskit.plan.target_reader import read_target

__all__ = [
    "At",
    "Expect",
    "FaultSpec",
    "KindSpec",
    "Limits",
    "Link",
    "LinkSpec",
    "Plan",
    "ProbeSpec",
    "Role",
    "RoleSpec",
    "RoundTrigger",
    "RunSettings",
    "SelectorError",
    "Setting",
    "SettingValue",
    "Target",
    "TimeTrigger",
    "matches",
    "plan_schema",
    "read_plan",
    "read_target",
    "resolve",
]
