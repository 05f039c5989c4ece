"""MDAnalysis's own contract for readers of trajectories with several frames, for each format."""

import pytest

pytest.importorskip("MDAnalysis", reason="no MDAnalysis: pip install 'zazen[mdanalysis]'")
pytest.importorskip(
    "MDAnalysisTests", reason="the contract is in another package: pip install MDAnalysisTests"
)

import MDAnalysis as mda
from MDAnalysis.coordinates import DCD, H5MD, TRJ, TRR, XTC
from MDAnalysisTests.coordinates.base import MultiframeReaderTest
from MDAnalysisTests.coordinates.test_dcd import DCDReference
from MDAnalysisTests.coordinates.test_h5md import H5MDReference
from MDAnalysisTests.coordinates.test_xdr import TRRReference, XTCReference
from MDAnalysisTests.datafiles import COORDINATES_DCD
from zazen.mdanalysis import ZazenReader


def through_zazen(reference):
    reference.trajectory = f"zazen:{reference.trajectory}"
    reference.reader = ZazenReader
    return reference


class Contract(MultiframeReaderTest):
    @pytest.fixture
    def reader(self, ref):
        """As the contract has it; and closed, because many open datasets are many connections."""
        reader = ref.reader(ref.trajectory)
        reader.add_auxiliary("lowf", ref.aux_lowf, dt=ref.aux_lowf_dt, initial_time=0, time_selector=None)
        reader.add_auxiliary("highf", ref.aux_highf, dt=ref.aux_highf_dt, initial_time=0, time_selector=None)
        yield reader
        reader.close()


class TestXtc(Contract):
    @pytest.fixture
    def ref(self):
        reference = through_zazen(XTCReference())
        assert reference.writer is XTC.XTCWriter
        return reference


class TestTrr(Contract):
    @pytest.fixture
    def ref(self):
        reference = through_zazen(TRRReference())
        assert reference.writer is TRR.TRRWriter
        return reference


class TestDcd(Contract):
    @pytest.fixture
    def ref(self):
        reference = through_zazen(DCDReference())
        reference.ext = "dcd"
        assert reference.writer is DCD.DCDWriter
        return reference


class TestH5md(Contract):
    @pytest.fixture
    def ref(self):
        pytest.importorskip("h5py", reason="no h5py: pip install 'zazen[mdanalysis]'")
        reference = through_zazen(H5MDReference())
        assert reference.writer is H5MD.H5MDWriter
        return reference


@pytest.fixture(scope="module")
def netcdf_file(tmp_path_factory):
    """The contract's trajectory as NetCDF; MDAnalysis's tests have none."""
    path = tmp_path_factory.mktemp("n") / "test.nc"
    universe = mda.Universe(COORDINATES_DCD)
    with TRJ.NCDFWriter(str(path), n_atoms=len(universe.atoms)) as writer:
        for _ in universe.trajectory:
            writer.write(universe.atoms)
    return path


class TestNetcdf(Contract):
    @pytest.fixture
    def ref(self, netcdf_file):
        reference = DCDReference()
        reference.trajectory, reference.writer, reference.ext = netcdf_file, TRJ.NCDFWriter, "nc"
        return through_zazen(reference)
