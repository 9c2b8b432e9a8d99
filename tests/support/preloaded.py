"""What the server imports and composes before tests copy it: see processes.py."""

import atexit
import gc
from importlib import import_module

from composing import merge_files_once
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode

from gcbench.core.conf import conf_directory
from gcbench.runner.config.compose import register
from gcbench.runner.config.hydra_versions import VERSION_BASE

for module in (
    "torch._dynamo",
    "gcbench.runner.check.report",
    "gcbench.runner.data.digits",
    "gcbench.runner.launch.start",
):
    import_module(module)

merge_files_once()
register()
with initialize_config_dir(str(conf_directory()), **VERSION_BASE):
    for mode in RunMode:  # A command may compose in either.
        GlobalHydra.instance().hydra.compose_config("config", [], mode, from_shell=False)

# A garbage collection would write to all objects, and so copy their pages in every fork.
gc.freeze()
atexit.register(gc.unfreeze)  # else a library reports objects left at the end
