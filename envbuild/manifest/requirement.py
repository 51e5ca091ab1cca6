"""What a requirement (PEP 508) says."""

from packaging.requirements import Requirement
from packaging.version import InvalidVersion, Version


def exact_version(requirement: Requirement) -> str | None:
    """Return the one version that a requirement allows, as it is spelled; None where it allows several."""
    exact = [it.version for it in requirement.specifier if it.operator in {"==", "==="}]
    try:
        return exact[0] if len(exact) == 1 and str(Version(exact[0])) else None
    except InvalidVersion:  # ==1.*
        return None
