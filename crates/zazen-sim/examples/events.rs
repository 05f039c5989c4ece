//! What an event costs: runs a workload and prints events per CPU second.
//!
//! ```text
//! cargo run --release -p zazen-sim --example events -- [WORKLOAD] [NODES] [FIDELITY]
//! ```
#![allow(clippy::print_stdout)]

use std::ops::ControlFlow;
use zazen_sim::{Cluster, Job, workloads};

/// CPU time of this process so far.
fn cpu_s() -> f64 {
    let text = std::fs::read_to_string("/proc/self/schedstat").expect("Linux");
    text.split(' ').next().and_then(|ns| ns.parse::<f64>().ok()).expect("nanoseconds on a CPU") / 1e9
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().unwrap_or_else(|| "fusionfs".to_owned());
    let nodes = arguments.next().map_or(2_000_376, |text| text.parse().expect("a number of nodes"));
    let fidelity = arguments.next().unwrap_or_else(|| "path".to_owned());
    let job = Job {
        name: name.clone(),
        nodes,
        ranks_per_node: 1,
        network: "torus".to_owned(),
        fidelity: fidelity.parse().expect("a fidelity"),
        seed: 1,
        cluster: Cluster::intrepid(),
        work: (workloads::named(&name).expect("a workload").work)(nodes),
    };
    let began = cpu_s();
    let outcome = zazen_sim::run(&job, &mut |_| ControlFlow::Continue(())).expect("runs").expect("ends");
    let spent = cpu_s() - began;
    println!(
        "{name} at {nodes} nodes, {fidelity}: {} events in {spent:.2} CPU-s, {:.2} M a CPU-second, \
         trace {:016x}",
        outcome.events,
        outcome.events as f64 / spent / 1e6,
        outcome.trace_hash
    );
}
