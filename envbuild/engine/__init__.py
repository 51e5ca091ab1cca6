"""A container engine: Docker, or podman through its Docker-compatible socket."""
