"""Builds the C++ core against the installed torch; everything else is in pyproject.toml."""

import os
import sys
import sysconfig
from pathlib import Path

os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"  # an older build must not be loaded to make a new one

import torch
from setuptools import Extension, setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

ROOT = Path(__file__).parent
BUILT_WITH = ROOT / "build" / "built-with"


def pjrt_header_folder() -> str:
    """The folder of pjrt_c_api.h, which comes with the xla-cpu-pjrt wheel."""
    import xla_plugins.xla_cpu_pjrt as plugin

    return str(Path(plugin.__file__).parent / "include")


def toolchain() -> str:
    """What a build is good for."""
    return f"torch {torch.__version__}, Python {sys.version}"


class Build(BuildExtension):
    """Takes over an up-to-date extension from the source tree: a second environment compiles nothing."""

    def build_extension(self, ext: Extension) -> None:
        """Copy or compile."""
        target, built = Path(self.get_ext_fullpath(ext.name)), ROOT / self.get_ext_filename(ext.name)
        if target.resolve() != built.resolve() and up_to_date(built):
            target.parent.mkdir(parents=True, exist_ok=True)
            self.copy_file(str(built), str(target))
            return
        super().build_extension(ext)
        BUILT_WITH.parent.mkdir(exist_ok=True)
        BUILT_WITH.write_text(toolchain())


def up_to_date(built: Path) -> bool:
    """True if `built` was made with this toolchain and is newer than all sources."""
    if not built.is_file() or not BUILT_WITH.is_file() or BUILT_WITH.read_text() != toolchain():
        return False
    return all(p.stat().st_mtime < built.stat().st_mtime for p in [ROOT / "setup.py", *(ROOT / "csrc").iterdir()])


setup(
    ext_modules=[
        CppExtension(
            "torch_tpu._C",
            [str(p.relative_to(ROOT)) for p in sorted((ROOT / "csrc").glob("*.cpp"))],
            depends=[str(p.relative_to(ROOT)) for p in (ROOT / "csrc").glob("*.h")],
            include_dirs=[pjrt_header_folder(), sysconfig.get_paths()["include"]],
            extra_compile_args=["-O2", "-g0", "-std=c++20", "-fvisibility=hidden", "-Wall", "-Wno-unused-function"],
        )
    ],
    cmdclass={"build_ext": Build},
)
