"""Networks of methods, with the settings that a test names."""

from msgspec.structs import asdict

from scaleconv.experiments.methods import apply_method
from scaleconv.experiments.settings import NetworkSettings, TrainingSettings
from scaleconv.models import Images, make_network

DENSE = ("fcn", "si_fcn", "unet", "si_unet")


def make_method(method, size=28, channels=1, **options):
    """The network of a method for digits, or for scenes of digits and a background; options of `NetworkSettings`."""
    network, _ = apply_method(method, NetworkSettings(**options), TrainingSettings())
    task, classes = ("segmentation", 11) if method in DENSE else ("classification", 10)
    return make_network(Images(size and (size, size), channels, classes, task), **asdict(network))
