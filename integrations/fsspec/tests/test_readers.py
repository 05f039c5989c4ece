"""What zarr, xarray, dask, kerchunk and h5py read through the file system equals what they read
directly."""

import numpy as np
import pytest

pytest.importorskip("fsspec.spec", reason="fsspec is not installed: pip install 'zazen[fsspec]'")

import fsspec


@pytest.fixture
def field():
    return np.random.default_rng(3).normal(size=(64, 48, 32)).astype("f4")


@pytest.fixture
def url(node):
    return {"socket": str(node.socket)}


@pytest.fixture
def zarr_store(backing, field, settle):
    zarr = pytest.importorskip("zarr")
    path = backing / "field.zarr"
    array = zarr.create_array(str(path), shape=field.shape, chunks=(16, 16, 16), dtype="f4")
    array[:] = field
    settle()
    return path


def test_zarr(zarr_store, url, field):
    import zarr

    array = zarr.open(f"zazen://{zarr_store}", mode="r", storage_options=url)
    for part in (np.s_[:], np.s_[3:40, ::5, 7], np.s_[-1]):
        assert np.array_equal(array[part], field[part])
    with pytest.raises(OSError):
        zarr.open(f"zazen://{zarr_store}", mode="r+", storage_options=url)[0, 0, 0] = 1


def test_xarray(backing, url, field, settle):
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("zarr")
    path = backing / "set.zarr"
    made = xarray.Dataset({"field": (("x", "y", "z"), field)}, {"x": np.arange(64)})
    made.to_zarr(str(path))
    settle()
    opened = xarray.open_zarr(f"zazen://{path}", storage_options=url)
    assert opened.identical(xarray.open_zarr(str(path)))
    assert np.array_equal(opened.field.isel(x=slice(3, 40, 5)).values, field[3:40:5])


def test_dask(zarr_store, url, field):
    array = pytest.importorskip("dask.array")
    lazy = array.from_zarr(f"zazen://{zarr_store}", storage_options=url)
    direct = array.from_zarr(str(zarr_store))
    for scheduler in ("threads", "processes"):
        assert (
            lazy.sum(axis=0).compute(scheduler=scheduler).tobytes()
            == direct.sum(axis=0).compute(scheduler=scheduler).tobytes()
        )


@pytest.fixture
def hdf5(backing, field, settle):
    h5py = pytest.importorskip("h5py")
    path = backing / "field.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("field", data=field, chunks=(16, 16, 16))
        file.create_dataset("packed", data=field, chunks=(8, 48, 32), compression="gzip")
    settle()
    return path


def test_h5py(hdf5, fs, field):
    import h5py

    with fs.open(str(hdf5)) as raw, h5py.File(raw, "r") as file:
        for name in ("field", "packed"):
            assert np.array_equal(file[name][:], field)
            assert np.array_equal(file[name][5:60:7, ::3, 4], field[5:60:7, ::3, 4])


def test_kerchunk(hdf5, url, field):
    hdf = pytest.importorskip("kerchunk.hdf")
    zarr = pytest.importorskip("zarr")
    with fsspec.open(f"zazen://{hdf5}", **url) as raw:
        references = hdf.SingleHdf5ToZarr(raw, f"zazen://{hdf5}", inline_threshold=0).translate()
    fs = fsspec.filesystem(
        "reference", fo=references, remote_protocol="zazen", remote_options=url, asynchronous=False
    )
    group = zarr.open(zarr.storage.FsspecStore(_async(fs), path=""), mode="r")
    assert np.array_equal(group["field"][:], field)
    assert np.array_equal(group["packed"][:], field)


def _async(fs):
    from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper

    return fs if fs.async_impl and fs.asynchronous else AsyncFileSystemWrapper(fs, asynchronous=True)
