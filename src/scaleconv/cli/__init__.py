"""The command `scaleconv`: parses, calls, prints.

Bad input is one line on standard error and exit code 2. Ctrl-C is 130. Any other failure is one line and 1, or its
traceback with `SCALECONV_TRACEBACK=1`.
"""

import os
import shlex
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from .._start import INTERRUPTED, leads
from .data_commands import DataDir, data_app
from .wording import as_called, say_next

app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None)
app.add_typer(data_app, name="data")

Preset = Annotated[str, typer.Option(help="quick (embedded digits, minutes on 2 cores) or paper (full size).")]
Recorded = Annotated[str, typer.Option(help="Which records: paper or quick.")]
Results = Annotated[Path, typer.Option(help="Directory of the results, with a file of records for each experiment.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, …; auto takes a GPU if there is one.")]
Set = Annotated[
    list[str] | None, typer.Option("--set", help="Any setting, such as training.batch=64. May be repeated.")
]
Epochs = Annotated[
    int | None, typer.Option(help="Epochs of training. Default: those of the item; on images of your own 20.")
]
EngineName = Annotated[str, typer.Option(help="local (this process) or ray (a cluster, a task for each run).")]
Address = Annotated[
    str | None,
    typer.Option(help="Of a Ray cluster: auto or HOST:PORT. Default: Ray is started on this machine, and stopped."),
]
Gpus = Annotated[
    float | None, typer.Option(help="GPUs of each run with ray, such as 0.25; 0: CPUs. Default: 1 if there are GPUs.")
]

# Of a folder of images.
Task = Annotated[str, typer.Option(help="classification, or segmentation of the folders images and masks.")]
Network = Annotated[
    str | None,
    typer.Option(
        help="resnet18, resnet, bottleneck, mobilenet, convnext, convnet, unet or package.module:factory, called with "
        "num_classes=. "
        "Default: resnet18, for segmentation unet."
    ),
]
NetworkScales = Annotated[
    str | None,
    typer.Option(
        help="Scales of late, converted and pyramid, such as 0.5,1,2. Default: 0.5 to 1 for late, else SIConv2d's."
    ),
]
Layers = Annotated[
    str | None,
    typer.Option(
        help="Convolutions to convert, such as '9.*,10.*'. Default: all over 1×1. Of these, late takes the last 30 %."
    ),
]
Resize = Annotated[int | None, typer.Option(help="Side of all images. Default: their own, if they have only one.")]
Native = Annotated[bool, typer.Option("--native", help="Leave images their sizes; a batch holds images of one size.")]
Letterbox = Annotated[bool, typer.Option("--letterbox", help="Resize to fit whole, instead of cropping the middle.")]
Split = Annotated[
    str, typer.Option(help="Shares to validate and test on, where there is no folder train, val or test.")
]
Augment = Annotated[str | None, typer.Option(help="Some of scale,flip,crop. Default: none.")]
Optimizer = Annotated[str, typer.Option(help="adamw or sgd; the learning rate falls along a cosine.")]
Batch = Annotated[int, typer.Option(help="Images in a step.")]
Rate = Annotated[float | None, typer.Option(help="Largest learning rate. Default: 0.001 (adamw), 0.05 (sgd).")]
Amp = Annotated[bool, typer.Option("--amp", help="Mixed precision: bfloat16 where autocast allows it.")]
Average = Annotated[float, typer.Option(help="Decay of the running mean of the weights, such as 0.999; 0: none.")]
Workers = Annotated[int, typer.Option(help="Processes that decode images, where they are too many for the memory.")]
Board = Annotated[bool, typer.Option("--tensorboard", help="Log for TensorBoard too.")]


START = """
Start with one of these:
  scaleconv reproduce table1                 the paper's comparison, in minutes
  scaleconv report --html --preset quick     its results on one page
  scaleconv data export digits --count 1000  a folder of images, to try this:
  scaleconv compare --data digits --model convnet  which to take, in 10 minutes
  scaleconv demo                             the layers at work, in a browser

scaleconv COMMAND --help explains a command, with an example.
scaleconv --install-completion lets the Tab key complete commands and options."""


def _print_version(asked: bool) -> None:
    if asked:
        from scaleconv import __version__

        typer.echo(f"scaleconv {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Locally scale-invariant convolution, and the experiments of its paper."""
    if context.invoked_subcommand is None:
        commands: dict[str, Any] = getattr(context.command, "commands", {})
        typer.echo(f"Usage: scaleconv COMMAND\n\n{context.command.help}\n")
        for name, command in commands.items():
            typer.echo(f"  {name:<9}  {command.get_short_help_str(limit=68)}")
        typer.echo(as_called(START))


@app.command(epilog="Example: scaleconv reproduce fig5a --folds 0,1,2 --epochs 10 --name fig5a-short")
def reproduce(
    item: Annotated[
        str, typer.Argument(help="table1, fig3, fig4a, fig4b, fig5a, fig5b, cost, …; or all of the paper and beyond.")
    ],
    preset: Preset = "quick",
    models: Annotated[str | None, typer.Option(help="Methods, separated by commas.")] = None,
    folds: Annotated[str | None, typer.Option(help="Folds, separated by commas.")] = None,
    epochs: Epochs = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the weights and of the order of the digits.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the results. Default: ITEM, or ITEM-quick.")] = None,
    results: Results = Path("results"),
    device: Device = "auto",
    data_dir: DataDir = None,
    settings: Set = None,
    processes: Annotated[int, typer.Option(help="Runs at once on a CPU; 0 for one on each core.")] = 1,
    engine: EngineName = "local",
    address: Address = None,
    gpus_per_run: Gpus = None,
) -> None:
    """Run an item and show it beside the paper's numbers. What is finished is not run again."""
    from scaleconv.data.files import check_folder
    from scaleconv.experiments import ITEMS, SEARCHES, check_name, folder_name, load_item, read_records
    from scaleconv.experiments.display import run_on_terminal
    from scaleconv.experiments.engine import open_engine
    from scaleconv.experiments.report import print_tables, write_report

    changes = {
        "models": models if models is None else _names("models", models),
        "folds": folds if folds is None else _whole_numbers("folds", folds),
        "epochs": epochs,
        "seed": seed,
    }
    overrides = _overrides(changes, settings)
    if item == "all" and (name or models):
        raise ValueError(f"`{'name' if name else 'models'}` must be given with one item, not with all")
    # All are read before the first is run: a mistake in a setting should not show after an hour.
    chosen = [item] if item != "all" else [each for each in ITEMS if each not in SEARCHES]
    loaded = [load_item(each, preset, {} if item == "all" and each == "cost" else overrides) for each in chosen]
    folders = [results / (folder_name(each.item, preset) if name is None else check_name(name)) for each in loaded]
    for folder in folders:
        check_folder(folder)
    start = time.perf_counter()
    with open_engine(engine, address, gpus_per_run, processes=processes) as where:
        for each, folder in zip(loaded, folders, strict=True):
            run_on_terminal(each, folder, device, data_dir, where)
            records = read_records(folder)  # those of earlier calls too
            print_tables(each, records)
            for path in write_report(each, records, folder, data_dir):
                typer.echo(path)
    typer.echo(f"It took {time.perf_counter() - start:.0f} s; what was finished before is not counted.")
    if preset == "quick":
        larger = as_called(f"scaleconv reproduce {item} --preset paper")
        typer.echo(f"This was a small version; at the paper's size: {larger}")
    page = f"scaleconv report --html --preset {preset}{_place(results)}, for all results on one page"
    same = f"scaleconv show {name} --item {item} --preset {preset}{_place(results)}, for the same again"
    say_next(same if name else page)


@app.command(epilog="Example: scaleconv show table1 --json")
def show(
    name: Annotated[
        str | None, typer.Argument(help="An item, such as table1, or the name of results. Default: list them all.")
    ] = None,
    preset: Recorded = "paper",
    as_json: Annotated[
        bool, typer.Option("--json", help="Mean, std and n per model, and per point of a curve, as JSON.")
    ] = False,
    item: Annotated[
        str | None, typer.Option(help="The paper item, if the name of the results does not begin with it.")
    ] = None,
    results: Results = Path("results"),
) -> None:
    """Show an experiment from its records, without running anything."""
    from scaleconv.experiments import ITEMS, check_name, folder_name, load_item, read_records
    from scaleconv.experiments.items import meant
    from scaleconv.experiments.page import is_of_images, summary_text
    from scaleconv.experiments.report import check_item, find_folder, print_items, print_json, print_tables

    if name is None:
        given = {"json": as_json, "item": item, "preset": preset != "paper"}
        if option := next((option for option, value in given.items() if value), None):
            raise ValueError(f"`name` must be given with --{option}")
        print_items(results)
        return
    named = item or name.partition("-")[0]
    if check_name(name) == folder_name(named, "quick"):
        preset = "quick"
    elif name in ITEMS:
        name = folder_name(name, preset)
    folder = find_folder(results, name)
    records = [] if folder is None else read_records(folder)
    own = [record for record in records if is_of_images([record])]
    if own and item is None:
        typer.echo(summary_text(own, as_json=as_json))
        return
    records = [record for record in records if record not in own]  # `train` leaves both kinds
    if folder is None and named not in ITEMS:
        raise ValueError(f"`name` must be that of records in {results}, or {meant(named)}, got {name!r}")
    loaded = load_item(named, preset)
    if folder is None:
        told = f"scaleconv reproduce {named} --preset {preset}"
        raise ValueError(f"no records in {results / name}: run `{told}` first (`scaleconv show` lists all)")
    if folder.name != name:
        typer.echo(f"no records in {results / name}; these are those of {folder}", err=True)
    check_item(loaded, records)
    (print_json if as_json else print_tables)(loaded, records)


@app.command(epilog="Example: scaleconv report --html page.html")
def report(
    path: Annotated[Path | None, typer.Argument(help="The page of --html. Default: report.html.")] = None,
    html: Annotated[bool, typer.Option("--html", help="Write one page for a browser, which needs no network.")] = False,
    preset: Recorded = "paper",
    results: Results = Path("results"),
    docs: Annotated[Path, typer.Option(help="Directory of reproduction.md, and of figures/ in it.")] = Path("docs"),
) -> None:
    """Write all tables and figures: the documents, or one HTML page.

    All numbers come from records; nothing is run.
    """
    from scaleconv.data.files import check_writable
    from scaleconv.experiments.report import write_documents, write_html

    if path and not html:
        raise ValueError(f"`path` must be given with --html, got {path}")
    page = path or Path("report.html")
    figures = docs / "figures"
    if html:
        check_writable(page)
    for each in [write_html(results, figures, page, preset)] if html else write_documents(results, docs, preset):
        typer.echo(each)
    say_next(f"open {page} in a browser" if html else "scaleconv report --html, for one page of all")


@app.command(epilog="Examples: scaleconv train si_convnet --fold 2; scaleconv train --data photos --resize 64")
def train(
    context: typer.Context,
    method: Annotated[
        str | None, typer.Argument(help="A method, such as convnet, si_convnet, hierarchical or rbm; or give --data.")
    ] = None,
    fold: Annotated[int, typer.Option(help="METHOD: the fold to train on.")] = 0,
    item: Annotated[str, typer.Option(help="METHOD: the item whose settings to use.")] = "table1",
    point: Annotated[
        str | None, typer.Option(help="METHOD: the point of a curve, such as maps36. Default: the first.")
    ] = None,
    preset: Preset = "quick",
    data_dir: DataDir = None,
    settings: Set = None,
    data: Annotated[Path | None, typer.Option(help="A folder of images, one folder for each class.")] = None,
    task: Task = "classification",
    model: Network = None,
    variant: Annotated[
        str,
        typer.Option(
            help="Some of plain,late,converted,pyramid, or plain-scale, … for rescaled training images: each is "
            "trained, all are shown side by side."
        ),
    ] = "plain,late",
    scales: NetworkScales = None,
    layers: Layers = None,
    resize: Resize = None,
    native: Native = False,
    letterbox: Letterbox = False,
    split: Split = "0.1,0.1",
    augment: Augment = None,
    optimizer: Optimizer = "adamw",
    batch: Batch = 64,
    lr: Rate = None,
    amp: Amp = False,
    average: Average = 0.0,
    seed: Annotated[int, typer.Option(help="--data: seed of weights, order and augmentation.")] = 0,
    workers: Workers = 0,
    tensorboard: Board = False,
    epochs: Epochs = None,
    name: Annotated[str, typer.Option(help="Name of the results: records and folder.")] = "train",
    results: Results = Path("results"),
    device: Device = "auto",
) -> None:
    """Train a method of the paper, or networks on a folder of images.

    Records and weights are kept.
    """
    from scaleconv.experiments import check_name, load_experiment, plan_runs
    from scaleconv.experiments.display import run_on_terminal
    from scaleconv.experiments.methods import PAPERS
    from scaleconv.experiments.report import counted

    _refuse_mixture(context, method, data)
    if data is not None:
        _run_folder(locals(), _names("variant", variant), [seed])
        masks = " --task segmentation" if task == "segmentation" else ""
        network = f" --model {shlex.quote(model)}" if model else ""
        say_next(f"scaleconv compare --data {shlex.quote(str(data))}{masks}{network}, for more methods and seeds")
        return
    if method not in PAPERS:
        raise ValueError(f"`METHOD` must be one of {', '.join(PAPERS)}, got {method!r}")
    changes = {"models": [method], "folds": [fold], "epochs": epochs}
    experiment = load_experiment(item, preset, _overrides(changes, settings)).at_point(point)
    folder = results / check_name(name)
    (record,) = run_on_terminal(experiment, folder, device, data_dir)
    (run,) = plan_runs(experiment)
    typer.echo(
        f"{method}, fold {fold}: test error {record.error:.2f} % after {counted(str(len(record.history)), 'epoch')}"
    )
    typer.echo(f"weights: {run.weights(folder)}")
    say_next(f"scaleconv explain IMAGE --checkpoint {run.weights(folder)}")


@app.command(epilog="Example: scaleconv compare --data photos --resize 64 --seeds 3")
def compare(
    context: typer.Context,
    data: Annotated[Path, typer.Option(help="A folder of images, one folder for each class.")],
    seeds: Annotated[int, typer.Option(help="How often each method is trained.")] = 3,
    plan: Annotated[
        Path | None,
        typer.Option(help="A TOML file of methods with their networks and recipes, instead of the options."),
    ] = None,
    methods: Annotated[str | None, typer.Option(help="Some of the methods of --plan, separated by commas.")] = None,
    task: Task = "classification",
    model: Network = None,
    scales: NetworkScales = None,
    layers: Layers = None,
    resize: Resize = None,
    native: Native = False,
    letterbox: Letterbox = False,
    split: Split = "0.1,0.1",
    augment: Augment = None,
    optimizer: Optimizer = "adamw",
    batch: Batch = 64,
    lr: Rate = None,
    amp: Amp = False,
    average: Average = 0.0,
    workers: Workers = 0,
    tensorboard: Board = False,
    epochs: Epochs = None,
    name: Annotated[str, typer.Option(help="Name of the results: records and folder.")] = "compare",
    results: Results = Path("results"),
    device: Device = "auto",
    engine: EngineName = "local",
    address: Address = None,
    gpus_per_run: Gpus = None,
) -> None:
    """Train several networks on your images, and say which to take.

    They are the plain network, the one with late layers converted, both with rescaled training images, and the pyramid;
    or those of a plan.
    """
    if seeds < 1:
        raise ValueError(f"`seeds` must be at least 1, got {seeds}")
    if plan is not None:
        _refuse_options(context, PLANNED_OPTIONS, "--plan")
    elif methods is not None:
        raise ValueError(f"`methods` must be given with --plan, got {methods!r} alone")
    _run_folder(locals(), None, list(range(seeds)), engine, address, gpus_per_run, max(1, workers))
    say_next(f"scaleconv show {name}{_place(results)}, for the same again; or load a network by its line above")


@app.command(
    epilog="Example: scaleconv explain photo.jpg --checkpoint results/train/weights/late-fold0-seed0.safetensors"
)
def explain(
    image: Annotated[Path, typer.Argument(help="A PNG, JPEG, BMP or WebP.")],
    checkpoint: Annotated[Path, typer.Option(help="Weights of a finished run, as `train` and `compare` leave them.")],
    out: Annotated[Path, typer.Option(help="Picture to write, ending in .png or .svg.")] = Path("explanation.png"),
) -> None:
    """Draw what a network saw in an image.

    That is its prediction, and for each layer which scale won, and by what response.
    """
    from scaleconv.data.files import check_writable
    from scaleconv.experiments.explanation import draw_explanation, load_trained, prediction_text

    if out.suffix not in (".png", ".svg"):
        raise ValueError(f"`out` must end in .png or .svg, got {out}")
    check_writable(out)
    trained = load_trained(checkpoint)
    pixels, classes = trained.read(image), trained.network.classes
    found = trained.explain(pixels)
    typer.echo(f"{image}: {prediction_text(found, classes)}")
    draw_explanation(pixels, found, classes, f"{image.name}: {prediction_text(found, classes)}", [out])
    typer.echo(out)
    say_next(f"open {out}; scaleconv demo shows the same live, for small networks of its own")


@app.command(epilog="Example: scaleconv demo --port 8000")
def demo(
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 lets other machines in.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 7860,
    networks: Annotated[
        Path | None, typer.Option(help="Folder that --train has filled. Default: the networks in the package.")
    ] = None,
    train: Annotated[
        Path | None, typer.Option(help="Train the networks for digits and scenes anew into this folder, and end.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="With --train: cpu, cuda, cuda:1, …. Default: cpu.")] = None,
) -> None:
    """Show the layer at work on a page in the browser.

    Draw digits, try filters, watch scenes, show it a photograph. The page needs no network, and is served to this
    machine alone unless --host says otherwise.
    """
    from scaleconv.demo.pairs import SHIPPED, load_pairs, train_pairs
    from scaleconv.demo.server import LOCAL, PageServer

    if train is not None:
        for record in train_pairs(train, device or "cpu"):
            typer.echo(f"{record.model}: {record.error:.1f} % error over all test scales, {record.seconds:.0f} s")
        say_next(f"scaleconv demo --networks {train}, which shows them")
        return
    if device is not None:
        raise ValueError(f"`device` must be given with --train, got {device!r}: the page is served by the CPU")
    if sys.stderr.isatty():
        typer.echo("loading the networks, which takes a few seconds", err=True)
    server = PageServer(host, port, load_pairs(networks or SHIPPED))
    typer.echo(f"{server.address}  Open it in a browser; Ctrl-C ends it.")
    if host not in LOCAL:
        typer.echo("everyone who can reach this address can use the page: there is no password", err=True)
    with suppress(KeyboardInterrupt):
        server.serve_forever()


@app.command(epilog="Example: scaleconv bench --shapes mnist1,res56 --no-end-to-end --name try")
def bench(
    device: Device = "auto",
    shapes: Annotated[
        str | None, typer.Option(help="Shapes, such as mnist1,res56,depthwise. Default: all twelve.")
    ] = None,
    dtypes: Annotated[str | None, typer.Option(help="Data types: float32,bfloat16. Default: both.")] = None,
    layout: Annotated[
        list[str] | None,
        typer.Option(help="Memory formats: contiguous,channels_last. Default: contiguous. May be repeated."),
    ] = None,
    compare: Annotated[
        str | None, typer.Option(help="Layers to measure: conv2d,conv2d_wide,direct,si. Default: all four.")
    ] = None,
    peer: Annotated[
        list[str] | None,
        typer.Option(help="MODULE:CLASS of another layer that takes the arguments of Conv2d. May be repeated."),
    ] = None,
    scales: Annotated[
        str | None, typer.Option(help="Scales of the layers, such as 0.5,1,2. Default: those of SIConv2d.")
    ] = None,
    batch: Annotated[
        int | None, typer.Option(help="Batch size of every shape and training step. Default: that of each shape.")
    ] = None,
    image_size: Annotated[
        int, typer.Option(help="Height and width of the images for ResNet-18 and the depthwise network.")
    ] = 224,
    repeats: Annotated[
        int | None, typer.Option(help="Timings of each layer and network; the median counts. Default: 5, on a GPU 11.")
    ] = None,
    layers: Annotated[bool, typer.Option(help="Measure single layers.")] = True,
    wide: Annotated[bool, typer.Option(help="Measure the layers with the squares of the scales as well.")] = True,
    end_to_end: Annotated[bool, typer.Option(help="Measure whole networks.")] = True,
    name: Annotated[str | None, typer.Option(help="Name of the files. Default: cpu or cuda.")] = None,
    out: Annotated[Path, typer.Option(help="Directory of the files.")] = Path("results/bench"),
) -> None:
    """Measure time and memory of the layer beside plain convolutions. On a GPU: eager calls and CUDA graphs."""
    from scaleconv.bench import make_settings
    from scaleconv.bench.session import failures, print_result, run_on_terminal, write_result
    from scaleconv.data.files import check_folder

    settings = make_settings(
        device,
        name,
        shapes=shapes,
        dtypes=dtypes,
        layouts=layout or (),
        compare=compare,
        scales=scales,
        repeats=repeats,
        peers=tuple(peer or ()),
        batch=batch,
        image_size=image_size,
        layers=layers,
        wide=wide,
        end_to_end=end_to_end,
    )
    check_folder(out)
    result = run_on_terminal(settings)
    print_result(result)
    for path in write_result(result, out):
        typer.echo(path)
    if failed := failures(result):
        for text in failed:
            typer.echo(text, err=True)
        raise typer.Exit(1)
    say_next("scaleconv bench --help, for other shapes, types and devices")


METHOD_OPTIONS = ("fold", "item", "point", "preset", "data_dir", "settings")
PLANNED_OPTIONS = ("model", "scales", "layers", "augment", "optimizer", "batch", "lr", "amp", "average", "epochs")
SHARED_OPTIONS = ("method", "data", "epochs", "name", "results", "device")


def _refuse_mixture(context: typer.Context, method: str | None, data: Path | None) -> None:
    """`train` takes a method of the paper or a folder, and each has options of its own."""
    if (method is None) == (data is None):
        given = f"METHOD (={method}) and --data (={data})" if method else "neither"
        raise ValueError(f"`train` must be given a METHOD of the paper or --data, got {given}")
    wrong = [name for name in context.params if name not in SHARED_OPTIONS and (name in METHOD_OPTIONS) == bool(data)]
    _refuse_options(context, wrong, "--data" if data else "a METHOD of the paper")


def _refuse_options(context: typer.Context, names: Iterable[str], given: str) -> None:
    """Refuse those of the options that were typed."""
    for name in names:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            option = "set" if name == "settings" else name.replace("_", "-")
            raise ValueError(f"`--{option}` must not be given with {given}")


def _run_folder(given: dict[str, Any], variants: list[str] | None, seeds: list[int], *engine: Any) -> None:
    """Train on a folder of images and show what came out; `variants` None takes those that are compared."""
    from scaleconv.experiments.compare import Request, run_compare
    from scaleconv.experiments.engine import open_engine

    request = Request(**{name: given[name] for name in Request.__struct_fields__ if name in given})
    with open_engine(*engine) as where:
        for line in run_compare(request, variants, seeds, where):
            typer.echo(line)


def _place(results: Path) -> str:
    """The option that names the directory of the results, where it is not the usual one."""
    return "" if results == Path("results") else f" --results {results}"


def _overrides(changes: dict[str, Any], settings: list[str] | None) -> dict[str, Any]:
    from scaleconv.experiments import parse_override

    given = {key: value for key, value in changes.items() if value is not None}
    return {**given, **dict(parse_override(text) for text in settings or [])}


def _names(option: str, text: str) -> list[str]:
    names = [part.strip() for part in text.split(",")]
    if not all(names):
        raise ValueError(f"`{option}` must be names separated by commas, got {text!r}")
    return names


def _whole_numbers(option: str, text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"`{option}` must be whole numbers separated by commas, got {text!r}") from None


def main(arguments: list[str] | None = None) -> None:
    """Run the command and end the process with its exit code."""
    try:
        if sys.stdout is None:  # as after `>&-`
            raise OSError("cannot write to standard output: it is closed")
        code = app(args=arguments, prog_name="scaleconv", standalone_mode=False)
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except BrokenPipeError:  # the reader of our output left, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except Exception as error:
        code = _report(error)
    if code == INTERRUPTED and leads():  # some versions of typer return it, others raise
        resumes = (sys.argv[1:] if arguments is None else arguments)[:1] in (["reproduce"], ["train"], ["compare"])
        kept = "; what was finished is kept, and the same command goes on from there" if resumes else ""
        print(f"scaleconv: interrupted{kept}", file=sys.stderr)
    code = code if isinstance(code, int) else 0
    if "RANK" in os.environ and "torch.distributed" in sys.modules:  # started by torchrun
        from scaleconv.experiments.processes import leave

        leave(code)
    sys.exit(code)


def _report(error: Exception) -> int:
    if os.environ.get("SCALECONV_TRACEBACK"):
        raise error
    # Errors of the command line have `format_message`: typer has had two different base classes for them.
    usage = getattr(error, "format_message", None)
    known = isinstance(error, ValueError | OSError | ImportError)
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "memory" in str(error)):
        text = f"not enough memory for these settings ({str(error).strip().partition(chr(10))[0]})"
    else:
        text = usage() if usage else str(error) if known else f"unforeseen {type(error).__name__}: {error}"
    # A group without a command prints its help, the only message of more than one line.
    speaker = "scaleconv" if leads() else f"scaleconv, process {os.environ['RANK']}"
    print(text if text.startswith("Usage:") else f"{speaker}: {' '.join(text.split())}", file=sys.stderr)
    return 2 if usage or known else 1


if __name__ == "__main__":
    main()
