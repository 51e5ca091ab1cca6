"""Base images: from a registry, an OCI layout, or bootstrapped from Debian."""

from envbuild.base.resolve import (
    check_base,
    known_facts,
    layout_image,
    refuse_base,
    registry_reference,
    resolve_base,
    suite_for,
)

__all__ = [
    "check_base",
    "known_facts",
    "layout_image",
    "refuse_base",
    "registry_reference",
    "resolve_base",
    "suite_for",
]
