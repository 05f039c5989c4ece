"""The Python of README and of the pages on trajectories, files and datasets, typed.

The only change made to a line is where it points: `/lustre` is a folder of the test's own, over
which a daemon runs. Paragraphs that need a library that is not installed are left out, and the test
of that library says so.
"""

import importlib.util
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import zazen.testing

ROOT = Path(__file__).resolve().parents[2]
#: How the libraries are called in the samples -> what installs them.
LIBRARIES = {
    "MDAnalysis": "zazen[mdanalysis]",
    "mdtraj": "zazen[mdtraj]",
    "torch": "zazen[torch]",
    "zarr": "zarr",
    "xarray": "xarray",
    "h5py": "h5py",
    "fsspec": "zazen[fsspec]",
    "mpi4py": "zazen[mpi]",
}
ATOMS, FRAMES = 40, 12


def blocks(page: str, title: str) -> list[str]:
    """The Python blocks of a section."""
    section = (ROOT / page).read_text().split(f"\n## {title}\n" if title else "\n", 1)[1].split("\n## ")[0]
    found = re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)
    assert found, f"{page} has no Python in {title!r}"
    return found


def is_installed(library: str) -> bool:
    return importlib.util.find_spec(library) is not None


def needed(text: str) -> set[str]:
    """The libraries that some lines use."""
    aliases = {"mda": "MDAnalysis", "md": "mdtraj"}
    words = set(re.findall(r"\b[A-Za-z_]\w*", text))
    used = {name for name in LIBRARIES if name in words or name.lower() in words}
    return used | {library for alias, library in aliases.items() if f"{alias}." in text}


def skip_without(*libraries: str) -> None:
    for library in libraries:
        if not is_installed(library):
            pytest.skip(f"{library} is not installed: pip install '{LIBRARIES[library]}'")


def here(program: str, folder: Path) -> str:
    """With the paths of this test, without what cannot run here."""
    lines = []
    for paragraph in program.split("\n\n"):
        head = [line for line in paragraph.splitlines() if line.startswith("import ")]
        for line in head:
            names = [name.strip() for name in line.removeprefix("import ").split(",")]
            kept = [name for name in names if all(map(is_installed, needed(name)))]
            if kept:
                lines.append("import " + ", ".join(kept))
        rest = "\n".join(line for line in paragraph.splitlines() if line not in head)
        lines += [rest if all(map(is_installed, needed(rest))) else "", ""]
    return re.sub(r"(?<![\w])/lustre", str(folder / "lustre"), "\n".join(lines))


@pytest.fixture
def lustre(tmp_path_factory):
    """A folder with what the samples name, and a daemon over it."""
    folder = tmp_path_factory.mktemp("z")
    root = folder / "lustre"
    for name in ("cat", "dog"):
        (root / "images" / name).mkdir(parents=True)
        for number in range(500):
            (root / "images" / name / f"img_{number:03}.jpg").write_bytes(f"{name} {number}".encode())
    (root / "sim1").mkdir()
    (root / "run7").mkdir()
    if is_installed("MDAnalysis"):
        write_trajectory(folder / "top.gro", root / "sim1" / "md.xtc")
    if is_installed("zarr"):
        import zarr

        group = zarr.create_group(str(root / "field.zarr"))
        # xarray wants the dimensions' names.
        options = {"chunks": (16,), "dtype": "f4", "dimension_names": ["x"]}
        group.create_array("t", shape=(64,), **options)[:] = range(64)
    if is_installed("h5py"):
        import h5py

        with h5py.File(root / "run7" / "field.h5", "w") as file:
            file["t"] = list(range(64))
    time.sleep(0.1)
    with zazen.testing.Daemon(folder, root) as daemon:
        yield folder, daemon


def write_trajectory(topology: Path, trajectory: Path) -> None:
    import MDAnalysis as mda
    import numpy as np

    made = mda.Universe.empty(ATOMS, trajectory=True)
    for name, values in {"name": ["CA"] * ATOMS, "resname": ["ALA"], "resid": [1]}.items():
        made.add_TopologyAttr(name, values)
    made.dimensions = [60.0, 60.0, 60.0, 90, 90, 90]
    random = np.random.default_rng(2)
    with mda.Writer(str(trajectory), n_atoms=ATOMS) as writer:
        for _ in range(FRAMES):
            made.atoms.positions = random.uniform(0, 60, (ATOMS, 3))
            writer.write(made.atoms)
    made.atoms.write(str(topology))


def typed(lustre, program: str, behind: str = "") -> str:
    """Runs a program as a user does; `behind` it prints what the test compares."""
    folder, daemon = lustre
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ZAZEN")}
    environment |= {"ZAZEN_SOCKET": str(daemon.socket), "XDG_STATE_HOME": str(folder / "state")}
    text = here(program, folder) + "\n" + behind
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", text],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"
    return done.stdout


#: A library of README's sample -> what the program prints behind it, and what that is.
README = {
    "MDAnalysis": ("print(len(u.trajectory))", str(FRAMES)),
    "torch": ("print(len(list(sampler)), len(d))", "32 1000"),
    "zarr": ("print(sum(group['t'][:]))", str(float(sum(range(64))))),
}


@pytest.mark.parametrize("library", README)
def test_readme_from_what_you_already_have(lustre, library):
    skip_without(library)
    (program,) = blocks("README.md", "Use it from what you already have")
    behind, expected = README[library]
    assert typed(lustre, program, behind).strip() == expected


def test_files(lustre):
    skip_without("fsspec", "zarr", "xarray", "h5py")
    program = (ROOT / "docs/files.md").read_text().split("```python\n", 1)[1].split("```", 1)[0]
    assert typed(lustre, program, "print([bytes(part) for part in parts][:1])").strip() == "[b'\\x89HDF']"


def test_random_access(lustre):
    (program, paths) = blocks("docs/datasets.md", "Any frame, in any order")
    told = typed(
        lustre, f"import zazen\n{program}", "print(d[17].number, len(d), d['cat/img_003.jpg'].number)"
    )
    assert told.strip() == "17 1000 3"
    assert "d.paths(" in paths


def test_h5md(lustre):
    skip_without("h5py")
    import h5py
    import numpy as np

    with h5py.File(lustre[0] / "lustre" / "sim1" / "md.h5md", "w") as file:
        file["particles/all/position/value"] = np.arange(20 * 12, dtype="f4").reshape(20, 4, 3)
    section = (ROOT / "docs/datasets.md").read_text().split("\n### H5MD\n", 1)[1]
    program = "import zazen\n" + section.split("```python\n", 1)[1].split("```", 1)[0]
    assert typed(lustre, program, "print(positions.shape, positions[0, 0])").strip() == "(4, 3) 204.0"


def test_torch(lustre):
    skip_without("torch")
    program = (ROOT / "docs/torch.md").read_text().split("```python\n", 1)[1].split("```", 1)[0]
    assert "range(90)" in program
    decode = "def decode(frame):\n    return len(frame.data)\n"
    program = decode + program.replace("range(90)", "range(2)").replace("\n\n", "\n")
    assert typed(lustre, program, "print(len(batch))").strip() == "8"


def test_mdanalysis(lustre):
    skip_without("MDAnalysis", "mpi4py")
    text = (ROOT / "docs/mdanalysis.md").read_text()
    first, under_mpi, owners = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)[:3]
    program = (
        f"{first}\n{under_mpi}\nfrom mpi4py import MPI\ncomm = MPI.COMM_WORLD\n{owners}\nprint(mine.sum())\n"
    )
    assert typed(lustre, program.replace("\n\n", "\n")).strip() == str(FRAMES)


def test_mdtraj(lustre):
    skip_without("mdtraj", "mpi4py", "MDAnalysis")
    text = (ROOT / "docs/mdanalysis.md").read_text().split("\n## mdtraj\n")[1]
    program = text.split("```python\n", 1)[1].split("```", 1)[0].replace('"top.pdb"', '"top.gro"')
    program = "from mpi4py import MPI\n" + program.replace("\n\n", "\n")
    assert typed(lustre, program, "print(len(chunk), len(frames))").strip() == f"{FRAMES} {FRAMES}"
