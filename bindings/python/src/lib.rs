//! `zazen._zazen`, the Python package's native module.
//!
//! Invariants: the interpreter's lock is released whenever a call may wait (disk, daemon, other
//! ranks). A frame's bytes are never copied on their way to Python, and live as long as any view of
//! them. Every error is an exception of the tree made from [`zazen_core::error::ERROR_TABLE`].

mod carrier;
mod dataset;
mod errors;
mod frame;
mod namespace;
mod notices;
mod numbers;
mod paths;
mod random;
mod runset;
mod scenario;
mod trajectory;
mod viz;
mod writer;
mod xtc;

use pyo3::prelude::*;

#[pymodule(gil_used = true)]
fn _zazen(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    for exception in errors::tree(py)? {
        module.add(exception.bind(py).name()?, exception)?;
    }
    notices::install(module)?;
    module.add_class::<runset::PyRunSet>()?;
    module.add_class::<frame::PyFrame>()?;
    module.add_class::<frame::FramePath>()?;
    module.add_function(wrap_pyfunction!(frame::remove_frame_files, module)?)?;
    module.add_class::<dataset::PyDataset>()?;
    module.add_class::<dataset::PyFrames>()?;
    module.add_class::<paths::PyPaths>()?;
    module.add_class::<dataset::PyReadStats>()?;
    module.add_class::<trajectory::PyTrajectory>()?;
    module.add_class::<dataset::PyAssignment>()?;
    module.add_class::<writer::PyWriter>()?;
    module.add_class::<writer::PyCounters>()?;
    module.add_function(wrap_pyfunction!(dataset::open, module)?)?;
    module.add_function(wrap_pyfunction!(dataset::_open_same, module)?)?;
    module.add_function(wrap_pyfunction!(xtc::xtc_atoms, module)?)?;
    module.add_function(wrap_pyfunction!(xtc::xtc_decode, module)?)?;
    module.add_function(wrap_pyfunction!(scenario::scenario_json, module)?)?;
    module.add_function(wrap_pyfunction!(viz::match_json, module)?)?;
    module.add_function(wrap_pyfunction!(viz::index_json, module)?)?;
    module.add_function(wrap_pyfunction!(viz::locate_json, module)?)?;
    module.add_function(wrap_pyfunction!(viz::fetch_remote, module)?)?;
    module.add_function(wrap_pyfunction!(viz::namespace_descriptor, module)?)?;
    module.add_function(wrap_pyfunction!(viz::hdfs_blocks_json, module)?)?;
    module.add_function(wrap_pyfunction!(viz::hdfs_descriptor, module)?)?;
    module.add_function(wrap_pyfunction!(viz::place_json, module)?)?;
    module.add_function(wrap_pyfunction!(viz::match_files, module)?)?;
    module.add_class::<namespace::PyNamespaceLink>()?;
    module.add_class::<namespace::PyNamespaceFile>()?;
    module.add_function(wrap_pyfunction!(namespace::namespace_errors, module)?)?;
    module.add_function(wrap_pyfunction!(carrier::check_launcher, module)?)?;
    module.add_function(wrap_pyfunction!(carrier::is_launched, module)?)?;
    module.add_function(wrap_pyfunction!(carrier::check_world, module)?)?;
    module.add_function(wrap_pyfunction!(carrier::mpi_library, module)?)?;
    module.add_class::<carrier::CarrierProbe>()?;
    Ok(())
}
