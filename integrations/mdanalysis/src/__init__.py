"""MDAnalysis reads trajectories through Zazen.

Import it, and MDAnalysis knows names that begin with ``zazen:``::

    import MDAnalysis as mda, zazen.mdanalysis

    u = mda.Universe("top.gro", "zazen:/lustre/sim1/md.xtc")

The trajectory is an XTC, TRR, DCD, AMBER NetCDF or H5MD file, or a directory of numbered files with
one frame each (of these formats, or of any other that MDAnalysis reads). Frames come from the disk
of this node if they are there, else from the backing store. Results are those of MDAnalysis's own
readers, bit for bit. A frame that can't be read raises ``zazen.mdanalysis.ReadError``, and never
ends a loop silently.

Under MPI each rank reads the frames that its node holds, and all ranks get the results::

    rms.RMSF(u.select_atoms("name CA")).run(backend=zazen.mdanalysis.MPI())
"""

from __future__ import annotations

from zazen.mdanalysis._mpi import MPI
from zazen.mdanalysis._reader import ReadError, ZazenReader

__all__ = ["MPI", "ReadError", "ZazenReader"]
