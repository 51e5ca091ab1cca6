"""The JSON Schema of the manifest and its page in docs/, made from the dataclasses and the texts below their fields.

python -m envbuild.manifest.schema --write    # schema.json and docs/manifest.md
"""

import ast
import dataclasses
import inspect
import json
import sys
import textwrap
import types
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from envbuild.manifest.fields import PAIRS, AnyText, Rule, VariableName
from envbuild.manifest.model import SCHEMA_VERSION, TrainingManifest

_PLAIN: dict[type, dict[str, Any]] = {
    bool: {"type": "boolean"},
    int: {"type": "integer", "minimum": 0},
    float: {"type": "number", "minimum": 0},
}
_PROMISE = (
    "Minor versions of this schema only add keys, and readers ignore keys that they do not know; a major version may "
    "change anything. null is the same as absent."
)
FILE = Path(__file__).with_name("schema.json")


def schema() -> dict[str, Any]:
    """Make the schema (JSON Schema, draft 2020-12)."""
    definitions: dict[str, dict[str, Any]] = {}
    root = _object(TrainingManifest, definitions)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:envbuild:training-manifest:{SCHEMA_VERSION}",
        "title": "Training manifest",
        **root,
        "description": f"{root['description']} {_PROMISE}",
        "$defs": dict(sorted(definitions.items())),
        "examples": json.loads(FILE.with_name("examples.json").read_text("utf-8")),
    }


def page() -> str:
    """Make the manifest's documentation, field by field (Markdown)."""
    made = schema()
    parts = {"manifest": made, **made["$defs"]}
    return f"# The training manifest, schema {SCHEMA_VERSION}\n\n{made['description']}\n\n" + "\n".join(
        _table(name, part) for name, part in parts.items()
    )


def _table(name: str, part: dict[str, Any]) -> str:
    rows = (
        f"| `{key}` | {_kind(it)} | {'yes' if key in part.get('required', ()) else ''} | {_cell(it)} |"
        for key, it in part["properties"].items()
    )
    head = f"## {name}\n\n" + (f"{part['description']}\n\n" if name != "manifest" else "")
    return head + "| key | value | always there | what it is |\n|---|---|---|---|\n" + "\n".join(rows) + "\n"


def _cell(part: dict[str, Any]) -> str:
    return str(part["description"]).replace("|", "\\|").replace("\n", " ").replace("  ", " ")


def _kind(part: dict[str, Any]) -> str:
    options = [it for it in part.get("anyOf", [part]) if it.get("type") != "null"]
    reference = options[0].get("$ref", "").rpartition("/")[2]
    if reference:
        return f"[{reference}](#{reference})"
    names = [it for it in (options[0].get("type", "text"),) if it]
    name = {"string": "text", "array": "list"}.get(names[0], names[0])
    return f"list of {_kind(options[0]['items'])}" if name == "list" else str(name)


def _object(kind: type, definitions: dict[str, dict[str, Any]]) -> dict[str, Any]:
    hints, texts = get_type_hints(kind, include_extras=True), _field_texts(kind)
    required, properties = [], {}
    for it in dataclasses.fields(kind):
        has_to_be = it.default is dataclasses.MISSING and it.default_factory is dataclasses.MISSING
        part = _part(hints[it.name], definitions)
        properties[it.name] = {"description": texts[it.name], **(part if has_to_be else _or_null(part))}
        required += [it.name] if has_to_be else []
    shape: dict[str, Any] = {"description": inspect.getdoc(kind), "type": "object"}
    return shape | ({"required": required} if required else {}) | {"properties": properties}


def _or_null(part: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [part, {"type": "null"}]}


def _part(hint: Any, definitions: dict[str, dict[str, Any]]) -> dict[str, Any]:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _part(next(it for it in arguments if it is not type(None)), definitions)
    if origin is Annotated:
        return _pairs() if arguments[1] is PAIRS else dict(arguments[1].schema)
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is tuple:
        return {"type": "array", "items": _part(arguments[0], definitions)}
    if dataclasses.is_dataclass(hint):
        return _reference(hint, definitions)
    return dict(_PLAIN[hint])


def _reference(kind: Any, definitions: dict[str, dict[str, Any]]) -> dict[str, Any]:
    name = kind.__name__.lower()
    if name not in definitions:
        definitions[name] = {}
        definitions[name] = _object(kind, definitions)
    return {"$ref": f"#/$defs/{name}"}


def _pairs() -> dict[str, Any]:
    name, text = (_rule(hint).schema for hint in (VariableName, AnyText))
    return {"type": "object", "propertyNames": {"pattern": name["pattern"]}, "additionalProperties": dict(text)}


def _rule(hint: Any) -> Rule:
    rule: Rule = get_args(hint)[1]
    return rule


def _field_texts(kind: type) -> dict[str, str]:
    """Read the texts below the fields, which Python itself throws away."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    lines = tree.body if isinstance(tree, ast.ClassDef) else []
    return {
        first.target.id: inspect.cleandoc(str(second.value.value))
        for first, second in pairwise(lines)
        if isinstance(first, ast.AnnAssign) and isinstance(first.target, ast.Name)
        if isinstance(second, ast.Expr) and isinstance(second.value, ast.Constant)
    }


def files() -> dict[Path, str]:
    """Return what is made, by path; docs/ is there in a checkout only."""
    docs = Path(__file__).parents[2] / "docs" / "manifest.md"
    return {FILE: json.dumps(schema(), indent=2) + "\n", docs: page()}


if __name__ == "__main__":
    for path, text in files().items():
        if sys.argv[1:] == ["--write"]:
            path.write_text(text, encoding="utf-8")
        else:
            sys.stdout.write(text)
