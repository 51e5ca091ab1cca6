"""Other tools' records of an environment, read as manifests: what they do not say stays unknown."""

from envbuild.manifest.formats.convert import convert
from envbuild.manifest.formats.detect import FORMATS, detect, main_file
from envbuild.manifest.formats.found import manifest_bytes
from envbuild.manifest.formats.given import Given, supplement
from envbuild.manifest.formats.record import Record

__all__ = ["FORMATS", "Given", "Record", "convert", "detect", "main_file", "manifest_bytes", "supplement"]
