"""Images to and from a registry (OCI distribution-spec), and what Artifact Registry says about a repository."""

from envbuild.registry.artifact_registry import check_repository
from envbuild.registry.client import Manifest, Registry
from envbuild.registry.credentials import Credentials
from envbuild.registry.lookup import environment_tag, find_environment
from envbuild.registry.pull import pull
from envbuild.registry.push import PushResult, check_push, push
from envbuild.registry.retry import Retry

__all__ = [
    "Credentials",
    "Manifest",
    "PushResult",
    "Registry",
    "Retry",
    "check_push",
    "check_repository",
    "environment_tag",
    "find_environment",
    "pull",
    "push",
]
