"""Recipe to build context: what people read and any Docker engine can build."""

from envbuild.dockerfile.context import DEBS, build_context, context_check
from envbuild.dockerfile.render import built_in
from envbuild.dockerfile.trial import check_templates

__all__ = ["DEBS", "build_context", "built_in", "check_templates", "context_check"]
