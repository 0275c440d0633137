"""Tests of compiled kernels run where something can compile them."""

from __future__ import annotations

import os
import shutil

import pytest

from outdraft.models.native.build import _COMPILERS

_NAMES = [os.environ["CXX"]] if "CXX" in os.environ else _COMPILERS

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, _NAMES)), reason=f"no C++ compiler here ({', '.join(_NAMES)})"
)
