"""A CSV file of images: what is found, and what is left out and named."""

from helpers.folders import write_image
from scaleconv.data import load_folder


def test_images_of_a_csv_file_are_found_and_the_rest_is_named(tmp_path):
    lines = []
    for seed in range(20):
        write_image(tmp_path / f"{seed}.png", seed=seed)
        lines.append(f"{seed}.png,{'cat' if seed < 10 else 'dog'}")
    whole = (tmp_path / "0.png").read_bytes()
    (tmp_path / "cut.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "photos.csv").write_text("\n".join([*lines, "cut.png,cat", "none.png,dog", "1.png"]) + "\n")
    found = load_folder(tmp_path / "photos.csv").folder
    assert found.classes == ("cat", "dog")
    assert [len(part) for part in (found.train, found.val, found.test)] == [16, 2, 2]
    assert [each.name for each in found.skipped] == ["line 23", "cut.png", "none.png"]
