"""The command line: exit codes, messages, signals, and what goes to which stream."""

import io
import json
import os
import platform
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import typer.main
from rich.console import Console

from envbuild import errors
from envbuild.cli import commands
from envbuild.cli.command import commands_of
from envbuild.cli.console import Progress, printable
from tests.running import run_envbuild

ROOT = Path(__file__).parents[2]
COMMANDS = """
import errno, os, sys, time
import typer
from pathlib import Path
from envbuild.cli import commands, main
from envbuild.cli.console import Progress
from envbuild.errors import MatchError
from envbuild.files import written_whole

@commands.app.command()
def fail(): raise MatchError("no stack serves the run", where="framework.version", todo="take \\x1b[31manother")
@commands.app.command()
def system(number: int): raise OSError(number, os.strerror(number), "/some/file")
@commands.app.command()
def fault(text: str): raise RuntimeError(text)
@commands.app.command()
def say(text: str): print(text)
@commands.app.command()
def tell(text: str):
    with Progress() as progress:
        progress.step("at work")
        progress.warn("it may fail")
    if text == "fail": fail()
    typer.echo(text)
@commands.app.command()
def write(path: Path):
    with written_whole(path) as file:
        file.write(b"half")
        print("ready", flush=True)
        for _ in range(600): time.sleep(0.1)  # a signal just before a sleep ends only the next one
@commands.app.command()
def lose():
    class Last:
        def __del__(self):
            print("ready", flush=True)
            time.sleep(60)
    Last()
    time.sleep(60)
    print("went on")

main()
"""


def environment(**changes: str) -> dict[str, str]:
    kept = {
        name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE")
    }
    return kept | {"PYTHONPATH": str(ROOT), **changes}


def envbuild(*arguments: str, program: str = "", **changes: str) -> subprocess.CompletedProcess[str]:
    env = environment(**changes)
    del env["PYTHONPATH"]
    return run_envbuild(*arguments, env=env, program=program)


def every_error() -> list[type[errors.EnvbuildError]]:
    return errors.EnvbuildError.__subclasses__()


def test_help_lists_the_exit_code_of_every_error():
    done = envbuild("--help")
    assert done.returncode == 0
    listed = {int(code) for code in re.findall(r"^ +(\d+)  +[A-Z]", done.stdout, re.MULTILINE)}
    assert listed == {0, 1, 130} | {kind.exit_code for kind in every_error()}


@pytest.mark.parametrize("name", [name for name, _ in commands_of(typer.main.get_command(commands.app))])
def test_help_of_a_command_fits_two_screens_and_ends_with_examples(name, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "100")
    words = next((list(it) for it in (name.split("-", 1), [name]) if it[0] in ("base", "cache", "profiles")), [name])
    assert commands.run([*words, "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 90
    assert any(line.strip() == "Examples:" for line in lines) or words[0] == "profiles"
    panels = {line[:-1] for line in lines if re.fullmatch(r"[A-Z][a-z ]+:", line)}
    assert panels <= {"Arguments", "What", "Where to", "How", "Advanced", "Options"}


def test_no_two_errors_share_an_exit_code():
    codes = [kind.exit_code for kind in every_error()]
    assert len(codes) == len(set(codes))


def test_help_loads_no_client_library():
    program = "import sys, envbuild.cli; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    command = [sys.executable, "-c", program]
    loaded = set(subprocess.run(command, capture_output=True, text=True, env=environment(), check=True).stdout.split())
    assert not loaded & {"google", "docker", "httpx", "jinja2", "requests", "uv"}


def test_the_version_goes_to_stdout():
    done = envbuild("--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("envbuild")


@pytest.mark.parametrize(
    "arguments", [("bogus",), ("capture", "--bogus"), ("schema", "surplus"), ("capture", "--out", "/")]
)
def test_usage_errors_exit_with_2_and_leave_stdout_empty(arguments):
    done = envbuild(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert "error" in done.stderr.lower()


def test_an_error_says_what_where_and_what_to_do_on_stderr_without_driving_the_terminal():
    done = envbuild("fail", program=COMMANDS)
    assert (done.returncode, done.stdout) == (11, "")
    assert done.stderr == "error: no stack serves the run\n  where: framework.version\n  do: take \\x1b[31manother\n"


def test_no_color_holds_even_where_colour_is_forced():
    assert "\x1b[31m" in envbuild("fail", program=COMMANDS, FORCE_COLOR="1").stderr.replace("1;31m", "31m")
    assert "31m" not in envbuild("fail", program=COMMANDS, FORCE_COLOR="1", NO_COLOR="1").stderr.replace(
        "\\x1b[31m", ""
    )


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (28, "no space is left"),
        (13, "permission denied"),
        (30, "read-only"),
        (122, "quota"),
        (40, "symbolic links"),
        (12, "not enough memory"),
        (27, "ulimit -f"),
    ],
)
def test_an_error_of_the_machine_has_the_same_shape(number, message):
    done = envbuild("system", str(number), program=COMMANDS)
    assert (done.returncode, done.stdout) == (13, "")
    assert message in done.stderr
    assert "  where: /some/file\n  do: " in done.stderr
    assert "Traceback" not in done.stderr


def test_threads_that_cannot_be_started_are_told_and_faults_of_ours_are_not_hidden():
    done = envbuild("fault", "can't start new thread", program=COMMANDS)
    assert (done.returncode, done.stdout) == (13, "")
    assert done.stderr.startswith("error: no more threads can be started\n  do: ")
    assert "Traceback" in envbuild("fault", "of ours", program=COMMANDS).stderr


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_behind_stdout_is_told_by_a_process_of_its_own(unbuffered):
    with Path("/dev/full").open("w") as full:
        command, env = [sys.executable, "-c", COMMANDS, "say", "text"], environment(PYTHONUNBUFFERED=unbuffered)
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=env, check=False)
    assert_told(done)


@pytest.mark.parametrize("arguments", [("say", "text"), ("tell", "text"), ("tell", "x" * 100_000)])
def test_a_full_disk_behind_stdout_is_told(arguments):
    with Path("/dev/full").open("w") as full:
        assert_told(run_envbuild(*arguments, program=COMMANDS, stdout=full))


def assert_told(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 13
    assert "error: no space is left on the device\n  where: standard output\n  do: free some space" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("colour", [{}, {"FORCE_COLOR": "1"}])
@pytest.mark.parametrize(
    ("arguments", "code", "result"),
    [(("tell", "text"), 0, "text\n"), (("tell", "fail"), 11, ""), (("bogus",), 2, ""), (("system", "28"), 13, "")],
)
def test_a_stderr_that_cannot_be_written_changes_nothing(arguments, code, result, colour):
    reader, writer = os.pipe()
    os.close(reader)
    with Path("/dev/full").open("w") as full, os.fdopen(writer, "w") as gone:
        for stream in (full, gone):
            done = run_envbuild(*arguments, env=os.environ | colour, program=COMMANDS, stderr=stream)
            assert (done.returncode, done.stdout) == (code, result)


def test_a_reader_that_has_gone_is_no_error_to_talk_about():
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as gone:
        done = run_envbuild("say", "text", program=COMMANDS, stdout=gone)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_command_with_130_and_leaves_no_file(number, tmp_path):
    command = [sys.executable, "-c", COMMANDS, "write", str(tmp_path / "out.json")]
    with subprocess.Popen(command, stdout=-1, stderr=-1, text=True, env=environment()) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert list(tmp_path.iterdir())
        process.send_signal(number)
        _, said = process.communicate(timeout=30)
    assert (process.returncode, said) == (130, "interrupted\n")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_comes_where_python_raises_nothing_ends_the_command_all_the_same(number):
    command = [sys.executable, "-c", COMMANDS, "lose"]
    with subprocess.Popen(command, stdout=-1, stderr=-1, text=True, env=environment()) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        out, said = process.communicate(timeout=30)
    assert (process.returncode, said) == (130, "interrupted\n")
    assert "went on" not in out


@pytest.mark.parametrize("start", [("-m", "envbuild"), ("-c", "from envbuild.cli import main; main()")])
def test_ctrl_c_while_imports_go_on_shows_no_traceback(start, tmp_path):
    (tmp_path / "typer.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(60)\n")
    env = environment(PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    command = [sys.executable, *start, "--help"]
    with subprocess.Popen(command, stdout=-1, stderr=-1, text=True, env=env, cwd=tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "importing\n"
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    assert (process.returncode, said) == (130, "interrupted\n")


def test_importing_the_command_line_leaves_signals_alone():
    program = "import signal, envbuild.cli.commands; print(signal.getsignal(2) is signal.default_int_handler)"
    command = [sys.executable, "-c", program]
    assert subprocess.run(command, capture_output=True, text=True, env=environment(), check=True).stdout == "True\n"


def test_where_ctrl_c_is_ignored_it_stays_so(tmp_path):
    command = [
        "sh",
        "-c",
        "trap '' INT; exec \"$@\"",
        "sh",
        sys.executable,
        "-c",
        COMMANDS,
        "write",
        str(tmp_path / "x"),
    ]
    with subprocess.Popen(command, stdout=-1, stderr=-1, text=True, env=environment()) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 130


def test_an_interpreter_that_is_not_there_is_a_usage_error():
    done = envbuild("capture", "--python", "/no/such/python")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--python /no/such/python" in done.stderr


def test_an_interpreter_that_fails_is_an_error_with_its_exit_code(tmp_path):
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho too old >&2\nexit 3\n")
    broken.chmod(0o755)
    done = envbuild("capture", "--python", str(broken))
    assert (done.returncode, done.stdout) == (10, "")
    assert "too old\nerror: " in done.stderr
    assert "exit code 3" in done.stderr


def test_capture_prints_the_manifest_of_this_interpreter():
    manifest = json.loads(envbuild("capture", "--model", "gs://bucket/model").stdout)
    assert manifest["python"]["version"] == platform.python_version()
    assert manifest["model_uri"] == "gs://bucket/model"


@pytest.mark.parametrize("where", [(), ("--python", sys.executable)])
def test_capture_writes_a_file_and_prints_its_path(where, tmp_path):
    out = tmp_path / "run.json"
    done = envbuild("capture", "--out", str(out), "--variable", "MY_FLAG", *where, MY_FLAG="7")
    assert (done.returncode, done.stdout) == (0, f"{out}\n")
    assert json.loads(out.read_text())["variables"]["MY_FLAG"] == "7"


def test_schema_prints_the_json_schema():
    schema = json.loads(envbuild("schema").stdout)
    assert schema["$schema"].startswith("https://json-schema.org/")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def plain() -> tuple[Progress, io.StringIO, Clock]:
    file, clock = io.StringIO(), Clock()
    return Progress(Console(file=file, force_terminal=False, markup=False, soft_wrap=True), clock=clock), file, clock


def test_off_a_terminal_progress_is_a_line_every_two_seconds_with_bytes_and_rate():
    progress, file, clock = plain()
    for tenth in range(41):
        clock.now = 100 + tenth / 10
        progress.progress("tensorflow", tenth * 1_000_000, 40_000_000)
    assert file.getvalue().splitlines() == [
        "  tensorflow: 0 bytes of 40.0 MB",
        "  tensorflow: 20.0 MB of 40.0 MB, 10.0 MB/s",
        "  tensorflow: 40.0 MB of 40.0 MB, 10.0 MB/s",
    ]


def test_what_was_there_at_once_has_no_rate():
    progress, file, clock = plain()
    progress.progress("assembling", 1_000_000, 40_000_000)
    clock.now += 0.001
    progress.progress("assembling", 40_000_000, 40_000_000)
    assert file.getvalue().splitlines()[-1] == "  assembling: 40.0 MB of 40.0 MB"


def test_what_was_begun_to_be_told_is_told_to_its_end_and_nothing_else_is():
    progress, file, clock = plain()
    progress.progress("numpy", 1, 10)
    clock.now += 0.1
    progress.progress("numpy", 10, 10)
    progress.progress("six", 10, 10)
    assert [line.split(",")[0] for line in file.getvalue().splitlines()] == [
        "  numpy: 1 byte of 10 bytes",
        "  numpy: 10 bytes of 10 bytes",
    ]


def test_steps_notes_and_warnings_are_whole_lines_in_which_nothing_is_markup():
    progress, file, _ = plain()
    progress.step("lock [red]42[/red]")
    progress.note("numpy \x1b]0;title\x07 " + "x" * 200)
    progress.warn("no bytecode")
    assert file.getvalue().splitlines() == [
        "lock [red]42[/red]",
        "  numpy \\x1b]0;title\\x07 " + "x" * 200,
        "warning: no bytecode",
    ]


def test_on_a_terminal_progress_is_a_bar_that_leaves_the_cursor_as_it_was():
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=100, _environ={})
    with Progress(console) as progress:
        progress.progress("tensorflow [b]", 10, 100)
        progress.step("half way")
    progress.progress("late", 10, 100)
    assert "late" not in file.getvalue()
    assert "tensorflow [b]" in file.getvalue()
    assert "half way" in file.getvalue()
    assert file.getvalue().rindex("\x1b[?25h") > file.getvalue().rindex("\x1b[?25l")


def test_progress_may_come_from_many_threads():
    file = io.StringIO()
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for done in range(101):
                progress.progress(f"layer {number}", done, 100)
        except BaseException as error:
            failures.append(error)

    with Progress(Console(file=file, force_terminal=True, _environ={})) as progress:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures


def test_printable_text_stays_as_it_is():
    assert printable("größe 語\n") == "größe 語\n"
    assert printable("a\rb\x9b\u202e") == "a\\rb\\x9b\\u202e"
