//! The contract suite on the simulated disk and on the machine's own.

use zazen_env::{RealDisk, SimDisk};
use zazen_store::contract::{DiskMaker, run};

#[test]
fn on_the_simulated_disk() {
    run(|| -> DiskMaker<'static, SimDisk> {
        let disk = SimDisk::new(1, 1 << 30);
        Box::new(move || disk.clone())
    });
}

#[test]
fn on_a_real_disk() {
    let folder = tempfile::tempdir().unwrap();
    let places = std::cell::Cell::new(0);
    run(|| -> DiskMaker<'_, RealDisk> {
        places.set(places.get() + 1);
        let root = folder.path().join(places.get().to_string());
        Box::new(move || RealDisk::new(&root).unwrap())
    });
}
