"""The JSON Schema of the manifest, which msgspec makes from the dataclasses, and its page in docs/.

`python -m tests.pages --write` writes both.
"""

import ast
import inspect
import json
import textwrap
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import msgspec

from envbuild import manifest
from envbuild.manifest.model import SCHEMA_VERSION, TrainingManifest
from envbuild.validation import fields_of

_PROMISE = (
    "Minor versions of this schema only add keys, and readers ignore keys that they do not know; a major version may "
    "change anything. null is the same as absent."
)
_VERSION = "^[0-9A-Za-z.+_!-]+$"
"""What other readers check of a version, instead of the whole grammar of PEP 440."""
FILE = Path(manifest.__file__).with_name("schema.json")
PAGE = Path(__file__).parents[1] / "docs" / "manifest.md"


def schema() -> dict[str, Any]:
    """Make the schema (JSON Schema, draft 2020-12)."""
    _, parts = msgspec.json.schema_components([TrainingManifest], schema_hook=_mapping, ref_template="#/$defs/{name}")
    for kind in _dataclasses(TrainingManifest):
        part, texts = parts[kind.__name__], _field_texts(kind)
        part.pop("title")
        if not part.get("required"):
            part.pop("required", None)
        part["description"] = inspect.getdoc(kind)
        for name, value in part["properties"].items():
            value.pop("default", None)
            optional = name not in part.get("required", ()) and {"type": "null"} not in value.get("anyOf", ())
            part["properties"][name] = {
                "description": texts[name], **({"anyOf": [value, {"type": "null"}]} if optional else value)
            }  # fmt: skip
    root = _portable(parts.pop("TrainingManifest"))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:envbuild:training-manifest:{SCHEMA_VERSION}",
        "title": "Training manifest",
        **root,
        "description": f"{root['description']} {_PROMISE}",
        "$defs": {name.lower(): _portable(part) for name, part in sorted(parts.items())},
        "examples": json.loads(FILE.with_name("examples.json").read_text("utf-8")),
    }


def _mapping(kind: Any) -> dict[str, Any]:
    return msgspec.json.schema(kind.json_type)


def _portable(part: Any) -> Any:
    """Patterns as ECMAScript has them, without the titles of kinds."""
    if isinstance(part, dict):
        kept = {key: _portable(it) for key, it in part.items() if key != "title" or not isinstance(it, str)}
        if isinstance(reference := kept.get("$ref"), str):
            kept["$ref"] = reference.lower()
        if len(numbers := [it for it in kept.get("anyOf", ()) if it.get("type") in {"integer", "number"}]) == 2:
            kept |= {"type": "number", "minimum": numbers[1]["minimum"]}
            del kept["anyOf"]
        if isinstance(pattern := kept.get("pattern"), str):
            plain = pattern.replace(r"\A", "^").replace(r"\Z", "$").replace(r"\ud800-\udfff", "")
            kept["pattern"] = _VERSION if plain.startswith("(?aix)") else plain
        return kept
    return [_portable(it) for it in part] if isinstance(part, list) else part


def _dataclasses(kind: Any) -> Iterator[type]:
    """Yield a dataclass and all that its fields hold, each once."""
    kinds = [kind]
    for known in kinds:
        yield known
        hints = [hint for _, hint, _ in fields_of(known)]
        for hint in hints:
            hints += get_args(hint)
            if hasattr(hint, "__dataclass_fields__") and hint not in kinds:
                kinds.append(hint)


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


def page() -> str:
    """Make the manifest's documentation, field by field (Markdown)."""
    made = schema()
    sections = [f"# The training manifest, schema {SCHEMA_VERSION}\n\n{made['description']}\n", _table(made)]
    for name, part in made["$defs"].items():
        sections.append(f"## {name}\n\n{part['description']}\n\n{_table(part)}")
    return "\n".join(sections)


def _table(part: dict[str, Any]) -> str:
    rows = ["| key | value | always there | what it is |", "|---|---|---|---|"]
    for key, value in part["properties"].items():
        text = value["description"].replace("|", "\\|").replace("\n", " ").replace("  ", " ")
        rows.append(f"| `{key}` | {_kind(value)} | {'yes' if key in part.get('required', ()) else ''} | {text} |")
    return "\n".join(rows) + "\n"


def _kind(part: dict[str, Any]) -> str:
    option = next(it for it in part.get("anyOf", [part]) if it.get("type") != "null")
    if reference := option.get("$ref", "").rpartition("/")[2]:
        return f"[{reference}](#{reference})"
    if option.get("type") == "array":
        return f"list of {_kind(option['items'])}"
    return str({"string": "text"}.get(option.get("type", "string"), option.get("type", "text")))


def files() -> dict[Path, str]:
    """Return the files that this makes, by path."""
    return {FILE: json.dumps(schema(), indent=2) + "\n", PAGE: page()}
