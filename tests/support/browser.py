"""A real browser, driven over Chromium's DevTools protocol on a pair of pipes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from needed import skip

FLAGS = (
    "--headless",
    "--no-sandbox",  # tests may run as root
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--remote-debugging-pipe",
    "--window-size=1280,900",
)


class Page:
    """One page in the browser; `problems` collects what its console reports."""

    def __init__(self, requests: int, answers: int) -> None:
        self._requests = requests
        self._answers = os.fdopen(answers, "rb")
        self._number = 0
        self._session: str | None = None
        self._unread = b""
        self.problems: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Runtime", "Log", "Page"):
            self.call(f"{domain}.enable")

    def open(self, address: str) -> None:
        """Load an address, and return when its scripts have run."""
        self.call("Page.navigate", url=address)
        while self.value("document.readyState") != "complete":
            pass

    def value(self, expression: str) -> Any:
        """Return the value of a JavaScript expression in the page, as plain Python values."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Return the browser's answer to one message; note the events that arrive before it."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._requests, json.dumps(message).encode() + b"\0")
        while (answer := self._read()).get("id") != self._number:
            self._note(answer)
        assert "error" not in answer, answer["error"]
        return dict(answer["result"])

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            more = self._answers.read1()
            assert more, "the browser has ended"
            self._unread += more
        text, _, self._unread = self._unread.partition(b"\0")
        return dict(json.loads(text))

    def _note(self, event: dict[str, Any]) -> None:
        method, parameters = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(parameters["exceptionDetails"]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.problems.append(parameters["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning"):
            self.problems.append(json.dumps(parameters["args"]))


@contextmanager
def browser(folder: Path) -> Iterator[Page]:
    """Yield a page of Chromium with its profile in `folder`; skip the test if there is none."""
    program = shutil.which("chromium")
    if program is None:
        skip("chromium", "no chromium on PATH")
    theirs_in, requests = os.pipe()
    answers, theirs_out = os.pipe()
    # Chromium reads the protocol from descriptor 3 and writes it to descriptor 4.
    shell = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
    command = [program, *FLAGS, f"--user-data-dir={folder}"]
    process = subprocess.Popen(
        ["bash", "-c", shell, "bash", *command],
        pass_fds=(theirs_in, theirs_out),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        yield Page(requests, answers)
    finally:
        process.kill()
        process.wait()
        os.close(requests)
