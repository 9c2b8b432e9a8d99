"""W&B as its user has set it up, and its service, which is left if it does not answer.

W&B also reads ./wandb/settings in the working directory, which may be another person's: it may name
the host that gets the user's key. Here only its mode counts, and only if it sends less.
"""

from __future__ import annotations

import configparser
import netrc
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies

from gcbench.core.deadline import within

T = TypeVar("T")

PATIENCE_SECONDS = 30.0  # for calls that a service answers at once
REACH_SECONDS = 5.0  # for a connection to the host
LEAVE_SECONDS = 5.0  # for the end of one that does not answer
# Hosts that share their keys.
HOSTS = ("api.wandb.ai", "api.forge.coreweave.com")
SETTINGS: dict[str, Any] = {
    "silent": True,
    "console": "off",  # the terminal belongs to the progress bar
    "disable_git": True,  # result.json has the commit
    "x_disable_stats": True,  # sampling the machine would take time from what is timed
    "init_timeout": 30,
    "x_service_wait": 30,
    # The service of a run that was killed drops the lines that it has not written to the run's
    # offline file yet. It writes them every 15 s by default.
    "x_transaction_log_flush_interval": 0.1,
    "finish_timeout": 15,  # less than the time that a worker has left when asked to stop
    "finish_timeout_raises": True,
}
LOCAL_MODES = {"offline": "offline", "dryrun": "offline", "disabled": "disabled"}
LONGEST_FILE = 1 << 16  # in bytes; W&B's have a few lines
TRUE = ("1", "true", "yes", "on")
_has_started_service = False


def own_settings() -> Any:
    """Set W&B up, and return its settings: those of its variables and of ~/.config/wandb.

    Raises TimeoutError if its service does not start.
    """
    global _has_started_service
    import wandb  # slow, and not everybody has it

    _disable_analytics()
    with _outside_working_directory() as here:
        _has_started_service |= "WANDB_SERVICE" not in os.environ
        quiet = wandb.Settings(**quiet_settings())
        # Without it, `wandb.init` would print before it has read its settings.
        wait = SETTINGS["x_service_wait"] + PATIENCE_SECONDS
        start = ask_service(wait, lambda: wandb.setup(quiet))
    if "WANDB_DIR" not in os.environ:
        start.settings.root_dir = here
    return start.settings


@contextmanager
def _outside_working_directory() -> Iterator[str]:
    """Change to the root directory, to which other users cannot write; yield the one before."""
    here = os.getcwd()
    os.chdir("/")
    try:
        yield here
    finally:
        os.chdir(here)


def quiet_settings() -> dict[str, Any]:
    """Return SETTINGS without those for which the user has set W&B's variable."""
    return {key: value for key, value in SETTINGS.items() if not _variables(key) & {*os.environ}}


def _variables(key: str) -> set[str]:
    return {f"WANDB_{key.upper()}", f"WANDB__{key.removeprefix('x_').upper()}"}


def asked_mode(typed: str) -> str:
    """Return the mode that was typed, else that of W&B's variables; auto if there is neither."""
    if typed != "auto":
        return typed
    if os.environ.get("WANDB_DISABLED", "").lower() in TRUE:
        return "disabled"
    mode = os.environ.get("WANDB_MODE") or "auto"
    return LOCAL_MODES.get(mode, mode)


def settled_mode(asked: str, own: Any) -> str:
    """Return the mode of W&B: `wandb offline` counts where nothing was asked, then the key."""
    local = (LOCAL_MODES.get(mode) for mode in (_mode_here(), own.mode))
    if asked == "auto" and (mode := next(filter(None, local), None)):
        return mode
    if asked in ("auto", "online"):
        return "online" if _key_is_configured(own) else "offline"
    return asked


def _mode_here() -> str:
    """Return the mode that `wandb offline` has written in the working directory, or ''."""
    parser = configparser.RawConfigParser()
    places = (Path("wandb/settings"), Path(".wandb/settings"))
    files = [path for path in places if path.is_file() and path.stat().st_size < LONGEST_FILE]
    with suppress(OSError, ValueError, configparser.Error):
        parser.read(files)
    return parser.get("default", "mode", fallback="")


def _key_is_configured(own: Any) -> bool:
    """Return whether there is a key for the user's own host: W&B would stop and ask for one."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    if own.api_key or own.identity_token_file:
        return True
    host = urlsplit(own.base_url).netloc
    try:
        entries = netrc.netrc(os.environ.get("NETRC"))
    except (OSError, netrc.NetrcParseError):
        return False
    return any(entries.authenticators(one) for one in (HOSTS if host in HOSTS else (host,)))


def is_reachable(own: Any) -> bool:
    """Return whether the user's host accepts connections; what is behind a proxy may.

    W&B itself would try for minutes, as on the nodes of a cluster, which have no internet.
    """
    address = urlsplit(own.base_url)
    if own.http_proxy or own.https_proxy or getproxies():
        return True
    where = (address.hostname, address.port or (443 if address.scheme == "https" else 80))

    def connect() -> bool:
        with suppress(OSError), socket.create_connection(where, REACH_SECONDS):
            return True
        return False

    return within(REACH_SECONDS, connect, False)


def ask_service(seconds: float | None, call: Callable[[], T]) -> T:
    """Return what `call` returns; leave W&B's service and raise TimeoutError if that takes longer.

    A service that has been stopped, or cannot write, would be waited for without end.
    """
    answered = within(seconds, lambda: (call(),), None)
    if answered is None:
        leave_service()
        raise TimeoutError(f"its service has not answered for {seconds or 0:.0f} s")
    return answered[0]


def leave_service() -> None:
    """End a service that gcbench has started, for which the end of Python would wait as well.

    The next run starts a new one.
    """
    within(LEAVE_SECONDS, _kill_service, None)


def _kill_service() -> None:
    with suppress(ImportError, AttributeError):  # other versions keep it elsewhere
        from wandb.sdk import wandb_setup

        connection: Any = wandb_setup.singleton()._connection
        if _has_started_service and connection is not None and connection.owns_service:
            connection._proc._process.kill()
            with suppress(Exception, SystemExit):  # it says that the service is gone
                wandb_setup.teardown()


def _disable_analytics() -> None:
    """Turn off W&B's reports on itself, which wait forever for a service that does not start.

    wandb 0.31 reports the failure while it holds the lock that the report needs.
    """
    with suppress(ImportError, AttributeError):  # other versions do not have it
        from wandb.analytics.opentelemetry import opentelemetry_proxy

        opentelemetry_proxy.disable()
