"""Networks of methods, with the settings that a test names."""

from msgspec.structs import asdict

from scaleconv.experiments.methods import settings_of
from scaleconv.experiments.settings import NetworkSettings, Settings
from scaleconv.models import Images, make_network

DENSE = ("fcn", "si_fcn", "unet", "si_unet")


def make_method(method, size=28, channels=1, **options):
    """The network of a method for digits, or for scenes of digits and a background; options of `NetworkSettings`."""
    network = settings_of(method, Settings(network=NetworkSettings(**options))).network
    task, classes = ("segmentation", 11) if method in DENSE else ("classification", 10)
    return make_network(Images(size and (size, size), channels, classes, task), **asdict(network))
