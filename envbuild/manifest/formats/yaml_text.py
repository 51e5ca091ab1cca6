"""YAML of records, apart from other texts, as most records are none and its reader takes long to be loaded."""

from typing import Any

import yaml

from envbuild.errors import ManifestError
from envbuild.manifest.formats.record import MAX_YAML, Record, check_size, short, text_of


def yaml_of(record: Record, limit: int = MAX_YAML) -> Any:
    """Read YAML as texts, lists and objects, since 3.10 is a version and no number; no aliases; ManifestError."""
    text = text_of(record)
    check_size(record, len(record.data), limit)
    try:
        return yaml.load(text, Loader=_Texts)  # noqa: S506 - the loader makes texts, lists and dicts only
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        what = f"the record is not YAML as it is read here: {_yaml_fault(error)}"
        raise ManifestError(what, where=record.name, todo="correct it, or have the tool write it again") from error


class _Texts(yaml.BaseLoader):
    """Leaves every scalar a text, and refuses aliases: of a few lines they make gigabytes."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.get_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.YAMLError(f"line {mark.line + 1} has an alias (*), which no record needs")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        made = super().construct_mapping(node, deep=deep)
        if len(made) < len(node.value):
            raise yaml.YAMLError(f"the object at line {node.start_mark.line + 1} has a key twice")
        return made


def _yaml_fault(error: Exception) -> str:
    """Say what is wrong and where, without the lines themselves, which yaml's own message quotes."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark:
        return f"line {error.problem_mark.line + 1}: {error.problem}"
    return short(error, "it is nested too deeply")
