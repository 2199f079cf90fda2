"""Every command line in the documents is one that the command takes, and the usual ones run."""

import re
import shlex
from pathlib import Path

import pytest

from helpers.command import parse
from helpers.folders import write_classes
from scaleconv.experiments import read_records

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCED = re.compile(r"^ *```[^\n]*\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
SPAN = re.compile(r"`((?:\.venv/bin/)?scaleconv [a-z][^`\n]*)`")
CALL = re.compile(r"(?:^|[\s/])scaleconv +(?=[a-z-])")


def commands_of(text):
    """The words that follow `scaleconv` in each command line of fenced blocks and of code in the text."""
    lines = []
    for block in FENCED.findall(text):
        joined = re.sub(r"\\\n\s*", " ", block)
        variables = {name: value.strip("\"'") for name, value in re.findall(r"^(\w+)=(.*)$", joined, re.MULTILINE)}
        for line in joined.splitlines():
            for name, value in variables.items():
                line = line.replace(f"${name}", value)
            lines.append(re.sub(r"  +#.*", "", line))
    lines = [line for line in lines if not re.match(r"\s*(>>>|\.\.\.|import |from |#)", line)]
    lines += [span for span in SPAN.findall(FENCED.sub("", text)) if "…" not in span]
    return [shlex.split(line[found.end() :]) for line in lines if (found := CALL.search(line))]


DOCUMENTED = sorted({tuple(words) for page in PAGES for words in commands_of(page.read_text(encoding="utf-8"))})


@pytest.mark.parametrize("words", DOCUMENTED, ids=" ".join)
def test_a_documented_command_is_one_that_the_command_takes(words):
    if not words[0].startswith("-"):  # as `scaleconv --version`, which ends
        parse(words)


def test_the_documents_name_the_commands_that_a_reader_starts_with():
    assert {words[0] for words in DOCUMENTED} >= {"reproduce", "show", "report", "train", "compare", "explain", "data"}


@pytest.mark.parametrize(
    "text",
    [
        "```\nscaleconv reprodce table1\n```",
        "```\nscaleconv data import photos  # a comment\n```",
        "```\nscaleconv compare --data photos \\\n    --seeds three\n```",
        "```\ntorchrun -m scaleconv train --date photos\n```",
        '```\nof="--colour red"\nscaleconv data export digits $of\n```',
        "Call `scaleconv demo --porch 1`.",
    ],
)
def test_a_wrong_command_in_a_document_is_found(text):
    (words,) = commands_of(text)
    with pytest.raises(Exception, match=r"no command|o such option|valid integer|issing"):
        parse(words)


def test_the_usual_commands_run_one_after_the_other(run, tmp_path):
    """As the documents have them, on a few made-up images for one epoch."""

    def done(line):
        code, output, errors = run(*shlex.split(line))
        assert code == 0, errors
        return output

    write_classes(tmp_path / "photos", 10, size=(16, 16))
    done("data export digits --count 40 --size 40")
    assert len(list((tmp_path / "digits").rglob("*.png"))) == 40
    done("train --data photos --model convnet --resize 20 --epochs 1")
    weights = tmp_path / "results/train/weights/late-fold0-seed0.safetensors"
    assert weights.is_file()
    done("compare --data digits --model convnet --split 0,0.5 --epochs 1 --batch 32 --seeds 1 --scales 0.7,1")
    assert len(read_records(tmp_path / "results/compare")) == 5
    assert "late" in done("show compare").lower()
    done(f"explain photos/cat/000.png --checkpoint {weights} --out seen.png")
    assert (tmp_path / "seen.png").read_bytes().startswith(b"\x89PNG")
    done("reproduce table1 --models convnet,si_convnet --folds 0,1 --epochs 1 --set data.train=60 --set data.test=60")
    done("report --html --preset quick")
    assert "SI-ConvNet" in (tmp_path / "report.html").read_text(encoding="utf-8")
