"""Recipe to build context: what people read and any Docker engine can build."""

from envbuild.dockerfile.context import build_context

__all__ = ["build_context"]
