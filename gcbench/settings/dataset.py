"""The keys of conf/dataset that have a role, or that several data sets take."""

from __future__ import annotations

from typing import Annotated, Literal

from gcbench.settings.fields import Natural, Settings, Text
from gcbench.settings.marks import ELSEWHERE, Needs, Neutral

CropPadding = Natural
CropFill = Literal["zeros", "reflect"]
Flip = Literal["random", "alternating"]

AUGMENTED = Needs("dataset.augment", (True,))


class DatasetSettings(Settings):
    """Keys of conf/dataset; each file has the subset that its data set takes, besides others."""

    root: Annotated[Text, ELSEWHERE]
    """folder with the files of data sets"""
    download: Annotated[bool, ELSEWHERE]
    """true: files are fetched when they are missing"""
    augment: bool
    """true: random crops and flips of training images"""
    crop_padding: Annotated[CropPadding, AUGMENTED, Neutral(4)]
    """pixels by which a crop may lie off center"""
    crop_fill: Annotated[CropFill, AUGMENTED, Neutral("zeros")]
    """values outside an image: black, or the image mirrored at its border"""
    flip: Annotated[Flip, AUGMENTED, Neutral("random")]
    """half of the time at random, or in every other epoch (Jordan, arXiv:2404.00498)"""
