"""What pyproject.toml cannot say: C libraries keep their plain names, and its headers go into the package."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools_rust import build_rust

# Of the C library; of the plug-ins that come along, to generate stubs from.
HEADERS = ["bindings/c/include/*.h", "plugins/*/*.h"]


class BuildPy(build_py):
    def run(self):
        super().run()
        if not getattr(self, "editable_mode", False):
            target = Path(self.build_lib, "zazen", "include")
            target.mkdir(parents=True, exist_ok=True)
            for header in [header for pattern in HEADERS for header in sorted(Path().glob(pattern))]:
                shutil.copy(header, target)


class BuildRust(build_rust):
    def get_dylib_ext_path(self, ext, target_fname):
        path = super().get_dylib_ext_path(ext, target_fname)
        if target_fname.startswith("zazen.lib."):
            return str(Path(path).with_name(target_fname.rpartition(".")[2] + ".so"))
        return path


setup(cmdclass={"build_py": BuildPy, "build_rust": BuildRust})
