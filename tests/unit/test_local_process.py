"""Programs in a virtual environment: its variables, signals both ways, and exit codes as shells give them."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from envbuild.local.model import Mount, Settled
from envbuild.local.process import active, run_command, shell, translated

RUN = """
import sys
from pathlib import Path
from envbuild.local.process import run_command
sys.exit(run_command(sys.argv[2:], {"GIVEN": "1"}, Path(sys.argv[1])))
"""
FOREVER = "while :; do sleep 0.02; done"


def started(folder: Path, *command: str, **options) -> subprocess.Popen[str]:
    line = [sys.executable, "-c", RUN, str(folder), *command]
    return subprocess.Popen(line, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True, **options)


@pytest.fixture
def folder(tmp_path) -> Path:
    """An environment with one program."""
    (tmp_path / "e ü" / "bin").mkdir(parents=True)
    program = tmp_path / "e ü" / "bin" / "program"
    program.write_text('#!/bin/sh\necho "$VIRTUAL_ENV $GIVEN $PYTHONPATH" > "$1"\n')
    program.chmod(0o755)
    return tmp_path / "e ü"


def test_a_program_of_the_environment_comes_first_and_sees_its_variables(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    assert run_command(["program", str(tmp_path / "out")], {"GIVEN": "x"}, folder) == 0
    assert (tmp_path / "out").read_text() == f"{folder} x \n"
    assert active({"PATH": "/bin"}, {"PYTHONPATH": "own"}, folder)["PYTHONPATH"] == "own"


def test_cuda_in_wheels_is_found_as_in_an_image(folder):
    nvidia = folder / "lib/python3.11/site-packages/nvidia"
    for place in ("cudnn/lib", "cublas/lib", "cuda_nvcc/bin"):
        (nvidia / place).mkdir(parents=True)
    found = active({"PATH": "/bin", "LD_LIBRARY_PATH": "/own"}, {}, folder)
    assert found["LD_LIBRARY_PATH"] == f"{nvidia}/cublas/lib:{nvidia}/cudnn/lib:/own"
    assert found["XLA_FLAGS"] == f"--xla_gpu_cuda_data_dir={nvidia}/cuda_nvcc"
    assert active({}, {"XLA_FLAGS": "--own"}, folder)["XLA_FLAGS"] == "--own"


@pytest.mark.parametrize(
    ("command", "code"),
    [("exit 3", 3), ("kill -9 $$", 137), ("kill -TERM $$", 143)],
)
def test_exit_codes_pass_through(folder, command, code):
    assert run_command(["sh", "-c", command], {}, folder) == code


def test_what_cannot_be_started_ends_as_in_a_shell(folder, tmp_path, capfd):
    (tmp_path / "text").write_text("no program")
    assert run_command(["no-such-program"], {}, folder) == 127
    assert run_command([str(tmp_path / "text")], {}, folder) == 126
    assert capfd.readouterr().err.splitlines() == [
        "envbuild: no-such-program: not found",
        f"envbuild: {tmp_path / 'text'}: Permission denied",
    ]


def test_without_a_command_the_users_shell_is_started_and_else_the_systems(folder, tmp_path, monkeypatch):
    shell = tmp_path / "shell"
    shell.write_text("#!/bin/sh\ncommand -v program; exit 9\n")
    shell.chmod(0o755)
    monkeypatch.setenv("SHELL", str(shell))
    assert run_command([], {}, folder) == 9
    monkeypatch.delenv("SHELL")
    process = started(folder)
    assert process.communicate('echo "$GIVEN"; command -v program; exit 4\n')[0] == f"1\n{folder}/bin/program\n"
    assert process.returncode == 4


def test_what_the_users_start_files_put_on_path_does_not_come_before_the_environment(folder, tmp_path):
    (tmp_path / ".bashrc").write_text("export PATH=/usr/bin:$PATH KNOWN=1\n")
    (folder / "bin" / "activate").write_text(f"export PATH='{folder}/bin':$PATH\n")
    ours, theirs = os.openpty()
    line = [sys.executable, "-c", RUN, str(folder)]
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "SHELL": "/bin/bash"}
    process = subprocess.Popen(
        line, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True
    )
    os.write(ours, f"echo $KNOWN $PATH > '{tmp_path}/out'; exit 4\n".encode())
    assert process.wait(60) == 4
    assert (tmp_path / "out").read_text().startswith(f"1 {folder}/bin:/usr/bin:")
    for handle in (ours, theirs):
        os.close(handle)


def test_other_shells_are_told_in_their_own_ways(folder, tmp_path):
    assert list(words_of("zsh", folder, tmp_path)) == ["zsh"]
    (folder / "bin" / "activate").touch()
    assert words_of("fish", folder, tmp_path)[1:] == ["--init-command", f"source '{folder}/bin/activate.fish'"]
    assert words_of("dash", folder, tmp_path) == ["dash"]
    with shell({"SHELL": "zsh", "HOME": "/home/me"}, folder) as (_, variables):
        place = Path(variables["ZDOTDIR"])
        assert f". '{folder}/bin/activate'" in (place / ".zshrc").read_text()
        assert (place / ".zshenv").read_text().startswith("ZDOTDIR=/home/me\n")
    assert not place.exists()


def words_of(name: str, folder: Path, home: Path) -> list[str]:
    with shell({"SHELL": name, "HOME": str(home)}, folder) as (words, _):
        return words


@pytest.mark.parametrize("name", ["TERM", "USR1"])
def test_a_signal_to_envbuild_alone_reaches_the_program(folder, name):
    process = started(folder, "sh", "-c", f"trap 'echo got {name}; exit 7' {name}; echo ready; {FOREVER}")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.Signals[f"SIG{name}"])
    assert process.communicate()[0] == f"got {name}\n"
    assert process.returncode == 7


def test_ctrl_c_reaches_the_program_once_and_its_own_end_counts(folder):
    count = "trap 'echo got INT; sleep 0.1; exit 7' INT; echo ready"
    process = started(folder, "sh", "-c", f"{count}; {FOREVER}", start_new_session=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    os.killpg(process.pid, signal.SIGINT)
    assert process.communicate()[0] == "got INT\n"
    assert process.returncode == 7


def test_paths_of_the_container_become_those_of_this_machine(tmp_path):
    mounts = (
        Mount(source=Path("/here/data"), target="/gcs/b/p"),
        Mount(source=Path("/here/deep"), target="/gcs/b/p/deep"),
        Mount(source=Path("/home/me/adc.json"), target="/run/secrets/adc.json", read_only=True),
    )
    values = {
        "DATA": "/gcs/b/p/x.csv",
        "DEEP": "/gcs/b/p/deep",
        "BOTH": "/gcs/b/p:/gcs/b/p/deep/y",
        "OTHER": "/gcs/b/p2 /mnt/gcs/b/p gs://b/p",
        "GOOGLE_APPLICATION_CREDENTIALS": "/run/secrets/adc.json",
        "XLA_FLAGS": "--xla_gpu_cuda_data_dir=/opt/env/lib",
    }
    assert translated(Settled(variables=values, mounts=mounts), tmp_path) == {
        "DATA": "/here/data/x.csv",
        "DEEP": "/here/deep",
        "BOTH": "/here/data:/here/deep/y",
        "OTHER": "/gcs/b/p2 /mnt/gcs/b/p gs://b/p",
        "GOOGLE_APPLICATION_CREDENTIALS": "/home/me/adc.json",
        "XLA_FLAGS": f"--xla_gpu_cuda_data_dir={tmp_path}/lib",
    }
