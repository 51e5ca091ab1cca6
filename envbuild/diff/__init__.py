"""What differs between two images, file by file and setting by setting, and between two manifests, models or locks."""

from envbuild.diff.comparing import compare
from envbuild.diff.difference import Change, Difference, Group
from envbuild.diff.facts import Differing, Fact, differing, facts_of_lock, facts_of_manifest
from envbuild.diff.images import check_name, opened
from envbuild.diff.rules import Rules
from envbuild.diff.told import (
    Told,
    differing_locks,
    differing_packages,
    differing_told,
    told_by_host,
    told_by_lock,
    told_by_manifest,
    told_by_model,
)

__all__ = [
    "Change",
    "Difference",
    "Differing",
    "Fact",
    "Group",
    "Rules",
    "Told",
    "check_name",
    "compare",
    "differing",
    "differing_locks",
    "differing_packages",
    "differing_told",
    "facts_of_lock",
    "facts_of_manifest",
    "opened",
    "told_by_host",
    "told_by_lock",
    "told_by_manifest",
    "told_by_model",
]
