"""H5MD files of any layout, for the tests."""

import h5py
import numpy as np

ATOMS, FRAMES = 700, 23


def write(path, libver=None, frames=FRAMES, written=FRAMES, atoms=ATOMS, **layout):
    """An H5MD file of random walks; of `frames` frames the first `written` have been written."""
    rng = np.random.default_rng(11)
    with h5py.File(path, "w", libver=libver) as file:
        file.create_group("h5md").attrs["version"] = [1, 1]
        group = file.create_group("particles/all")
        box = group.create_group("box")
        box.attrs["dimension"], box.attrs["boundary"] = 3, ["periodic"] * 3
        step, time = np.arange(frames) * 10, np.arange(frames) * 0.5
        edges = np.array([[40.0 + n, 50.0, 60.0] for n in range(frames)], dtype=np.float32)
        for name, values, unit in (
            ("box/edges", edges, "Angstrom"),
            ("position", None, "Angstrom"),
            ("velocity", None, "Angstrom ps-1"),
        ):
            element = group.create_group(name)
            element["step"], element["time"] = step, time
            element["time"].attrs["unit"] = "ps"
            if values is None:
                data = element.create_dataset("value", (frames, atoms, 3), "f4", **layout)
                for n in range(written):
                    data[n] = rng.normal(size=(atoms, 3)).astype("f4")
            else:
                element["value"] = values
            element["value"].attrs["unit"] = unit
    return path
