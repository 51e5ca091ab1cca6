"""`.env` files: the syntax that people have, and no value in any message."""

import pytest

from envbuild.errors import UsageError
from envbuild.local.contract import read_dotenv

TEXT = r"""
# a comment
PLAIN=value
export EXPORTED=yes # why
SPACED = a b  # said after it
HASH=a#b
EMPTY=
SINGLE='a ${PLAIN} "b" \'c\''
DOUBLE="a ${PLAIN}\tb"
LINES="one
two"
AFTER=${LINES}
DEFAULT=${NOWHERE:-other}
MIXED=x${NOWHERE}y
LOST=${NOWHERE}
SHELL_IS_NOT_RUN=$(id) `id` $PLAIN
OUTER=${CALLER}
CALLER
UNSET
PLAIN=later
"""


def test_the_common_syntax(tmp_path):
    (tmp_path / ".env").write_bytes(b"\xef\xbb\xbf" + TEXT.replace("\n", "\r\n", 8).encode())
    found = read_dotenv(tmp_path / ".env", {"CALLER": "mine", "PLAIN": "not this"})
    assert found == {
        "PLAIN": "later",
        "EXPORTED": "yes",
        "SPACED": "a b",
        "HASH": "a#b",
        "EMPTY": "",
        "SINGLE": "a ${PLAIN} \"b\" 'c'",
        "DOUBLE": "a value\tb",
        "LINES": "one\ntwo",
        "AFTER": "one\ntwo",
        "DEFAULT": "other",
        "MIXED": "xy",
        "SHELL_IS_NOT_RUN": "$(id) `id` $PLAIN",
        "OUTER": "mine",
        "CALLER": "mine",
    }


@pytest.mark.parametrize("line", ["hush hush=1", "A='hush", "'A hush'=1", "=hush"])
def test_a_line_that_sets_nothing_is_named_by_its_number(tmp_path, line):
    path = tmp_path / "my.env"
    path.write_text(f"A=1\n\n# two\n{line}\n")
    with pytest.raises(UsageError) as error:
        read_dotenv(path, {})
    assert error.value.where == f"{path}, line 4"
    assert "hush" not in str(error.value)


def test_a_file_that_cannot_be_read(tmp_path):
    (tmp_path / "latin").write_bytes(b"A=\xe9\n")
    for name, said in (("gone", "No such file"), ("latin", "UTF-8"), (".", "directory")):
        with pytest.raises(UsageError, match=said) as error:
            read_dotenv(tmp_path / name, {})
        assert error.value.where == str(tmp_path / name)
