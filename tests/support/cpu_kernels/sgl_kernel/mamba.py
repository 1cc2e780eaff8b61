"""See the package: the same kernels under the original's module name."""

from sgl_kernel import *  # noqa: F403
from sgl_kernel import __getattr__  # noqa: F401
