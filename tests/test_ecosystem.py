"""The code of docs/ecosystem.md runs, and what it loads is the network that was kept."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn

import scaleconv
from zoo.networks import import_library  # noqa: F401  # lets torchvision be imported beside a CPU build of torch

PAGE = Path(__file__).parents[1] / "docs" / "ecosystem.md"
SECTIONS = dict(re.findall(r"^## (\S+)\n(.*?)(?=^## )", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL))
IMAGES = {"MONAI": (1, 1, 8, 8, 8), "diffusers": (1, 3, 16, 16)}
