"""The methods that are compared, in the order of the paper's table, with their names for people."""

from ..models import TITLES as NETWORKS

# The two that are no networks, then those that `make_model` makes.
TITLES = {"rbm": "RBM", "si_rbm": "Scale-invariant RBM", **NETWORKS}
