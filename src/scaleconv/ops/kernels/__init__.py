"""The layer as fused Triton kernels, for GPUs. Imported only where they run: Triton is not everywhere."""
