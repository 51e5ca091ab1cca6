"""One environment for training, serving and laptops."""

from envbuild.capture import capture, golden_sample, keras_callback

__version__: str
__all__ = ["__version__", "capture", "golden_sample", "keras_callback"]


def __getattr__(name: str) -> str:
    """Look the version up when it is asked for: reading metadata would double the time of the import."""
    if name == "__version__":
        from importlib.metadata import version  # noqa: PLC0415 - see above

        return version("envbuild")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
