"""W&B's key goes to the user's own host only, whatever lies in the working directory."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from needed import patience
from processes import Copy, code

KEY = "0123456789" * 4
SENT = base64.b64encode(f"api:{KEY}".encode()).decode()

LOGS_AND_READS = """
import os, sys
from pathlib import Path
from results import plain_result
from sentence import config_of
from gcbench.core.errors import ConfigError
from gcbench.runner.records.files import RunFiles
from gcbench.runner.records.loggers import start_logger
from gcbench.runner.records.result import Begun
from gcbench.runner.report.wandb_runs import load_wandb

logger = start_logger(config_of("logger.mode=auto"), RunFiles(Path("run")), Begun.here())
logger.log({"event": "train", "step": 1, "epoch": 0.5, "loss": 0.5})
logger.finish(plain_result())
try:
    load_wandb("team/project")
except ConfigError as error:
    print(error)
sys.stdout.flush()
os._exit(0)  # W&B would try for 20 s to send reports on itself
"""


@contextmanager
def serve() -> Iterator[tuple[str, list[str]]]:
    """Yield the address of a server that refuses everything, and all headers that it has got."""
    received: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def refuse(self) -> None:
            received.append(f"{self.requestline}\n{self.headers}")
            self.send_error(401)

        do_GET = do_POST = do_PUT = do_CONNECT = refuse

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", received
        server.shutdown()


def test_no_key_goes_to_a_host_that_a_file_of_the_working_directory_names(tmp_path: Path) -> None:
    """Neither when a run is logged, nor when runs are read."""
    with serve() as (own, asked), serve() as (others, stolen):
        here = tmp_path / "others"
        for folder in (here / "wandb", here / ".wandb", tmp_path / ".config" / "wandb"):
            folder.mkdir(parents=True)
        lines = ["[default]", "mode = online", "entity = evil", f"api_key = {'f' * 40}"]
        lines += [f"{key} = {others}" for key in ("base_url", "http_proxy", "https_proxy")]
        for folder in (here / "wandb", here / ".wandb"):
            (folder / "settings").write_text("\n".join(lines))
        mine = tmp_path / ".config" / "wandb" / "settings"
        mine.write_text(f"[default]\nbase_url = {own}\n")
        ours = {k: v for k, v in os.environ.items() if not k.startswith("WANDB_")}
        environment = {**ours, "HOME": str(tmp_path), "WANDB_API_KEY": KEY}
        with Copy(code, LOGS_AND_READS, folder=here, environment=environment) as copy:
            done = copy.wait(patience(100))
    assert stolen == []
    assert any(SENT in request for request in asked), "the user's own host gets it"
    assert done.returncode == 0 and "W&B answers" in done.stdout, done.stderr
