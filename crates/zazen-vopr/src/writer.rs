//! A writer: a simulation's frames to come, and its connections.

use crate::calls::{Incoming, Reply};
use crate::content::FrameId;
use crate::node::Skewed;
use crate::profile::Profile;
use crate::scheduler::MS;
use std::collections::BTreeMap;
use zazen_core::FrameNo;
use zazen_env::SeededRandom;
use zazen_push::{Config, OnSlow, Writer};

/// A writer and its connections.
pub(crate) struct WriterSim {
    pub(crate) writer: Writer,
    pub(crate) time: Skewed,
    /// This writer's host.
    pub(crate) host: usize,
    /// The frames that it has yet to write, the next one last.
    pub(crate) plan: Vec<FrameId>,
    /// Versions of the frames in flight. The machine knows frames by number: one dataset at a time
    /// has a number.
    pub(crate) flights: BTreeMap<FrameNo, (FrameId, u32)>,
    /// Connections that wait for a reply.
    pub(crate) calls: BTreeMap<u64, Sending>,
    /// Connections that wait for a call: (node, connection).
    pub(crate) idle: Vec<(usize, u64)>,
    pub(crate) replies: BTreeMap<u64, (Incoming, Reply)>,
    pub(crate) next_call: u64,
}

/// A frame on its way to a node.
pub(crate) struct Sending {
    pub(crate) call: u64,
    pub(crate) frame: FrameNo,
    pub(crate) node: usize,
    /// When it was sent, in the world's time.
    pub(crate) sent_ns: u64,
}

impl WriterSim {
    pub(crate) fn new(at: usize, profile: &Profile, random: &mut SeededRandom) -> WriterSim {
        let config = Config {
            nodes: profile.nodes,
            window_frames: 1 + random.below(8) as usize,
            window_bytes: 40_000 + random.below(200_000),
            on_slow: if random.percent(50) { OnSlow::Skip } else { OnSlow::Block },
            retries: random.below(4) as u32,
            backoff_min_ns: 100 * MS,
            backoff_max_ns: 2_000 * MS,
            pass_over_after: 0,
        };
        // Writers share datasets, never frames.
        let all = (0..profile.datasets)
            .flat_map(|dataset| (0..profile.frames).map(move |number| (dataset, number)));
        let mine = all.filter(|(_, number)| *number as usize % profile.writers == at);
        let mut plan: Vec<FrameId> = mine.map(|(dataset, number)| FrameId { dataset, number }).collect();
        if profile.rewrites {
            for _ in 0..plan.len() / 3 {
                let again = plan[random.below(plan.len() as u64) as usize];
                plan.push(again);
            }
        }
        plan.reverse();
        WriterSim {
            writer: Writer::new(config, random.next_u64()),
            time: Skewed::new(random.below(profile.skew_ns + 1), random.below(2_001) as i64 - 1_000),
            host: profile.nodes + at,
            plan,
            flights: BTreeMap::new(),
            calls: BTreeMap::new(),
            idle: Vec::new(),
            replies: BTreeMap::new(),
            next_call: 0,
        }
    }

    /// Frames whose fate is open.
    pub(crate) fn in_flight(&self) -> usize {
        self.writer.in_flight()
    }
}
