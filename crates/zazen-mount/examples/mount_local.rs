//! Mounts a plain directory: `mount_local DIRECTORY MOUNTPOINT [direct]`.
#![allow(clippy::print_stderr)]

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use zazen_mount::Options;
use zazen_mount::local::LocalTree;

fn run(directory: &str, mountpoint: &str, direct: bool) -> zazen_core::Result<()> {
    let tree = LocalTree::new(Path::new(directory))
        .map_err(|error| zazen_core::Error::io(format!("open {directory}"), error))?;
    let options = Options {
        source: directory.into(),
        allow_other: rustix::process::geteuid().is_root(),
        read_only: false,
        passthrough: !direct,
    };
    zazen_mount::mount::serve(Arc::new(tree), Path::new(mountpoint), &options, || {})
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [directory, mountpoint, rest @ ..] = arguments.as_slice() else {
        eprintln!("mount_local DIRECTORY MOUNTPOINT [direct]");
        return ExitCode::from(2);
    };
    match run(directory, mountpoint, !rest.is_empty()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
