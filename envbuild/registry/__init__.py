"""Images to and from a registry (OCI distribution-spec), and what Artifact Registry says about a repository."""

import envbuild.registry.slim  # noqa: F401 - before the others import httpx
from envbuild.registry.artifact_registry import check_repository
from envbuild.registry.call import Manifest
from envbuild.registry.client import Registry
from envbuild.registry.copy import Copied, copy_image
from envbuild.registry.credentials import Credentials
from envbuild.registry.index import push_index
from envbuild.registry.lookup import environment_tag, find_environment, find_tagged
from envbuild.registry.pull import pull
from envbuild.registry.push import PushResult, Upload, check_push, push
from envbuild.registry.retry import Retry
from envbuild.registry.shared import SharedCache
from envbuild.registry.tags import publish

__all__ = [
    "Copied",
    "Credentials",
    "Manifest",
    "PushResult",
    "Registry",
    "Retry",
    "SharedCache",
    "Upload",
    "check_push",
    "check_repository",
    "copy_image",
    "environment_tag",
    "find_environment",
    "find_tagged",
    "publish",
    "pull",
    "push",
    "push_index",
]
