"""The installed command as users type it, from another directory.

Unless a test is about the start itself, it copies a process that has imported everything.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import processes
import pytest
from needed import patience
from nightly import slow_but
from processes import Copy, command, under_torchrun

from gcbench import __main__
from gcbench.runner.launch.failure import SILENT
from gcbench.runner.launch.meeting import RUN_ID

ENVIRONMENT = {**os.environ, "WANDB_MODE": "offline", "PYTHONUNBUFFERED": "1"}
QUICK = ["model.widths=[32]", "logger.mode=disabled"]


def gcbench(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    typed = [sys.executable, "-m", "gcbench", *arguments]
    return subprocess.run(
        typed, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=patience(120)
    )


def run_copy(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return command(arguments, folder, {**ENVIRONMENT, **environment}, timeout=patience(120))


Start = Callable[..., subprocess.CompletedProcess[str]]
# The slow start can be left out, as test_runs.py has a script that also spawns its workers.
each_start = pytest.mark.parametrize(
    "start", [run_copy, pytest.param(gcbench, marks=pytest.mark.slow)], ids=["copy", "command"]
)


def results(folder: Path) -> list[dict]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("outputs/*/result.json"))]


@pytest.mark.capability
@each_start
def test_two_real_workers(tmp_path: Path, start: Start) -> None:
    done = start(tmp_path, *QUICK, "trainer.epochs=2", "min_size=0")
    assert done.returncode == 0, done.stderr
    (result,) = results(tmp_path)
    facts = (result["status"], result["workers"], result["processes"], result["backend"])
    assert facts == ("done", 2, 2, "gloo")
    assert result["seconds"]["step"]["mean"] > 0
    phases = [v["mean"] for k, v in result["seconds"].items() if k != "step"]
    assert sum(phases) == pytest.approx(result["seconds"]["step"]["mean"], rel=1e-6)
    for word in ("accuracy", "on test data", "sent", "fewer than fp32", "exchange", "outputs"):
        assert word in " ".join(done.stdout.split())


def test_more_workers_than_the_machine_has_are_virtual(tmp_path: Path) -> None:
    done = run_copy(
        tmp_path,
        *QUICK,
        "compressor=powersgd",
        "rank=2",
        "trainer.workers=20",
        "trainer.batch_size=4",
        "trainer.max_steps=1",
    )
    assert done.returncode == 0, done.stderr
    assert "20 VIRTUAL workers" in done.stderr
    (result,) = results(tmp_path)
    assert result["seconds"] is None and result["workers"] == 20


def test_a_mistake_ends_with_a_message_and_no_traceback(tmp_path: Path) -> None:
    done = gcbench(tmp_path, "rank=2")
    says = "gcbench: rank=2: no such key with these choices; rank belongs to"
    assert done.returncode != 0 and done.stderr.startswith(says), done.stderr
    assert "Traceback" not in done.stderr and not list(tmp_path.iterdir())


def test_an_output_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    done = run_copy(tmp_path, *QUICK, "outputs=file/inside")
    assert done.returncode != 0
    assert "type outputs=DIR" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments", [(*QUICK, "trainer.launcher=virtual", "trainer.max_steps=2"), ("papers", "tables")]
)
def test_a_reader_that_has_read_enough_ends_nothing(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    done = command(arguments, tmp_path, ENVIRONMENT, timeout=120, read=False)
    assert (
        done.returncode == 0 and "Traceback" not in done.stderr and "Broken pipe" not in done.stderr
    ), done.stderr
    assert arguments[0] == "papers" or results(tmp_path)[0]["status"] == "done"


def test_lines_are_whole_where_no_terminal_has_a_width(tmp_path: Path) -> None:
    overrides = [
        *QUICK,
        *"trainer.launcher=virtual trainer.max_steps=2 verbose=true".split(),
        "name=a-rather-long-name-of-a-run",
    ]
    done = run_copy(tmp_path, *overrides)
    assert any(
        "bits per step" in line and "by its paper's count" in line
        for line in done.stdout.splitlines()
    ), done.stdout
    (folder,) = (tmp_path / "outputs").iterdir()
    listed = command(("runs", "all", str(tmp_path)), tmp_path, ENVIRONMENT, timeout=60).stdout
    assert any(str(folder) in line and "accuracy" in line for line in listed.splitlines()), listed


def test_ranks_of_somebody_else_change_nothing(tmp_path: Path) -> None:
    """RANK is set without torchrun's other variables."""
    environment = {**ENVIRONMENT, "RANK": "1"}
    listed = command(("papers", "tables"), tmp_path, environment, timeout=60)
    assert listed.returncode == 0 and "powersgd/table4" in listed.stdout, listed.stderr
    overrides = [*QUICK, "trainer.launcher=virtual", "trainer.max_steps=2"]
    assert run_copy(tmp_path, *overrides, RANK="1").returncode == 0
    again = run_copy(tmp_path, *overrides, RANK="1")
    assert "type rerun=true" in again.stderr
    (folder,) = (tmp_path / "outputs").iterdir()
    assert (folder / "run.lock").exists() and (folder / ".hydra").exists()


def test_a_launcher_without_its_plugin_says_how_to_install_it(tmp_path: Path) -> None:
    lines = (
        "import sys; sys.modules['hydra_plugins.hydra_submitit_launcher'] = None\n"
        "sys.modules.pop('hydra_plugins.gcbench_launchers')\n"  # found before the copy
        "from hydra.core.singleton import Singleton\n"
        "from hydra.core.plugins import Plugins\n"
        "del Singleton._instances[Plugins]\n"  # and so had this
        "sys.argv = ['gcbench', '-m', 'hydra/launcher=submitit_slurm']\n"
        "from gcbench.runner.command.main import main; main()"
    )
    with Copy(processes.code, lines, folder=tmp_path, environment=ENVIRONMENT) as copy:
        _, err = copy.communicate(timeout=patience(60))
    assert copy.returncode == 1 and "Traceback" not in err, err
    assert "type pip install '.[slurm]'" in err.splitlines()[-1]


def test_the_first_line_says_where_workers_run(tmp_path: Path) -> None:
    done = run_copy(tmp_path, *QUICK, "trainer.launcher=virtual", "trainer.max_steps=2")
    first = done.stderr.splitlines()[0]
    assert first.startswith("gcbench: mlp digits qsgd: 2 workers on cpu, in ")
    assert str(tmp_path / "outputs" / "mlp-digits-qsgd+") in first


def test_full_errors_on_request(tmp_path: Path) -> None:
    assert "Traceback" in run_copy(tmp_path, "bits=11", HYDRA_FULL_ERROR="1").stderr


def test_their_own_model_and_data_without_touching_the_package(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "class Net(torch.nn.Sequential):\n"
        "    def __init__(self, width=7):\n"
        "        super().__init__(torch.nn.Linear(5, width), torch.nn.Tanh(), "
        "torch.nn.Linear(width, 3))\n"
        "def make_data():\n"
        "    x = torch.randn(256, 5, generator=torch.Generator().manual_seed(0))\n"
        "    return (x, x[:, :3].argmax(1)), (x[:64], x[:64, :3].argmax(1))\n"
    )
    overrides = [
        *"model._target_=mine.Net +model.width=9 dataset._target_=mine.make_data".split(),
        "logger.mode=disabled",
    ]
    done = run_copy(
        tmp_path, *overrides, "compressor=qsgd", "bits=4", "min_size=0", "trainer.epochs=20"
    )
    assert done.returncode == 0, done.stderr
    (result,) = results(tmp_path)
    assert (
        result["choices"]["model"] == "mine.Net" and result["parameters"] == 5 * 9 + 9 + 9 * 3 + 3
    )
    assert result["test"]["accuracy"] > 80


def test_a_worker_that_raises_ends_all_with_its_own_traceback(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import os, torch\n"
        "class Net(torch.nn.Linear):\n"
        "    def __init__(self): super().__init__(64, 10); self.calls = 0\n"
        "    def forward(self, x):\n"
        "        self.calls += 1\n"
        "        if os.environ.get('RANK') == '1' and self.calls == 5: raise RuntimeError('the "
        "cat is on the wire')\n"
        "        return super().forward(x.flatten(1))\n"
    )
    begin = time.monotonic()
    done = run_copy(tmp_path, "model._target_=mine.Net", "logger.mode=disabled", "min_size=0")
    assert done.returncode != 0 and time.monotonic() - begin < patience(120)
    assert "the cat is on the wire" in done.stderr and "forward" in done.stderr
    assert done.stderr.count("Traceback") == 1, done.stderr
    (result,) = results(tmp_path)
    assert result["status"] == "failed" and "the cat is on the wire" in result["reason"]


def test_ctrl_c_leaves_an_interrupted_result_and_a_run_that_resumes(tmp_path: Path) -> None:
    overrides = [*QUICK, "trainer.epochs=2000", "trainer.log_every=10", "min_size=0"]
    anew = [*overrides, "rerun=true", "resume=never"]  # typed again, they would not continue it
    with Copy(processes.gcbench, *anew, folder=tmp_path, environment=ENVIRONMENT) as copy:
        _wait_for(
            lambda: any(tmp_path.glob("outputs/*/metrics.jsonl")) or copy.returncode is not None, 60
        )
        os.killpg(copy.pid, signal.SIGINT)  # as a terminal does
        out, err = copy.communicate(timeout=patience(120))
    assert copy.returncode == 130, err
    assert "Traceback" not in out + err
    assert "type the same command without rerun=true and resume=never to continue the run" in err
    (result,) = results(tmp_path)
    assert result["status"] == "interrupted" and "stopped by a signal" in result["reason"]
    assert any(tmp_path.glob("outputs/*/checkpoints/step-*/manifest.json"))


def test_ctrl_c_while_modules_are_imported_is_quiet(tmp_path: Path) -> None:
    # A command that is not over before the signal comes, however busy the machine is.
    endless = [*QUICK, "trainer.epochs=2000", "trainer.launcher=virtual"]
    own = ["env", "--default-signal=INT"]  # which a job in the background of a shell ignores
    typed = [*own, sys.executable, "-X", "importtime", "-m", "gcbench", *endless]
    for module in ("argparse", "torch.nn"):  # the first, and within torch
        with subprocess.Popen(typed, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as begun:
            assert begun.stderr
            for line in begun.stderr:
                if line.split()[-1] == module:
                    begun.send_signal(signal.SIGINT)
                    break
            rest = begun.stderr.read()
        assert begun.returncode == 130 and "Traceback" not in rest, rest


def test_odd_surroundings_are_no_tracebacks(tmp_path: Path) -> None:
    """A closed output, and a file that is imported in place of a package."""
    gcbench = f"{sys.executable} -m gcbench"
    (tmp_path / "yaml.py").write_text("")

    def shell(line: str) -> tuple[int, str]:
        done = subprocess.run(line, shell=True, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
        return done.returncode, done.stderr

    assert shell(f"{gcbench} --version >&-") == (0, "")
    status, said = shell(f"PYTHONPATH=. {gcbench} --version")
    assert status == 1 and said.count("\n") == 1, said
    assert "yaml.py: this is imported instead of a package that gcbench needs" in said


def test_no_file_of_the_working_directory_is_in_the_way_without_pythonpath(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An empty path is the working directory for `abspath`, a checkout of gcbench, too."""
    monkeypatch.chdir(Path(str(__main__.__file__)).parents[1])
    for path in (None, "", os.pathsep):
        with monkeypatch.context() as patch:
            patch.delenv("PYTHONPATH", False) if path is None else patch.setenv("PYTHONPATH", path)
            assert __main__._file_in_the_way() is None


def test_no_refused_command_leaves_a_folder(tmp_path: Path) -> None:
    for typed in ("bits=11", "name=a/b trainer.workers=9999", "-m bits=11,12", "-m nothing=1"):
        done = run_copy(tmp_path, *QUICK, *typed.split())
        assert done.returncode == 1 and not list(tmp_path.iterdir()), done.stderr
    (tmp_path / "outputs").mkdir()
    assert run_copy(tmp_path, *QUICK, "name=a/b", "trainer.workers=9999").returncode == 1
    assert [path.name for path in tmp_path.rglob("*")] == ["outputs"]


@pytest.mark.parametrize("launcher", slow_but(["virtual"], ["virtual", "local"]))
def test_a_run_whose_terminal_is_closed_leaves_a_checkpoint(tmp_path: Path, launcher: str) -> None:
    seen, terminal = os.openpty()
    os.set_blocking(seen, False)
    overrides = [*QUICK, "trainer.epochs=2000", "trainer.log_every=10", "min_size=0"]
    typed = [sys.executable, "-m", "gcbench", *overrides, f"trainer.launcher={launcher}"]
    with subprocess.Popen(
        ["env", "--default-signal=HUP", "setsid", "--ctty", *typed],  # nohup would ignore it
        cwd=tmp_path,
        env=ENVIRONMENT,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
    ) as begun:
        os.close(terminal)

        def trains() -> bool:
            with suppress(BlockingIOError):  # a full terminal would stop the run
                os.read(seen, 1 << 16)
            return any(tmp_path.glob("outputs/*/metrics.jsonl"))

        _wait_for(trains, 60)
        os.close(seen)
        begun.wait(patience(120))
    (result,) = results(tmp_path)
    assert result["status"] == "interrupted" and "stopped by a signal" in result["reason"]
    assert any(tmp_path.glob("outputs/*/checkpoints/step-*/manifest.json"))


def test_a_terminal_shows_what_a_run_waits_for(tmp_path: Path) -> None:
    """And the output that a pipe gets too, to its last line, as the process ends at once."""
    seen, terminal = os.openpty()
    typed = ["trainer.workers=2", "trainer.max_steps=2", "logger=none"]
    with subprocess.Popen(
        [sys.executable, "-m", "gcbench", QUICK[0], *typed],
        cwd=tmp_path,
        env=ENVIRONMENT,
        stdout=terminal,
        stderr=terminal,
    ) as run:
        os.close(terminal)
        screen = b""
        with suppress(OSError):  # how a terminal says that nobody writes there any more
            while block := os.read(seen, 1 << 16):
                screen += block
    os.close(seen)
    assert run.returncode == 0, screen
    places = [screen.index(text) for text in (b"importing PyTorch", b"starting 2 processes")]
    assert places == sorted(places) and b"files in" in screen[places[-1] :]


def test_a_finished_run_is_found_again_and_rerun_loses_nothing(tmp_path: Path) -> None:
    overrides = [*QUICK, "trainer.max_steps=2", "trainer.launcher=virtual"]
    assert run_copy(tmp_path, *overrides).returncode == 0
    again = run_copy(tmp_path, *overrides)
    assert again.returncode == 0 and "type rerun=true" in again.stderr
    assert run_copy(tmp_path, *overrides, "rerun=true").returncode == 0
    (folder,) = (tmp_path / "outputs").iterdir()
    assert len(list(folder.glob("result*.json"))) == 2


@pytest.mark.slow  # test_sweep_progress.py tests sweeps, too
def test_a_sweep_makes_one_directory_a_job(tmp_path: Path) -> None:
    arguments = [
        "-m",
        *QUICK,
        *"compressor=none,qsgd trainer.launcher=virtual trainer.max_steps=2".split(),
    ]
    done = run_copy(tmp_path, *arguments)
    assert done.returncode == 0, done.stderr
    assert {r["choices"]["compressor"] for r in results(tmp_path)} == {"none", "qsgd"}


def test_ranks_of_torchrun_join_and_one_writes(tmp_path: Path) -> None:
    overrides = [*QUICK, "trainer.workers=2", "trainer.max_steps=5"]
    target = processes.gcbench
    environment = {**ENVIRONMENT, RUN_ID: "none"}
    first, second = under_torchrun(
        target,
        overrides,
        overrides,
        folder=tmp_path,
        timeout=patience(120),
        environment=environment,
    )
    assert first.returncode == second.returncode == 0, first.stderr + second.stderr
    assert is_of_torchrun(tmp_path)
    assert (first.stderr + second.stderr).count("torchrun listens to everybody") == 1


@pytest.mark.slow  # the test above sets torchrun's variables itself
def test_torchrun_itself(tmp_path: Path) -> None:
    run_torchrun(tmp_path, *QUICK, "trainer.workers=2", "trainer.max_steps=5")
    assert is_of_torchrun(tmp_path)


@pytest.mark.slow  # the agent of torchrun keeps one store for all rows
def test_rows_of_a_sweep_under_torchrun_find_each_other(tmp_path: Path) -> None:
    sweep = ("-m", *QUICK, "trainer.workers=2", "trainer.max_steps=2", "seed=1,2,3")
    stderr = run_torchrun(tmp_path, *sweep)
    assert stderr.count("torchrun listens to everybody") == 1
    assert [r["status"] for r in results(tmp_path)] == ["done"] * 3


def test_a_search_under_torchrun_is_refused(tmp_path: Path) -> None:
    overrides = ["-m", *QUICK, "hydra/sweeper=optuna", "seed=range(1,3)", "trainer.workers=2"]
    for done in under_torchrun(
        processes.gcbench, overrides, overrides, folder=tmp_path, timeout=patience(120)
    ):
        assert done.returncode == 1 and "every rank of torchrun would search" in done.stderr


def test_a_result_names_the_rank_that_was_killed_though_torchrun_ends_the_others(
    tmp_path: Path,
) -> None:
    """Rank 0 gets SIGTERM, as from torchrun or srun, as soon as it has noticed the loss."""
    (tmp_path / "mine.py").write_text("""
import os, signal, threading, time, torch
from pathlib import Path

class Net(torch.nn.Linear):
    def __init__(self):
        super().__init__(64, 10)
        self.calls = 0
        if os.environ["RANK"] == "0":
            threading.Thread(target=end_after_loss, daemon=True).start()
    def forward(self, x):
        self.calls += 1
        if os.environ["RANK"] == "1" and self.calls == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(x.flatten(1))

def end_after_loss():
    while not Path("run/failure-0.json").exists():
        time.sleep(0.02)
    os.kill(os.getpid(), signal.SIGTERM)
""")
    overrides = ["model._target_=mine.Net", "logger=none", "min_size=0", "directory=run"]
    first, killed = under_torchrun(
        processes.gcbench, overrides, overrides, folder=tmp_path, timeout=patience(120)
    )
    assert killed.returncode == -signal.SIGKILL and first.returncode == 1, first.stderr
    result = json.loads((tmp_path / "run/result.json").read_text())
    reason = f"worker 1: {SILENT}"
    assert (result["status"], result["reason"]) == ("failed", reason)


def run_torchrun(folder: Path, *arguments: str) -> str:
    """Run gcbench with two ranks of the real torchrun; return what they print to stderr."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*torchrun, "--nproc-per-node", "2", "-m", "gcbench", *arguments],
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=patience(240),
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def is_of_torchrun(folder: Path) -> bool:
    (result,) = results(folder)
    start = (result["status"], result["launcher"], result["processes"])
    return start == ("done", "torchrun", 2)


def _wait_for(condition, seconds: float) -> None:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + patience(seconds)
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)
