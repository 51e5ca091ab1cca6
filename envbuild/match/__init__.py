"""What a run needs: its manifest against the profiles, decided with a reason for each part."""

from envbuild.match.match import VariantChoice, match
from envbuild.match.profiles import Profiles, load_profiles
from envbuild.match.stack import Decision, Gaps, PinChange, Stack, Variant

__all__ = ["Decision", "Gaps", "PinChange", "Profiles", "Stack", "Variant", "VariantChoice", "load_profiles", "match"]
