"""What a run needs: its manifest against the profiles, decided with a reason for each part."""

from envbuild.match.cuda import CudaChoice
from envbuild.match.match import match
from envbuild.match.overrides import pairs_of
from envbuild.match.profiles import FRAMEWORKS, Profiles, load_profiles
from envbuild.match.run import frameworks_of
from envbuild.match.stack import Decision, Gaps, PinChange, Stack, Variant
from envbuild.match.swap import name_of
from envbuild.match.variant import VariantChoice

__all__ = [
    "FRAMEWORKS",
    "CudaChoice",
    "Decision",
    "Gaps",
    "PinChange",
    "Profiles",
    "Stack",
    "Variant",
    "VariantChoice",
    "frameworks_of",
    "load_profiles",
    "match",
    "name_of",
    "pairs_of",
]
