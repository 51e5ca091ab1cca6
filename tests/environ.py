"""The developer's environment, without what would change a test's result."""

from collections.abc import Mapping

_DROPPED = (
    "AIP_", "CLOUDSDK_", "CLOUD_ML_", "DOCKER_", "ENVBUILD_", "FORCE_COLOR", "GCE_METADATA_", "GOOGLE_", "NO_COLOR",
    "REGISTRY_AUTH_FILE", "STORAGE_EMULATOR_HOST",
    "BLIS_", "GOTO_", "KMP_", "MKL_", "OMP_", "OPENBLAS_",
)  # fmt: skip
UNTRIED = {"ENVBUILD_FROM_MANIFEST_IMPORT_CHECK": "never"}
"""Most tests build of wheels that hold nothing to import, on bases that cannot run; those of the check ask for it."""
_KEPT = frozenset({"ENVBUILD_TEST_CACHE", "ENVBUILD_UPDATE_GOLDEN"})


def cleaned(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without credentials, clouds, colours, threads and our own settings; indexes, proxies, certificates stay."""
    kept = {name: value for name, value in environment.items() if name in _KEPT or not name.startswith(_DROPPED)}
    return kept | UNTRIED
