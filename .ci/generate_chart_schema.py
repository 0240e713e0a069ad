"""Write the chart's ``values.schema.json``: ``python .ci/generate_chart_schema.py``.

It is made of ``helm/values.schema.base.yaml``, which has what Kubernetes needs, and of the options of the commands,
from which ``docs/configuration.md`` is made as well. The head of the former explains how it refers to the latter.

``--out FILE`` writes elsewhere, which is how the freshness test compares.
"""

from __future__ import annotations

import argparse
import enum
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias, get_origin

import typer
import yaml

from auditor.cli.configuration.command import configured
from auditor.cli.main import app

ROOT = Path(__file__).resolve().parent.parent
BASE = ROOT / "helm" / "values.schema.base.yaml"
TARGET = ROOT / "helm" / "bkheal" / "values.schema.json"

Schema: TypeAlias = dict[str, Any]

TYPES: Final = {bool: "boolean", int: "integer", float: "number", str: "string", Path: "string"}
SECRET: Final = re.compile("(password|secret|token)$")
"""Options that hold a secret rather than the name of a file with one. The chart's files are ConfigMaps."""
OWN_WORDS: Final = frozenset({"closed", "option", "table", "refused"})
"""Words of the base that JSON Schema has not."""
TIGHTER: Final[Mapping[str, Any]] = {"minimum": max, "maximum": min}


class BaseError(Exception):
    """The base names something that is not there, or contradicts an option."""


def option_schemas() -> dict[str, Schema]:
    """What each option of the configuration file takes, by table and key, such as ``audit.run.fail_on``."""
    root: Any = typer.main.get_command(app)
    found = {}
    for words, setting in configured(root):
        command = root
        for word in words:
            command = command.commands[word]
        [option] = [each for each in command.params if each.name == setting.key]
        if not option.hidden:
            name = ".".join((*words, setting.key))
            found[name] = {**type_of(option), **range_of(option), "description": setting.help}
    return found


def type_of(option: Any) -> Schema:
    """The JSON type, or the choices.

    Raises:
        KeyError: a type that no option had so far; add its JSON type above.
    """
    annotation = option.type_descriptor.annotation
    if option.multiple or get_origin(annotation) is list:
        return {"type": "array", "items": {"type": "string"}}
    if issubclass(annotation, enum.Enum):
        return {"enum": [member.value for member in annotation]}
    return {"type": TYPES[annotation]}


def range_of(option: Any) -> Schema:
    """The range of an option."""
    limits = (option.min, option.max)
    return {word: limit for word, limit in zip(TIGHTER, limits, strict=True) if limit is not None}


def made_of(node: Any, options: Mapping[str, Schema]) -> Any:
    """A part of the base, with the words of its own replaced.

    Raises:
        BaseError: see there.
    """
    if isinstance(node, list):
        return [made_of(each, options) for each in node]
    if not isinstance(node, dict):
        return node
    rest = {key: made_of(part, options) for key, part in node.items() if key not in OWN_WORDS}
    if "closed" in node:
        return {**closed({name: made_of(part, options) for name, part in node["closed"].items()}), **rest}
    if "table" in node:
        return closed(table_of(node["table"], node["refused"], options))
    if "option" in node:
        names = [node["option"]] if isinstance(node["option"], str) else node["option"]
        return narrowed(shared_by(names, options), rest, names)
    return rest


def closed(properties: Mapping[str, Any]) -> Schema:
    """A map with these keys and no others."""
    return {"type": "object", "additionalProperties": False, "properties": dict(properties)}


def table_of(table: str, refused: Mapping[str, str], options: Mapping[str, Schema]) -> dict[str, Schema]:
    """Each key of a table that users may set."""
    known = {name.rpartition(".")[2]: schema for name, schema in options.items() if name.rpartition(".")[0] == table}
    if gone := refused.keys() - known.keys():
        raise BaseError(f"table {table}: {', '.join(sorted(gone))}: refused, but there is no such option")
    return {key: schema for key, schema in known.items() if key not in refused and not SECRET.search(key)}


def shared_by(names: Sequence[str], options: Mapping[str, Schema]) -> Schema:
    """What all of these options take, with the description of the first."""
    if gone := [name for name in names if name not in options]:
        raise BaseError(f"{', '.join(gone)}: there is no such option")
    made = dict(options[names[0]])
    for name in names[1:]:
        other = options[name]
        if other.get("type") != made.get("type") or other.get("enum") != made.get("enum"):
            raise BaseError(f"{name} and {names[0]} are of different types: one value cannot set both")
        for word, tighter in TIGHTER.items():
            limits = [each[word] for each in (made, other) if word in each]
            made |= {word: tighter(limits)} if limits else {}
    return made


def narrowed(made: Schema, by: Mapping[str, Any], names: Sequence[str]) -> Schema:
    """``made`` with the keys of ``by``, which take no more than it does."""
    for word, value in by.items():
        is_wider = word in TIGHTER and word in made and TIGHTER[word](value, made[word]) != value
        if is_wider or word in ("type", "enum"):
            raise BaseError(f"{', '.join(names)}: {word} {value} must not be in the base: {made.get(word)}")
    return {**made, **by}


def document() -> str:
    """The whole text."""
    base = yaml.safe_load(BASE.read_text())
    definitions, _ = base.pop("definitions"), base.pop("shared")
    options = option_schemas()
    made = {**made_of(base, options), "definitions": {key: made_of(part, options) for key, part in definitions.items()}}
    comment = "Generated by .ci/generate_chart_schema.py from helm/values.schema.base.yaml and the commands' options."
    head = {"$schema": made.pop("$schema"), "$comment": comment, "title": made.pop("title")}
    return json.dumps({**head, **made}, indent=2) + "\n"


def main() -> None:
    """Command line; see the module docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=TARGET)
    parser.parse_args().out.write_text(document())


if __name__ == "__main__":
    main()
