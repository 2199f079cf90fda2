"""The methods that are compared, in the order of the paper's table, with their names for people."""

from ..models import TITLES as NETWORKS
from ..models import UNSUPERVISED

# The RBMs, then the networks that `make_model` makes; the control on pixels, which the paper does not have, comes last.
TITLES = {**{name: UNSUPERVISED[name] for name in ("rbm", "si_rbm")}, **NETWORKS, "pixels": UNSUPERVISED["pixels"]}
