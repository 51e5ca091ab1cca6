"""Streams of this process joined to a container's, whose side of the connection is a socket of the test."""

import os
import pty
import socket
import struct
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from envbuild.errors import BuildError
from envbuild.local.terminal import (
    STDERR,
    STDIN,
    STDOUT,
    OutputClosed,
    check_output,
    has_input,
    raw_terminal,
    send_input,
    show_output,
    terminal_size,
    wire_of,
)


@pytest.fixture
def joined():
    """Our wire, and the socket of the container."""
    ours, container = socket.socketpair()
    with ours, container:
        container.settimeout(10)
        yield wire_of(ours), container


@contextmanager
def replaced(number: int, target: int) -> Iterator[None]:
    """A file descriptor that is another for a while; not as a fixture, between which pytest changes them itself."""
    saved = os.dup(number)
    os.dup2(target, number)
    try:
        yield
    finally:
        os.dup2(saved, number)
        os.close(saved)


@contextmanager
def in_terminal() -> Iterator[int]:
    """A terminal as stdin and stdout; yield who types into it."""
    keys, terminal = pty.openpty()
    try:
        with replaced(STDIN, terminal), replaced(STDOUT, terminal):
            yield keys
    finally:
        os.close(keys)
        os.close(terminal)


@contextmanager
def given(data: bytes) -> Iterator[None]:
    """Bytes as all that stdin has."""
    reading, writing = os.pipe()
    os.write(writing, data)
    os.close(writing)
    try:
        with replaced(STDIN, reading):
            yield
    finally:
        os.close(reading)


def frame(stream: int, data: bytes) -> bytes:
    return struct.pack(">BxxxL", stream, len(data)) + data


def test_frames_are_told_apart_however_they_come(joined, capfdbinary):
    wire, container = joined
    sent = frame(1, b"\x00\xff\n") + frame(2, b"err") + frame(1, b"") + frame(1, b"end")
    shown = threading.Thread(target=show_output, args=(wire,), kwargs={"terminal": False})
    shown.start()
    for byte in sent:
        container.send(bytes([byte]))
    container.close()
    shown.join()
    assert capfdbinary.readouterr() == (b"\x00\xff\nend", b"err")


@pytest.mark.parametrize("left", [5, 11])
def test_an_answer_that_ends_in_the_middle_is_shown_as_far_as_it_came(joined, capfdbinary, left):
    wire, container = joined
    container.sendall(frame(1, b"whole") + frame(1, b"half")[:left])
    container.close()
    show_output(wire, terminal=False)
    assert capfdbinary.readouterr().out == b"whole" + b"half"[: max(0, left - 8)]


def test_a_terminals_bytes_are_no_frames(joined, capfdbinary):
    wire, container = joined
    container.sendall(frame(2, b"x"))
    container.close()
    show_output(wire, terminal=True)
    assert capfdbinary.readouterr().out == frame(2, b"x")


def test_output_that_nobody_reads_is_said_so(joined):
    wire, container = joined
    reading, writing = os.pipe()
    os.close(reading)
    container.sendall(frame(2, b"x"))
    with replaced(STDERR, writing), pytest.raises(OutputClosed, match="Broken pipe"):
        show_output(wire, terminal=False)
    os.close(writing)


def test_what_was_closed_from_the_start_is_not_written_to_nor_read(joined, monkeypatch, capfdbinary):
    wire, container = joined
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    container.sendall(frame(2, b"x"))
    container.close()
    show_output(wire, terminal=False)
    assert not has_input()
    with pytest.raises(BuildError, match="standard output is closed"):
        check_output()
    assert capfdbinary.readouterr() == (b"", b"")


def test_the_end_of_stdin_is_the_end_of_one_direction_only(joined, capfdbinary):
    wire, container = joined
    stop, stopped = os.pipe()
    with given(b"in\xff"):
        send_input(wire, stop)
    os.close(stopped)
    assert (container.recv(9), container.recv(9)) == (b"in\xff", b"")
    container.sendall(frame(1, b"out"))
    container.close()
    show_output(wire, terminal=False)
    assert capfdbinary.readouterr().out == b"out"


def test_a_container_that_reads_no_more_ends_the_sending(joined):
    wire, container = joined
    container.close()
    stop, stopped = os.pipe()
    with given(b"in"):
        send_input(wire, stop)
    with pytest.raises(OSError):
        os.fstat(stop)
    os.close(stopped)


def test_nothing_is_taken_from_the_terminal_after_the_end(joined):
    wire, container = joined
    stop, stopped = os.pipe()
    with in_terminal() as keys, raw_terminal(wanted=True):
        sending = threading.Thread(target=send_input, args=(wire, stop))
        sending.start()
        os.write(keys, b"\x03a")
        received = b""
        while len(received) < 2:
            received += container.recv(9)
        os.close(stopped)
        sending.join(10)
        os.write(keys, b"b\n")
        left = os.read(STDIN, 9)
    assert not sending.is_alive()
    assert received == b"\x03a"
    assert left.startswith(b"b")


def interrupted() -> None:
    with raw_terminal(wanted=True):
        assert not termios.tcgetattr(STDIN)[3] & (termios.ECHO | termios.ICANON | termios.ISIG)
        raise KeyboardInterrupt


def test_the_terminal_is_as_before_whatever_happens():
    with in_terminal():
        before = termios.tcgetattr(STDIN)
        with pytest.raises(KeyboardInterrupt):
            interrupted()
        assert termios.tcgetattr(STDIN) == before


def test_a_terminal_has_a_size_and_a_pipe_has_none():
    with in_terminal() as keys:
        termios.tcsetwinsize(keys, (31, 97))
        assert terminal_size() == (31, 97)
        assert has_input()
        with given(b""):
            assert terminal_size() is None
            assert has_input()
