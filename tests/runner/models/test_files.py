"""The first line of a model's configuration file says how large the model is."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from hydra.utils import instantiate
from nightly import each
from omegaconf import OmegaConf

FILES = sorted((Path(__file__).parents[3] / "conf" / "model").glob("*.yaml"))
CLASSES = {"ten": 10, "a hundred": 100, "a thousand": 1000}
SHAPES = {10: (3, 32, 32), 100: (3, 32, 32), 1000: (3, 224, 224), 34: (64, 40)}


STATED = {
    file: match
    for file in FILES
    if (match := re.search(r"([\d,]+) parameters (.*)", file.read_text().partition("\n")[0]))
}


def test_files_without_a_size_are_of_models_that_are_as_large_as_the_data() -> None:
    assert {file.stem for file in FILES} - {file.stem for file in STATED} == {
        "gpt_bytes",
        "linear",
        "logistic",
        "mlp",
    }


@each(("file", "stated"), STATED.items())
def test_parameters_are_as_many_as_the_file_says(file: Path, stated: re.Match[str]) -> None:
    node = OmegaConf.load(file)
    if words := re.search(r"at a vocabulary of (\d+)", stated[2]):
        facts = {"vocabulary": int(words[1])}
    else:
        named = re.search(r"for (.*) classes", stated[2])
        outputs = CLASSES[named[1]] if named else int(re.search(r"(\d+) phones", stated[2])[1])  # type: ignore[index]
        facts = {"shape": list(SHAPES[outputs]), "outputs": outputs}
    del node["reads"]
    with torch.device("meta"):
        model = instantiate({**node, **facts}, _convert_="all")
    assert f"{sum(p.numel() for p in model.parameters()):,}" == stated[1]
