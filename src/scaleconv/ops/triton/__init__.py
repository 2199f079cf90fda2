"""Triton kernels and their launches: the steps of `ops.cpu` on a GPU, and depthwise convolution."""
