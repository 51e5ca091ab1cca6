"""An order from the manifest to the stamped model: the stages one after the other; what is printed is the caller's."""

from envbuild.pipeline.build import build
from envbuild.pipeline.order import Order, Outcome, Part, Plan, Reporter
from envbuild.pipeline.plan import make_plans

__all__ = ["Order", "Outcome", "Part", "Plan", "Reporter", "build", "make_plans"]
