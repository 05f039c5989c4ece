"""Files read through Zazen's cache, as an fsspec file system.

    import fsspec, zarr
    fs = fsspec.filesystem("zazen")
    zarr.open("zazen:///lustre/field.zarr")

The daemon of the node keeps blocks of the files that were read on the node's disk. A block that is
cached is read from there; any other block is read from the backing store once, however many
processes ask for it. Without a daemon the files are read directly, with the same result.

Paths are the paths of the files. The file system is read-only. ``pip install 'zazen[fsspec]'``
installs it.
"""

from zazen.blocks import BLOCK_BYTES, BlockReader
from zazen.fsspec.file import ZazenFile
from zazen.fsspec.filesystem import ZazenFileSystem

__all__ = ["BLOCK_BYTES", "BlockReader", "ZazenFile", "ZazenFileSystem"]
