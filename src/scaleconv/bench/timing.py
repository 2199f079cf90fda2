from ..metrics.timing import *
