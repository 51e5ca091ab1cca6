"""Base images: from a registry, an OCI layout, or bootstrapped from Debian."""
