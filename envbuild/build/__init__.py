"""An order from the manifest to the stamped model: the stages one after the other; what is printed is the caller's."""

from envbuild.build.build import build
from envbuild.build.order import Order, Outcome, Part, Plan, Reporter
from envbuild.build.plan import make_plans

__all__ = ["Order", "Outcome", "Part", "Plan", "Reporter", "build", "make_plans"]
