"""Recipe to build context: what people read and any Docker engine can build."""

from envbuild.image.context.context import DEBS, build_context, context_check
from envbuild.image.context.render import built_in
from envbuild.image.context.trial import check_templates

__all__ = ["DEBS", "build_context", "built_in", "check_templates", "context_check"]
