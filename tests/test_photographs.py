"""Folders of photographs are divided as the example says, on images of a few pixels."""

import csv
import subprocess
import sys
from pathlib import Path

import numpy as np
from PIL import Image

SCRIPT = Path(__file__).parents[1] / "examples" / "photographs.py"


def lay_out(name, source, out):
    subprocess.run([sys.executable, SCRIPT, name, source, out], check=True)
    return sorted(path.relative_to(out).as_posix() for path in out.rglob("*.png"))


def sizes_of(folder):
    with (folder / "sizes.csv").open(newline="") as file:
        return {row["file"]: float(row["size"]) for row in csv.DictReader(file)}


def write_sign(folder, name, side, level=0):
    folder.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (side, side), (level, 0, 0)).save(folder / f"{name}.png")


def test_tracks_are_not_divided_and_far_signs_keep_their_size_in_the_middle(tmp_path):
    for track in range(5):
        for frame, side in ((4, 31), (29, 60)):
            write_sign(tmp_path / "gtsrb" / "00001", f"0000{track}_{frame:02}", side, level=200)
    write_sign(tmp_path / "gtsrb" / "00001", "00000_30", 81)
    signs = lay_out("signs", tmp_path / "gtsrb", tmp_path / "signs")
    tested = {name.split("/")[2][:5] for name in signs if name.startswith("test")}
    trained = {name.split("/")[2][:5] for name in signs if name.startswith("train")}
    assert (tested, trained, len(signs)) == ({"00000", "00004"}, {"00001", "00002", "00003"}, 11)
    far = lay_out("far-signs", tmp_path / "gtsrb", tmp_path / "far")
    assert [name for name in far if name.startswith("train")] == [
        f"train/00001/0000{track}_04.png" for track in (1, 2, 3)
    ]
    assert sum(name.startswith("test") for name in far) == 4  # the sign of 81 pixels is larger than the canvas
    assert np.asarray(Image.open(tmp_path / "far" / far[0])).shape == (80, 80, 3)
    assert sizes_of(tmp_path / "far") == {name: 31 if name.endswith("_04.png") else 60 for name in far}


def test_images_of_small_nuclei_are_trained_on_but_for_a_quarter(tmp_path):
    sizes = {f"{number:03}": 10.0 if number < 8 else 20.0 for number in range(10)}
    for kind in ("images", "masks"):
        for name in sizes:
            write_sign(tmp_path / "nuclei" / kind, name, 4)
    with (tmp_path / "nuclei" / "sizes.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("name", "median_diameter"), *sizes.items()])
    found = lay_out("nuclei", tmp_path / "nuclei", tmp_path / "out")
    masks = [name for name in found if "/masks/" in name]
    assert [name.replace("/masks/", "/images/") for name in masks] == [name for name in found if "/images/" in name]
    assert [name for name in masks if name.startswith("train")] == [
        f"train/masks/00{number}.png" for number in (1, 2, 3, 5, 6, 7)
    ]
    assert [name for name in masks if name.startswith("test")] == [f"test/masks/00{k}.png" for k in (0, 4, 8, 9)]
    images = [name for name in found if "/images/" in name]
    assert sizes_of(tmp_path / "out") == {name: sizes[Path(name).stem] for name in images}
