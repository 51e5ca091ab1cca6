"""A container engine: Docker, or podman by its socket, which speaks the same language."""

from envbuild.engine.environment import image_environment

__all__ = ["image_environment"]
