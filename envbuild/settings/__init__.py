"""What a project says once for all its commands: `envbuild.toml`, or `[tool.envbuild]` in pyproject.toml."""

from envbuild.settings.file import Found, find_settings
from envbuild.settings.lines import place_of
from envbuild.settings.model import SHARED, Option, Said, Settings
from envbuild.settings.schema import schema
from envbuild.settings.table import settled

__all__ = ["SHARED", "Found", "Option", "Said", "Settings", "find_settings", "place_of", "schema", "settled"]
