"""Real links: the kernel counts what the meter counts, and emulated links are as slow."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import link_cases
import pytest
from link_cases import SIZES
from needed import lacks, patience, skip

ROOT = Path(__file__).parents[3]
NETLAB = ROOT / "scripts" / "netlab"
PATIENCE = patience(240)


def why_not() -> str | None:
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "tc", "mount"))):
        return "network namespaces need root, ip and tc"
    tried = subprocess.run(
        [NETLAB, "--rate", "100mbit", "--", "true"], capture_output=True, text=True
    )
    return tried.stderr.strip() if tried.returncode else None


@pytest.fixture(scope="module")
def netlab() -> None:
    if (reason := why_not()) is not None:
        pytest.skip(lacks("netns", reason))


needs_netlab = pytest.mark.usefixtures("netlab")  # tried only when tests run


def on_hosts(
    folder: Path, hosts: int, rate: str, *command: str
) -> subprocess.CompletedProcess[str]:
    arguments = [NETLAB, "--hosts", str(hosts), "--rate", rate, "--", *command]
    return subprocess.run(arguments, capture_output=True, text=True, timeout=PATIENCE, cwd=folder)


def case_on_hosts(folder: Path, hosts: int, rate: str, job: str) -> list[Any]:
    """Return what each host measured."""
    done = on_hosts(folder, hosts, rate, sys.executable, link_cases.__file__, job, str(folder))
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(hosts)]


@pytest.mark.capability
@needs_netlab
def test_the_kernel_counts_what_the_meter_says(tmp_path: Path) -> None:
    hosts = case_on_hosts(tmp_path, 3, "100mbit", "counted")
    for name in ("all_reduce", "all_gather", "all_to_all"):
        for host in hosts:
            assert host[name]["kernel"] == pytest.approx(host[name]["meter"], rel=0.03), name
    # Hosts pass on what others meter, or send nothing, so that only the sums agree.
    name = "ragged_gather"
    kernel, meter = (sum(host[name][whose] for host in hosts) for whose in ("kernel", "meter"))
    assert kernel == pytest.approx(meter, rel=0.03)


@needs_netlab
def test_a_host_that_fails_ends_all_and_is_told(tmp_path: Path) -> None:
    start = time.monotonic()
    done = on_hosts(tmp_path, 2, "open", "bash", "-c", "[ $RANK = 0 ] || exit 7")
    assert done.returncode == 7 and time.monotonic() - start < patience(10)


@needs_netlab
@pytest.mark.slow
def test_hosts_run_as_batch(tmp_path: Path) -> None:
    """Otherwise gloo spins for a tick of the kernel at many small messages."""
    done = on_hosts(
        tmp_path,
        2,
        "open",
        sys.executable,
        "-c",
        "import os; exit(os.sched_getscheduler(0) != os.SCHED_BATCH)",
    )
    assert done.returncode == 0


@needs_netlab
@pytest.mark.slow
def test_packets_stay_in_order(tmp_path: Path) -> None:
    """Otherwise TCP retransmits hundreds of them."""
    assert sum(case_on_hosts(tmp_path, 2, "1gbit", "resent")) < 20


@needs_netlab
@pytest.mark.slow
def test_nothing_stays_when_it_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen(
        [NETLAB, "--", "bash", "-c", f"echo $$ > {tmp_path}/$RANK; exec sleep 60"]
    ) as lab:
        while not all(
            (tmp_path / rank).exists() and (tmp_path / rank).read_text() for rank in "01"
        ):
            time.sleep(0.05)
        lab.send_signal(signal.SIGKILL)
    hosts = [int((tmp_path / rank).read_text()) for rank in "01"]
    deadline = time.monotonic() + 10
    while any(map(_alive, hosts)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(_alive, hosts))
    links = subprocess.run(["ip", "link"], capture_output=True, text=True, check=True).stdout
    assert "port0" not in links and "bridge:" not in links


@pytest.fixture
def cgroup() -> Path:
    folder = Path("/sys/fs/cgroup/cpu")
    if not os.access(folder / "tasks", os.W_OK):
        skip("cgroup", f"there is no {folder} that this user can write")
    return folder


@needs_netlab
def test_a_spare_core_is_for_all_threads_but_the_main_one(tmp_path: Path, cgroup: Path) -> None:
    done = subprocess.run(
        [NETLAB, "--spare-core", "--", sys.executable, "-c", SPIN, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    groups = set()
    for rank in "01":
        shares = json.loads((tmp_path / rank).read_text())
        assert [group.rpartition("-")[2] for group, _ in shares] == ["main", "spare"]
        assert all(share < 0.6 for _, share in shares)
        groups |= {group for group, _ in shares}
    assert len(groups) == 4
    assert not list(cgroup.glob("netlab-*"))


# Writes the control group and the CPU share of the main thread, and then those of another one.
SPIN = """
import json, os, sys, threading, time
from pathlib import Path

def spin(shares):
    time.sleep(0.3)  # netlab looks for new threads 20 times a second
    start, used = time.monotonic(), time.thread_time()
    while (elapsed := time.monotonic() - start) < 1:
        pass
    groups = Path("/proc/thread-self/cgroup").read_text().splitlines()
    group = next(line for line in groups if line.split(":")[1] == "cpu").rpartition("/")[2]
    shares.append((group, (time.thread_time() - used) / elapsed))

shares = []
spin(shares)
other = threading.Thread(target=spin, args=[shares])
other.start()
other.join()
Path(sys.argv[1], os.environ["RANK"]).write_text(json.dumps(shares))
"""


@needs_netlab
def test_a_number_of_hosts_that_cannot_be_is_told() -> None:
    assert "--hosts 1: type a number from 2 to 250" in refusal("--hosts", "1")


@needs_netlab
def test_a_spare_core_needs_a_core_a_host(cgroup: Path) -> None:
    told = refusal("--spare-core", "--hosts", "200")
    assert "--hosts 200: every host needs a core of its own; type --hosts" in told


def refusal(*arguments: str) -> str:
    done = subprocess.run([NETLAB, *arguments, "--", "true"], capture_output=True, text=True)
    assert done.returncode == 2
    return done.stderr


def _alive(pid: int) -> bool:
    state = Path(f"/proc/{pid}/stat")
    return state.exists() and state.read_text().rsplit(")", 1)[1].split()[0] != "Z"


@needs_netlab
@pytest.mark.slow
@pytest.mark.parametrize("hosts", [2, 3])
def test_an_emulated_link_is_as_slow_as_a_shaped_one(tmp_path: Path, hosts: int) -> None:
    shaped = case_on_hosts(tmp_path, hosts, "100mbit", "timed")[0]
    done = on_hosts(
        tmp_path,
        hosts,
        "open",
        sys.executable,
        link_cases.__file__,
        "timed",
        str(tmp_path),
        "1e8",
        "5e-5",
    )
    assert done.returncode == 0, done.stderr
    emulated = json.loads((tmp_path / "0.json").read_text())
    for name, seconds in emulated.items():
        assert seconds == pytest.approx(shaped[name], rel=0.15), name


@needs_netlab
@pytest.mark.slow
def test_exchanges_fill_nine_tenths_of_a_link(tmp_path: Path) -> None:
    seconds = case_on_hosts(tmp_path, 2, "100mbit", "timed")[0]
    size = max(SIZES)
    for name, sent in {"all_reduce": size, "all_gather": size, "all_to_all": size / 2}.items():
        assert 8 * sent / 1e8 / seconds[f"{name} {size}"] > 0.9, name


@needs_netlab
@pytest.mark.slow
def test_a_run_over_links_is_the_run_without_and_says_so(tmp_path: Path) -> None:
    overrides = [
        *"trainer.workers=2 trainer.max_steps=5 trainer.threads=1 logger.mode=disabled".split(),
        "model.widths=[16]",
    ]
    command = [str(Path(sys.executable).with_name("gcbench")), *overrides]
    done = on_hosts(tmp_path, 2, "1gbit", *command, f"directory={tmp_path}/links")
    assert done.returncode == 0, done.stderr
    subprocess.run(
        [*command, "trainer.launcher=local", f"directory={tmp_path}/local"],
        check=True,
        cwd=tmp_path,
    )
    links, local = (
        json.loads((tmp_path / name / "result.json").read_text()) for name in ("links", "local")
    )
    assert links["test"] == local["test"] and links["bits_wire"] == local["bits_wire"]
    assert links["network"] == {"emulated": False, "link": "1gbit"}
    assert local["network"]["link"] is None


@needs_netlab
@pytest.mark.slow
def test_a_benchmark_joins_the_hosts(tmp_path: Path) -> None:
    command = str(Path(sys.executable).with_name("gcbench"))
    overrides = ["sizes=[250000]", "draws=[]", "codec_backend=eager", "rounds=3", "outputs=."]
    done = on_hosts(tmp_path, 2, "100mbit", command, "bench", *overrides)
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.glob("bench-*/bench.json")
    rows = {row["what"]: row for row in json.loads(path.read_text())["network"]}
    assert rows["dense"]["workers"] == 2 and rows["dense"]["exchange_milliseconds"] > 80  # 1 MB
    assert rows["method"]["exchange_milliseconds"] < rows["dense"]["exchange_milliseconds"] / 5
