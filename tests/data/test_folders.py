"""What is found in a folder of images, what is left out and named, and how it is divided."""

import os
import shutil
import struct
import zlib
from collections import Counter

import pytest
from PIL import Image, ImageFile

from helpers.folders import parts, write_classes, write_image
from scaleconv.data import embedded_digits, make_set, parse_scales, read_folder, write_folder
from scaleconv.data.decoding import MOST_PIXELS
from scaleconv.data.folders import Candidate, ImageFolder, divide_by_class
from scaleconv.data.folders import ImageFile as FoundImage


def left_out(root, **options):
    return {each.name: each.reason for each in read_folder(root, **options).skipped}


def test_every_class_is_divided_alike_and_no_image_is_in_two_parts(tmp_path):
    found = read_folder(write_classes(tmp_path, 20), val=0.1, test=0.2)
    assert found.classes == ("cat", "dog")
    for part, count in (("train", 14), ("val", 2), ("test", 4)):
        assert Counter(image.label for image in getattr(found, part)) == {0: count, 1: count}
    names = [name for part in parts(found).values() for name in part]
    assert len(set(names)) == len(names) == 40
    assert found.skipped == ()


def test_the_division_depends_on_the_seed_and_on_nothing_else(tmp_path):
    write_classes(tmp_path, 20)
    first, again, other = (parts(read_folder(tmp_path, seed=seed)) for seed in (0, 0, 1))
    assert first == again != other
    shutil.rmtree(tmp_path / "dog")
    write_classes(tmp_path, 30, classes=("emu",))
    kept = {part: [name for name in names if "cat" in name] for part, names in first.items()}
    now = parts(read_folder(tmp_path, seed=0))
    assert {part: [name for name in names if "cat" in name] for part, names in now.items()} == kept


def test_parts_that_are_given_are_kept(tmp_path):
    for seed, part in enumerate(("train", "val", "test")):
        for name in ("a", "b"):
            write_image(tmp_path / part / name / "1.png", seed=10 * seed + ord(name))
    found = parts(read_folder(tmp_path))
    assert found == {part: [f"{part}/a/1.png", f"{part}/b/1.png"] for part in ("train", "val", "test")}
    shutil.rmtree(tmp_path / "test")
    assert parts(read_folder(tmp_path)) == {**found, "test": found["val"], "val": []}


def test_images_of_a_reader_keep_their_parts_once_each_and_lie_in_the_folder(tmp_path):
    folder = write_classes(tmp_path / "photos", 6)
    outside = write_image(tmp_path / "else.png", seed=1)
    files = sorted(folder.glob("*/*.png"))
    listed = [Candidate(("test", "train")[int(file.stem) > 1], file.parent.name, file) for file in files]
    extra = [Candidate("train", "cat", files[0]), Candidate("train", "dog", outside)]

    def divide(candidates):
        skipped = []
        labels = {candidate.label for candidate in candidates}
        return divide_by_class(folder, candidates, skipped, labels, val=0.1, test=0.1, seed=0)

    found = divide([*listed, *extra])
    assert parts(found)["test"] == ["cat/000.png", "cat/001.png", "dog/000.png", "dog/001.png"]
    assert {each.name: each.reason for each in found.skipped} == {
        "cat/000.png": "is listed twice",
        str(outside): "lies outside of the folder",
    }
    for part in ("dev", ""):
        with pytest.raises(ValueError, match=r"`part` must be test, val, train for each image, or none for all, got"):
            divide([*listed, Candidate(part, "cat", outside)])


def test_everything_odd_is_named_with_its_reason_and_the_rest_is_used(tmp_path):
    write_classes(tmp_path, 10)
    cat = tmp_path / "cat"
    whole = (cat / "000.png").read_bytes()
    (cat / "cut.png").write_bytes(whole[: len(whole) // 2])
    photo = write_image(cat / "photo.jpg", size=(200, 200))
    (cat / "cut.jpg").write_bytes(photo.read_bytes()[: photo.stat().st_size // 2])
    (cat / "empty.bmp").touch()
    (cat / "text.webp").write_text("no image at all")
    Image.new("L", (3, 3)).save(cat / "other.png", format="GIF")
    (cat / "notes.txt").write_text("a note")
    (cat / ".DS_Store").write_bytes(b"x")
    (cat / "copy.png").write_bytes(whole)
    (tmp_path / "dog" / "copy.png").write_bytes(whole)
    (cat / "gone.png").symlink_to(cat / "nowhere.png")
    (cat / "itself.png").symlink_to(cat / "itself.png")
    (cat / "round").symlink_to(cat)
    os.mkfifo(cat / "pipe.png")
    (tmp_path / "loose.png").write_bytes(whole)
    (tmp_path / "nothing").mkdir()
    reasons = left_out(tmp_path)
    expected = {
        "cat/cut.png": "is broken (",
        "cat/cut.jpg": "is broken (",
        "cat/empty.bmp": "is not an image",
        "cat/text.webp": "is not an image",
        "cat/other.png": "is not an image",
        "cat/notes.txt": "does not end in .png",
        "cat/.DS_Store": "is hidden",
        "cat/copy.png": "is a copy of cat/000.png",
        "dog/copy.png": "is a copy of cat/000.png",
        "cat/gone.png": "cannot be read (No such file",
        "cat/itself.png": "cannot be read (Too many levels",
        "cat/round": "is a link to a folder that was read already",
        "cat/pipe.png": "is not a regular file",
        "loose.png": "lies in no folder of a class",
        "nothing": "is a class without an image",
    }
    assert set(reasons) == set(expected)
    assert [name for name in expected if not reasons[name].startswith(expected[name])] == []
    found = read_folder(tmp_path)
    assert (found.classes, len(found.images)) == (("cat", "dog"), 21)
    lines = found.summary(3).splitlines()
    assert lines[1:] == ["15 left out:", *(f"  {each}" for each in found.skipped[:3]), "  … and 12 more"]


def test_of_two_copies_the_one_to_test_on_is_kept(tmp_path):
    for seed, name in enumerate(("train/a/1.png", "train/a/2.png", "train/b/1.png", "test/a/1.png", "test/b/1.png")):
        write_image(tmp_path / name, seed=seed)
    shutil.copy(tmp_path / "test/a/1.png", tmp_path / "train/a/3.png")
    assert left_out(tmp_path) == {"train/a/3.png": "is a copy of test/a/1.png"}


def huge_png(path, side):
    """A PNG whose header announces so many pixels, with the first of its rows."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    rows = zlib.compress(bytes(10 * (side + 1)))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b""))


@pytest.mark.parametrize("side", [8_300, 10_000, 30_000])
def test_a_huge_image_is_refused_by_its_header_and_not_decoded(tmp_path, monkeypatch, side):
    write_classes(tmp_path, 3)
    huge_png(tmp_path / "cat" / "huge.png", side)
    decoded = []
    load = ImageFile.ImageFile.load
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda image: (decoded.append(image.size), load(image))[1])
    size = f"{side}×{side}" if side < 20_000 else "more"
    assert left_out(tmp_path) == {"cat/huge.png": f"is too large ({size} pixels, at most {MOST_PIXELS:,})"}
    assert set(decoded) == {(12, 12)}


def test_sizes_are_those_of_the_upright_image_and_colour_is_told(tmp_path):
    write_classes(tmp_path, 3)
    exif = Image.Exif()
    exif[0x0112] = 6
    write_image(tmp_path / "cat" / "turned.jpg", size=(20, 30), exif=exif)
    write_image(tmp_path / "cat" / "flat.jpg", size=(20, 30), seed=1)
    write_image(tmp_path / "dog" / "old" / "more" / "x.bmp", size=(5, 4))
    images = read_folder(tmp_path).images
    sizes = {image.name: (image.size, image.grey) for image in images}
    assert sizes["dog/old/more/x.bmp"] == ((5, 4), False)
    assert {image.name: image.label for image in images}["dog/old/more/x.bmp"] == 1
    assert sizes["cat/turned.jpg"] == ((30, 20), False)
    assert sizes["cat/flat.jpg"] == ((20, 30), False)
    assert sizes["cat/000.png"] == ((12, 12), True)


def test_what_cannot_be_used_at_all_is_refused(tmp_path):
    def refused(message, **options):
        with pytest.raises((ValueError, OSError), match=message):
            read_folder(tmp_path / "x", **options)

    root = tmp_path / "x"
    refused("`data` must be a directory with a folder for each class")
    root.mkdir()
    refused("must hold images of at least 2 classes, got 0")
    write_classes(root, 3, classes=("cat",))
    (root / "note.txt").touch()
    refused(r"must hold images of at least 2 classes, got 1 \(cat\); 1 left out, first: note.txt lies in no folder")
    write_classes(root, 2, classes=("dog",))
    refused("must hold at least 3 images of every class to divide them, got 2 of class dog")
    write_classes(root, 3, classes=("Cat",))
    refused("must not hold classes that differ in case only, got Cat and cat")
    refused("`val` must be at least 0 and below 1, got -1", val=-1)
    for shares in ({"test": 0}, {"val": 0.5, "test": 0.5}):
        refused("`test`.*must be above 0, and with `val`.* below 1", **shares)
    shutil.rmtree(root)
    write_classes(root / "train", 3)
    refused("must have a folder test or val beside train")
    write_classes(root / "test", 1, classes=("emu", "fox"))
    refused("must hold images of every class in train, got none of emu")
    shutil.rmtree(root / "test")
    (root / "test" / "cat").mkdir(parents=True)
    refused("must hold images to test on, got none")


def test_the_fingerprint_follows_bytes_names_and_parts_but_not_the_place(tmp_path):
    write_classes(tmp_path / "a", 6)
    first = read_folder(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    assert read_folder(tmp_path / "b").fingerprint() == first.fingerprint()
    assert read_folder(tmp_path / "a", seed=1).fingerprint() != first.fingerprint()
    write_image(tmp_path / "b" / "cat" / "000.png", size=(12, 12), mode="L", seed=99)
    assert read_folder(tmp_path / "b").fingerprint() != first.fingerprint()


def divided(root):
    for number, part in enumerate(("train", "test")):
        for name in ("cat", "dog"):
            for index in (1, 2):
                write_image(root / part / name / f"{index}.png", seed=100 * number + 10 * index + ord(name[0]))
    return root


SIZES = "file,size\ntest/dog/1.png,12.5\ntest/dog/2.png,3\ntest/cat/2.png,1e2\n\ntest/cat/1.png,7\n"


@pytest.mark.parametrize("start", ["", "\ufeff"], ids=["plain", "byte order mark"])
def test_the_sizes_of_what_test_images_show_are_read_and_enter_the_fingerprint(tmp_path, start):
    without = read_folder(divided(tmp_path))
    others = "train/cat/1.png,5\ntest/dog/broken.png,8\n"
    (tmp_path / "sizes.csv").write_text(start + SIZES + others, encoding="utf-8")
    found = read_folder(tmp_path)
    assert [image.shown for image in found.test] == [7, 100, 12.5, 3]  # of cat/1, cat/2, dog/1 and dog/2
    assert {image.shown for image in (*without.images, *found.train)} == {None}
    assert found.skipped == ()
    (tmp_path / "sizes.csv").write_text(SIZES.replace("12.5", "12"))
    assert len({each.fingerprint() for each in (without, found, read_folder(tmp_path))}) == 3


def test_the_sizes_of_a_folder_that_is_divided_here_are_those_of_all_its_images(tmp_path):
    write_classes(tmp_path, 5)
    names = [path.relative_to(tmp_path).as_posix() for path in sorted(tmp_path.glob("*/*.png"))]
    lines = [f"{name},{index + 1}\n" for index, name in enumerate(names)]
    (tmp_path / "sizes.csv").write_text("file,size\n" + "".join(lines))
    found = read_folder(tmp_path, test=0.5)
    assert [image.shown for image in found.test] == [names.index(image.name) + 1 for image in found.test]
    assert found.skipped == ()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "test/dog/2.png,3\n",
            "",
            "must have a size for every test image, got none for test/dog/2.png; 1 of 4 have none",
        ),
        ("dog/2.png,3", "dog/2.png,large", "`size` must be a number above 0, got 'large' for 'test/dog/2.png' in "),
        ("dog/2.png,3", "dog/2.png,", "`size` must be a number above 0, got '' for"),
        ("dog/2.png,3", "dog/2.png,0", "got '0' for"),
        ("dog/2.png,3", "dog/2.png,nan", "got 'nan' for"),
        ("dog/2.png,3", "dog/2.png,inf", "got 'inf' for"),
        ("file,size", "file,size,area", "must have the columns file,size, got 'file,size,area'"),
        ("file,size", "name,size", "must have the columns file,size, got 'name,size'"),
        (SIZES, "", "must have the columns file,size, got ''"),
        ("dog/2.png,3", "dog/1.png,3", "must have one line for each file, its name and size, got 'test/dog/1.png,3'"),
        (
            "dog/2.png,3",
            "dog/2.png,3,4",
            "must have one line for each file, its name and size, got 'test/dog/2.png,3,4'",
        ),
        ("test/dog/2.png,3", '"test/dog\n2.png",3,4', r"got 'test/dog\n2.png,3,4'"),
        ("dog/2.png", "dog/\xff.png", "is not valid CSV ('utf-8' codec can't decode"),
    ],
)
def test_sizes_that_are_wrong_are_refused_in_one_line(tmp_path, old, new, message):
    assert old in SIZES
    (divided(tmp_path) / "sizes.csv").write_bytes(SIZES.replace(old, new).encode("latin-1"))
    with pytest.raises(ValueError) as error:  # noqa: PT011
        read_folder(tmp_path)
    assert message in str(error.value)
    assert str(tmp_path / "sizes.csv") in str(error.value)
    assert "\n" not in str(error.value)


def test_sizes_that_cannot_be_read_are_named(tmp_path):
    (divided(tmp_path) / "sizes.csv").symlink_to("nowhere")
    with pytest.raises(OSError, match=r"cannot read .*sizes.csv \(No such file or directory\)"):
        read_folder(tmp_path)


def test_the_fingerprint_tells_where_one_part_ends_and_the_next_begins(tmp_path):
    """The same images in the same order, with one and the same label."""
    files = tuple(FoundImage(f"cat/{index}.png", 0, (8, 8), grey=True, checksum=f"{index:064}") for index in range(4))
    found = {
        ImageFolder(tmp_path, ("cat", "dog"), files[:first], files[first:second], files[second:], ()).fingerprint()
        for first in range(5)
        for second in range(first, 5)
    }
    assert len(found) == 15


def test_two_parts_exported_side_by_side_are_a_folder_that_is_divided(run, dataset, folder):
    for part, count in (("train", 20), ("test", 10)):
        options = ("--dataset", "small", "--data-dir", folder, "--part", part, "--count", count, "--size", 7)
        code, _, errors = run("data", "export", f"small/{part}", *options)
        assert (code, errors) == (0, "")
    found = read_folder("small")
    assert (len(found.train), len(found.val), len(found.test)) == (20, 0, 10)
    assert found.classes == tuple("0123456789")


def test_digits_written_as_a_folder_are_the_digits(tmp_path):
    made = make_set(embedded_digits().first(30), parse_scales("fixed:1"), 32)
    write_folder(made, tmp_path / "digits")
    for index in (0, 29):
        path = tmp_path / "digits" / str(int(made.labels[index])) / f"{index:05}.png"
        with Image.open(path) as image:
            assert list(image.tobytes()) == (made.images[index, 0] * 255).round().int().flatten().tolist()
    with pytest.raises(ValueError, match="must name a folder that is not there yet"):
        write_folder(made, tmp_path / "digits")
    assert [path.name for path in tmp_path.iterdir()] == ["digits"]


def test_an_interrupted_folder_leaves_nothing(tmp_path, monkeypatch):
    saved = []

    def interrupted(image, path):
        saved.append(path)
        if len(saved) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(Image.Image, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_folder(make_set(embedded_digits().first(3)), tmp_path / "images")
    assert list(tmp_path.iterdir()) == []
