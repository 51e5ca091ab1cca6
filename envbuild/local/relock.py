"""The lock of a run for this machine, where no stamped one fits it."""

import platform
from pathlib import Path

from envbuild.build import Reporter, make_plans
from envbuild.errors import UsageError, counted
from envbuild.local.acquire import Building, order_of
from envbuild.local.model import Choice, Subject
from envbuild.lock.model import Lock, Target
from envbuild.lock.run import Options, lock_stack
from envbuild.lock.settings import read_settings
from envbuild.manifest.model import TrainingManifest


def stamped_lock(subject: Subject, choice: Choice) -> Lock | None:
    """The lock that the model is stamped with for what was chosen; None where there is none."""
    stamped = choice.pull or choice.expected
    return subject.locks.get(stamped.slot) if stamped else None


def check_known(subject: Subject) -> TrainingManifest:
    """The manifest that says what is to be locked; UsageError where there is none."""
    if subject.manifest is None:
        todo = "give the run's manifest, or stamp the model again from its run"
        raise UsageError("nothing says what this environment consists of", where=subject.name, todo=todo)
    return subject.manifest


def lock_here(subject: Subject, choice: Choice, building: Building, report: Reporter) -> Lock:
    """Lock the run's pins for this machine's own C library; LockError, MatchError, UsageError without a manifest."""
    manifest = check_known(subject)
    plan = make_plans(order_of(subject, choice, building, Path("unused")))[0]
    libc, version = platform.libc_ver()
    if libc != "glibc":
        todo = "run it in a container: leave out --venv"
        raise UsageError("wheels are locked for Linux with glibc only", where=libc or platform.system(), todo=todo)
    report.step(f"locking {counted(len(plan.stack.requirements), 'distribution')} for this machine")
    options = Options(
        cache=building.cache,
        settings=read_settings(building.find_links, offline=building.offline),
        say=report.note,
        counted=report.compared,
    )
    target = Target(python=plan.stack.python, machine=plan.stack.machine, glibc=version)
    run = lock_stack(plan.stack, target, manifest, options)
    for warning in run.warnings:
        report.warn(warning)
    return run.lock
