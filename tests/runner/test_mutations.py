"""A slip in a right command line is refused in one sentence, or changes nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random
from string import ascii_lowercase

import pytest
from nightly import slow_but

from gcbench.core.conf import Config
from gcbench.core.errors import ConfigError
from gcbench.runner.command import hydra_run
from gcbench.runner.command import main as cli
from gcbench.runner.config.compose import compose_overrides
from gcbench.runner.config.errors import COMPOSITION_ERRORS
from gcbench.runner.config.resolve import resolve
from gcbench.runner.config.sentences import sentence_of

RIGHT = """
seed=3 bits=2 bucket_size=128
compressor=qsgd bits=8 norm=l2 error_feedback=true alpha=0.2
compressor=powersgd rank=2 trainer.workers=4 optimizer.momentum=0.8
compressor=top_k fraction=0.01 bucket_scope=gradient trainer.epochs=3
compressor=eden bits=1 scale=biased error_feedback=true
compressor=none model=resnet20 dataset=cifar10 dataset.augment=false trainer.batch_size=64
compressor=bf16 model=linear optimizer=adamw optimizer.lr=0.001 optimizer.betas=[0.8,0.99]
compressor=orq level_count=5 exchange=sum trainer.compile=true
compressor=scaled_sign schedule=steps schedule.milestones=[0.5,0.75] schedule.gamma=0.2
compressor=onebit logger=csv trainer.precision=bf16 trainer.max_steps=100
compressor=random_k rank=4 estimator=local_steps estimator.every=8 estimator.outer_lr=0.5
compressor=global_randk k=100 network=emulated network.bandwidth=1gbit network.latency=50us
compressor=signum momentum=0.8 logger=wandb logger.mode=disabled
model=gpt_tiny dataset=wikitext2 dataset.split=test optimizer=muon clip_norm=1
model=mlp model.widths=[32,32] resume=never schedule=linear schedule.warmup_epochs=2
compressor=qsgd_levels exchange=sum trainer.eval_every=null trainer.label_smoothing=0.1
""".strip().splitlines()
FOREIGN = re.compile(
    "hydra|omegaconf|interpolat|mismatched|full_key|object_type|struct|traceback|exception|"
    "error parsing|could not|antlr",
    re.IGNORECASE,
)
ADVICE = re.compile(r"\btype|did you mean|leave|belongs to|has no|are one key|are typed|needs")
Slip = Callable[[str, Random], list[str]]


def doubled(word: str, random: Random) -> list[str]:
    key, _, value = word.partition("=")
    return [word, random.choice([word, f"{key}=2", f"+{word}", f"++{key}={value}"])]


def bracketed(word: str, random: Random) -> list[str]:
    key, _, value = word.partition("=")
    made = random.choice(["[{}]", "{{{}}}", "({})", "[{}", "{}]", "{{{}", "{}}}", "[[{}]]"])
    return [random.choice([f"{key}={made.format(value)}", made.format(word)])]


def in_another_case(word: str, random: Random) -> list[str]:
    key, _, value = word.partition("=")
    change = random.choice([str.upper, str.title, str.swapcase])
    made = [change(key), change(value)]
    return ["=".join(random.choice([[made[0], value], [key, made[1]], made]))]


def spaced(word: str, random: Random) -> list[str]:
    key, _, value = word.partition("=")
    apart = random.choice(["{} = {}", "{}= {}", "{} ={}", "{} {}"]).format(key, value)
    inside = [f" {word}", f"{word} ", word.replace(",", ", "), word.replace(".", " . ", 1)]
    return random.choice([apart.split(), [apart], [random.choice(inside)]])


def with_one_letter_changed(word: str, random: Random) -> list[str]:
    """Only letters change: with another digit the line would be right, too."""
    places = [m.start() for m in re.finditer("[a-z]", word)]
    at = random.choice(places)
    other = random.choice(["", word[at] * 2, random.choice(ascii_lowercase)])
    return [word[:at] + other + word[at + 1 :]]


def with_other_signs(word: str, random: Random) -> list[str]:
    key, _equals, value = word.partition("=")
    return [
        random.choice(
            [
                f"--{word}",
                f"-{word}",
                f"--{key.replace('_', '-')}={value}",
                word.replace("_", "-"),
                word.replace(".", "_"),
                f"{key}:{value}",
                f"{key}=={value}",
                f"'{word}'",
                f"{key}='{value}'",
                key,
            ]
        )
    ]


SLIPS: list[Slip] = [
    doubled,
    bracketed,
    in_another_case,
    spaced,
    with_one_letter_changed,
    with_other_signs,
]


def compose_typed(words: list[str]) -> Config:
    """Return what a command line means. Raises what ends the command."""
    meanings: list[Config] = []

    def keep(overrides: list[str], config_dir: str | None) -> None:
        meanings.append(resolve(compose_overrides(overrides, config_dir)).as_dict())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hydra_run, "_print_config", keep)
        cli._run_or_refuse([*words, "--cfg", "job"])
    return meanings[0]


@pytest.mark.parametrize("number_of_slips", slow_but([100], [100, 1000]))
def test_a_slip_is_refused_in_one_sentence_or_changes_nothing(number_of_slips: int) -> None:
    random, wrong = Random(number_of_slips), []
    right = {line: compose_typed(line.split()) for line in RIGHT}
    for number in range(number_of_slips):
        line = random.choice(RIGHT)
        words = line.split()
        at = random.randrange(len(words))
        slip = SLIPS[number % len(SLIPS)]
        words[at : at + 1] = slip(words[at], random)
        try:
            if compose_typed(words) != right[line]:
                wrong.append(f"{words} runs, and is not {line}")
        except (ConfigError, OSError, *COMPOSITION_ERRORS) as error:
            said = sentence_of(error, overrides=words)
            if "\n" in said or FOREIGN.search(said) or not ADVICE.search(said):
                wrong.append(f"{words}: {said}")
        except Exception as error:
            wrong.append(f"{words}: {error!r}")
    assert not wrong, "\n".join([f"{len(wrong)} slips:", *wrong])
