"""The parser that other tests trust, on the examples of the Dockerfile reference and on what injections would look like."""

import pytest

from tests.unit.dockerfiles import Instruction, parse


def test_comments_and_empty_lines_stand_anywhere_and_are_nothing():
    text = "# a comment\n\nRUN echo hello \\\n# inside\n\n  world\n   # indented\nUSER 1\n"
    assert parse(text) == [Instruction("RUN", (), "echo hello   world"), Instruction("USER", (), "1")]


def test_the_escape_directive_counts_only_at_the_top():
    assert parse("# escape=`\nRUN dir `\n c:\\\nUSER 1") == [
        Instruction("RUN", (), "dir  c:\\"),
        Instruction("USER", (), "1"),
    ]
    assert parse("# a comment\n# escape=`\nRUN a `\nUSER 1")[0].rest == "a `"
    with pytest.raises(AssertionError, match="frontend"):
        parse("# syntax=docker/dockerfile:1\nFROM x")


def test_an_escaped_escape_ends_a_line_for_later_parsers_only():
    assert [it.word for it in parse("RUN a \\\\\nUSER 1")] == ["RUN", "USER"]
    assert [it.word for it in parse("RUN a \\\\\nUSER 1", old=True)] == ["RUN"]


def test_heredocs_are_found_outside_quotes_only():
    assert parse("RUN <<EOF cat\nUSER 0\nEOF\nUSER 1") == [
        Instruction("RUN", (), "<<EOF cat", ("USER 0",)),
        Instruction("USER", (), "1"),
    ]
    assert [it.word for it in parse("RUN '<<EOF' \"a <<EOF\"\nUSER 1")] == ["RUN", "USER"]
    assert [it.word for it in parse("ENV A=<<EOF\nUSER 1")] == ["ENV", "USER"]


def test_flags_and_the_two_forms_of_a_command():
    [run] = parse('RUN --mount=type=secret,id=a   --network=none ["a b", "$c"]')
    assert run.flags == ("--mount=type=secret,id=a", "--network=none")
    assert run.command == run.words == ["a b", "$c"]
    [run] = parse("RUN ['a', 'b']; id")
    assert run.command is None
    assert run.words == ["[a,", "b]", ";", "id"]


def test_what_a_shell_replaces_is_told_from_what_it_does_not():
    assert parse("RUN a \"$b\" '$c' \"${d:-e}\" $(f) `g` \\$h 'i'\"'\"'$j' \"'$k'\"")[0].replaced == [
        "$b",
        "${d:-e}",
        "$(",
        "`",
        "`",
        "$k",
    ]
    assert parse('RUN ["$a", "`b`"]')[0].replaced == []


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        (r'MY_NAME="John Doe" MY_DOG=Rex\ The\ Dog', [("MY_NAME", "John Doe"), ("MY_DOG", "Rex The Dog")]),
        (r'A="\$foo" B=\$foo C=\${foo}', [("A", "$foo"), ("B", "$foo"), ("C", "${foo}")]),
        (r'A="\"q\" \\ \n"', [("A", '"q" \\ \\n')]),
        ("A='$foo \"'", [("A", '$foo "')]),
        ("A=$HOME/x B=${HOME}y C=${NO:-z} D=${HOME:+w}", [("A", "/root/x"), ("B", "/rooty"), ("C", "z"), ("D", "w")]),
    ],
)
def test_values_are_quoted_escaped_and_expanded_as_the_reference_says(text, pairs):
    [env] = parse(f"ENV {text}")
    assert env.pairs({"HOME": "/root"}) == pairs
