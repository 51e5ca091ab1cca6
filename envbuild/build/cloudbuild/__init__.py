"""An image that Google Cloud Build makes of a build context, where one machine is not enough."""

from envbuild.build.cloudbuild.build import build, check, check_base
from envbuild.build.cloudbuild.plan import CloudBuild, Secret, plan_yaml
from envbuild.build.cloudbuild.service import find_project

__all__ = ["CloudBuild", "Secret", "build", "check", "check_base", "find_project", "plan_yaml"]
