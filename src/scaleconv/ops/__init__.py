from .si_conv import si_conv2d
