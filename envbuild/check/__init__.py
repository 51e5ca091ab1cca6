"""The program that tests at the start of a container whether it has what is needed, and what it reads."""

from envbuild.check.files import LIST, PROGRAM, check_files

__all__ = ["LIST", "PROGRAM", "check_files"]
