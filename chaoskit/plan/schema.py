"""The JSON Schema (draft 2020-12) of a plan file, for editors and for checking plans without chaoskit.

Made from the models the reader validates with and from the catalogue it is given, so that it cannot drift
from them. It says what can be said of one key alone: the reader refuses more (a selector that matches
nothing, limits that contradict a fault).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from chaoskit.plan.catalogue import COUNT_MAX, KindSpec, ProbeSpec, Setting
from chaoskit.plan.files import PlanFile
from chaoskit.plan.units import EXAMPLES, QUANTITY_PATTERNS

DIALECT = "https://json-schema.org/draft/2020-12/schema"

Schema = dict[str, Any]


def plan_schema(kinds: Mapping[str, KindSpec], probes: Mapping[str, ProbeSpec]) -> Schema:
    """The schema of a plan file that may name these kinds of fault and these probes."""
    schema = PlanFile.model_json_schema(mode="validation")
    definitions = schema["$defs"]
    common_of_fault = definitions.pop("FaultTable")
    common_of_expect = definitions.pop("ExpectTable")
    for kind, spec in kinds.items():
        definitions[kind] = _fault_table(common_of_fault, spec)
    for name, probe in probes.items():
        definitions[f"probe {name}"] = _expect_table(common_of_expect, probe)
    schema["properties"]["fault"]["items"] = _one_of("kind", {kind: kind for kind in kinds})
    schema["properties"]["expect"]["items"] = _one_of("probe", {name: f"probe {name}" for name in probes})
    return {"$schema": DIALECT, "title": "chaoskit fault plan", **_tidied(schema)}


def _fault_table(common: Schema, spec: KindSpec) -> Schema:
    properties = dict(common["properties"])
    required = list(common["required"])
    properties["kind"] = {"const": spec.kind}
    if spec.needs_hold:
        required.append("for")
        properties["for"] = _quantity("duration", "how long it lasts")
    else:
        del properties["for"]
    return _table(properties, required, spec.settings, spec.about)


def _expect_table(common: Schema, probe: ProbeSpec) -> Schema:
    properties = {**common["properties"], "probe": {"const": probe.name}}
    return _table(properties, common["required"], probe.tolerances, probe.about)


def _table(properties: Schema, required: list[str], settings: Iterable[Setting], about: str) -> Schema:
    settings = tuple(settings)
    return {
        "type": "object",
        "description": about,
        "properties": {**properties, **{setting.name: _setting(setting) for setting in settings}},
        "required": [*required, *(setting.name for setting in settings if setting.required)],
        "additionalProperties": False,
    }


def _setting(setting: Setting) -> Schema:
    match setting.unit:
        case "count":
            least = 0 if setting.zero_ok else 1
            return {"type": "integer", "minimum": least, "maximum": COUNT_MAX, "description": setting.about}
        case "choice":
            return {"enum": list(setting.choices), "description": setting.about}
        case dimension:
            return _quantity(dimension, setting.about)


def _quantity(dimension: Any, about: str) -> Schema:
    return {
        "type": "string",
        "pattern": QUANTITY_PATTERNS[dimension],
        "examples": [EXAMPLES[dimension]],
        "description": about,
    }


def _one_of(key: str, definition_by_value: Mapping[str, str]) -> Schema:
    """A table whose `key` decides which definition holds. Editors explain an if/then better than a oneOf."""
    return {
        "type": "object",
        "properties": {key: {"enum": list(definition_by_value)}},
        "required": [key],
        "allOf": [
            {
                "if": {"properties": {key: {"const": value}}, "required": [key]},
                "then": {"$ref": f"#/$defs/{definition.replace(' ', '%20')}"},
            }
            for value, definition in definition_by_value.items()
        ],
    }


def _tidied(schema: Any) -> Any:
    """Without what pydantic adds of the code: its class names as titles, and defaults in seconds for
    texts."""
    if isinstance(schema, list):
        return [_tidied(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    wrong_default = schema.get("type") == "string" and not isinstance(schema.get("default"), str)
    return {
        key: {name: _tidied(part) for name, part in value.items()} if key in ("properties", "$defs") else _tidied(value)
        for key, value in schema.items()
        if key != "title" and not (key == "default" and (value is None or wrong_default))
    }
