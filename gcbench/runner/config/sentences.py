"""The one-sentence error messages of a command, which replace those of Hydra and Python."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from errno import EDQUOT, ENOSPC

from hydra.errors import OverrideParseException
from yaml import YAMLError

from gcbench.core.conf import choices_in
from gcbench.core.errors import ConfigError, as_known, nearest
from gcbench.runner.config.checks import WITH_KEYS_BY_CHOICE
from gcbench.runner.config.choices import GROUPS, experiments
from gcbench.runner.config.keys import Keys, keys_by_choice, leaf_of
from gcbench.runner.settings.config import SCHEMAS
from gcbench.runner.settings.groups import OTHER_NAMES


def unknown_key(key: str, value: str, benchmark: bool, overrides: Sequence[str] = ()) -> str:
    """Return the sentence for `key=value` where the choices of a run have no such key.

    It names the choices that have the key, or the key that was probably meant. `benchmark` says
    that the command is gcbench bench, which has its own keys; `overrides` are its arguments.
    """
    if lacking := _methods_without(key, overrides):
        without, having = lacking
        return (
            f"{key}={value}: compressor={','.join(without)} has no such key; type "
            f"compressor={','.join(having)} with it, and compressor={','.join(without)} in a "
            "second command without it"
        )
    keys = Keys.of_command(benchmark, overrides)
    group, _, leaf = key.rpartition(".")
    advice = [f"{key} belongs to {choices}" for choices in keys.owners(key)]
    if advice:
        others = [one for one in keys if leaf_of(one) == leaf and one != key]
        if likely := [] if group else [one for one in others if keys.admits(one, value)]:
            advice.append(f"did you mean {' or '.join(f'{one}={value}' for one in likely)}?")
    elif meant := keys.meant(key, value):
        advice.append(meant)
    elif group in SCHEMAS:
        advice += _keys_of(group, overrides)
    advice = advice or ["type gcbench --help or gcbench --cfg job to see the keys"]
    return f"{key}={value}: no such key with these choices; {'; '.join(advice)}"


def bare_word(word: str, following: str, benchmark: bool, overrides: Sequence[str]) -> str:
    """Return the sentence for a word without =, which says nothing; empty if none is like it."""
    keys = Keys.of_command(benchmark, overrides)
    groups = ("compressor", "model") if benchmark else GROUPS
    choices = {group: choices_in(group) for group in groups}
    key, value = as_known(word, keys), following or "VALUE"
    if key in keys:
        return f"{word} {following}".rstrip() + f": type {key}={value}"
    if following and (meant := keys.meant(word, following)):
        return f"{word} {following}: {meant}"
    for like in (1, 0.8):
        likely = [
            f"{group}={name}"
            for group, known in choices.items()
            for name in nearest(word, known, most=1, like=like)
        ]
        if likely:
            return f"{word}: type {' or '.join(likely)}"
    return ""


def _keys_of(group: str, overrides: Sequence[str]) -> list[str]:
    """Return which keys a group has, by choice if they differ: of the typed choice, or of all."""
    if group not in WITH_KEYS_BY_CHOICE:
        return [f"{group} has {', '.join(SCHEMAS[group].model_fields)}"]
    having = {choice: keys for choice, keys in keys_by_choice(group).items() if keys}
    typed = [choice for choice in having if f"{group}={choice}" in overrides]
    return [f"{group}={choice} has {', '.join(having[choice])}" for choice in typed or having]


def _methods_without(key: str, overrides: Sequence[str]) -> tuple[list[str], list[str]] | None:
    """Return the methods of a sweep that lack a key, and those that have it, if there are both."""
    swept = [o.partition("=")[2].split(",") for o in overrides if o.startswith("compressor=")]
    keys = keys_by_choice("compressor")
    methods = [name for names in swept for name in names if name in keys]
    having = [name for name in methods if key in keys[name]]
    without = [name for name in methods if key not in keys[name]]
    return (without, having) if having and without else None


def sentence_of(
    error: BaseException, command: str = "gcbench", overrides: Sequence[str] = ()
) -> str:
    """Return the sentence for an error that ends a command: ours, Hydra's, or one of a file.

    `overrides` are the arguments of `command`; keys are called as they were typed there.
    """
    sentence = _sentence(error, command, overrides)
    for typed, key in OTHER_NAMES.items():
        if any(override.lstrip("+~").startswith(typed) for override in overrides):
            sentence = sentence.replace(f"{key}=", f"{typed}=")
    return sentence


def _sentence(error: BaseException, command: str, overrides: Sequence[str]) -> str:
    if isinstance(error, OSError) and error.strerror:
        return _sentence_of_a_file(error, command)
    if mistake := _config_error_in(error):
        return str(mistake)
    if isinstance(error, YAMLError):
        return f"a file of the configuration is not valid YAML: {' '.join(str(error).split())}"
    if isinstance(error, OverrideParseException):
        return _unreadable(error.override, str(error))
    cause = "" if isinstance(error, ConfigError) else str(error.__cause__ or "")
    lines = [*str(error).splitlines(), *(cause.splitlines() if cause not in str(error) else [])]
    said_by_omegaconf = ("object_type=", "full_key: hydra.")
    text = "\n".join(
        line for line in lines if line and not any(word in line for word in said_by_omegaconf)
    )
    # This prefix comes from the interpolation in the run's name.
    text = text.removeprefix("ConfigError raised while resolving interpolation: ")
    text = text.partition("\nConfig search path")[0]
    return _in_our_words(text, command == "gcbench bench", overrides)


def _unreadable(override: str, why: str) -> str:
    if override.count(" ") and all("=" in part for part in override.split(" ")):
        return f"{override}: these are several keys; leave out the quotes around them"
    if re.search("^mismatched input '='", why, re.MULTILINE):
        return (
            f"{override}: this has more than one =; type each key=value by itself, or quote the "
            "value, as in \"name='a=b'\""
        )
    return (
        f"{override}: this is not a readable key=value; type it without brackets and quotes, or "
        "close them, and quote a value with spaces or commas, as in 'name=\"a, b\"'"
    )


def _sentence_of_a_file(error: OSError, command: str) -> str:
    if error.strerror in (os.strerror(ENOSPC), os.strerror(EDQUOT)):
        return f"{error.filename or 'a file'}: {error.strerror}; make room and type this again"
    if not error.filename:  # as in a sentence of ours, which names the file
        return str(error.strerror)
    usable = "a folder that can be used"
    if command in ("gcbench", "gcbench bench"):
        usable = f"outputs=DIR, directory=DIR or data.root=DIR with {usable}"
    return f"{error.filename}: {error.strerror}; type {usable}"


def _in_our_words(text: str, benchmark: bool, overrides: Sequence[str]) -> str:
    """Return the sentence for an error message of Hydra or OmegaConf; the message if unknown."""
    if missing := re.search(r"Could not find '((.+)/(.*?))'\nAvailable options in .*\n", text):
        group, choice = missing[2], missing[3]
        for typed in overrides:  # whose choice may have slashes
            own, _, value = typed.partition("=")
            if any(f"{own}/{one}" == missing[1] for one in value.split(",") if "/" in one):
                return unknown_choice(own, missing[1].removeprefix(f"{own}/"), choices_in(own))
        return unknown_choice(group, choice, text[missing.end() :].split())
    if missing := re.search(r"Could not find 'experiment/(.+?)'", text):
        return _unknown_experiment(missing[1])
    if twice := re.match(r"Could not append to config\. An item is already at '(.+?)'", text):
        return f"+{twice[1]}: a run has this key already; type it without the +"
    if twice := re.match(r"Multiple values for (.+?)\. To override", text):
        return f"+{twice[1]}: a run has this choice already; type it without the +"
    if absent := re.match(r"Could not override '.+'\. No match.*\n.* \+(.+)$", text):
        return f"{absent[1]}: a run has no such choice by default; type +{absent[1]} to add it"
    if several := re.match(r"Ambiguous value for argument '((.+?)=(.+))'", text):
        return (
            f"{several[1]}: several values are a sweep; type gcbench -m {several[1]} (in Python "
            f"gcbench.sweep with a list), or {several[2]}=[{several[3]}] for one value that is a "
            "list"
        )
    if re.match(r"BasicSweeper does not support|Sweep parameters '.+' requires", text):
        for typed in overrides:
            if "interval(" in typed:
                return (
                    f"{typed}: only a search tries values of an interval; type gcbench -m "
                    f"hydra/sweeper=optuna '{typed}'"
                )
    if sweep := re.match(r"Sweep parameters '(.+)' requires", text):
        return f"{sweep[1]}: several values are a sweep; type gcbench -m '{sweep[1]}'"
    if unknown := re.match(r"Could not override '.+?'\.\s.* \+(.+?)=(.*)", text):
        return unknown_key(unknown[1], unknown[2], benchmark, overrides)
    return text


def value_for_group(group: str, value: object, is_name: bool) -> str:
    """Return the sentence for a file's `compressor: qsgd`, which is not how a file chooses."""
    return (
        f"{group}: {value}: a file makes a choice in its list of defaults; write "
        f"'- override /{group}: {value if is_name else 'NAME'}' there"
    )


def _unknown_experiment(name: str) -> str:
    """Return the sentence for `+experiment=name` where that is a table, or nothing."""
    rows = experiments()
    if inside := [row for row in rows if row.startswith(f"{name.rstrip('/')}/")]:
        return (
            f"+experiment={name} has {len(inside)} rows; type "
            f"+experiment={inside[0]}, or all of one table: "
            f"gcbench -m '+experiment/{inside[0].rpartition('/')[0]}=glob(*)'"
        )
    likely = nearest(name, rows, most=2, like=0.8)
    if likely:
        return unknown_choice("+experiment", name, likely)
    return f"+experiment={name}: there is no such choice; type one that gcbench papers tables names"


def unknown_choice(group: str, choice: str, choices: Sequence[str]) -> str:
    """Return the sentence for `group=choice` where the group has only `choices`."""
    known = [one for one in choices if one != "schema"]  # which is not a choice
    if likely := nearest(choice, known):
        advice = f"did you mean {' or '.join(f'{group}={one}' for one in likely)}?"
    elif (group, choice) == ("hydra/sweeper", "optuna"):
        advice = "type pip install '.[search]' in gcbench's checkout"
    else:
        advice = f"type {group}={', '.join(known)}"
    return f"{group}={choice}: there is no such choice; {advice}"


def _config_error_in(error: BaseException | None) -> ConfigError | None:
    """Return the ConfigError from one of our resolvers that OmegaConf's errors wrap, or None."""
    while error is not None and not isinstance(error, ConfigError):
        error = error.__cause__ or error.__context__
    return error
