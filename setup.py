"""Builds the C++ core against the installed torch; everything else is in pyproject.toml."""

import os
import sysconfig
from pathlib import Path

os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"  # an older build of this package must not be loaded to build a new one

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

ROOT = Path(__file__).parent


def pjrt_header_folder() -> str:
    """The folder of pjrt_c_api.h, which comes with the xla-cpu-pjrt wheel."""
    import xla_plugins.xla_cpu_pjrt as plugin

    return str(Path(plugin.__file__).parent / "include")


sources = [str(p.relative_to(ROOT)) for p in sorted((ROOT / "csrc").glob("*.cpp"))]
setup(
    ext_modules=[
        CppExtension(
            "torch_tpu._C",
            sources,
            include_dirs=[pjrt_header_folder(), sysconfig.get_paths()["include"]],
            extra_compile_args=["-O2", "-std=c++20", "-fvisibility=hidden", "-Wall", "-Wno-unused-function"],
        )
    ],
    cmdclass={"build_ext": BuildExtension},
)
