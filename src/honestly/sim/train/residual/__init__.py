"""Residual networks (ResNet-18) of all clients at once on a GPU, by CUDA kernels of our own in bfloat16."""
