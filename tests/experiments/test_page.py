"""The page on a folder of images: tables and the verdict, from records made by hand."""

import json
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from scaleconv.experiments import Record, Series, page
from scaleconv.experiments.measures import BY_SCALE, IOU_BY_SCALE

SCALES = [0.5, 1.0, 2.0]
CONFIG = {
    "data": {"fingerprint": "x", "train": 16, "test": 10_000},
    "network": {"name": "convnet"},
    "training": {"epochs": 3, "batch": 8, "optimizer": "adamw", "learning_rate": 0.001},
}


def record(model, seed, accuracies, macs=2e6, **changes):
    made = Record(
        experiment="x",
        model=model,
        fold=0,
        seed=seed,
        test_error=100 - accuracies[1],
        config=CONFIG,
        environment={"device": "cpu", "threads": 2},
        history=[],
        parameters=1000,
        seconds=10.0,
        seconds_per_epoch=1.0,
        runs_together=1,
        series={BY_SCALE: Series(SCALES, accuracies)},
        cost={"macs": macs, "kept_mib": 1.5, "ms": 0.25},
    )
    return replace(made, **changes)


def runs(model, means, macs=2e6):
    return [record(model, seed, [mean - 10, mean + 10, mean], macs) for seed, mean in enumerate(means)]


def test_the_better_method_is_taken_where_every_seed_agrees():
    converted = runs("converted", [71, 75.5, 73], macs=6e6)
    assert page.verdict([*runs("plain", [70, 74, 72]), *converted]) == (
        "Take **converted**: 73.2 % over all scales, ahead of every other. Against plain it gains +1.2 points, 95 % "
        "interval +0.4 to +1.9, for 3.0 times its operations."
    )
    assert page.verdict([*runs("plain", [72]), *converted[:1]]).startswith("Undecided")
    assert page.verdict(runs("plain", [70, 71])).endswith("There is nothing to compare it with.")


def test_where_chance_could_have_done_it_nothing_is_taken_and_what_would_tell_is_said():
    records = [*runs("plain", [70, 74, 72]), *runs("converted", [73, 72, 73], macs=6e6)]
    assert page.verdict(records) == (
        "Undecided: converted has the highest accuracy over all scales, 72.7 %, but is not clearly ahead of plain "
        "(+0.7 points, 95 % interval −5.6 to +6.9). Of these, plain takes the fewest operations. About 65 seeds and "
        "17,000 test images would tell it from plain, if the difference stays as it is; here there are 3 seeds and "
        "10000 test images."
    )


@pytest.mark.parametrize(
    ("ahead", "images", "taken"),
    [
        ([1, 1.5, 1], 10_000, True),
        ([1, 1.5, 1], 21, False),  # the choice of 21 images moves an accuracy by 19 points
        ([4, 8, 6], 10_000, False),  # 1.0 to 11.0
        ([10, 14, 12], 10_000, False),  # 7.0 to 17.0
        ([10, 11, 10.5], 10_000, True),
        ([-1, -1.5, -1], 10_000, True),  # plain
        ([0, 0, 0], 10_000, False),
    ],
)
def test_a_method_is_taken_by_the_rule_alone(ahead, images, taken):
    plain = [70, 74, 72]
    records = [*runs("plain", plain), *runs("own", [mean + more for mean, more in zip(plain, ahead, strict=True)])]
    config = {**CONFIG, "data": {**CONFIG["data"], "test": images}}
    text = page.verdict([replace(one, config=config) for one in records])
    assert text.startswith("Take" if taken else "Undecided")


def test_the_images_and_seeds_that_are_missing_are_said():
    few = {**CONFIG, "data": {**CONFIG["data"], "test": 21}}
    records = [*runs("plain", [70, 74, 72]), *runs("own", [71, 75.5, 73])]
    text = page.verdict([replace(one, config=few) for one in records])
    assert "About 3 seeds and 5,500 test images would tell it from plain" in text
    assert "at least three seeds" in page.verdict([*runs("plain", [70]), *runs("own", [80])])


def test_differences_are_paired_by_seed():
    seeds = {1: [60, 80, 70], 2: [61, 81, 71], 7: [0, 0, 0]}
    converted = [record("converted", seed, accuracies) for seed, accuracies in seeds.items()]
    (table,) = page.difference_tables([*runs("plain", [70, 69, 66]), *converted])
    # 70 − 69 and 71 − 66 over all scales; 80 − 79 and 81 − 76 at scale 1: 3 ± 12.7 · 2.
    assert table.rows == [("converted", "+3.0 [−22.4, +28.4]", "+3.0 [−22.4, +28.4]", "2")]
    assert table.title == "Accuracy against plain, points [95 % interval], paired by seed"
    assert page.difference_tables(converted) == page.difference_tables(runs("plain", [70])) == []


def test_accuracies_have_a_row_for_each_scale_and_size_and_their_mean():
    sized = {BY_SCALE: Series(SCALES, [1, 2, 3]), "accuracy by size": Series([32.0, 64.0], [40, 60])}
    converted = record("converted", 0, [1, 2, 3], series=sized)
    by_scale, by_size = page.accuracy_tables([*runs("plain", [70, 72]), converted])
    assert by_scale.title == "Accuracy (%) by scale of the test images, mean ± std, n = 1 / 2"
    assert by_scale.header == ("scale of the test images", "plain", "converted")
    assert by_scale.rows == [
        *(("0.5", "61.0 ± 1.4", "1.0"), ("1", "81.0 ± 1.4", "2.0"), ("2", "71.0 ± 1.4", "3.0")),
        ("mean", "71.0 ± 1.4", "2.0"),
    ]
    assert by_size.title == "Accuracy (%) by size (pixels), mean ± std, n = 1 / 2"
    assert by_size.rows == [("32", "–", "40.0"), ("64", "–", "60.0")]
    assert page.accuracy_tables(runs("plain", [70, 70]))[0].rows[0] == ("0.5", "60.0 ± 0.0")


def test_where_pixels_are_labelled_methods_are_judged_by_the_mean_iou():
    made = [
        replace(one, series={**one.series, IOU_BY_SCALE: Series(SCALES, [20, 30, 40 + one.seed])})
        for one in [*runs("plain", [70]), *runs("own", [80])]
    ]
    first, second = page.accuracy_tables(made)
    assert (first.rows[-1], second.rows[-1]) == (("mean", "30.0", "30.0"), ("2", "70.0", "80.0"))
    assert "mean IoU" in page.verdict(made)
    sized = {f"{name} by size": Series([8.0], [value]) for name, value in (("Dice", 60), ("mean IoU", 50))}
    sized |= {"Dice by scale": Series(SCALES, [91, 92, 93])}
    tables = page.accuracy_tables([replace(one, series={**one.series, **sized}) for one in made])
    assert [(table.title.partition(",")[0], table.rows[0][1]) for table in tables] == [
        ("Mean IoU (%) by scale of the test images", "20.0"),
        ("Dice (%) by scale of the test images", "91.0"),
        ("Accuracy (%) by scale of the test images", "60.0"),
        ("Mean IoU (%) by size (pixels)", "50.0"),
        ("Dice (%) by size (pixels)", "60.0"),
    ]
    assert page.difference_tables(made)[0].rows == [("own", "+0.0", "+0.0", "1")]


def test_costs_are_means_over_the_seeds_with_the_memory_of_a_gpu_where_there_is_one():
    slow, fast = runs("plain", [70, 72])
    (row,) = page.cost_table([slow, replace(fast, seconds=20.0, seconds_per_epoch=2.0)]).rows
    assert row == ("plain", "1,000", "2.0", "1.5", "1.5", "15", "0.25")
    table = page.cost_table([replace(slow, cost={"macs": 1, "kept_mib": 1, "ms": 1, "peak_mib": 812.4})])
    assert dict(zip(table.header, table.rows[0], strict=True))["peak MiB of the GPU in training"] == "812"


def test_a_summary_is_the_tables_and_the_verdict_or_errors_as_json(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    records = [*runs("plain", [70, 74]), *runs("converted", [80, 84])]
    text = page.summary_text(records)
    assert max(map(len, text.splitlines())) <= 80
    assert "mean                      72.0 ± 2.8  82.0 ± 2.8" in text
    assert "Take converted: 82.0 %" in " ".join(text.rpartition("\n\n")[2].split())
    found = json.loads(page.summary_text(records, as_json=True))
    assert found["plain"] == {"mean": 18.0, "std": 8**0.5, "n": 2}
    assert page.is_of_images(records)
    assert not page.is_of_images([replace(records[0], config={"data": {}})])


def test_the_page_has_verdict_rule_figure_tables_and_how_to_load(tmp_path):
    root = SimpleNamespace(root=tmp_path / "photos", classes=("cat", "dog"), skipped=("cat/a.txt is no image",))
    data = SimpleNamespace(folder=root, size=(16, 24), fit="crop", channels=1)
    records = runs("plain", [70, 74])
    longer = {**CONFIG["training"], "epochs": 45}
    records[1] = replace(records[1], config={**CONFIG, "network": {"name": "my.module:net"}, "training": longer})
    paths = page.write_page(records, data, tmp_path)
    assert [path.name for path in paths] == ["page.md", "accuracy.png", "accuracy.svg", "skipped.txt"]
    assert paths[3].read_text() == "cat/a.txt is no image\n"
    blocks = paths[0].read_text().split("\n\n")
    assert blocks[:2] == ["# photos: which network to take", page.verdict(records)]
    assert blocks[2].startswith("Rule: of each method, the mean accuracy over all test scales.")
    assert "| 0.5 | 62.0 ± 2.8 |" in blocks[5]
    images = "16 training and 10000 test images of 2 classes, 16×24 pixels (crop), 1 channel; 1 file left out"
    assert blocks[8].startswith(f"convnet / my.module:net on {images}")
    assert "3 / 45 epochs, batch 8, adamw, rate 0.001; cpu" in blocks[8]
    first, second = blocks[-1].splitlines()
    loaded = 'network = scaleconv.experiments.load("weights/plain-fold0-seed0.safetensors")'
    assert first == f"- plain, seed 0: `{loaded}`"
    assert second.endswith('/plain-fold0-seed1.safetensors", "my.module:net")`')
    assert page.recipe(records[0], tmp_path) == loaded.replace("weights/", f"{tmp_path}/weights/")
    root.skipped = ()  # as the list of an earlier run is outdated then
    assert not page.write_page(records, data, tmp_path)[-1].with_name("skipped.txt").exists()
    assert "1 channel; 0 files left out. 3 / 45 epochs" in paths[0].read_text()
