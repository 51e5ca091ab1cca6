"""Whether a machine has what envbuild needs, and whether what models are stamped with will stay where it is."""

from envbuild.verify.doctor.checking import Check, checked
from envbuild.verify.doctor.machine import machine_checks
from envbuild.verify.doctor.targets import Target, target_checks, target_of

__all__ = ["Check", "Target", "checked", "machine_checks", "target_checks", "target_of"]
