"""`zazen.decoders` meets damaged bytes: a frame or a CorruptError, and no memory beyond the
input's."""

import random
import struct

import pytest
import zazen

pytest.importorskip("MDAnalysis", reason="no MDAnalysis: pip install 'zazen[mdanalysis]'")

import MDAnalysis as mda
import numpy as np
import zazen.decoders
from MDAnalysis.coordinates.TRJ import NCDFWriter
from zazen.decoders.netcdf import NetcdfHeader

SEED = random.randrange(1 << 32)


def one_frame(tmp_path, ending):
    """A file of one frame of 30 atoms with all that its format can hold."""
    universe = mda.Universe.empty(30, trajectory=True, velocities=True, forces=True)
    rng = np.random.default_rng(5)
    universe.atoms.positions = rng.uniform(0, 30, (30, 3))
    universe.atoms.velocities = rng.normal(0, 1, (30, 3))
    universe.atoms.forces = rng.normal(0, 9, (30, 3))
    universe.dimensions = [30, 31, 32, 80, 90, 100]
    path = tmp_path / f"one.{ending}"
    if ending == "nc":
        with NCDFWriter(str(path), 30, velocities=True, forces=True, scale_velocities=20.455) as writer:
            writer.write(universe.atoms)
    else:
        universe.atoms.write(str(path), frames="all")
    return universe, path.read_bytes()


def split(ending, data):
    """Header and frame."""
    if ending == "dcd":
        length = zazen.decoders.decoder("dcd", data).header_bytes
    else:
        length = NetcdfHeader(memoryview(data)).header_bytes if ending == "nc" else 0
    return data[:length], data[length:]


def decode(ending, header, frame):
    decoder = zazen.decoders.decoder({"nc": "ncdf"}.get(ending, ending), header, frame)
    assert decoder.n_atoms <= 8 * (len(header) + len(frame)), "memory that the input does not justify"
    positions = np.empty((decoder.n_atoms, 3), dtype=np.float32)
    decoder.decode(frame, positions)
    return positions


@pytest.mark.parametrize("ending", ["xtc", "trr", "dcd", "nc"])
def test_damage_is_an_error_or_a_frame(tmp_path, ending):
    universe, data = one_frame(tmp_path, ending)
    header, frame = split(ending, data)
    factor = 10 if ending in ("xtc", "trr") else 1
    positions = decode(ending, header, frame) * factor
    assert np.allclose(positions, universe.atoms.positions, atol=0.006)
    for cut in range(len(frame)):
        with pytest.raises(zazen.CorruptError):
            decode(ending, header, frame[:cut])
    for cut in range(len(header)):
        with pytest.raises(zazen.CorruptError):
            decode(ending, header[:cut], frame)
    with pytest.raises(zazen.CorruptError):
        decode(ending, header, frame + b"\0\0\0\0")
    rng = random.Random(SEED)
    for _ in range(3000):
        bad = bytearray(data)
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(bad) - 4)
            bad[at : at + 4] = rng.choice(
                [rng.randbytes(4), b"\xff" * 4, b"\0" * 4, struct.pack(">i", 1 << 30)]
            )
        try:
            decode(ending, bytes(bad[: len(header)]), bytes(bad[len(header) :]))
        except zazen.CorruptError:
            continue
        except Exception as error:
            raise AssertionError(f"seed {SEED}") from error


def test_headers_of_dcd(tmp_path):
    _, data = one_frame(tmp_path, "dcd")
    header, frame = split("dcd", data)
    expected = decode("dcd", header, frame)
    # Only 1 says that there is a fourth dimension, as `zazen.open` and MDAnalysis take it.
    other = header[:52] + struct.pack("<i", 2) + header[56:]
    assert np.array_equal(decode("dcd", other, frame), expected)
    with pytest.raises(zazen.CorruptError, match="velocities"):
        decode("dcd", header.replace(b"CORD", b"VELD", 1), frame)


def test_ranges_beyond_64_bits(tmp_path):
    """XTC frames whose three ranges need more than 64 bits together; molly writes them wrongly."""
    from MDAnalysis.lib.formats.libmdaxdr import XTCFile

    rng = np.random.default_rng(8)
    for scale in (10, 2_000, 8_000, 50_000):
        cluster = rng.uniform(-scale, scale, (50, 1, 3)) + rng.normal(0, 0.1, (50, 4, 3))
        positions = cluster.reshape(-1, 3).astype(np.float32)
        path = tmp_path / "far.xtc"
        with XTCFile(str(path), "w") as file:
            file.write(positions, np.eye(3, dtype=np.float32), 0, 0.0, 1000.0)
        with XTCFile(str(path)) as file:
            expected = file.read().x
        assert np.abs(expected - positions).max() < max(0.001, scale / 1e6)
        assert np.array_equal(decode("xtc", b"", path.read_bytes()), expected), scale


def test_atoms_far_from_each_other(tmp_path):
    """XTC frames whose atoms are all farther apart than the largest size of a difference: writers
    take the size index beyond their table. What they take for its size is whatever lies there in
    memory. These atoms are farther apart than half of any such number, so no difference is stored.
    """
    from MDAnalysis.lib.formats.libmdaxdr import XTCFile

    positions = np.zeros((40, 3), dtype=np.float32)
    positions[:, 0] = np.arange(40) % 2 * 1_200_000 - 600_000 + np.arange(40)
    path = tmp_path / "far.xtc"
    with XTCFile(str(path), "w") as file:
        for step in range(3):
            file.write(positions, np.eye(3, dtype=np.float32), step, step, 1000.0)
    data = path.read_bytes()
    assert struct.unpack(">i", data[84:88]) == (73,)
    with XTCFile(str(path)) as file:
        expected = file.read().x
    with zazen.open(path, direct=True) as dataset:
        frames = [bytes(dataset[number].data) for number in range(len(dataset))]
    assert len(frames) == 3 and b"".join(frames) == data
    assert np.array_equal(decode("xtc", b"", frames[0]), expected)


def test_memory_is_refused_for_atoms_that_cannot_be_there(tmp_path):
    _, data = one_frame(tmp_path, "xtc")
    bad = bytearray(data)
    bad[4:8] = bad[52:56] = struct.pack(">i", (1 << 31) - 1)
    with pytest.raises(zazen.CorruptError, match="2147483647 atoms"):
        zazen.decoders.decoder("xtc", b"", bytes(bad))


def test_arrays_of_another_kind_are_refused(tmp_path):
    _, data = one_frame(tmp_path, "xtc")
    from zazen import _zazen

    for positions in (np.empty((30, 3)), np.empty((30, 3), "i4"), np.empty((3, 30), "f4").T, bytes(360)):
        with pytest.raises((ValueError, BufferError)):
            _zazen._xtc_decode(data, positions, 1.0)
    frozen = np.empty((30, 3), dtype=np.float32)
    frozen.flags.writeable = False
    with pytest.raises((ValueError, BufferError)):
        _zazen._xtc_decode(data, frozen, 1.0)
    with pytest.raises((ValueError, BufferError)):
        _zazen._xtc_decode(memoryview(data)[::2], np.empty((30, 3), "f4"), 1.0)
