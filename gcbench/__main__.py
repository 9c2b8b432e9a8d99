"""Entry point of the command `gcbench`, and of `python -m gcbench`, which torchrun needs."""

from __future__ import annotations

import os
import sys

# Python puts the working directory, which may have other people's files, before all others.
if sys.path[0] == os.getcwd() != os.path.dirname(os.path.dirname(__file__)):
    del sys.path[0]

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # before torch loads; launch.local says why

import signal
from contextlib import suppress
from importlib.machinery import PathFinder
from types import FrameType

INTERRUPTED = 130


def main() -> None:
    """Run `gcbench`; nothing that happens to it is answered by a traceback of Python's own."""
    _open_streams()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
    before = "torch" in sys.modules
    status: object = 0
    try:
        from gcbench.runner.ending import PARENT, end_process, end_with

        if parent := os.environ.pop(PARENT, None):
            end_with(int(parent))
        from gcbench.runner.command.main import main as command

        with suppress(ModuleNotFoundError):  # a package without them is whole, too
            from gcbench.papers.commands import add_commands

            add_commands()

        command()
    except KeyboardInterrupt:
        status = INTERRUPTED
    except SystemExit as ended:
        status = ended.code
    except Exception as error:
        if not (file := _file_in_the_way()):
            raise
        print(
            f"gcbench: {file}: this is imported instead of a package that gcbench needs ({error}); "
            "leave its folder out of PYTHONPATH, or rename it",
            file=sys.stderr,
        )
        status = 1
    if "torch" in sys.modules and not before and isinstance(status, int):
        end_process(status)
    sys.exit(status)  # type: ignore[arg-type]


def _open_streams() -> None:
    """Open what `gcbench >&-` has closed; else the next file would get what is printed."""
    while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(opened)
    sys.stdout = sys.stdout or open(1, "w", closefd=False)
    sys.stderr = sys.stderr or open(2, "w", closefd=False)


def _interrupt(_number: int, frame: FrameType | None) -> None:
    """Stop the command; at once while it imports, as imports may swallow a KeyboardInterrupt."""
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            os._exit(INTERRUPTED)
        frame = frame.f_back
    raise KeyboardInterrupt


def _file_in_the_way() -> str | None:
    """Return a file of PYTHONPATH that was imported in place of an installed module, or None."""
    paths = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    typed = [os.path.abspath(path) for path in paths]
    others = [path for path in sys.path if os.path.abspath(path) not in typed]
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) or ""
        folder = os.path.dirname(file.removesuffix(f"{os.sep}__init__.py"))
        if "." not in name and folder in typed and PathFinder.find_spec(name, others):
            return file
    return None


if __name__ == "__main__":
    main()
