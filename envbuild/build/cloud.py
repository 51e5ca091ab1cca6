"""Images that Google Cloud Build makes of the build context, and pushes."""

import re
from dataclasses import replace
from pathlib import Path

from envbuild.build import cloudbuild
from envbuild.build.builder import BuildResult
from envbuild.build.cloudbuild import CloudBuild
from envbuild.build.context import Context, ContextBuilder, staged_context
from envbuild.build.order import PLATFORMS, Order, Plan
from envbuild.engine.transcript import find_wheel
from envbuild.errors import BuildError, UsageError
from envbuild.image.assembler import Assembled
from envbuild.lock.settings import IndexSettings
from envbuild.oci.reference import Reference
from envbuild.oci.tar import MTIME
from envbuild.registry.push import PushResult

_BEFORE = re.compile(r'  \| Step #\d+(?: - "[^"]*")?: (?:#\d+ (?:\d+\.\d+ )?)?')
"""What Cloud Build and BuildKit write before a line of pip's."""
_PLATFORM = "linux/amd64"
"""Cloud Build's machines (build/docs/api/reference/rest/v1/projects.builds, MachineType)."""


def check_options(order: Order) -> None:
    """Refuse what Cloud Build cannot do; UsageError."""
    if order.push is None:
        todo = "give --push REPOSITORY; --load and --archive then take the image from there"
        _refuse("--push", "Cloud Build gives its image to a registry", todo)
    if order.bytecode:
        _refuse("--bytecode", "only the assembler compiles modules", "leave out --bytecode, or --builder cloudbuild")


def check_cloud(order: Order) -> None:
    """Ask Cloud Build whether it may be used; BuildError."""
    cloudbuild.check(options_of(order))


def check_plan(plan: Plan) -> None:
    """Refuse a base that Cloud Build cannot pull, and machines that it does not have; BaseError, UsageError."""
    platform = PLATFORMS[plan.stack.machine]
    if platform != _PLATFORM:
        todo = f"give --platform {_PLATFORM}, or leave out --builder cloudbuild"
        _refuse(f"--platform {platform}", f"Cloud Build's machines are {_PLATFORM}", todo)
    cloudbuild.check_base(plan.base)


def printed_yaml(order: Order) -> bytes:
    """The cloudbuild.yaml of an order, before anything is locked: without a tag in --push, for `latest`.

    Without secrets the context has the wheels, so the network is off.
    """
    assert order.push is not None, "the order was checked"
    options = options_of(order)
    return cloudbuild.plan_yaml(
        replace(options, network=bool(options.secrets)), replace(order.push, tag=order.push.tag or "latest")
    )


def options_of(order: Order) -> CloudBuild:
    """Return the order's options with the build arguments of every context."""
    assert order.cloud is not None
    return replace(order.cloud, build_args=(*order.cloud.build_args, ("SOURCE_DATE_EPOCH", str(MTIME))))


def _refuse(where: str, what: str, todo: str) -> None:
    raise UsageError(what, where=where, todo=todo)


class Cloud(ContextBuilder):
    """Builds in Cloud Build, which does not know this machine's indexes."""

    __slots__ = ()

    @property
    def own_tag(self) -> str:
        return f"cloudbuild-{self.recipe.environment.short}"

    def build(self, settings: IndexSettings) -> BuildResult:
        """Build there; the wheels lie in the context, unless secrets of Secret Manager say how to get them."""
        options = options_of(self.order)
        wheelhouse = self.fetched_wheels(settings, secrets=bool(options.secrets))
        context = Context(recipe=self.recipe, lock=self.run.lock, pylock=self.pylock(self.run), wheelhouse=wheelhouse)
        with staged_context(context, self.order) as folder:
            options = replace(options, network=not wheelhouse)
            reference = self._built(folder, options)
        assert reference.digest is not None
        image = self.marked(self.from_registry(reference.digest))
        run = self.confirmed({})
        return BuildResult(
            assembled=Assembled(image=image, overlaps=(), results={}, true={}),
            pushed=PushResult(reference=reference, uploaded=0, existing=0),
            run=run,
            imports=self.try_imports(run, image, settings),
            wheelhouse=wheelhouse,
        )

    def _built(self, context: Path, options: CloudBuild) -> Reference:
        """Build; the error of a failed build names its entry of the lock."""
        try:
            return cloudbuild.build(context, options, self.temporary_name(), self.report)
        except BuildError as error:
            printed = [_BEFORE.sub("", line) for line in error.what.splitlines()]
            if wheel := find_wheel(printed, self.recipe.wheels):
                about = f"{error.what}\nat {wheel.name}=={wheel.version} of the lock ({wheel.filename}, {wheel.sha256})"
                raise BuildError(about, where=error.where, todo=error.todo) from error
            raise
