"""Zazen's reader as a ParaView plug-in: LoadPlugin(PATH OF THIS FILE, remote=True, ns=globals()).

`python -c 'import zazen.viz; print(zazen.viz.plugin_path())'` prints the path. Every rank of the
server loads it.
"""

import sys
from pathlib import Path

# Behind all that ParaView itself brings: a second VTK must not come in.
_SITE = str(Path(__file__).absolute().parents[2])
if _SITE not in sys.path:
    sys.path.append(_SITE)

from paraview.util.vtkAlgorithm import smdomain, smhint, smproperty, smproxy  # noqa: E402
from zazen.viz.reader import Reader  # noqa: E402

_KINDS = "vtm vtpd vtpc pvtu pvti pvtr pvts pvtp vtkhdf vtu vti vtr vts vtp"
_SERIES = " ".join(f"{kind}.series" for kind in _KINDS.split())
#: What OpenDataFile gives to this reader. Other series, single files and tables stay with
#: ParaView's own.
_EXTENSIONS = f"{_SERIES} pvd vtm vtpd vtpc pvtu pvti pvtr pvts pvtp vtkhdf"
_DESCRIPTION = "Visualization, read where it lies (Zazen)"
_STRATEGIES = ["optimal", "bytes", "sticky", "scarcest", "least-demand", "first-come", "blind", "stock"]


def _choices(names: list[str]) -> str:
    strings = "".join(f"<String value={name!r}/>" for name in names)
    return f'<StringListDomain name="list">{strings}</StringListDomain>'


# ParaView makes the name of the Python function from the label. OpenDataFile takes the first reader
# for a file in the order of their names, so this one's is before those of ParaView's own.
@smproxy.reader(
    name="AZazenReader", label="Zazen Reader", extensions=_EXTENSIONS, file_description=_DESCRIPTION
)
class ZazenReader(Reader):
    """The reader with ParaView's properties."""

    @smproperty.stringvector(name="FileName")
    @smdomain.filelist()
    @smhint.filechooser(extensions=f"{_EXTENSIONS} csv", file_description=_DESCRIPTION)
    def SetFileName(self, path):
        """The index file or pattern."""
        if path and path != "None":
            super().SetFileName(path)

    @smproperty.doublevector(name="TimestepValues", information_only="1", si_class="vtkSITimeStepsProperty")
    def GetTimestepValues(self):
        """The times; ParaView may ask one rank alone, so nothing is opened here."""
        return None if self._opened is None else self._opened.times

    @smproperty.dataarrayselection(name="PointArrays")
    def GetPointArraySelection(self):
        """Which arrays of points are loaded."""
        return super().GetPointArraySelection()

    @smproperty.dataarrayselection(name="CellArrays")
    def GetCellArraySelection(self):
        """Which arrays of cells are loaded."""
        return super().GetCellArraySelection()

    @smproperty.stringvector(name="Strategy", default_values="optimal")
    @smdomain.xml(_choices(_STRATEGIES))
    def SetStrategy(self, strategy):
        """Who reads what."""
        super().SetStrategy(strategy)

    @smproperty.stringvector(name="Locator", default_values="cache")
    def SetLocator(self, locator):
        """What says where files are: cache, none, namespace, table:FILE, or
        hdfs://HOST:PORT/DIRECTORY."""
        super().SetLocator(locator)

    @smproperty.intvector(name="StepsAhead", default_values="1")
    def SetAhead(self, steps):
        """How many steps are fetched in advance."""
        super().SetAhead(steps)

    @smproperty.xml('<Property name="Reload" command="Reload" panel_widget="command_button"/>')
    def Reload(self):
        """Reads the index, and what it names, anew."""
        super().Reload()

    def RequestInformation(self, request, inputs, outputs):
        """Gives the times, once a file is set."""
        return 1 if self._path is None else super().RequestInformation(request, inputs, outputs)
