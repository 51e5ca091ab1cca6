"""An image that Google Cloud Build makes of a build context, where one machine is not enough."""

from envbuild.cloudbuild.build import build, check, check_base
from envbuild.cloudbuild.options import CloudBuild, Secret
from envbuild.cloudbuild.plan import plan_yaml
from envbuild.cloudbuild.project import find_project

__all__ = ["CloudBuild", "Secret", "build", "check", "check_base", "find_project", "plan_yaml"]
