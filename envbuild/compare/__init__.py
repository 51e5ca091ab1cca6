"""What differs between two images, file by file and setting by setting, and between two manifests, models or locks."""

from envbuild.compare.comparing import compare
from envbuild.compare.difference import Change, Difference, Group
from envbuild.compare.facts import Differing, Fact, differing, facts_of_lock, facts_of_manifest
from envbuild.compare.images import check_name, opened
from envbuild.compare.rules import Rules
from envbuild.compare.told import (
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
