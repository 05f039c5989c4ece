# Spack's recipe of Zazen. `make recipes` fills in what stands between @ signs, and writes the
# result and the archive of the sources into dist/.
# ruff: noqa: F403, F405, RUF012 - Spack gives its directives by a star.
from spack.package import *

try:
    from spack_repo.builtin.build_systems.python import PythonPackage
except ImportError:  # Spack before 1.0 has it in spack.package.
    pass


class Zazen(PythonPackage):
    """Scientific data kept on the disks of the nodes that compute on it: the daemon zazend, the
    tool zazen, the Python package, the C library and the plug-ins."""

    homepage = "@HOMEPAGE@"
    url = "@URL@"

    license("Apache-2.0", checked_by="zazen")

    version("@VERSION@", sha256="@SHA256@")

    depends_on("c", type="build")
    depends_on("python@@PYTHON@:", type=("build", "run"))
    depends_on("py-setuptools@@SETUPTOOLS@:", type="build")
    depends_on("rust@@RUST@:", type="build")

    # The package brings its own programs; cargo fetches crates while it builds.
    import_modules = ["zazen"]

    def setup_build_environment(self, env):
        env.set("CARGO_HOME", join_path(self.stage.path, "cargo"))
