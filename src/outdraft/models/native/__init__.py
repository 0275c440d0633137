"""Compiled kernels for CPUs, built where they run; everything works without them, slower."""

from outdraft.models.native.library import Kernels, load_kernels

__all__ = ["Kernels", "load_kernels"]
